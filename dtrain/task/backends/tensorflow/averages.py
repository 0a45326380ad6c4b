"""Variables of a model that each task trains by itself, averaged over the tasks (local SGD).

Between two averages the tasks exchange nothing (Stich 2019, Local SGD converges fast and
communicates little; Lin et al. 2020, Don't use large mini-batches, use local SGD). Averaged are
weights, statistics and the slots of optimizers: what all tasks have then is one model, as a
checkpoint holds it.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dtrain.errors import UsageError
from dtrain.task import keras_internals
from dtrain.task.backends.tensorflow.replica import reduction
from dtrain.task.model import train_state


def floating(model: keras.Model) -> list[Any]:
    """Return the variables of a model and its optimizers that an average of tasks can be.

    The others count steps or draws, alike in all tasks.
    """
    found = train_state.variables(model).values()
    return [each for each in found if tf.convert_to_tensor(each.value).dtype.is_floating]


def check(model: keras.Model, every: int) -> None:
    """Refuse a layer that needs what all tasks have, in the midst of a step.

    Args:
        model: of a task that trains by itself.
        every: steps between two averages.

    Raises:
        UsageError: naming the layer.
    """
    for layer in keras_internals.layers(model):
        if getattr(layer, "synchronized", False):
            raise UsageError(
                "strategy.sync_every", every,
                f"{type(layer).__name__} {layer.name} is synchronized=True: it normalises by the "
                "global batch, of which each task has a part", "1, or synchronized=False",
                "strategy.sync_every=1",
            )  # fmt: skip


def taken(hosts: tf.distribute.Strategy, model: keras.Model) -> bool:
    """Replace the variables of each task by their means, one vector for each type; in a graph.

    Args:
        hosts: of all tasks, with one replica in each.
        model: of this task, in plain variables.
    """
    variables = floating(model)

    def replica() -> list[tf.Tensor]:
        own = [tf.convert_to_tensor(variable.value) for variable in variables]
        return reduction.reduce(own, tf.distribute.ReduceOp.MEAN)

    for variable, mean in zip(variables, hosts.run(replica), strict=True):
        variable.assign(hosts.experimental_local_results(mean)[0])
    return True
