"""The keys of ``hydra.launcher`` and ``hydra.sweeper``.

Not in the plugin: Hydra imports that as no module, and no model can find its own types there.
"""

from typing import Annotated

from dtrain.config.fields import Group, Number, Plain, Seed, Target, within

_PLUGIN = "hydra_plugins.dtrain_sweep"


class Launcher(Group, scope="command", target=f"{_PLUGIN}.SweepLauncher"):
    """dtrain's launcher, which has no options of its own."""

    target_: Target
    """Class of the launcher."""


class Grid(Group, scope="command", target=f"{_PLUGIN}.GridSweeper"):
    """All combinations."""

    target_: Target
    """Class of the sweeper."""
    params: dict[str, Plain] | None = None
    """Overrides of the sweep, in a file instead of on the command line."""


class Random(Grid, target=f"{_PLUGIN}.RandomSweeper"):
    """Random search."""

    trials: Number = 20
    """Number of jobs."""
    seed: Seed = 0
    """Seed of the search's own draws."""


class Optuna(Random, target=f"{_PLUGIN}.OptunaSweeper"):
    """Optuna's search."""

    startup: Annotated[int, within(0, 10_000)] = 10
    """Random jobs at the beginning; no job is pruned before as many have ended."""
    pruning: bool = True
    """Prune a job that is worse than the median of the others at the same step."""
