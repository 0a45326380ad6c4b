"""The full training state as named arrays, whatever the strategy."""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from dtrain.errors import CheckpointError, UsageError
from dtrain.files.fields import Json
from dtrain.run import checkpoint
from dtrain.run.checkpoint import Checkpoint
from dtrain.task import keras_internals
from dtrain.task.aliases import Tensor, Variable
from dtrain.task.backends.base import Backend
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.runtime import runtime
from dtrain.task.model import finetune, optimizers
from dtrain.task.model.object_state import Kept


class _Plain:
    """A variable that Keras has in no list, as those of Keras are used here.

    Args:
        path: its name.
        variable: the variable.
    """

    def __init__(self, path: str, variable: Variable):
        self.path = path
        self.variable = variable
        self.shape = variable.shape

    @property
    def value(self) -> Tensor:
        """What it holds."""
        value = self.variable.value
        return value() if callable(value) else value  # of TensorFlow's own it is a function

    def assign(self, value: Tensor) -> None:
        """Set it."""
        self.variable.assign(value)


def variables(model: keras.Model) -> dict[str, Variable]:
    """Name every variable of the model and its optimizers by path, the same in every process.

    Weights, normalisation statistics, seed generators, states of stateful layers, TensorFlow's own
    variables and generators in layers, variables of plain objects and buffers of PyTorch's modules
    there, optimizer slots and iterations, loss scale and moving averages: of ``compile``'s
    optimizer under ``optimizer/``, of any other under ``optimizer/PATH/``
    (:func:`.optimizers.named`), and so of those inside of one.
    Metric variables are not among them: :class:`Sums` holds their state.
    """
    named: dict[str, Variable] = {}
    others = keras_internals.plain_variables(model) + keras_internals.generator_states(model)
    plain = [_Plain(path, each) for path, each in [*others, *runtime().buffers(model)]]
    groups: list[tuple[str, list[Variable]]] = [
        ("model", [*model.variables, *keras_internals.states(model), *plain]),
        *optimizers.variables(model),
    ]
    for prefix, members in groups:
        for variable in members:
            name, count = f"{prefix}/{variable.path}", 1
            while name in named:  # two layers of a user's model may share a name
                count += 1
                name = f"{prefix}/{variable.path}#{count}"
            named[name] = variable
    return named


_KEPT: weakref.WeakKeyDictionary[keras.Model, list[Kept]] = weakref.WeakKeyDictionary()


def objects(model: keras.Model) -> list[Kept]:
    """Return what keeps the attributes of modules and losses, and those of optimizers.

    On PyTorch alone they decide numbers: elsewhere a step is traced once, by what they are then.
    """
    plain = runtime().PLAIN
    if model not in _KEPT and plain is not None:
        _KEPT[model] = [
            Kept(f"objects/{group}", functools.partial(plain.owners, model, group),
                 functools.partial(saved, model))
            for group in ("model", "optimizer")
        ]  # fmt: skip
    return _KEPT.get(model, [])


def saved(model: keras.Model) -> dict[int, Variable]:
    """Return, by identity, what is saved by :func:`variables`, or is in Keras' lists of it.

    Some are made by the call: while the caller holds them no other object has their identity.
    """
    named = [getattr(each, "variable", each) for each in variables(model).values()]
    values = [each.value for each in named if isinstance(each, keras.Variable)]
    owned = [*keras_internals.layers(model), *model.metrics, *optimizers.named(model).values()]
    if (plain := runtime().PLAIN) is not None:
        owned += plain.unwrapped(model).modules()
    return {id(each): each for each in (*named, *values, *owned)}


def snapshot(model: keras.Model, strategy: Backend) -> dict[str, np.ndarray]:
    """Copy every variable to the host."""
    return strategy.read(variables(model))


