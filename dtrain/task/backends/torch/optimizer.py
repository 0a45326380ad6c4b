"""Optimizers and schedules of ``torch.optim``, as the rest of a task sees an optimizer.

Slots are found by the names of their weights, and not by numbers, as in ``state_dict`` of an
optimizer. A schedule is a function of the number of updates: where a run continues, it is stepped
as often as before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import torch

from dtrain.config import targets
from dtrain.errors import UsageError
from dtrain.task.model.optimizers import LateSlots


def _each(parameters: list[torch.Tensor], limit: float) -> None:
    for parameter in parameters:
        torch.nn.utils.clip_grad_norm_(parameter, limit)


#: By arguments of Keras' optimizers (:data:`dtrain.config.names.CLIPS`), what clips gradients.
CLIPS: dict[str, Callable[[list[torch.Tensor], float], Any]] = {
    "clipnorm": _each,
    "global_clipnorm": torch.nn.utils.clip_grad_norm_,
    "clipvalue": torch.nn.utils.clip_grad_value_,
}


class _Number:
    """A number of an optimizer, as its variables are used.

    Args:
        path: its name.
        read, write: get and set it.
    """

    shape = ()

    def __init__(self, path: str, read: Callable[[], float], write: Callable[[float], None]):
        self.path, self._read, self._write = path, read, write

    @property
    def value(self) -> np.ndarray:
        """What it is."""
        return np.asarray(self._read(), np.float64)

    def assign(self, value: Any) -> None:
        """Set it."""
        self._write(float(np.asarray(value)))


class _Slot:
    """A tensor that an optimizer keeps for a weight."""

    def __init__(self, path: str, tensor: torch.Tensor):
        self.path, self.value, self.shape = path, tensor, tuple(tensor.shape)

    @torch.no_grad()
    def assign(self, value: Any) -> None:
        """Set it."""
        self.value.copy_(torch.as_tensor(np.asarray(value)))


class TorchOptimizer(keras.optimizers.Optimizer, LateSlots):
    """An optimizer of PyTorch's.

    Args:
        make: from parameters to the optimizer.
        schedule: from the optimizer to its schedule, which is stepped after each update; None: the
            rate is constant.
        clips: limits of gradients, by names of :data:`CLIPS`.
    """

    def __init__(
        self,
        make: Callable[[Any], Any],
        schedule: Callable[[Any], Any] | None,
        clips: Mapping[str, float],
    ):
        super().__init__(learning_rate=0.0, name="torch")
        self._make, self._make_schedule, self._clips = make, schedule, clips
        self._weights: list[keras.Variable] = []
        self._updates = 0
        object.__setattr__(self, "inner", None)

    def build(self, variables: list[keras.Variable]) -> None:
        """Make the optimizer of these weights.

        Raises:
            UsageError: it calls the loss itself.
        """
        self._weights = list(variables)
        object.__setattr__(self, "inner", self._make([variable.value for variable in variables]))
        if isinstance(self.inner, torch.optim.LBFGS):
            raise UsageError(
                "optimizer", "LBFGS", "calls the loss several times for an update",
                "an optimizer of gradients", "optimizer._target_=torch.optim.AdamW",
            )  # fmt: skip
        make = self._make_schedule
        self._schedule = None if make is None else make(self.inner)
        self.built = True

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the next update."""
        groups = [] if self.inner is None else self.inner.param_groups
        return np.float64(groups[0]["lr"]) if groups else np.float64(0)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._set_rate(float(np.asarray(value)))

    def _set_rate(self, rate: float) -> None:
        for group in self.inner.param_groups if vars(self).get("inner") is not None else ():
            group["lr"] = rate

    @property
    def iterations(self) -> int:
        """How many updates there were."""
        return self._updates

    def _set_updates(self, count: float) -> None:
        """Let the schedule be where it is after so many updates."""
        self._updates = int(count)
        if self._schedule is not None:
            with warnings.catch_warnings():  # PyTorch wants an update before each step of it
                warnings.simplefilter("ignore")
                while self._schedule.last_epoch < self._updates:
                    self._schedule.step()

    @property
    def variables(self) -> list[Any]:
        """The numbers and the slots, once they are there."""
        if self.inner is None:
            return []
        numbers = [_Number("iteration", lambda: self._updates, self._set_updates)]
        if self._schedule is None:
            rate = _Number("learning_rate", lambda: float(self.learning_rate), self._set_rate)
            numbers.append(rate)
        return [*numbers, *self._slots()]

    def _slots(self) -> Iterator[_Slot]:
        for weight in self._weights:
            for name, value in self.inner.state.get(weight.value, {}).items():
                if isinstance(value, torch.Tensor):
                    yield _Slot(f"{weight.path}/{name}", value)

    def expect(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Make the slots that a checkpoint has: PyTorch makes them in the first update.

        Args:
            arrays: by the paths of variables.
        """
        for weight in self._weights:
            prefix = f"{weight.path}/"
            own = {name: array for name, array in arrays.items() if name.startswith(prefix)}
            for name, array in own.items():
                like = torch.as_tensor(np.array(array))
                if like.shape == weight.value.shape:  # and in parts where the weight is
                    slot = torch.zeros_like(weight.value, dtype=like.dtype)
                else:  # such as a count of updates, which is on the CPU
                    slot = torch.zeros_like(like)
                self.inner.state[weight.value][name.removeprefix(prefix)] = slot

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Update the weights, and step the schedule."""
        variables = self._weights if trainable_variables is None else trainable_variables
        for variable, gradient in zip(variables, grads, strict=True):
            variable.value.grad = gradient
        for name, limit in self._clips.items():
            CLIPS[name]([variable.value for variable in variables], limit)
        self.inner.step()
        self._updates += 1
        if self._schedule is not None:
            self._schedule.step()

    def finalize_variable_values(self, var_list: Any) -> None:
        """Change nothing: there are no averages."""


def optimizer(
    node: dict[str, Any], schedule: dict[str, Any] | None, steps: int, steps_per_epoch: int
) -> TorchOptimizer | None:
    """Return an optimizer of PyTorch's; None where the target of a node is no such class.

    Args:
        node: of the optimizer; ``learning_rate`` is what PyTorch calls ``lr``.
        schedule: of a class of ``torch.optim.lr_scheduler``, whose steps are updates; None: the
            rate is constant.
        steps: of the run.
        steps_per_epoch: of the run.

    Raises:
        UsageError: the schedule is none of PyTorch's, or a limit is none.
    """
    if not _is(node, "optimizer", torch.optim.Optimizer):
        return None
    if schedule is not None and not _is(
        schedule, "optimizer.schedule", torch.optim.lr_scheduler.LRScheduler
    ):
        raise UsageError(
            "optimizer.schedule._target_", schedule["_target_"],
            f"is for an optimizer of Keras', and {node['_target_']} is one of PyTorch's",
            "torch.optim.lr_scheduler.*, or an optimizer of Keras'",
            "optimizer.schedule._target_=torch.optim.lr_scheduler.CosineAnnealingLR",
        )  # fmt: skip
    clips = {name: _limit(name, node.pop(name)) for name in CLIPS if name in node}
    rate = node.pop("learning_rate", None)
    node = {**node, **({} if rate is None else {"lr": rate})}

    def make(parameters: Any) -> Any:
        return targets.instantiate(node, "optimizer", params=parameters)

    def make_schedule(inner: Any) -> Any:
        return targets.instantiate(
            schedule or {}, "optimizer.schedule", optimizer=inner, total_steps=steps, T_max=steps,
            steps_per_epoch=steps_per_epoch, max_lr=rate,
        )  # fmt: skip

    return TorchOptimizer(make, None if schedule is None else make_schedule, clips)


def _limit(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(
            f"optimizer.{name}", value, "is no limit of gradients", "a number above 0",
            f"optimizer.{name}=1.0",
        )  # fmt: skip
    return float(value)


def _is(node: Mapping[str, Any], key: str, kind: type) -> bool:
    target = targets.locate(node["_target_"], f"{key}._target_")
    return isinstance(target, type) and issubclass(target, kind)
