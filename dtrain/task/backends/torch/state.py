"""What modules and optimizers of PyTorch hold, as the rest of a task sees a model and an optimizer.

A module's parameters and buffers as variables, and all else that it has.

Optimizers and schedules of ``torch.optim``. Slots are found by the names of their weights, and not
by numbers, as in ``state_dict`` of an optimizer. What a schedule and a parameter group hold is kept
with them; of a checkpoint of another optimizer, a schedule is stepped as often as that was.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import torch

from dtrain.config import targets, trust
from dtrain.errors import refuse
from dtrain.run import initial
from dtrain.task.aliases import Foreign, Options, Tensor, Tensors, Variable
from dtrain.task.model import object_state
from dtrain.task.model.object_state import Owner
from dtrain.task.model.optimizers import LateSlots

#: Ends the name in a ``state_dict`` of what a module keeps that is no tensor.
EXTRA = "_extra_state"


class Buffer(keras.Variable):
    """A buffer of a module, which the module may replace by another tensor.

    Args:
        module: that has it.
        name: of it, in the ``state_dict``.
        prefix: of the name of the variable.
    """

    def __init__(self, module: torch.nn.Module, name: str, prefix: str = ""):
        self._buffer: Callable[[], torch.Tensor] = lambda: module.get_buffer(name)
        super().__init__(self._buffer(), trainable=False, autocast=False, name=prefix + name)

    @property
    def value(self) -> torch.Tensor:
        """What it holds."""
        return self._buffer()


def owner_of(module: torch.nn.Module, internals: Collection[str]) -> Owner:
    """Return what a module has beside parameters: attributes, buffers, and its extra state."""
    values = {
        **object_state.owner(module, internals).values,
        **dict(module.named_buffers("", False)),
    }
    if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
        values[EXTRA] = module.get_extra_state()

    def assign(name: str, value: Tensor) -> None:
        if name == EXTRA:
            module.set_extra_state(value)
        else:
            setattr(module, name, value)

    return Owner(module, values, assign)


def variables_of(module: torch.nn.Module, prefix: str = "") -> dict[int, keras.Variable]:
    """Return the variables of a module by the identities of its parameters and buffers."""
    kept = module.state_dict()
    parameters = {
        id(each): keras.Variable(
            each, trainable=each.requires_grad, autocast=False, name=prefix + name
        )
        for name, each in module.named_parameters()
    }
    buffers = [(name, each) for name, each in module.named_buffers() if name in kept]
    return parameters | {id(each): Buffer(module, name, prefix) for name, each in buffers}


def weights(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a ``state_dict`` that ``torch.save`` has written.

    Raises:
        UsageError: it has something else in it.
        pickle.UnpicklingError: what is in it is more than tensors and plain values.
    """
    saved = torch.load(path, map_location="cpu", weights_only=True)
    state = saved.get("state_dict", saved) if isinstance(saved, dict) else {"": saved}
    for name, value in (state if isinstance(state, dict) else {"state_dict": state}).items():
        if not isinstance(value, torch.Tensor):
            raise initial.refused(
                str(path), f"has {name!r} in it, a {type(value).__name__}, and is no state_dict"
            )
    return {str(name): keras.ops.convert_to_numpy(value) for name, value in state.items()}


def _each(parameters: list[torch.Tensor], limit: float) -> None:
    for parameter in parameters:
        torch.nn.utils.clip_grad_norm_(parameter, limit)


#: By arguments of Keras' optimizers, what clips gradients.
CLIPS: dict[str, Callable[[list[torch.Tensor], float], object]] = {
    "clipnorm": _each,
    "global_clipnorm": torch.nn.utils.clip_grad_norm_,
    "clipvalue": torch.nn.utils.clip_grad_value_,
}


#: What a function that makes an optimizer calls its first parameter; the last: pairs with names.
PARAMETERS = ("params", "parameters", "param_groups", "named_parameters")
#: What an optimizer holds that is kept otherwise, or changes nothing.
BESIDE = ("defaults", "param_groups", "state", "_opt_called", "_step_count")


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

    def assign(self, value: Tensor) -> None:
        """Set it."""
        self._write(float(np.asarray(value)))


