"""Private names of TensorFlow, and those of Keras that are of its TensorFlow backend alone.

``updates``     optimizers that update several replicas; losses that layers add; a strategy's
                variables and devices; a model's strategy; the default graph, which Keras'
                ``clear_session`` resets
``draws``       the functions through which layers draw random numbers
``additions``   the order in which a compiled step adds, reads and assigns
"""

from dtrain.task.backends.tensorflow.keras_internals.additions import (
    keep_order,
    optimize_dependencies,
)
from dtrain.task.backends.tensorflow.keras_internals.updates import (
    is_plain,
    keep_losses_apart,
    keep_session,
    local_devices,
    losses_of,
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
    "local_devices",
    "losses_of",
    "optimize_dependencies",
    "read_as_numbers",
    "reduce_nothing",
    "take_gradients_as_they_are",
    "unwrapped",
    "without_strategy",
]
