"""What an action is: what a task does with its session."""

from __future__ import annotations

from abc import ABC, abstractmethod

import keras

from dtrain.config.schema import Config
from dtrain.task.session import Session
from dtrain.task.step_schedule import Schedule


class Action(ABC):
    """Does the work of a run; ``action._target_`` names the class.

    Its constructor takes the other keys of the group. Every task of a cluster that trains makes
    one and calls the same methods at the same points.
    """

    # An optional hook: it has no body and is not abstract.
    def check(self, config: Config, model: keras.Model, schedule: Schedule) -> None:  # noqa: B027
        """Refuse what this action cannot do, before anything is restored.

        Raises:
            UsageError: naming the key.
        """

    @abstractmethod
    def run(self, session: Session) -> None:
        """Do it.

        Raises:
            Interrupted: it was asked to stop, and has saved what is needed to resume.
        """
