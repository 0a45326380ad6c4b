"""What a tracker is: where the events of a run go while it trains."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dtrain.config.tree import Config
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.run import schemas
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir, read_json
from dtrain.run.registry import Promotion


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """What is recorded.

    Attributes:
        config: of the run, with references in the place of secrets.
        rundir: its folder.
        cluster: its planned processes.
        live: it trains in this moment, by a command of this process.
    """

    config: Config
    rundir: RunDir
    cluster: Cluster
    live: bool = False


def tracked_run(config: Config, rundir: RunDir) -> TrackedRun:
    """Return what is recorded of a run that does not train in this moment."""
    cluster = Cluster.from_json(read_json(rundir.cluster) or {}, rundir.cluster)
    return TrackedRun(config, rundir, cluster)


class SweepRecord(Protocol):
    """Records a sweep as a whole, beside its jobs."""

    def open(self) -> None:
        """Begin; returns at once."""

    def close(self, status: str | None, ended: float) -> bool:
        """Record how the sweep ended; say whether all of it is delivered.

        Args:
            status: ``FINISHED``, ``FAILED`` or ``KILLED``; None where nothing was trained: then
                nothing is recorded.
            ended: when, seconds since the epoch.
        """


class Tracker(ABC):
    """Records one run; ``tracking._target_`` names the class.

    Training never waits for it: it is called from a thread of its own, and again where a call
    fails. So it may be given the same events twice. Its constructor takes, by their names, those
    that it needs of ``config`` (of the job), ``uri`` and ``experiment``, and all keys of its own;
    ``model`` and ``register``, as those of ``conf/tracking/mlflow.yaml``, are the controller's.
    """

    #: Whether :meth:`close` and :meth:`add` take over the models that the run's folder names
    #: (:mod:`dtrain.run.registry`), as ``tracking.model`` asks for.
    keeps_models = False

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return type(self).__name__

    @property
    def parts(self) -> tuple[Tracker, ...]:
        """Itself, or the trackers that it stands for."""
        return (self,)

    @property
    @abstractmethod
    def address(self) -> str | None:
        """Where runs are recorded, without a password; None: nowhere."""

    @abstractmethod
    def open(self, run: TrackedRun, started: float) -> None:
        """Connect, and find or create the record of ``run``, which began at ``started``.

        It is called before each :meth:`write`, and once is enough.

        Args:
            run: the same in each call.
            started: seconds since the epoch.
        """

    @abstractmethod
    def write(self, events: list[Json]) -> None:
        """Write events of the journal; what is there already is not written again."""

    @abstractmethod
    def close(self, status: str, ended: float) -> None:
        """Record how the run ended: ``FINISHED``, ``FAILED`` or ``KILLED``, and when."""

    def add(  # the status and the end of most are set by the last call
        self, run: TrackedRun, events: list[Json], ended: tuple[float, str, float]
    ) -> None:
        """Write events of a run that has ended, and leave how it ended as it is.

        Args:
            run: that is recorded already.
            events: as of :meth:`write`.
            ended: when it began, how it ended, and when.
        """
        self.open(run, ended[0])
        self.write(events)
        self.close(*ended[1:])

    def is_shipped(self, rundir: RunDir) -> bool:
        """Say whether it has all that a run had when it ended."""
        return "shipped" in (schemas.glance(rundir.tracking, schemas.Shipped) or {})

    def has_all(self, rundir: RunDir) -> bool:
        """Say whether nothing is known that it lacks of a job of a sweep that has ended."""
        return True

    def promote(self, run: TrackedRun, promotion: Promotion) -> str:
        """Let an alias name a model of a run that is recorded.

        Returns:
            A sentence about what was done.

        Raises:
            NotPromoted: the condition does not hold.
            UsageError: there are no models here, or the condition is none.
        """
        refuse("tracking", "keeps no models", self.label)

    def prepare(self) -> None:  # noqa: B027 - an optional hook
        """Do what takes long and needs no run: importing a client, say."""

    def resynchronize(self) -> None:  # noqa: B027 - an optional hook
        """Read the store again: a call failed, and may have taken effect."""

    def view(self) -> str | None:
        """Return what shows the runs: a command, or an address."""
        return self.address

    def sweep(
        self, config: Config, folder: Path, warn: Callable[[str], None]
    ) -> SweepRecord | None:
        """Return the record of a sweep; None of a tracker that has none but those of its jobs.

        Args:
            config: of the sweep.
            folder: of the sweep.
            warn: called with one line when the server is away, and when it is back.
        """
        return None

    def record_sweep(  # noqa: B027 - an optional hook
        self, config: Config, folder: Path, status: str, ended: float
    ) -> None:
        """Record at once what a sweep's folder says of it, after its jobs."""
