"""What an action is: what a task does with its session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import keras

from dtrain.config.schema import Config
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.folder import RunDir
from dtrain.task.data.dataset import Data
from dtrain.task.data.inputs import Inputs
from dtrain.task.strategies import Strategy
from dtrain.task.train.session import Process, assemble
from dtrain.task.train.step_schedule import Schedule


class Action(ABC):
    """Does the work of a run; ``action._target_`` names the class.

    Its constructor takes the other keys of the group. Every task of a cluster that trains makes
    one and calls the same methods at the same points.
    """

    #: Whether it trains. One that does not needs no training input, no optimizer's state, and no
    #: rehearsal of the training step.
    trains = True
    of_run: RunDir | None = None

    # An optional hook: it has no body and is not abstract.
    def check(self, config: Config, model: keras.Model, schedule: Schedule) -> None:  # noqa: B027
        """Refuse what this action cannot do, before anything is restored.

        Raises:
            UsageError: naming the key.
        """

    def metrics(self, config: Config, predicted: Any) -> list[keras.metrics.Metric]:
        """Return metrics to compile the model with, beside those of the configuration.

        Args:
            config: of the run.
            predicted: what the model returns for an example.
        """
        return []

    def loaded(self, config: Config, data: Data) -> Data:
        """Return the examples as the model is to be built for them."""
        return data

    def arranged(self, inputs: Inputs, data: Data) -> Inputs:
        """Return the input as this action reads it."""
        return inputs

    def assemble(
        self, config: Config, strategy: Strategy, process: Process, past: Checkpoint | None
    ) -> Any:
        """Return what :meth:`run` works with; by default a session that has steps.

        It has ``inputs``: where an example that cannot be read is looked for.

        Args:
            config: of the run.
            strategy: as it was made.
            process: of the task.
            past: the checkpoint to restore, of this run or another one.

        Raises:
            UsageError: model, data, strategy and checkpoint do not go together.
        """
        return assemble(config, strategy, process, past, self)

    @abstractmethod
    def run(self, session: Any) -> None:
        """Do it.

        Args:
            session: of :meth:`assemble`.

        Raises:
            Interrupted: it was asked to stop, and has saved what is needed to resume.
        """
