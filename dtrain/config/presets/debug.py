"""Keys of the group ``debug``: what is done in the place of a training, to find what is wrong."""

from __future__ import annotations

import dataclasses

from dtrain.config.forms import target
from dtrain.config.ranges import LARGE, MANY, within

#: What an ordinary run does.
TRAIN = "dtrain.task.train.train.Train"
NAN, OVERFIT = "dtrain.debug.Nan", "dtrain.debug.Overfit"
ONE_BATCH = "dtrain.debug.OneBatch"


@dataclasses.dataclass
class Debug:
    """What is done in the place of a training.

    Attributes:
        _target_: class of the action that debug stands for.
    """

    _target_: str = target(TRAIN)


@dataclasses.dataclass
class Nan(Debug):
    """Trains, and names the first value that is not finite.

    Attributes:
        steps: steps after which debug=nan ends if all is finite; null: those of the training.
    """

    _target_: str = target(NAN)
    steps: int | None = within(None, 1, MANY)


@dataclasses.dataclass
class Overfit(Debug):
    """Trains on the same few examples in each step.

    Attributes:
        examples: examples of debug=overfit, all of them in each step.
        steps: steps in which the loss must come near 0.
        loss: largest loss that is near 0.
    """

    _target_: str = target(OVERFIT)
    examples: int = within(8, 1, MANY)
    steps: int = within(300, 1, MANY)
    loss: float = within(0.05, 0, LARGE, above=True)


@dataclasses.dataclass
class OneBatch(Debug):
    """Goes once through all that a run does, by a step each."""

    _target_: str = target(ONE_BATCH)
