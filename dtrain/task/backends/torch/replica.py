"""What several replicas of a model do together in a training step, beside their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import torch
from torch import distributed

from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Options, Tensor, Variable
from dtrain.task.backends.base import Tasks
from dtrain.task.backends.copies import check_alike, not_exchanged
from dtrain.task.backends.torch import gradients
from dtrain.task.backends.torch.arrays import whole
from dtrain.task.backends.torch.keras_internals import version
from dtrain.task.backends.torch.plain import buffers, parts
from dtrain.task.backends.torch.state import Buffer

#: Packages whose modules hold nothing that a step assigns, beside parameters and buffers.
KNOWN = ("abc", "builtins", "dtrain", "keras", "torch", "typing")
#: Where a module has those that are in no ``state_dict`` as well.
_BUFFERS = "_buffers"


def step(model: keras.Model, replicas: int, summed: bool = False) -> gradients.Step | None:
    """Return the training step of a replica, for ``tracing``; None where there is one.

    Args:
        model: built.
        replicas: how many share the global batch.
        summed: as of :class:`gradients.Step`.
    """
    if replicas == 1:
        return None
    values = [variable.value for variable in model.trainable_variables]
    parameters = [value for value in values if whole(value) is value]  # of parts: PyTorch averages
    kept = frozenset(map(id, kept_by_hand(model)))
    return gradients.Step(replicas, parameters, kept, summed)


def kept_by_hand(model: keras.Model) -> list[keras.Variable]:
    """Return the numbers that layers of the user's own may assign: statistics, a codebook."""
    variables = [*keras_internals.of_own_classes(model), *(v for _, v in buffers(model))]
    return [v for v in variables if v.value.is_floating_point() and whole(v.value) is v.value]


class Held:
    """A float, or a tensor of them, that a module holds in an attribute, or in a list there.

    A tensor that has another shape later is made of a batch, and no state: its first value stands
    for it.

    Args:
        path: its name.
        attributes: of the module.
        keys: of the attribute, and from there on.
    """

    trainable = False

    def __init__(self, path: str, attributes: Options, keys: tuple[Any, ...]):
        self.path, self._attributes, self._keys = path, attributes, keys
        self._first = self.held

    @property
    def _owner(self) -> Foreign:
        return self._attributes[self._keys[0]] if len(self._keys) > 1 else self._attributes

    @property
    def held(self) -> Foreign:
        """What it is now; None where it is gone."""
        try:
            return self._owner[self._keys[-1]]
        except (LookupError, TypeError):
            return None

    @property
    def value(self) -> torch.Tensor:
        """What it is, as a tensor."""
        held, first = self.held, self._first
        if isinstance(first, torch.Tensor):
            return held if getattr(held, "shape", None) == first.shape else first
        return torch.tensor(held if isinstance(held, float) else first, dtype=torch.float64)

    @torch.no_grad()
    def assign(self, value: torch.Tensor) -> None:
        """Set it."""
        if isinstance(self.held, torch.Tensor):
            self.value.copy_(value)
        elif isinstance(self.held, float):
            self._owner[self._keys[-1]] = float(value)


def held(model: keras.Model) -> list[Held]:
    """Return what modules of the user's own hold that is in no list of variables.

    Buffers that are in no ``state_dict`` are among it.
    """
    listed = {id(v.value) for v in (*model.variables, *(v for _, v in buffers(model)))}
    held: list[Held] = []
    modules = [
        (a + b, each) for a, part in parts(model).items() for b, each in part.named_modules()
    ]
    for name, module in modules:
        packages = {each.__module__.partition(".")[0] for each in type(module).__mro__}
        if packages <= {*KNOWN}:
            continue
        for keys, value in _floats(vars(module).items()):
            if id(value) not in listed:
                path = [name or type(module).__name__, *(str(k) for k in keys if k != _BUFFERS)]
                held.append(Held("/".join(path), vars(module), keys))
                listed |= {id(value)} if isinstance(value, torch.Tensor) else set()
    return held


