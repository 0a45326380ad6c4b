"""Metrics by name, and what a loss takes: probabilities or logits, along which axis, which labels.

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

from dtrain.config.targets import SCORES
from dtrain.data import nest
from dtrain.data.target_kind import IGNORED
from dtrain.errors import UsageError
from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Nest, Options, Tensor
from dtrain.task.backends.runtime import framework_errors, runtime


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


def inputs_of(loss: Foreign, y: Nest = None, predicted: Nest = None) -> LossInputs:
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
    options: Options = {}
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

    def option(name: str, default: object = None) -> Any:
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


def _name(kind: Foreign) -> str:
    """Return the library of a class or function and its short name, such as ``keras.hinge``."""
    library = str(getattr(kind, "__module__", "")).partition(".")[0]
    library = library if library in ("keras", "torch") else "own"
    return f"{library}.{kind.__name__.lower().replace('_', '').removesuffix('loss')}"


def _try(loss: Foreign, takes: LossInputs, y: Nest, predicted: Nest) -> LossInputs:
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
    if None in (*predicted.shape[1:], *y.shape[1:]):
        return unknown
    # By their shapes alone: of a model that was only traced there are no values.
    outputs = np.zeros((1, *predicted.shape[1:]), "float32")
    targets = np.zeros((1, *y.shape[1:]), keras.backend.standardize_dtype(y.dtype))
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


_OF = keras.metrics
#: Metrics of Keras' that want one-hot targets where there are several classes.
ONE_HOT = (
    _OF.AUC, _OF.Precision, _OF.Recall, _OF.FBetaScore, _OF.TruePositives, _OF.TrueNegatives,
    _OF.FalsePositives, _OF.FalseNegatives, _OF.SensitivityAtSpecificity,
    _OF.SpecificityAtSensitivity, _OF.PrecisionAtRecall, _OF.RecallAtPrecision,
    _OF.CategoricalAccuracy, _OF.CategoricalCrossentropy, _OF.CategoricalHinge,
    _OF.TopKCategoricalAccuracy, _OF.KLDivergence,
)  # fmt: skip
#: Of these Keras has no averages over classes, but an F score is one of them at the limit.
_BETA = {"precision": 1e-4, "f1": 1.0, "recall": 1e4}
#: Names of Keras' of a metric whose result is a number for each class.
_EACH_CLASS = ("f1_score", "f1score", "fbeta_score", "fbetascore")


#: Metrics for which outputs need be no probabilities: the largest decides, or its margin.
OF_ANY_OUTPUTS = (
    _OF.SparseCategoricalAccuracy, _OF.CategoricalAccuracy, _OF.TopKCategoricalAccuracy,
    _OF.SparseTopKCategoricalAccuracy, _OF.Hinge, _OF.SquaredHinge, _OF.CategoricalHinge,
)  # fmt: skip


_CROSSENTROPIES = (
    _OF.BinaryCrossentropy, _OF.CategoricalCrossentropy, _OF.SparseCategoricalCrossentropy,
)  # fmt: skip
#: Metrics that are of nothing but probabilities, beside those of any outputs.
OF_PROBABILITIES = (*ONE_HOT, *_CROSSENTROPIES, _OF.BinaryAccuracy, _OF.BinaryIoU)


def named_metric(name: str, takes: LossInputs, y: Nest = None, predicted: Nest = None) -> Foreign:
    """Return the metric that a name stands for: the name itself where it is Keras' to know it.

    Args:
        name: of ``trainer.metrics``.
        takes: what the loss of its output takes.
        y, predicted: targets and output of an example; None where they are not known.
    """
    metric = keras_metric(name, takes, y, predicted)
    if metric is None:
        return name
    option: Options = {}  # by which it takes logits itself, as its saved model does then
    if takes.logits and takes.separate and isinstance(metric, _OF.BinaryAccuracy):
        option = {"threshold": 0.0}
    elif takes.logits and isinstance(metric, _CROSSENTROPIES):
        option = {"from_logits": True}
    metric = type(metric)(name=name, **option) if option else metric
    of_numbers = takes.tried and not isinstance(metric, OF_PROBABILITIES)
    if option or of_numbers or isinstance(metric, OF_ANY_OUTPUTS):
        takes = dataclasses.replace(takes, logits=False)
    moves = takes.axis not in (-1, len(getattr(predicted, "shape", (0, 0))) - 1)
    changes = takes.logits or takes.signed or takes.ignored is not None or moves
    if not (option or changes or isinstance(metric, ONE_HOT)):
        return name
    metric.name = name
    return with_classes(metric, takes)


def keras_metric(name: str, takes: LossInputs, y: Nest, predicted: Nest) -> Foreign:
    """Return a metric of Keras' by name; None where Keras chooses it, or has none of that name."""
    score, _, average = name.partition("_")
    if name in SCORES and score == "auc":
        return _OF.AUC(multi_label=average == "macro", name=name)
    if name in SCORES or name.lower() in _EACH_CLASS:
        average = average if name in SCORES and average else "macro"
        threshold = 0.5 if takes.separate else None
        return _OF.FBetaScore(average, _BETA.get(score, 1.0), threshold, name=name)
    if name.lower() in ("accuracy", "acc") and hasattr(y, "shape") and hasattr(predicted, "shape"):
        if len(predicted.shape) < 2 or predicted.shape[-1] == 1:
            return _OF.BinaryAccuracy(name)
        same = len(y.shape) == len(predicted.shape) and y.shape[-1] != 1
        return (_OF.CategoricalAccuracy if same else _OF.SparseCategoricalAccuracy)(name)
    try:
        return _OF.get(name)
    except ValueError:
        return None


