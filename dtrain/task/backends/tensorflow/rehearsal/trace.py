"""A trace of a model's own ``train_step`` that updates nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from dtrain.data import nest
from dtrain.task import keras_internals
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.tensorflow.replica import gradients
from dtrain.task.model import optimizers

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replicas import Replicas


def trace_step(
    model: keras.Model, strategy: Replicas, examples: tuple[Any, ...], creates: bool
) -> list[optimizers.Update]:
    """Trace ``train_step`` on some examples and run nothing; return what optimizers would update.

    Args:
        model: compiled; inside a scope of its strategy.
        strategy: runs the step.
        examples: as the input gives them.
        creates: it creates the variables of the model: it is traced outside of the replicas then,
            which may create none.
    """

    def creating(data: Any) -> None:
        with keras.StatelessScope(collect_losses=True), gradients.tried(None, []):
            model.train_step(data)

    def running(data: Any) -> None:
        strategy.run(model.train_step, data)

    def tensor(leaf: Any) -> Any:
        return None if leaf is None else tf.convert_to_tensor(leaf)

    data = unwrapped(tuple(nest.mapped(tensor, part) for part in examples))
    step = tf.function(creating if creates else running, autograph=False)
    with optimizers.caught(model) as updates:
        step.get_concrete_function(data)
    if creates:
        keras_internals.initialize()
    return updates
