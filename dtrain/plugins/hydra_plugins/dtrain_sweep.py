"""How Hydra finds dtrain's sweeps (``-m``): it takes plugins from this package alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext
from omegaconf import DictConfig

from dtrain.config import objective, schema
from dtrain.config.check import check_node
from dtrain.config.explain import check_grid
from dtrain.config.fields import Group
from dtrain.errors import refuse
from dtrain.sweep import options
from dtrain.sweep.search import Random, Source, Tpe


class SweepLauncher(Launcher):
    """Runs all jobs of a sweep, several at a time, from this one process."""

    def setup(self, *, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> None:
        """Keep what Hydra gives; ``task_function`` is :class:`dtrain.cli.app.Command`."""
        self._context, self._command, self._config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run jobs that are all known. What they return is in the folder of the sweep."""
        self.run(Source(job_overrides))
        return []

    def run(self, source: Source) -> None:
        """Run the jobs of a source, such as a search, to its end."""
        self._command.sweep(self._context.config_loader, self._config, source)


class GridSweeper(BasicSweeper):
    """All combinations of the values given, as Hydra's own, in one batch.

    Hydra's would compose each job once more, and make a folder before it is known whether all are
    in order.

    Args:
        params: as of :class:`SearchSweeper`.
    """

    def __init__(self, params: dict[str, str] | None):
        super().__init__(max_batch_size=None, params=params)

    def sweep(self, arguments: list[str]) -> Any:
        """Run the job of each combination."""
        assert self.hydra_context is not None and self.launcher is not None
        loader: Any = self.hydra_context.config_loader
        parser = OverridesParser.create(config_loader=loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        for each in overrides:
            if each.is_interval_sweep():
                key, value = each.get_key_element(), each.get_value_string()
                refuse(key, "has no end of values, and hydra/sweeper=grid tries all", value,
                       accepted="a,b,c, range(a,b,c), choice(a,b,c), or a search",
                       typed="hydra/sweeper=random hydra.sweeper.trials=20")  # fmt: skip
        check_grid(overrides)
        [jobs] = self.split_arguments(overrides, max_batch_size=None)
        return self.launcher.launch(jobs, initial_job_idx=0)


class SearchSweeper(Sweeper):
    """Runs the jobs that a search asks for.

    Args:
        params: overrides, in a file instead of on the command line.
        trials: how many jobs.
        seed: of the search's own draws.
    """

    kind: type[Group]

    def __init__(self, params: dict[str, str] | None, trials: int, seed: int):
        self._params, self._trials, self._seed = params or {}, trials, seed

    def setup(self, *, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> None:
        """Make the launcher, which must be dtrain's: others know their jobs from the beginning."""
        check_node(config, "hydra.sweeper", self.kind)
        self._maximize = objective.mode_of(config.objective_mode, config.objective) != "min"
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        if not isinstance(launcher, SweepLauncher):
            chosen = config.hydra.runtime.choices["hydra/launcher"]
            refuse("hydra/launcher", "runs no search", chosen, typed="hydra/launcher=dtrain")
        self._launcher = launcher

    def sweep(self, arguments: list[str]) -> None:
        """Run the search."""
        self._launcher.run(
            self._search([*(f"{k}={v}" for k, v in self._params.items()), *arguments])
        )

    def _search(self, words: list[str]) -> Source:
        raise NotImplementedError


class RandomSweeper(SearchSweeper):
    """Random search."""

    kind = options.Random

    def _search(self, words: list[str]) -> Source:
        return Random(words, self._trials, self._seed)


class OptunaSweeper(SearchSweeper):
    """Optuna's TPE.

    Args:
        startup, pruning: as of :class:`dtrain.sweep.search.Tpe`.
        **kwargs: as of :class:`SearchSweeper`.
    """

    kind = options.Optuna

    def __init__(self, startup: int, pruning: bool, **kwargs: Any):
        super().__init__(**kwargs)
        self._startup, self._pruning = startup, pruning

    def _search(self, words: list[str]) -> Source:
        return Tpe(words, self._trials, self._seed, self._maximize, self._startup, self._pruning)


_store = ConfigStore.instance().store
_store(group="hydra/launcher", name="dtrain", node=schema.defaults(options.Launcher))
_store(group="hydra/sweeper", name="grid", node=schema.defaults(options.Grid))
_store(group="hydra/sweeper", name="random", node=schema.defaults(options.Random))
_store(group="hydra/sweeper", name="optuna", node=schema.defaults(options.Optuna))
