"""What a loss takes: probabilities or logits, along which axis, and which label it ignores.

Metrics by name are given probabilities, and all metrics the examples that the loss counts.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
from typing import Any

import keras
import numpy as np

from dtrain.data import nest
from dtrain.data.target_kind import IGNORED
from dtrain.task.backends.runtime import runtime


@dataclasses.dataclass(frozen=True)
class LossInputs:
    """What a loss takes.

    Attributes:
        logits: whether a sigmoid or softmax makes probabilities of the outputs; None: not known.
        separate: each output is a probability of its own, and not one of several classes.
        signed: labels may be -1 and 1.
        axis: of the classes.
        ignored: the label of examples that do not count; None: all do.
        tried: ``logits`` is what a trial has shown, of a loss that does not say it.
        own: a metric of the user's own is meant, which is given outputs as they are.
    """

    logits: bool | None = False
    separate: bool = False
    signed: bool = False
    axis: int = -1
    ignored: int | None = None
    tried: bool = False
    own: bool = False


#: Losses of Keras' and PyTorch's by their names in small letters, without underscores and ``loss``.
_SIGNED = ["keras.hinge", "keras.squaredhinge", "torch.softmargin"]
_LOGITS = [
    "torch.binarycrossentropywithlogits", "torch.bcewithlogits", "torch.multilabelsoftmargin",
]  # fmt: skip
_SEPARATE = [
    *_SIGNED, *_LOGITS, "keras.binarycrossentropy", "keras.binaryfocalcrossentropy", "torch.bce",
    "torch.binarycrossentropy",
]  # fmt: skip
_SECOND_AXIS = ["torch.crossentropy", "torch.nll"]  # a softmax of logarithms is their numbers
_LOGITS += [*_SIGNED, *_SECOND_AXIS, "torch.multimargin", "keras.categoricalhinge"]


def inputs_of(loss: Any, y: Any = None, predicted: Any = None) -> LossInputs:
    """Return what a loss takes; of one that does not say it, what a trial shows.

    A loss says it by being one of Keras' or PyTorch's, by an attribute or a parameter
    ``from_logits``, or by a parameter whose name begins with ``logits``.

    Args:
        loss: as it is compiled, of one output.
        y: the targets of an example; without, nothing is tried.
        predicted: the output for it.
    """
    if loss is None or nest.is_nest(loss):
        return LossInputs()
    function: Any = getattr(loss, "function", loss)
    options: dict[str, Any] = {}
    if isinstance(function, functools.partial):
        function, options = function.func, function.keywords
    if isinstance(function, str):
        function = keras.losses.get(function)
    named = function if hasattr(function, "__name__") else type(function)
    kinds = [_name(kind) for kind in getattr(named, "__mro__", [named])]
    kind = next((name for name in kinds if name in (*_SEPARATE, *_LOGITS)), kinds[0])
    is_own, of_torch = kind.startswith("own."), hasattr(loss, "function")
    call = getattr(function, "forward", getattr(function, "call", function))
    try:
        parameters = dict(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # of compiled code
        parameters = {}

    def option(name: str, default: Any = None) -> Any:
        usual = parameters[name].default if name in parameters else None
        value = options.get(name, getattr(function, name, usual))
        return default if value is None else value

    axis, usual = 1 if kind in _SECOND_AXIS else -1 if of_torch else option("axis", -1), None
    targets, shape = (tuple(getattr(each, "shape", ())) for each in (y, predicted))
    if is_own and of_torch and len(shape) == len(targets) + 1 and "int" in str(y.dtype):
        axis = 1 if targets == (*shape[:1], *shape[2:]) else -1
        usual = IGNORED  # as what it calls does, where that is a loss of PyTorch's
    ignored = option("ignore_class", option("ignore_index", usual))
    takes = LossInputs(kind in _LOGITS, kind in _SEPARATE, kind in _SIGNED, axis, ignored)
    logits = option("from_logits")
    if logits is None and is_own:
        if not any(name.startswith("logit") for name in [*parameters][:2]):
            return _try(loss, takes, y, predicted)
        logits = True
    return takes if logits is None else dataclasses.replace(takes, logits=bool(logits))


def _name(kind: Any) -> str:
    """Return the library of a class or function and its short name, such as ``keras.hinge``."""
    library = str(getattr(kind, "__module__", "")).partition(".")[0]
    library = library if library in ("keras", "torch") else "own"
    return f"{library}.{kind.__name__.lower().replace('_', '').removesuffix('loss')}"


def _try(loss: Any, takes: LossInputs, y: Any, predicted: Any) -> LossInputs:
    """Compute a loss of outputs for the first class, or for 1, of -6 to 3.

    One that takes probabilities is not finite below 0, or is the same wherever it cuts them off.
    One that takes logits falls on and on. Of any other, such as a squared error, nothing is known.
    """
    unknown = dataclasses.replace(takes, logits=None)
    if y is None or predicted is None or nest.is_nest(y) or nest.is_nest(predicted):
        return unknown
    with contextlib.suppress(Exception):  # a loss may count its calls
        of_torch = hasattr(loss, "function")
        loss = type(loss)(copy.deepcopy(loss.function)) if of_torch else copy.deepcopy(loss)
    outputs = np.zeros_like(keras.ops.convert_to_numpy(predicted)[:1], "float32")
    targets = np.zeros_like(np.asarray(y)[:1])
    first = np.moveaxis(outputs, takes.axis, 0)[:1]  # a view
    if outputs.ndim < 2 or outputs.shape[-1] == 1:
        targets += 1
    elif targets.shape == outputs.shape:
        np.moveaxis(targets, takes.axis, 0)[0] = 1

    def value(number: float, shift: float = 0.0) -> float:
        first[...] = number
        tensors = map(keras.ops.convert_to_tensor, (targets, outputs + np.float32(shift)))
        return float(np.mean(keras.ops.convert_to_numpy(loss(*tensors))))

    try:
        with runtime().on_cpu():
            values = np.array([value(number) for number in (-6.0, -2.0, 1.0, 3.0)])
            same = np.isclose(value(1.0, shift=2.0), values[2])
    except Exception:  # whatever it does not take
        return unknown
    if not np.isfinite(values).all() or np.isclose(values[0], values[1]):
        return dataclasses.replace(takes, logits=False)
    if (np.diff(values) < 0).all() and values[-1] >= 0:
        return dataclasses.replace(takes, logits=True, separate=not same, tried=True)
    return unknown
