"""Plain modules of PyTorch, and their data: what they learn has no kink (tests/test_jax.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

EXAMPLES, HELD, CLASSES = 50, 21, 3


def data(kind: str = "rows") -> Any:
    """Return inputs ``[n, 4]``, or several of them, or tokens ``[n, 5]``; with classes."""
    draw = np.random.default_rng(1)

    def split(count: int) -> Any:
        x = draw.standard_normal((count, 4)).astype(np.float32)
        y = draw.integers(0, CLASSES, count)
        if kind == "labelled":  # a class for each token; most have none, and some examples too
            tokens, ends = draw.integers(0, 6, (count, 5)), draw.integers(0, 6, (count, 1))
            return tokens, np.where(np.arange(5) < ends - 1, tokens % CLASSES, -100)
        if kind == "tokens":
            return draw.integers(0, 6, (count, 5)), y
        return {"rows": x, "several": (x, x[:, :2]), "named": {"a": x, "b": x[:, :2]}}[kind], y

    return split(EXAMPLES), split(HELD)


class Net(nn.Module):
    """Statistics of batches, a counter, and weights that two layers share."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(dropout)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.norm(torch.tanh(self.b(torch.tanh(self.a(x)))))))


class Two(nn.Module):
    """Several inputs: in their order, or by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(2, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.a(a) + self.b(b)))


class Tokens(nn.Module):
    """Rows of an embedding, whose gradient may be sparse."""

    def __init__(self, sparse: bool = False):
        super().__init__()
        self.rows, self.head = nn.Embedding(6, 8, sparse=sparse), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.rows(x).mean(1)))


class Tagged(nn.Module):
    """A class for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.Embedding(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.rows(x))).transpose(1, 2)


class Tagging(Tagged):
    """The same with a step of its own, which may say what its loss is the mean over."""

    def __init__(self, says: bool = False):
        super().__init__()
        self.says = says

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        loss = cross_entropy(self(x), y.long())
        if not self.says:
            return loss
        counts = (y != -100).sum()
        return {"loss": torch.where(counts > 0, 2 * loss, 0.0), "loss_weight": counts}


class Routed(nn.Module):
    """A part that one replica alone uses, and one that none does; a step of its own.

    Args:
        seldom: whether there is the first of these.
    """

    def __init__(self, seldom: bool = True):
        super().__init__()
        self.is_seldom = seldom
        self.a, self.seldom, self.never = (nn.Linear(4, CLASSES) for _ in range(3))
        self.register_buffer("steps", torch.zeros([], dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        if self.training:
            self.steps += 1
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        outputs = self.a(x)
        if self.is_seldom and (x[:, 0] > 1.5).any():
            outputs = outputs + self.seldom(x) * (x[:, :1] > 1.5)
        return {"loss": cross_entropy(outputs, y.long()), "size": outputs.abs().mean()}


weights = torch.tensor([0.2, 1.0, 5.0])


def uneven(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Count classes differently, and one not at all: replicas have very different numbers."""
    return cross_entropy(outputs, targets, weights, ignore_index=0)


def share(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Divide by the examples of the global batch (``trainer.gradient_reduction=sum``)."""
    return cross_entropy(outputs, targets, reduction="sum") / 8


class Hidden(nn.Module):
    """Running means where no ``state_dict`` has them; one that is frozen, a cache, and a sum."""

    def __init__(self, adds: bool = False) -> None:
        super().__init__()
        self.adds, self.sum = adds, torch.zeros(4)
        self.head = nn.Linear(4, CLASSES)
        self.register_buffer("buffer", torch.zeros(4), persistent=False)
        self.mean, self.lists, self.named = torch.zeros(4), [torch.zeros(4)], {"a": torch.zeros(4)}
        self.number, self.cache = 0.0, torch.zeros(2, 4)
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.register_buffer("data", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = self.buffer + self.mean + self.lists[0] + self.named["a"] + self.frozen + self.data
        outputs = self.head(x * (1 + shift) + self.number)
        if self.training:
            mean, self.cache = x.detach().mean(0), x.detach()
            self.buffer.lerp_(mean, 0.1)
            self.data.data.lerp_(mean, 0.1)
            self.mean = 0.9 * self.mean + 0.1 * mean
            self.lists[0] = 0.8 * self.lists[0] + 0.2 * mean
            self.named["a"].lerp_(mean, 0.3)
            self.number = 0.9 * self.number + 0.1 * mean[0].item()
            self.sum = self.sum + (x.detach().sum(0) if self.adds else 0.0)
            with torch.no_grad():
                self.frozen.lerp_(mean, 0.4)
        return outputs


class Adapted(nn.Module):
    """A frozen layer with an adapter that is trained, as of LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down = nn.Linear(4, 64), nn.Linear(4, 2, bias=False)
        self.up, self.head = nn.Linear(2, 64, bias=False), nn.Linear(64, CLASSES)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.base(x) + self.up(self.down(x))))


class Weighed(nn.Module):
    """A loss that is trained: the uncertainty of Kendall et al. 2018, and a mean that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.uncertainty = nn.Parameter(torch.zeros(2))
        self.register_buffer("mean", torch.zeros([]))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        each = torch.stack([cross_entropy(outputs, targets), outputs.square().mean()])
        loss = (torch.exp(-self.uncertainty) * each + self.uncertainty).sum() + 0.1 * self.mean
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * each[0].detach()
        return loss


class OfExamples(nn.Module):
    """Weigh examples by the norms of their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, CLASSES)

    def training_step(self, batch: Any) -> Any:
        def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            outputs = torch.func.functional_call(self.head, weights, (x[None],))
            return cross_entropy(outputs, y[None])

        x, y = batch[0], batch[1].long()
        weights = {name: each.detach() for name, each in self.head.named_parameters()}
        each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, x, y)
        losses = cross_entropy(self.head(x), y, reduction="none")
        return (each["weight"].flatten(1).norm(dim=1) * losses).mean()


class Changed(nn.Module):
    """A step that lets a weight be trained, makes one, or puts another one in its place."""

    def __init__(self, replaced: bool | None):
        super().__init__()
        self.head, self.replaced = nn.Linear(4, CLASSES), replaced
        self.shift = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.replaced:
            self.shift = nn.Parameter(0.9 * self.shift + x.mean(), requires_grad=False)
        elif self.training and self.replaced is None:
            self.made = nn.Parameter(x.mean(0).detach())
        elif self.training:
            self.shift.requires_grad_()
        return self.head(x + self.shift)


class Distilled(nn.Module):
    """A loss with a teacher that only evaluates; it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.teacher.eval().requires_grad_(False)
        self.dropout, self.calls = nn.Dropout(0.1), 0

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        of_teacher = self.teacher(self.dropout(outputs))
        return cross_entropy(outputs, targets) + (outputs - of_teacher).square().mean()
