"""Numbers of the host as tensors, sums that keep their order, variables that no checkpoint has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from dtrain.task import keras_internals
from dtrain.task.aliases import Tensors
from dtrain.task.backends.tensorflow.keras_internals import unwrapped
from dtrain.task.model import train_state


def fresh(value: tf.Tensor, dtype: tf.DType | None = None) -> tf.Tensor:
    """Return a number or an array as a tensor of which TensorFlow keeps nothing.

    Of every Python number that becomes a tensor (NumPy's float64 is one) it keeps that tensor for
    as long as the process lives, in case the number comes again: 0.7 kB each.
    """
    return tf.constant(np.asarray(value), dtype)


def total(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Add tensors of one shape up, in their order.

    ``tf.add_n`` begins with whichever of them it may write over, which depends on what other
    threads have done: the last bit of a sum of three and more changes from step to step.
    """
    tensors = [tf.convert_to_tensor(part) for part in parts]
    return tf.reduce_sum(tf.stack(tensors), axis=0) if len(tensors) > 1 else tensors[0]


def joined(values: Tensors) -> Tensors:
    """Join tensors of any shapes, a vector for each run of one type."""
    return [
        _joined(list(group)) for _, group in itertools.groupby(values, lambda value: value.dtype)
    ]


def _joined(values: Tensors) -> tf.Tensor:
    if all(value.shape.rank == 0 for value in values):
        return tf.stack(values)  # one operation
    return tf.concat([tf.reshape(value, [-1]) for value in values], 0)


def flat(vectors: Tensors) -> tf.Tensor:
    """Join vectors of any types into one float64 ``[m]``."""
    parts = [tf.cast(vector, tf.float64) for vector in vectors]
    return tf.concat([*parts, tf.zeros([0], tf.float64)], 0) if len(parts) != 1 else parts[0]


#: Beginnings of the names of operations that change the variable that they are given first.
ASSIGNS = (
    "Assign", "ResourceScatter", "ResourceApply", "RngSkip", "RngReadAndSkip", "StatefulUniform",
    "StatefulStandardNormal", "StatefulTruncatedNormal",
)  # fmt: skip


def unsaved(model: keras.Model, graph: tf.Graph) -> list[str]:
    """Return the names of variables that a training step assigns and that no checkpoint has.

    Args:
        model: with its optimizers.
        graph: of a training step; None where it has none.
    """
    metrics = [v for metric in model.metrics for v in metric.variables]
    saved: set[int] = set()
    for variable in (*train_state.variables(model).values(), *metrics):
        inner = getattr(variable, "variable", variable)
        inner = keras_internals.stored(inner) if isinstance(inner, keras.Variable) else inner
        inner = unwrapped(inner)
        saved |= {id(each) for each in (inner, *getattr(inner, "values", ()))}
    assigned = {
        id(outside)
        for outside, inside in getattr(graph, "captures", ())
        if any(each.type.startswith(ASSIGNS) for each in inside.consumers())
    }
    return sorted(
        {
            each.name.partition(":")[0].partition("/replica_")[0]
            for each in getattr(graph, "variables", ())
            if id(each) not in saved and id(each.handle) in assigned
        }
    )
