"""Private names of Keras and TensorFlow: which, why, and what happens where one is gone.

No other module of dtrain uses any, as a test verifies. Each is looked up and checked where it is
needed and not before; where this version of Keras or TensorFlow has something else, the run ends
with a sentence that says what to do instead.

``model_parts``   what is inside of a model, which public lists leave out
``losses``        losses that layers add, masks, and denominators of losses on several replicas
``updates``       optimizers that update several replicas
``draws``         the functions through which layers draw random numbers
``contexts``      what Keras keeps for a process: training, precision, counts of names
``variables``     TensorFlow's variable inside of one of Keras', a strategy's; a model's strategy
``collectives``   the devices of a task of several
``callbacks``     when callbacks of Keras choose how they compare
``additions``     the order in which a compiled step adds, reads and assigns
"""

from dtrain.task.backends.tensorflow.keras_internals.additions import (
    keep_order,
    optimize_dependencies,
)
from dtrain.task.backends.tensorflow.keras_internals.callbacks import choose_comparison
from dtrain.task.backends.tensorflow.keras_internals.contexts import fresh_names, keep_session
from dtrain.task.backends.tensorflow.keras_internals.losses import (
    keep_losses_apart,
    losses_of,
    mask,
    see_batches_of_their_own,
    set_mask,
)
from dtrain.task.backends.tensorflow.keras_internals.model_parts import (
    generator_states,
    inner,
    is_of_keras,
    layers,
    loss_trackers,
    of_own_classes,
    plain_variables,
    states,
)
from dtrain.task.backends.tensorflow.keras_internals.updates import (
    adam_slots,
    average_trainable,
    reduce_nothing,
    scale_learning_rates,
    take_gradients_as_they_are,
    updated,
)
from dtrain.task.backends.tensorflow.keras_internals.variables import (
    exchange,
    initialize,
    is_plain,
    read_as_numbers,
    stored,
    unwrapped,
    without_strategy,
)

__all__ = [
    "adam_slots",
    "average_trainable",
    "choose_comparison",
    "exchange",
    "fresh_names",
    "generator_states",
    "initialize",
    "inner",
    "is_of_keras",
    "is_plain",
    "keep_losses_apart",
    "keep_order",
    "keep_session",
    "layers",
    "loss_trackers",
    "losses_of",
    "mask",
    "of_own_classes",
    "optimize_dependencies",
    "plain_variables",
    "read_as_numbers",
    "reduce_nothing",
    "scale_learning_rates",
    "see_batches_of_their_own",
    "set_mask",
    "states",
    "stored",
    "take_gradients_as_they_are",
    "unwrapped",
    "updated",
    "without_strategy",
]
