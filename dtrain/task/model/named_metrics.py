"""Metrics by name: which they are, and what they are given of the outputs and the targets."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import keras

from dtrain.config.names import SCORES
from dtrain.errors import UsageError
from dtrain.task import keras_internals
from dtrain.task.backends.runtime import framework_errors
from dtrain.task.model.loss_inputs import LossInputs

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


def named_metric(name: str, takes: LossInputs, y: Any = None, predicted: Any = None) -> Any:
    """Return the metric that a name stands for: the name itself where it is Keras' to know it.

    Args:
        name: of ``trainer.metrics``.
        takes: what the loss of its output takes.
        y, predicted: targets and output of an example; None where they are not known.
    """
    metric = keras_metric(name, takes, y, predicted)
    if metric is None:
        return name
    option: dict[str, Any] = {}  # by which it takes logits itself, as its saved model does then
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


def keras_metric(name: str, takes: LossInputs, y: Any, predicted: Any) -> Any:
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


def with_classes(metric: Any, takes: LossInputs) -> Any:
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
    metric: Any, takes: LossInputs, y_true: Any, y_pred: Any, sample_weight: Any = None
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
        raise UsageError(
            "trainer.metrics", metric.name, "has no value for each example, and the loss ignores "
            "some of them", "a metric of Keras', or a function that returns a number for each "
            "example", "keras.ops.mean(..., axis=-1)",
        ) from None  # fmt: skip
