"""What a strategy is to the rest of a task: its replicas, and what computes on them."""

from __future__ import annotations

import keras

from dtrain.data.sources import Source, Splits
from dtrain.task.aliases import Batch
from dtrain.task.backends import unsummed
from dtrain.task.backends.base import Finish
from dtrain.task.backends.tensorflow import input_pipeline
from dtrain.task.backends.tensorflow.forward import Forward, LocalCalls
from dtrain.task.backends.tensorflow.rehearsal import across
from dtrain.task.backends.tensorflow.rehearsal.across import trial
from dtrain.task.backends.tensorflow.rehearsal.step import trace_step
from dtrain.task.backends.tensorflow.replicas import Replicas
from dtrain.task.backends.tensorflow.steps import Steps
from dtrain.task.data.inputs import Inputs
from dtrain.task.model.optimizers import Update


class Strategy(Replicas):
    """Runs Keras' own step under one ``tf.distribute`` strategy.

    A new strategy is a subclass that builds its ``engine`` and overrides what differs, and one
    YAML file that names it.

    Args:
        engine: the TensorFlow strategy.
    """

    def forward(self, model: keras.Model, source: Source, batch: int, finish: Finish) -> Forward:
        """Return the function that predicts; the arguments are those of :class:`Forward`."""
        return Forward(model, self, source, batch, finish)

    def trace_step(
        self, model: keras.Model, examples: Batch, creates: bool = False
    ) -> list[Update]:
        """Trace ``train_step`` and run nothing; return what optimizers would update."""
        return trace_step(model, self, examples, creates)

    def notices(
        self, model: keras.Model, splits: Splits, fixed: int | None, batch: int | None, seed: int
    ) -> list[str | None]:
        """Try the model on some examples; say which of its numbers are not those of one device."""
        own = unsummed.notice(model, splits, self.tasks, self.parts, trial(model), fixed)
        notices = [own]
        if batch is not None:
            notices.append(across.notice(model, self, splits.train, batch, seed))
        return notices

    def answer_locally(self, model: keras.Model) -> None:
        """Let ``predict`` and ``evaluate`` of a callback compute in this task alone."""
        LocalCalls(model, self)

    def steps(self, model: keras.Model, inputs: Inputs, jit_compile: bool) -> Steps:
        """Return the compiled functions that train and evaluate ``model`` on ``inputs``.

        Args:
            model: built on this strategy.
            inputs: what to read.
            jit_compile: compile each step by XLA.
        """
        training = evaluation = own = None
        if inputs.train is not None:
            if self.abilities.reads_in_loop:
                own = input_pipeline.in_loop(inputs)
            if own is None:
                training = self.distribute(input_pipeline.training, inputs)
        if inputs.validation is not None:
            evaluation = self.distribute(input_pipeline.evaluation, inputs)
        return Steps(model, self, inputs, training, evaluation, jit_compile, own)
