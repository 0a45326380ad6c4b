"""The functions of a training step, which are traced anew where other weights are trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.tensorflow.replica.global_batch import GlobalBatch
from dtrain.task.model import finetune, optimizers

#: Of what ``Steps.train`` gives: without them each number of steps would be traced anew.
NUMBER, ORDER = tf.TensorSpec([], tf.int64), tf.TensorSpec([None, None], tf.int64)


class Traced:
    """What of :class:`.steps.Steps` is made once more in an epoch that begins
    with other weights to train.
    """

    _model: keras.Model
    _trains: bool
    _jit_compile: bool
    _evaluate: Any
    _train: Any
    _train_part: Any
    _train_steps: Any
    _global_batch: int
    _seed: int
    _one_device: GlobalBatch

    def _made_step(self) -> Any:
        """Return a step of one replica, compiled where that is asked for."""
        if not self._jit_compile:
            return self._train_part
        return tf.function(self._train_part, autograph=False, jit_compile=True)

    def enter(self, epoch: int) -> list[str]:
        """Train what is trained in an epoch, from 1, and trace the steps anew where need be.

        Returns:
            The paths of the weights that are frozen in it, where they are others than before.
        """
        schedule = finetune.schedule_of(self._model)
        if schedule is None or not schedule.enter(epoch):
            return []
        self._evaluate = None  # penalties of frozen weights are in no loss
        self._retrace()
        return schedule.frozen or ["none"]

    def _retrace(self) -> None:
        """Trace the training steps anew."""
        if self._trains:
            self._one_device = on_one_device(self._model, self._global_batch, self._seed)
            self._train_step = self._made_step()
            self._train = tf.function(
                self._train_steps, autograph=False, input_signature=[NUMBER, ORDER]
            )
            self._train.get_concrete_function()  # now, and not in a call that is timed


def on_one_device(model: keras.Model, examples: int, seed: int) -> GlobalBatch:
    """Return the training step of a model, compiled and built, on a batch of ``examples``."""
    return GlobalBatch(step_on_one_device(model), examples, seed)


def step_on_one_device(model: keras.Model) -> Callable[[Any], None]:
    """Return the training step of a model without its updates, to be traced."""

    def step(data: Any) -> None:
        states = [v for metric in model.metrics for v in metric.variables]
        scope = keras.StatelessScope(
            [(v, tf.zeros(v.shape, v.dtype)) for v in states], collect_losses=True
        )
        # Regularizers ask the scope for weights; its constructor would read them.
        scope.state_mapping.update({id(v): v.value for v in model.trainable_variables})
        with scope, optimizers.caught(model):
            model.train_step(unwrapped(data))

    return step
