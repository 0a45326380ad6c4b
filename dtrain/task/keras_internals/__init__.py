"""Private names of Keras: which, why, and what happens where one is gone.

Those of a backend are in a package of the same name there. No other module of dtrain uses any, as a
test verifies. Each is looked up and checked where it is needed and not before; where this version
has something else, the run ends with a sentence that says what to do instead.

``model``     what is inside of models, what variables and masks are stored in, and lookups
``training``  losses, normalisation, optimizers, callbacks
``contexts``  what Keras keeps for a process: training, precision, counts of names
"""

from dtrain.data import generators
from dtrain.task.keras_internals.contexts import (
    exchange_seed_generator,
    fresh_names,
    without_tensorflow,
)
from dtrain.task.keras_internals.model import (
    exchange,
    exchanged,
    generator_states,
    initialize,
    inner,
    is_of_keras,
    layers,
    loss_trackers,
    mask,
    of_own_classes,
    plain_variables,
    set_mask,
    states,
    stored,
    trainable_inside,
)
from dtrain.task.keras_internals.training import (
    CACHES,
    adam_slots,
    average_trainable,
    choose_comparison,
    divide_losses_by_global_batch,
    end_with_averages,
    has_swapped,
    scale_learning_rates,
    updated,
    updating,
    use_moments,
)

# Of a process without Keras there is nothing to exchange.
generators.exchange_keras = exchange_seed_generator

__all__ = [
    "CACHES",
    "adam_slots",
    "average_trainable",
    "choose_comparison",
    "divide_losses_by_global_batch",
    "end_with_averages",
    "exchange",
    "exchanged",
    "fresh_names",
    "generator_states",
    "has_swapped",
    "initialize",
    "inner",
    "is_of_keras",
    "layers",
    "loss_trackers",
    "mask",
    "of_own_classes",
    "plain_variables",
    "scale_learning_rates",
    "set_mask",
    "states",
    "stored",
    "trainable_inside",
    "updated",
    "updating",
    "use_moments",
    "without_tensorflow",
]
