"""Functions of what a model predicts, in the graph: ``predict.function``.

One of a user's own takes the outputs of a batch, a tensor ``[b, ...]`` or a nest of such, and
returns the same, or others with the same first axis.
"""

from __future__ import annotations

from typing import Any

import keras

from dtrain.data import nest
from dtrain.errors import UsageError


def argmax(outputs: Any) -> Any:
    """Return, of scores ``[b, ..., classes]``, the class with the largest: int64 ``[b, ...]``."""
    return nest.mapped(
        lambda scores: keras.ops.cast(keras.ops.argmax(_of_classes(scores), -1), "int64"), outputs
    )


def top_k(outputs: Any, k: int = 5) -> Any:
    """Return, of scores ``[b, ..., classes]``, the ``k`` classes with the largest, and these.

    Of fewer classes it returns all.

    Returns:
        ``{"class": int32 [b, ..., k], "score": [b, ..., k]}`` for each output, the largest first.
    """

    def best(scores: Any) -> dict[str, Any]:
        scores = _of_classes(scores)
        values, indices = keras.ops.top_k(scores, min(k, scores.shape[-1]))
        return {"class": indices, "score": values}

    return nest.mapped(best, outputs)


def _of_classes(scores: Any) -> Any:
    width = scores.shape[-1] if len(scores.shape) > 1 else 1
    if width is None or width < 2:
        raise UsageError(
            "predict.function", "argmax or top_k", f"an output has {width} scores of each row",
            "2 or more, or a function of your own", "the command without predict.function",
        )  # fmt: skip
    return scores


#: Those that a word names.
NAMED = {"argmax": argmax, "top_k": top_k}