def restore(
    model: keras.Model, strategy: Backend, arrays: Mapping[str, np.ndarray], forked: bool = False
) -> None:
    """Set every variable from ``arrays``; arrays of other things are left alone.

    Args:
        model: built under ``strategy``.
        strategy: which it is.
        arrays: of :func:`snapshot`, perhaps under another strategy.
        forked: the optimizer may be another one: what has no array of its name and shape stays
            as it was made.

    Raises:
        CheckpointError: a variable has no array, or one of another shape.
    """
    optimizers.expect(model, arrays)
    kept: dict[str, Variable] = {}
    absent: dict[str, Variable] = {}
    for name, variable in variables(model).items():
        problem = _problem(name, variable, arrays)
        if problem is None:
            kept[name] = variable
        elif forked and name.startswith("optimizer/"):
            absent[name] = variable
        else:
            raise CheckpointError(f"{problem}: it is of another model")
    write(strategy, kept, arrays)
    for each in objects(model):
        each.restore(arrays)
    if absent:
        with strategy.optimizer_scope():
            _begin_where_another_was(absent, model, arrays)
            begin_with_weights(model, absent)


def restore_weights(
    model: keras.Model, strategy: Backend, arrays: Mapping[str, np.ndarray], averaged: bool = False
) -> None:
    """Set the variables of the model alone from ``arrays``; no optimizer need have any.

    Args:
        model: built under ``strategy``.
        strategy: which it is.
        arrays: of :func:`snapshot`, perhaps under another strategy.
        averaged: the trainable weights get the moving averages that an optimizer of the run kept.

    Raises:
        CheckpointError: a variable has no array, or one of another shape.
    """
    others = _averages(model, arrays) if averaged else {}
    chosen: dict[str, Variable] = {}
    for name, variable in variables(model).items():
        if name.startswith("model/"):
            source = others.get(id(variable), name)
            problem = _problem(source, variable, arrays)
            if problem is not None:
                raise CheckpointError(f"{problem}: it is of another model")
            chosen[source] = variable
    write(strategy, chosen, arrays)
    for each in objects(model)[:1]:
        each.restore(arrays)


def write(
    strategy: Backend, variables: Mapping[str, Variable], arrays: Mapping[str, np.ndarray]
) -> None:
    """Set each variable to the array of its name, which may come from another backend.

    Whole numbers are of other types there (a seed's state is int64, uint32 or int32), and are cast
    modulo 2^32.
    """
    strategy.write(
        variables,
        {name: _cast(name, arrays[name], variable) for name, variable in variables.items()},
    )


def _cast(name: str, array: np.ndarray, variable: Variable) -> np.ndarray:
    whole = array.dtype.kind in "iu" and isinstance(variable, keras.Variable)
    if not whole or "int" not in variable.dtype or variable.dtype == array.dtype:
        return array
    if "seed_generator_state" in name:  # of PyTorch it may be negative
        array = array.astype(np.uint32)
    return array.astype(variable.dtype)


def restore_chosen(model: keras.Model, strategy: Backend, saved: Checkpoint, weights: str) -> None:
    """Restore, as :func:`restore_weights`, the checkpoint and the weights that a user has chosen.

    Args:
        model: built under ``strategy``.
        strategy: which it is.
        saved: the checkpoint.
        weights: ``raw``, or ``ema`` for the moving averages.

    Raises:
        UsageError: the checkpoint is of another model, or has no averages.
    """
    averaged = weights == "ema"
    try:
        restore_weights(model, strategy, saved.arrays, averaged)
    except CheckpointError as error:
        key, value = ("weights", "ema") if averaged else ("checkpoint", saved.path)
        raise UsageError(key, str(error), value, accepted="the model of the run",
                         hint=f"python -m dtrain checkpoint {saved.path} to see its "
                         "weights") from None  # fmt: skip