def _floats(items: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key, value in items:
        if isinstance(value, torch.Tensor):
            is_own = value.is_floating_point() and value.layout is torch.strided
            if is_own and not isinstance(value, torch.nn.Parameter):
                yield (*keys, key), value
        elif isinstance(value, float):
            yield (*keys, key), value
        elif not keys and (key == _BUFFERS or not key.startswith("_")):
            inside = enumerate(value) if isinstance(value, list) else ()
            yield from _floats(value.items() if isinstance(value, dict) else inside, (key,))


class Kept:
    """What a step assigns beside the weights that are trained: replicas keep the mean of theirs.

    Buffers are sent in each step. Of frozen weights, and of what modules hold in attributes, those
    that a replica has assigned are.

    Args:
        model: built.
        tasks: the replicas.
    """

    def __init__(self, model: keras.Model, tasks: Tasks):
        self._tasks = tasks
        variables = [v for v in kept_by_hand(model) if not v.trainable]
        self._sent: list[Variable] = [v for v in variables if isinstance(v, Buffer)]
        self._others = [v for v in variables if not isinstance(v, Buffer)] + held(model)
        self._marks, self._is_first = self._marked(), True

    def average(self) -> None:
        """Let all replicas have the same."""
        if self._is_first:  # what is assigned by its ``data`` has no mark
            self._is_first = False
            differ = self._tasks.sum([self._differs(each.value) for each in self._others])
            self._sent += itertools.compress(self._others, differ)
            self._others = list(itertools.compress(self._others, (not each for each in differ)))
            self._marks = self._marked()
        changed = [a != b for a, b in zip(self._marks, self._marked(), strict=True)]
        every = self._tasks.sum(changed) if changed else []
        chosen = [*self._sent, *itertools.compress(self._others, every)]
        values = [variable.value for variable in chosen]
        average(values, self._tasks.size)
        for variable, value in zip(chosen, values, strict=True):
            if isinstance(variable, Held):  # of a number it is a tensor made for it
                variable.assign(value)
        self._marks = self._marked() if any(every) else self._marks

    def _differs(self, value: torch.Tensor) -> bool:
        mean = value.detach().clone()
        average([mean], self._tasks.size)
        return not torch.equal(mean, value)

    def _marked(self) -> list[Variable]:
        """Return of what may be sent what changes where it is assigned."""
        # Kept, as another tensor would have the identity of one that is gone.
        self._alive = [variable.value for variable in self._others]
        return [
            float(value) if value.dtype == torch.float64 and not value.ndim
            else (id(value), value.data_ptr(), version(value))
            for value in self._alive
        ]  # fmt: skip


def check_copies(model: keras.Model, variables: Sequence[Variable], replicas: int) -> None:
    """Refuse a model whose step has left the replicas with values of their own.

    Raises:
        UsageError: naming the variable.
    """
    for variable in variables:  # one by one: they are all of a model
        means = [variable.value.detach().clone()]
        average(means, replicas)
        own, mean = (each.detach().float().cpu().numpy() for each in (variable.value, *means))
        check_alike(model, variable, own, mean)


@torch.no_grad()
def average(values: Sequence[torch.Tensor], replicas: int) -> None:
    """Replace tensors by their means over the replicas, by one all-reduce for each type.

    In float64: what is the same on all of them keeps its bits.
    """
    for dtype in dict.fromkeys(value.dtype for value in values):
        own = [value for value in values if value.dtype == dtype]
        flat = torch.cat([value.reshape(-1).double() for value in own])
        distributed.all_reduce(flat)
        means = (flat / replicas).split([value.numel() for value in own])
        for value, mean in zip(own, means, strict=True):
            value.copy_(mean.view_as(value))


def exchange(name: str, x: Tensor) -> Tensor:
    """Return ``gather``, ``sum`` or ``mean`` over the replicas; ``x`` where there is one.

    Raises:
        UsageError: ``x`` is nothing that they could exchange.
    """
    now = gradients.current()
    if now is None:
        return x
    x = keras.ops.convert_to_tensor(x)
    if name == "gather":
        if x.ndim == 0:
            raise not_exchanged(name, "a scalar, which has no rows", "a tensor [examples, ...]")
        sizes = gradients.gathered(torch.tensor([len(x)], device=x.device)).reshape(-1).tolist()
        padded = torch.nn.functional.pad(x, [0, 0] * (x.ndim - 1) + [0, max(sizes) - len(x)])
        rows = gradients.gathered(padded)
        return torch.cat([part[:size] for part, size in zip(rows, sizes, strict=True)])
    if x.dtype == torch.bool:
        raise not_exchanged(name, "bool", "a tensor of numbers, such as keras.ops.cast")
    every = gradients.gathered(x)
    if name == "sum":
        return every.sum(0)
    return (every if x.is_floating_point() else every.float()).mean(0)
