"""Private names of TensorFlow, and those of Keras that are of its TensorFlow backend alone.

``losses``        losses that layers add
``updates``       optimizers that update several replicas; a strategy's variables; a model's
                  strategy; the default graph, which Keras' ``clear_session`` resets
``draws``         the functions through which layers draw random numbers
``collectives``   the devices of a task of several
``additions``     the order in which a compiled step adds, reads and assigns
"""

from dtrain.task.backends.tensorflow.keras_internals.additions import (
    keep_order,
    optimize_dependencies,
)
from dtrain.task.backends.tensorflow.keras_internals.losses import keep_losses_apart, losses_of
from dtrain.task.backends.tensorflow.keras_internals.updates import (
    is_plain,
    keep_session,
    read_as_numbers,
    reduce_nothing,
    take_gradients_as_they_are,
    unwrapped,
    without_strategy,
)

__all__ = [
    "is_plain",
    "keep_losses_apart",
    "keep_order",
    "keep_session",
    "losses_of",
    "optimize_dependencies",
    "read_as_numbers",
    "reduce_nothing",
    "take_gradients_as_they_are",
    "unwrapped",
    "without_strategy",
]