def _averages(model: keras.Model, arrays: Mapping[str, np.ndarray]) -> dict[int, str]:
    """Return the names of the averages of the trainable weights, by the weights' identities.

    An optimizer names one after the path of its weight, and two of one path in their order.
    """
    kept = {
        name.rpartition("/")[2]: name
        for name in arrays
        if name.startswith("optimizer/") and checkpoint.is_average(name)
    }
    names: dict[int, str] = {}
    count: collections.Counter[str] = collections.Counter()
    for weight in finetune.trained(model):
        name = f"{weight.path.replace('/', '_')}_average"
        count[name] += 1
        name = name if count[name] == 1 else f"{name}#{count[name]}"
        names[id(weight)] = kept.get(name, name)
    return names


def exchange_averages(
    model: keras.Model, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return arrays with those of the trainable weights and of their averages exchanged."""
    names = {id(variable): name for name, variable in variables(model).items()}
    pairs = [(names[key], name) for key, name in _averages(model, arrays).items()]
    both = [pair for pair in pairs if pair[1] in arrays]
    return {**arrays, **{a: arrays[b] for a, b in both}, **{b: arrays[a] for a, b in both}}


def _problem(name: str, variable: keras.Variable, arrays: Mapping[str, np.ndarray]) -> str | None:
    if name not in arrays:
        return f"the checkpoint has no {name}"
    shape, saved = tuple(variable.shape), tuple(arrays[name].shape)
    return None if shape == saved else f"{name} has shape {shape} and the checkpoint's {saved}"


def _begin_where_another_was(
    absent: dict[str, keras.Variable], model: keras.Model, arrays: Mapping[str, np.ndarray]
) -> None:
    """Let schedules, and averages of weights, continue from the step of another optimizer."""
    counts = [
        int(array)
        for name, array in arrays.items()
        if name.startswith("optimizer/") and name.endswith("/iteration")
    ]
    if not counts:
        return  # the weights alone were taken over
    for name, variable in absent.items():
        if name.endswith("/iteration"):  # `optimizer.iterations` may be computed from it
            variable.assign(max(counts))
    for path, optimizer in optimizers.named(model).items():
        averages = [v for v in optimizer.variables if v.path.endswith("_average")]
        if not any(average is variable for average in averages for variable in absent.values()):
            continue
        weights = finetune.trained(model)
        if path != "optimizer":
            weights = keras_internals.updated(keras_internals.updating(optimizer))
        for average, weight in zip(averages, weights, strict=True):
            average.assign(weight.value)  # Keras starts them at the first step only


def begin_with_weights(model: keras.Model, slots: Mapping[str, Variable] | None = None) -> None:
    """Set the slots that Keras makes as copies of the weights to what the weights are now.

    Args:
        model: with its optimizers.
        slots: only those that are among these variables; None: all.
    """
    chosen = None if slots is None else {id(variable) for variable in slots.values()}
    for optimizer in map(keras_internals.updating, optimizers.named(model).values()):
        if not isinstance(optimizer, keras.optimizers.ScheduleFreeAdamW) or not optimizer.built:
            continue
        copies = [v for v in optimizer.variables if v.path.endswith("_momentum")]
        for copy, weight in zip(copies, keras_internals.updated(optimizer), strict=True):
            if chosen is None or id(copy) in chosen:
                copy.assign(weight.value)


def pack_sums(**named: Sums) -> tuple[dict[str, np.ndarray], Json]:
    """Return the arrays, and a JSON value by name, that :func:`unpack_sums` turns back."""
    arrays = {
        f"sums/{name}/{i}": state
        for name, sums in named.items()
        for i, state in enumerate(sums.states)
    }
    return arrays, {
        name: {"returned": sums.returned, "examples": sums.examples} for name, sums in named.items()
    }


def unpack_sums(name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Sums:
    """Rebuild what :func:`pack_sums` took apart."""
    states: list[np.ndarray] = []
    while f"sums/{name}/{len(states)}" in arrays:
        states.append(arrays[f"sums/{name}/{len(states)}"])
    return Sums(states, meta["returned"], meta["examples"])
