"""A confusion matrix, counted as a metric is: its state adds up over steps and replicas."""

from __future__ import annotations

from typing import Any

import keras

#: Most classes that one is made of.
CLASSES = 100
NAME = "confusion_matrix"


class Confusion(keras.metrics.Metric):
    """How many examples of each class were taken for each other one.

    Its result, a number as that of any metric, is how many were counted.

    Args:
        classes: how many; the targets are numbers of classes, or one-hot.
        logits: whether the outputs are no probabilities, but what a sigmoid would make them of.
    """

    #: Known to be a sum over the examples.
    adds_up = True

    def __init__(self, classes: int, logits: bool = False):
        super().__init__(name=NAME)
        self.classes = classes
        self._threshold = 0.0 if logits else 0.5
        self.matrix = self.add_weight(shape=(classes, classes), initializer="zeros", name="matrix")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count a batch: true classes are rows, predicted ones columns."""
        ops, columns = keras.ops, y_pred.shape[-1]
        if columns == 1:  # of the second class
            predicted = ops.cast(y_pred > self._threshold, "int32")
        else:
            predicted = ops.argmax(y_pred, axis=-1)
        one_hot = columns > 1 and len(y_true.shape) == len(y_pred.shape)
        if one_hot and y_true.shape[-1] == columns:
            true = ops.argmax(y_true, axis=-1)
        else:
            true = ops.cast(y_true, "int32")
        true, predicted = (
            ops.one_hot(ops.cast(ops.reshape(each, [-1]), "int32"), self.classes, dtype="float32")
            for each in (true, predicted)
        )
        self.matrix.assign(self.matrix + ops.matmul(ops.transpose(true), predicted))

    def result(self) -> Any:
        """Return how many examples were counted."""
        return keras.ops.sum(self.matrix)


def of(loss: Any, predicted: Any) -> Confusion | None:
    """Return the metric for a model that tells classes apart; None for any other.

    Args:
        loss: ``trainer.loss``: a crossentropy.
        predicted: what the model returns: one array, of a number for each class, or of one.
    """
    name = loss.get("_target_", "") if isinstance(loss, dict) else loss
    if not isinstance(name, str) or "crossentropy" not in name.lower().replace("_", ""):
        return None
    shape = getattr(predicted, "shape", None)
    if shape is None or len(shape) < 2 or not shape[-1]:
        return None
    classes = max(2, int(shape[-1]))
    logits = isinstance(loss, dict) and bool(loss.get("from_logits"))
    return Confusion(classes, logits) if classes <= CLASSES else None
