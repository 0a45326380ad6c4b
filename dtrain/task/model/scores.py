"""Metrics of classes by the names that people say, and labels as the metrics of Keras want them."""

from __future__ import annotations

import functools
from typing import Any

import keras

from dtrain.config.names import SCORES
from dtrain.task import keras_internals

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


def named(name: str, loss: Any) -> Any:
    """Return the metric that a name stands for: the name itself where it is Keras' to know it.

    Args:
        name: of ``trainer.metrics``.
        loss: of the output whose metric it is: its name, or a node.
    """
    node = loss if isinstance(loss, dict) else {"_target_": loss}
    threshold = 0.5 if "binary" in str(node.get("_target_")).lower() else None
    score, _, average = name.partition("_")
    if name in SCORES and score == "auc":
        metric = _OF.AUC(multi_label=average == "macro", name=name)
    elif name in SCORES or name.lower() in _EACH_CLASS:
        average = average if name in SCORES and average else "macro"
        metric = _OF.FBetaScore(average, _BETA.get(score, 1.0), threshold, name=name)
    else:
        try:
            metric = _OF.get(name)
        except ValueError:  # "accuracy", which Keras chooses by the shapes; or no metric at all
            return name
        if not isinstance(metric, ONE_HOT):
            return name
        metric.name = name
    return with_classes(metric, bool(node.get("from_logits")))


def with_classes(metric: Any, logits: bool = False) -> Any:
    """Let a metric that wants one-hot targets take numbers of classes; return it.

    Of the instance, whose class stays Keras': states of such add up, and whoever loads the saved
    model needs nothing else.

    Args:
        metric: any; another stays as it is.
        logits: the outputs are none of the probabilities that it is meant for.
    """
    if isinstance(metric, ONE_HOT) and keras_internals.is_of_keras(metric):
        metric.update_state = functools.partial(_update, metric, logits)
    return metric


def _update(metric: Any, logits: bool, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
    ops, classes = keras.ops, y_pred.shape[-1]
    y_true = ops.convert_to_tensor(y_true)
    if logits:
        y_pred = ops.sigmoid(y_pred) if classes == 1 else ops.softmax(y_pred)
    is_shorter = len(y_true.shape) == len(y_pred.shape) - 1
    if classes == 1:
        y_true = ops.expand_dims(y_true, -1) if is_shorter else y_true
        if isinstance(metric, _OF.FBetaScore) and metric.threshold is None:
            metric.threshold = 0.5  # the largest of one output is always that one
    elif is_shorter or (y_true.shape[-1] == 1 and len(y_true.shape) == len(y_pred.shape)):
        y_true = y_true if is_shorter else ops.squeeze(y_true, -1)
        y_true = ops.one_hot(ops.cast(y_true, "int32"), classes, dtype=y_pred.dtype)
    type(metric).update_state(metric, y_true, y_pred, sample_weight)