def with_classes(metric: Foreign, takes: LossInputs) -> Foreign:
    """Let a metric of Keras' that wants one-hot targets take numbers of classes; return it.

    And any metric what its loss takes. Of the instance, whose class stays Keras': states of such
    add up, and whoever loads the saved model needs nothing else.

    Args:
        metric: any; another stays as it is.
        takes: what the loss of its output takes; probabilities are what the metric is meant for.
    """
    of_keras = isinstance(metric, ONE_HOT) and keras_internals.is_of_keras(metric)
    if of_keras or (takes != LossInputs() and isinstance(metric, _OF.Metric)):
        metric.update_state = functools.partial(_update, metric, takes)
    return metric


def _update(
    metric: Foreign, takes: LossInputs, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None
) -> None:
    ops, mask = keras.ops, keras_internals.mask(y_pred)
    of_keras = keras_internals.is_of_keras(metric)
    y_true = ops.convert_to_tensor(y_true)
    if takes.axis % max(1, len(y_pred.shape)) < len(y_pred.shape) - 1:
        if len(y_true.shape) == len(y_pred.shape):
            y_true = ops.moveaxis(y_true, takes.axis, -1)
        y_pred = ops.moveaxis(y_pred, takes.axis, -1)
    if len(y_pred.shape) == 1 and not takes.own:
        y_pred = ops.expand_dims(y_pred, -1)
    classes = y_pred.shape[-1]
    if takes.logits:
        alone = classes == 1 or takes.separate
        y_pred = ops.sigmoid(y_pred) if alone else ops.softmax(y_pred)
    if takes.signed:
        y_true = ops.cast(y_true > 0, "int32")
    is_sparse = len(y_true.shape) < len(y_pred.shape) or y_true.shape[-1] == 1
    if takes.ignored is not None and is_sparse and not (takes.own and len(y_true.shape) > 1):
        y_true, shape = ops.reshape(y_true, [-1]), [-1, classes][: len(y_pred.shape)]
        y_pred = ops.reshape(y_pred, shape)
        counts = ops.not_equal(ops.cast(y_true, "int32"), takes.ignored)
        if mask is not None:
            counts = ops.logical_and(counts, ops.reshape(mask, [-1]))
        if keras.config.backend() == "torch" and not (of_keras and not takes.own):
            y_true, y_pred = y_true[counts], y_pred[counts]  # whatever it makes of examples
            if not len(y_true):
                return
        else:
            y_true = ops.where(counts, y_true, ops.zeros_like(y_true))
            sample_weight = ops.cast(counts, "float32")
    elif mask is not None:
        keras_internals.set_mask(y_pred, mask)
    if isinstance(metric, ONE_HOT) and of_keras:
        is_shorter = len(y_true.shape) == len(y_pred.shape) - 1
        if classes == 1:
            y_true = ops.expand_dims(y_true, -1) if is_shorter else y_true
            if isinstance(metric, _OF.FBetaScore) and metric.threshold is None:
                metric.threshold = 0.5  # the largest of one output is always that one
        elif is_shorter or (y_true.shape[-1] == 1 and len(y_true.shape) == len(y_pred.shape)):
            y_true = y_true if is_shorter else ops.squeeze(y_true, -1)
            y_true = ops.one_hot(ops.cast(y_true, "int32"), classes, dtype=y_pred.dtype)
    try:
        type(metric).update_state(metric, y_true, y_pred, sample_weight)
    except framework_errors(ValueError, TypeError):
        if not takes.own or sample_weight is None:
            raise
        raise UsageError("trainer.metrics", "has no value for each example, some of which the loss "
                         "ignores", metric.name, accepted="a metric of Keras', or a function of a "
                         "number for each example", hint="keras.ops.mean(..., "
                         "axis=-1)") from None  # fmt: skip
