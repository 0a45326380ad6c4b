"""``trainer.class_weight``: the weight of an example, from its target, in the input graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.mixture import by_member
from dtrain.data.sources import Source, Splits
from dtrain.data.streams import Stream
from dtrain.data.wrapped import Wrapped
from dtrain.errors import UsageError

#: Examples that are looked at before training, at most: are their targets classes?
ROWS = 256
KEY = "trainer.class_weight"


def weighted(
    splits: Splits, weights: Mapping[int, float], first: Callable[[Source, int], Any]
) -> Any:
    """Return the examples to train on, with the weights of their classes.

    As ``class_weight`` of Keras' ``fit``, whose targets are numbers of classes, ``[b]`` or
    ``[b, 1]``, or have the classes as their last axis; a class that is not named weighs 1. An
    example that has a weight already has the product: Keras refuses both together.

    Args:
        splits: what to train on, and its number of classes where that is known.
        weights: by class.
        first: reads so many of the first examples of a source, as tensors.

    Returns:
        A source, a mixture or a stream, as they are.

    Raises:
        UsageError: the first examples have no targets, several, or none that are classes.
    """
    source = splits.train
    rows = ROWS if isinstance(source, Stream) else min(ROWS, len(source))
    parts = first(source, rows)
    if len(parts) < 2 or parts[1] is None:
        raise _refused(weights, "the examples have no targets")
    if nest.is_nest(parts[1]):
        raise _refused(weights, "the examples have several targets")
    y = np.asarray(parts[1])
    several = y.ndim > 1 and y.shape[-1] > 1
    whole = y.dtype.kind in "biuf" and np.array_equal(y, np.round(y))
    if several and not (y.dtype.kind in "biuf" and np.allclose(y.sum(-1), 1, atol=1e-3)):
        raise _refused(
            weights, f"the targets, {' x '.join(map(str, y.shape[1:]))} numbers an example, do not "
            "add up to 1 over the last axis, as one-hot classes do"
        )  # fmt: skip
    if not several and not whole:
        raise _refused(weights, "the targets are no whole numbers")
    classes = None if several else splits.count_classes()
    known = y.shape[-1] if several else classes and max(2, classes)
    if known and max(weights) >= known:
        raise _refused(weights, f"the classes of the dataset go up to {known - 1}")
    if isinstance(source, Stream):
        return source.changed(Weighted(None, weights).finish)
    return by_member(source, lambda member: Weighted(member, weights))


def _refused(weights: Mapping[int, float], problem: str) -> UsageError:
    return UsageError(
        KEY, "{" + ",".join(f"{k}:{v:g}" for k, v in weights.items()) + "}", problem,
        "null, or weights of classes that the targets are, as whole numbers or one-hot",
        f"{KEY}=null",
    )  # fmt: skip


class Weighted(Wrapped):
    """A source with weights by class.

    Args:
        source: gives ``(x, y)`` or ``(x, y, sample_weight)``; None where :meth:`finish` gets these.
        weights: by class.
    """

    def __init__(self, source: Source | None, weights: Mapping[int, float]):
        super().__init__(source)
        self._classes = np.array(sorted(weights), np.int64)
        self._weights = np.array([weights[k] for k in sorted(weights)], np.float32)

    def finish(self, parts: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """Add the weights: tensors ``(x, y)`` to ``(x, y, float32 [b])``."""
        finish = getattr(self._source, "finish", None)
        x, y, *own = parts if finish is None else finish(parts)
        found = self._in_graph(y)
        return x, y, _product(found, *own) if own else found

    def _in_graph(self, y: Any) -> Any:
        import tensorflow as tf

        if y.shape.rank > 1:
            y = tf.cast(y, tf.uint8) if y.dtype == tf.bool else y
            y = tf.argmax(y, -1) if y.shape[-1] > 1 else y[..., 0]
        classes = tf.cast(tf.round(y) if y.dtype.is_floating else y, tf.int64)
        at = tf.searchsorted(self._classes, tf.reshape(classes, [-1]))
        at = tf.reshape(tf.minimum(at, len(self._classes) - 1), tf.shape(classes))
        found = tf.where(tf.gather(self._classes, at) == classes, tf.gather(self._weights, at), 1.0)
        return tf.ensure_shape(found, classes.shape)


def _product(found: Any, own: Any) -> Any:
    """Multiply weights, of which some may be of examples and others of positions in them."""
    import tensorflow as tf

    own = tf.cast(own, tf.float32)
    while len(own.shape) < len(found.shape):
        own = own[..., None]
    while len(found.shape) < len(own.shape):
        found = found[..., None]
    return own * found
