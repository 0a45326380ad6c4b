"""Keys and types of ``hydra.launcher`` and ``hydra.sweeper``.

Not in the plugin: Hydra imports that as no module, and no dataclass can find its own types there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from dtrain.config.ranges import SEED, within

_PLUGIN = "hydra_plugins.dtrain_sweep"


@dataclasses.dataclass
class Launcher:
    """dtrain's launcher, which has no options of its own.

    Attributes:
        _target_: class of the launcher.
    """

    _target_: str = f"{_PLUGIN}.SweepLauncher"


@dataclasses.dataclass
class Grid:
    """All combinations.

    Attributes:
        _target_: class of the sweeper.
        params: overrides of the sweep, in a file instead of on the command line.
    """

    _target_: str = f"{_PLUGIN}.GridSweeper"
    params: Any = None  # a node; typed as one it could not be given as a whole


@dataclasses.dataclass
class Random:
    """Random search.

    Attributes:
        _target_: class of the sweeper.
        params: overrides of the sweep, in a file instead of on the command line.
        trials: number of jobs.
        seed: seed of the search's own draws.
    """

    _target_: str = f"{_PLUGIN}.RandomSweeper"
    params: Any = None  # a node; typed as one it could not be given as a whole
    trials: int = within(20, 1, 10_000)
    seed: int = within(0, 0, SEED)


@dataclasses.dataclass
class Optuna(Random):
    """Optuna's search.

    Attributes:
        startup: random jobs at the beginning; no job is pruned before as many have ended.
        pruning: prune a job that is worse than the median of the others at the same step.
    """

    _target_: str = f"{_PLUGIN}.OptunaSweeper"
    startup: int = within(10, 0, 10_000)
    pruning: bool = True