class _Slot:
    """A tensor that an optimizer keeps for a weight."""

    def __init__(self, path: str, tensor: torch.Tensor):
        self.path, self.value, self.shape = path, tensor, tuple(tensor.shape)

    @torch.no_grad()
    def assign(self, value: Tensor) -> None:
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
        self, make: Callable[[list[keras.Variable]], Foreign],
        schedule: Callable[[Foreign], Foreign] | None, clips: Mapping[str, float],
    ):  # fmt: skip
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
        object.__setattr__(self, "inner", self._make(self._weights))
        if isinstance(self.inner, torch.optim.LBFGS):
            refuse("optimizer", "calls the loss several times for an update", "LBFGS",
                   accepted="an optimizer of gradients",
                   typed="optimizer._target_=torch.optim.AdamW")  # fmt: skip
        make = self._make_schedule
        self._schedule = None if make is None else make(self.inner)
        self.built = True

    @property
    def learning_rate(self) -> Tensor:
        """The learning rate of the next update."""
        groups = [] if self.inner is None else self.inner.param_groups
        return np.float64(groups[0]["lr"]) if groups else np.float64(0)

    @learning_rate.setter
    def learning_rate(self, value: Tensor) -> None:
        self._set_rate(float(np.asarray(value)))

    def _set_rate(self, rate: float) -> None:
        first = float(self.learning_rate)
        for group in self.inner.param_groups if vars(self).get("inner") is not None else ():
            same = first == 0 or group["lr"] == first
            group["lr"] = rate if same else group["lr"] * (rate / first)

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
    def variables(self) -> list[Variable]:
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

    def owner(self) -> Owner:
        """Return what the optimizer and its schedule hold that is no slot."""
        inner, weights = self.inner, [weight.value for weight in self._weights]
        slots = [inner.state.get(weight, {}) for weight in weights]
        listed = {*map(id, weights)}
        values = {
            **{name: each for name, each in vars(inner).items() if name not in BESIDE},
            "groups": [{n: v for n, v in g.items() if n != "params"} for g in inner.param_groups],
            "slots": [
                {n: v for n, v in own.items() if not isinstance(v, torch.Tensor)} for own in slots
            ],
            "state": {key: own for key, own in inner.state.items() if id(key) not in listed},
            "schedule": None if self._schedule is None else self._schedule.state_dict(),
        }
        return Owner(inner, values, self._assign)

    def _assign(self, name: str, value: Tensor) -> None:
        if name == "schedule" and self._schedule is not None:
            self._schedule.load_state_dict(value)
        elif name in ("groups", "slots"):
            slots = [self.inner.state[weight.value] for weight in self._weights]
            places = self.inner.param_groups if name == "groups" else slots
            for place, own in zip(places, value, strict=True):
                place.update(own)
        elif name == "state":
            self.inner.state.update(value)
        else:
            setattr(self.inner, name, value)

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

    def apply(self, grads: Tensors, trainable_variables: list[Variable] | None = None) -> None:
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

    def finalize_variable_values(self, var_list: Sequence[Variable]) -> None:
        """Change nothing: there are no averages."""


def optimizer(
    node: Options, schedule: Options | None, steps: int, steps_per_epoch: int
) -> TorchOptimizer | None:
    """Return an optimizer of PyTorch's; None where the target of a node makes none.

    Args:
        node: of the optimizer; ``learning_rate`` is what PyTorch calls ``lr``.
        schedule: of a class of ``torch.optim.lr_scheduler``, whose steps are updates; None: the
            rate is constant.
        steps: of the run.
        steps_per_epoch: of the run.

    Raises:
        UsageError: the schedule is none of PyTorch's, or a limit is none.
    """
    name = node["_target_"]
    target = trust.locate(name, "optimizer._target_")
    first = next(iter(inspect.signature(target).parameters), "")
    if isinstance(target, type):
        if not issubclass(target, torch.optim.Optimizer):
            return None
    elif first not in PARAMETERS:
        if first in ("model", "module"):
            refuse("optimizer._target_", f"takes the {first}, and is given its parameters", name,
                   accepted=", ".join(PARAMETERS),
                   hint=f"def {target.__name__}(named_parameters, ...):")  # fmt: skip
        return None
    if schedule is not None:
        _check_schedule(schedule, name)
    clips = {name: _limit(name, node.pop(name)) for name in CLIPS if name in node}
    rate = node.get("learning_rate")
    if "learning_rate" not in inspect.signature(target).parameters:
        node.pop("learning_rate", None)
        node = {**node, **({} if rate is None else {"lr": rate})}

    def make(variables: list[keras.Variable]) -> Foreign:
        named = [(variable.path, variable.value) for variable in variables]
        values = named if first == PARAMETERS[-1] else [value for _, value in named]
        made = targets.instantiate(node, "optimizer", **{first: values})
        if not isinstance(made, torch.optim.Optimizer):
            refuse("optimizer._target_", f"returned {type(made).__name__}", name,
                   accepted="a function that returns an optimizer of PyTorch's",
                   hint="return torch.optim.AdamW(...)")  # fmt: skip
        return made

    def make_schedule(inner: Foreign) -> Foreign:
        return targets.instantiate(
            schedule or {}, "optimizer.schedule", optimizer=inner, total_steps=steps, T_max=steps,
            steps_per_epoch=steps_per_epoch, max_lr=rate,
        )  # fmt: skip

    return TorchOptimizer(make, None if schedule is None else make_schedule, clips)


def _limit(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        refuse(f"optimizer.{name}", "is no limit of gradients", value, accepted="a number above 0",
               typed=f"optimizer.{name}=1.0")  # fmt: skip
    return float(value)


def _check_schedule(schedule: Options, name: str) -> None:
    target = trust.locate(schedule["_target_"], "optimizer.schedule._target_")
    kinds = torch.optim.lr_scheduler
    if target is kinds.ReduceLROnPlateau:
        refuse("optimizer.schedule._target_",
               "waits for what an epoch has measured, and is stepped after each update",
               schedule["_target_"], accepted="the callback of that name, or another schedule",
               typed="optimizer.schedule=null 'trainer.callbacks=[{_target_: "
               "keras.callbacks.ReduceLROnPlateau, monitor: loss}]'")  # fmt: skip
    if not (isinstance(target, type) and issubclass(target, kinds.LRScheduler)):
        refuse(
            "optimizer.schedule._target_",
            f"is for an optimizer of Keras', and {name} is PyTorch's", schedule["_target_"],
            accepted="torch.optim.lr_scheduler.*, or an optimizer of Keras'",
            typed="optimizer.schedule._target_=torch.optim.lr_scheduler.CosineAnnealingLR",
        )  # fmt: skip
