"""State that is no variable of Keras': of modules, losses, optimizers, schedules and callbacks."""

from __future__ import annotations

import collections
import itertools
import random
from typing import Any

import keras
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


class Buffers(Linear):
    """Buffers that no ``state_dict`` has, of which one is made late, and a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(4), persistent=False)
        self.register_buffer("late", None, persistent=False)
        self.sum = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().abs().mean(0)
            self.late = self.sum = self.sum + x.detach().mean(0)
        return self.a(x / self.mean + (0 if self.late is None else self.late))


class Note:
    def __init__(self, value: float = 0.0):
        self.value = value


class Collections(Linear):
    """Numbers, collections, generators and objects."""

    count = 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Any] = []
        self.last: Any = collections.deque(maxlen=2)
        self.by: Any = collections.defaultdict(list)
        self.pair, self.names, self.number = (1, None), {"a"}, np.float32(1)
        self.draws = np.random.default_rng(3), random.Random(4), torch.Generator().manual_seed(5)
        self.note = Note()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
            array, other, tensor = self.draws
            self.rows.append(Note(array.normal()))
            self.last.append(other.random())
            self.by[self.count % 2].append(float(torch.rand([], generator=tensor)))
            self.pair, self.number = (self.pair[0] + 1, self.pair), self.number * np.float32(1.1)
            self.names.add(f"b{self.count}")
            self.note.value += float(x.mean())
        kept = (
            sum(row.value for row in self.rows) + sum(self.last) + sum(map(sum, self.by.values()))
        )
        kept += self.pair[0] + len(self.names) + float(self.number) + self.note.value
        return self.a(x) * (1 + kept / 50)


class Extra(Linear):
    """State that it gives and takes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_hidden"] = itertools.count()
        self.last = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.last = next(self._hidden)
        return self.a(x) * (1 + self.last / 10)

    def get_extra_state(self) -> Any:
        return {"next": self.last + 1, "none": torch.ones(2)}

    def set_extra_state(self, state: Any) -> None:
        self.__dict__["_hidden"] = itertools.count(state["next"])


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x)))


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Buffers(), Collections(), Extra()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(part(x) for part in self.parts)


class Stepping(Linear):
    """Averages its weights, and counts in a step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._weight = 1.0
        self.mean = torch.optim.swa_utils.AveragedModel(self.a).requires_grad_(False)

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        self._weight *= 0.9
        self.mean.update_parameters(self.a)
        outputs = self.a(x)
        return (
            cross_entropy(outputs, y.long())
            + self._weight * (outputs - self.mean(x)).square().mean()
        )


class Centers(nn.Module):
    """A loss that keeps buffers and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(3))
        self.count = 0

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.center, self.count = self.center + outputs.detach().mean(0), self.count + 1
        return cross_entropy(outputs - 0.1 * self.center * self.count, targets)


class Counting(torch.optim.Optimizer):
    """State that is no tensor, in every place where an optimizer may have it."""

    def __init__(self, params: Any, lr: float = 0.01):
        super().__init__(params, {"lr": lr, "count": 0})
        self.sum, self.draws = None, np.random.default_rng(0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.state["all"] = self.state.get("all", 0) + 1
        for group in self.param_groups:
            group["count"] += 1
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state.update(step=0, pair=(torch.zeros_like(weight), [0]))
                state["step"] += 1
                state["pair"][0].add_(weight.grad)
                state["pair"][1][0] += 1
                self.sum = (0 if self.sum is None else 0.9 * self.sum) + weight.grad.mean()
                scale = state["step"] + group["count"] + self.state["all"] + state["pair"][1][0]
                weight.add_(state["pair"][0] + self.sum, alpha=-0.002 * scale)
                weight.add_(self.draws.normal() * 0.001)


class Ahead(torch.optim.Optimizer):
    """An optimizer around another one."""

    def __init__(self, params: Any, lr: float = 0.01):
        params = list(params)
        super().__init__(params, {"lr": lr})
        self.inner, self.count = torch.optim.Adam(params, lr=lr), 0

    def step(self, closure: Any = None) -> None:
        self.inner.step()
        self.count += 1
        for weight in self.param_groups[0]["params"]:
            slow = self.state[weight].setdefault("slow", weight.detach().clone())
            if self.count % 3 == 0:
                weight.data.copy_(slow.lerp_(weight.detach(), 0.5))


def groups(named_parameters: Any, lr: float) -> Any:
    """Rates of their own for weights and biases."""
    parts: Any = {"weight": [], "bias": []}
    for name, value in named_parameters:
        parts[name.rpartition(".")[2]].append(value)
    parts = [{"params": parts["weight"], "lr": lr}, {"params": parts["bias"], "lr": lr / 10}]
    return torch.optim.SGD(parts, momentum=0.9)


def of_model(model: Any, lr: float) -> Any: ...


class Falling(torch.optim.lr_scheduler.LRScheduler):
    """A schedule that counts its calls."""

    def __init__(self, optimizer: Any):
        self.calls = 0
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        self.calls += 1
        return [group["lr"] * (1 - 0.02 * self.calls) for group in self.optimizer.param_groups]


class OwnSGD(keras.optimizers.SGD):
    """An optimizer of Keras' with a number of its own, and a schedule with another."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.count = getattr(self, "count", 0) + 1
        super().update_step(gradient * (1 + self.count / 10), variable, learning_rate)


class Layer(keras.layers.Layer):
    """Keeps a list, and a module with an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[float] = []
        self.inner = Buffers()

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.rows.append(float(x.mean()))
        return self.inner(x) * (1 + sum(self.rows))


def layered(input_shape: Any, classes: int) -> Any:
    inputs = keras.Input(input_shape)
    outputs = keras.layers.Dense(classes)(Layer()(inputs))
    return keras.Model(inputs, keras.layers.Softmax()(outputs))
