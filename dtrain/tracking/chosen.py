"""Which trackers a run has: that of ``tracking`` itself, and those in nodes below it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dtrain.config import targets, tree
from dtrain.config.fields import key_of
from dtrain.config.schema.running import MLflow
from dtrain.config.tree import Config
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.run.registry import Promotion
from dtrain.tracking.base import SweepRecord, TrackedRun, Tracker
from dtrain.tracking.none import NoTracker
from dtrain.tracking.sink import Sink, Sunk


class Trackers(Tracker):
    """Several trackers of one run. A delivery serves each of its parts by itself.

    Args:
        parts: at least one; the first that can do what one alone does, such as models, does it.
    """

    def __init__(self, parts: tuple[Tracker, ...]):
        self._parts = parts
        self.keeps_models = any(part.keeps_models for part in parts)

    @property
    def label(self) -> str:
        """The names of all."""
        return " and ".join(part.label for part in self._parts)

    @property
    def parts(self) -> tuple[Tracker, ...]:
        """All of them."""
        return self._parts

    @property
    def address(self) -> str:
        """The addresses of all."""
        return ", ".join(str(part.address) for part in self._parts)

    def view(self) -> str:
        """Return what shows the runs, of each."""
        return ", ".join(filter(None, (part.view() for part in self._parts)))

    def open(self, run: TrackedRun, started: float) -> None:
        """Open each."""
        for part in self._parts:
            part.open(run, started)

    def write(self, events: list[Json]) -> None:
        """Write to each."""
        for part in self._parts:
            part.write(events)

    def close(self, status: str, ended: float) -> None:
        """Close each."""
        for part in self._parts:
            part.close(status, ended)

    def _first(self) -> Tracker:
        return next((part for part in self._parts if part.keeps_models), self._parts[0])

    def promote(self, run: TrackedRun, promotion: Promotion) -> str:
        """Let the one that keeps models do it."""
        return self._first().promote(run, promotion)

    def sweep(
        self, config: Config, folder: Path, warn: Callable[[str], None]
    ) -> SweepRecord | None:
        """Return the record of the sweep of the one that keeps models."""
        return self._first().sweep(config, folder, warn)

    def record_sweep(self, config: Config, folder: Path, status: str, ended: float) -> None:
        """Record a sweep where each has a record of one."""
        for part in self._parts:
            part.record_sweep(config, folder, status, ended)


def describe_overlooked(config: Config) -> str | None:
    """Return a sentence on variables of MLflow's in the environment that name another place.

    A run is recorded where its configuration says, which a resume and other commands read.
    """
    tracking = config.tracking
    if not tracking._target_.endswith(".MLflow"):
        return None
    keys = {"MLFLOW_TRACKING_URI": "tracking.uri", "MLFLOW_EXPERIMENT_NAME": "tracking.experiment"}
    default = {
        "tracking.uri": None,
        "tracking.experiment": MLflow.model_fields["experiment"].default,
    }
    typed = [
        f"'{key}=${{oc.env:{name}}}'"
        for name, key in keys.items()
        if os.environ.get(name) and tracking.written().get(key.partition(".")[2]) == default[key]
    ]
    if not typed:
        return None
    return (
        f"MLflow's variables in the environment are not used for this run; type: {' '.join(typed)}"
    )


def make_tracker(config: Config) -> Tracker:
    """Make the tracker of a run: that of ``tracking`` itself, and those in nodes below it.

    Args:
        config: of the run, with references in the place of secrets.

    Raises:
        UsageError: one cannot be made, or is none.
    """
    main, inner = main_tracker(config), tree.trackers(config.tracking)
    own = []
    for name in inner:
        node = config.tracking[name]
        made = targets.instantiate(node, f"tracking.{name}", config=config)
        own.append(_as_tracker(made, name, config))
    # ORDER: of none by itself, whose address is not looked at: it may refer to a password.
    parts = [each for each in (main, *own) if not isinstance(each, NoTracker)]
    return Trackers(tuple(parts)) if len(parts) > 1 else next(iter(parts), main)


def main_tracker(config: Config) -> Tracker:
    """Make the tracker that ``tracking._target_`` names, as :func:`make_tracker` does."""
    written = config.tracking.written()
    # Also of a class of the user's whose preset is made of that of MLflow.
    node, general = config.tracking, {key_of(*each) for each in MLflow.model_fields.items()}
    general = {*general, *tree.trackers(node)} - {"_target_"}
    made = targets.instantiate(
        # ORDER: what is not its own is not resolved: an address may refer to a password.
        {key: node[key] for key in node if key not in general},
        "tracking",
        config=config,
        uri=written.get("uri"),
        experiment=written.get("experiment"),
    )
    return _as_tracker(made, "", config)


def _as_tracker(made: object, name: str, config: Config) -> Tracker:
    """Return the tracker that was made, or that of the sink that was."""
    if isinstance(made, Sink):
        return Sunk(made, name or type(made).__name__.lower(), config)
    if not isinstance(made, Tracker):
        node, key = config.tracking, "tracking"
        if name:
            node, key = node[name], f"tracking.{name}"
        refuse(f"{key}._target_", "is no subclass of Tracker or Sink", node["_target_"],
               accepted="a subclass of dtrain.tracking.base.Tracker or dtrain.tracking.sink.Sink",
               typed="tracking=mlflow")  # fmt: skip
    return made
