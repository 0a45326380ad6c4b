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
    """dtrain's launcher, which has no options of its own."""

    _target_: str = f"{_PLUGIN}.SweepLauncher"


@dataclasses.dataclass
class Grid:
    """All combinations; in a file ``params`` has what ``-m`` has on the command line."""

    _target_: str = f"{_PLUGIN}.GridSweeper"
    params: Any = None  # a node; typed as one it could not be given as a whole


@dataclasses.dataclass
class Random:
    """Random search."""

    _target_: str = f"{_PLUGIN}.RandomSweeper"
    params: Any = None  # a node; typed as one it could not be given as a whole
    trials: int = within(20, 1, 10_000)
    seed: int = within(0, 0, SEED)


@dataclasses.dataclass
class Optuna(Random):
    """Optuna's search."""

    _target_: str = f"{_PLUGIN}.OptunaSweeper"
    startup: int = within(10, 0, 10_000)
    pruning: bool = True
