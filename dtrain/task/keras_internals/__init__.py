"""Private names of Keras: which, why, and what happens where one is gone.

Those of a backend are in a package of the same name there. No other module of dtrain uses any, as a
test verifies. Each is looked up and checked where it is needed and not before; where this version
has something else, the run ends with a sentence that says what to do instead.

``model_parts``   what is inside of a model, which public lists leave out
``optimizers``    what optimizers update, keep and scale
``contexts``      what Keras keeps for a process: training, precision, counts of names
``variables``     what a variable is stored in
``masks``         masks of tensors
``losses``        denominators of losses on several replicas
``moments``       what batch normalisation normalises by
``callbacks``     when callbacks of Keras choose how they compare
"""

from dtrain.data import generators
from dtrain.task.keras_internals.callbacks import (
    choose_comparison,
    end_with_averages,
    has_swapped,
)
from dtrain.task.keras_internals.contexts import (
    exchange_seed_generator,
    fresh_names,
    without_tensorflow,
)
from dtrain.task.keras_internals.losses import divide_losses_by_global_batch
from dtrain.task.keras_internals.masks import mask, set_mask
from dtrain.task.keras_internals.model_parts import (
    generator_states,
    inner,
    is_of_keras,
    layers,
    loss_trackers,
    of_own_classes,
    plain_variables,
    states,
    trainable_inside,
)
from dtrain.task.keras_internals.moments import use_moments
from dtrain.task.keras_internals.optimizers import (
    CACHES,
    adam_slots,
    average_trainable,
    scale_learning_rates,
    updated,
    updating,
)
from dtrain.task.keras_internals.variables import exchange, exchanged, initialize, stored

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
