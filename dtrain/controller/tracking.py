"""MLflow: the journal, shipped. Training never waits for it.

:class:`Shipper` turns journal events into one MLflow run and can be told the same events twice.
:class:`Tracker` does so from a thread, while the run goes on, and tries again after an error.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import logging
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from dtrain import targets
from dtrain.cluster import Cluster
from dtrain.journal import Follower
from dtrain.rundir import RunDir, read_json, write_json

#: Seconds between two looks at the journal: each costs a transaction while training goes on.
INTERVAL = 5.0
#: Seconds between two tries at the end of a run.
RETRY_SECONDS = 1.0
#: Longest wait for the last points at the end of a run, in seconds.
LAST_SECONDS = 30.0
_BATCH = 1000  # metrics in one call: MLflow's own limit
_PARAM_CHARACTERS = 6000  # of one parameter: MLflow's own limit


def uri(config: DictConfig) -> str:
    """Return ``tracking.uri``, or that of the embedded store under ``output_dir``."""
    return config.tracking.uri or f"sqlite:///{Path(config.output_dir).absolute()}/mlflow.db"


def flatten(node: Any, prefix: str = "") -> dict[str, str]:
    """Turn nested mappings into ``a.b.c: text``; lists stay whole."""
    if not isinstance(node, dict):
        return {prefix: str(node)[:_PARAM_CHARACTERS]}
    flat: dict[str, str] = {}
    for name, value in node.items():
        flat.update(flatten(value, f"{prefix}.{name}" if prefix else str(name)))
    return flat


def tags(config: DictConfig, cluster: Cluster) -> dict[str, str]:
    """Describe where and with what the run was made."""
    found = {
        "strategy": config.strategy.name,
        "device_kind": cluster.device_kind,
        "host": platform.node(),
        "python": platform.python_version(),
        **{
            name: importlib.metadata.version(name)
            for name in ("dtrain", "tensorflow", "keras", "hydra-core", "mlflow")
        },
    }
    if config.get("fork") is not None:  # which runs of older versions have not
        found["forked_from"] = config.fork
        parent = read_json(RunDir(Path(config.fork).parents[1]).tracking)
        if parent is not None:
            found["forked_from_run_id"] = parent["run_id"]
    commit = _git("rev-parse", "HEAD")
    if commit:
        found["mlflow.source.git.commit"] = found["git_commit"] = commit
        found["git_dirty"] = str(bool(_git("status", "--porcelain"))).lower()
    return found


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@contextmanager
def _only_one(config: DictConfig) -> Iterator[None]:
    """Let one command at a time open the embedded store: the first open makes its tables."""
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".mlflow.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def import_mlflow() -> Any:
    """Import MLflow with short retries and without its chatter."""
    # Its own defaults keep a call to a dead server waiting for minutes; we try again ourselves.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import mlflow.entities
    import mlflow.tracking

    return mlflow


class Shipper:
    """Writes one run folder to one MLflow run.

    Args:
        config: the resolved configuration of the run.
        rundir: its folder; ``tracking.json`` there holds the MLflow run's id once it exists.
        cluster: the planned processes.
    """

    def __init__(self, config: DictConfig, rundir: RunDir, cluster: Cluster):
        self._config = config
        self._rundir = rundir
        self._cluster = cluster
        self._mlflow: Any = None
        self._client: Any = None
        self._run_id: str | None = None
        self._resumed = False
        self._known: dict[str, set[int]] = {}

    def open(self, started: float) -> None:
        """Connect, and find or create the run.

        Args:
            started: when the run began, seconds since the epoch.
        """
        if self._run_id is not None:
            return
        self._mlflow = import_mlflow()
        address = uri(self._config)
        # Explicit client and ids: MLflow's fluent globals leak from one run into the next.
        if self._config.tracking.uri is None:
            with _only_one(self._config):
                self._client = self._mlflow.tracking.MlflowClient(address)
                experiment = self._experiment()
        else:
            self._client = self._mlflow.tracking.MlflowClient(address)
            experiment = self._experiment()
        past = read_json(self._rundir.tracking)
        if past is not None and past["uri"] == address:
            self._run_id, self._resumed = past["run_id"], True
            self._client.update_run(self._run_id, status="RUNNING")
            return
        run = self._client.create_run(
            experiment,
            start_time=int(started * 1000),
            run_name=self._config.name,
            tags={
                "mlflow.source.name": "dtrain",
                "run_dir": str(self._rundir.path),
                **tags(self._config, self._cluster),
            },
        )
        self._run_id = run.info.run_id
        write_json(
            self._rundir.tracking,
            {"uri": address, "experiment_id": experiment, "run_id": self._run_id},
        )

    def _experiment(self) -> str:
        name = self._config.tracking.experiment
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        location = None
        if self._config.tracking.uri is None:
            location = (Path(self._config.output_dir).absolute() / "mlartifacts").as_uri()
        return str(self._client.create_experiment(name, artifact_location=location))

    def ship(self, events: list[dict[str, Any]]) -> None:
        """Write what ``events`` say; a point that is already there is not written again."""
        points = []
        for event in events:
            if event["event"] == "start":
                derived = {k: v for k, v in event.items() if k not in ("event", "time", "step")}
                self._parameters(derived)
            elif event["event"] == "metrics":
                points += [
                    (key, value, int(event["time"] * 1000), event["step"])
                    for key, value in event["metrics"].items()
                    if event["step"] not in self._steps(key)
                ]
        for first in range(0, len(points), _BATCH):
            part = points[first : first + _BATCH]
            self._client.log_batch(
                self._run_id, metrics=[self._mlflow.entities.Metric(*point) for point in part]
            )
            for key, _, _, step in part:
                self._known[key].add(step)

    def _steps(self, key: str) -> set[int]:
        """Return the steps at which MLflow has a point of ``key``."""
        if key not in self._known:
            history = self._client.get_metric_history(self._run_id, key) if self._resumed else []
            self._known[key] = {point.step for point in history}
        return self._known[key]

    def _parameters(self, derived: dict[str, Any]) -> None:
        config = targets.plain(self._config)
        parameters = {**flatten(config), **flatten(derived)}
        if self._resumed:  # MLflow refuses to change a parameter
            present = self._client.get_run(self._run_id).data.params
            parameters = {k: v for k, v in parameters.items() if k not in present}
        entries = [self._mlflow.entities.Param(*item) for item in parameters.items()]
        for first in range(0, len(entries), 100):
            self._client.log_batch(self._run_id, params=entries[first : first + 100])

    def close(self, status: str, ended: float) -> None:
        """Add the artifacts and set the final status."""
        rundir = self._rundir
        result = read_json(rundir.result) or {}
        if "restarts" in result:
            self._client.set_tag(self._run_id, "restarts", str(result["restarts"]))
        for path in (rundir.config, rundir.result, rundir.model, rundir.weights):
            if path.exists():
                self._client.log_artifact(self._run_id, str(path))
        self._client.set_terminated(self._run_id, status, int(ended * 1000))


class Tracker:
    """Follows a journal and ships it, from a thread.

    Args:
        shipper: does the writing.
        journal: the file to follow.
        warn: called with one line when the server is away.
    """

    def __init__(self, shipper: Shipper, journal: Path, warn: Any):
        self._shipper = shipper
        self._follower = Follower(journal)
        self._warn = warn
        self._pending: list[dict[str, Any]] = []
        self._ending = threading.Event()
        self._final: tuple[str, float] | None = None
        self._done = False
        self._warned = False
        self._started = time.time()
        self._thread = threading.Thread(target=self._follow, name="tracking", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        if sys.platform == "linux":
            # A thread's own niceness: tracking gives way to training where cores are short.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        import_mlflow()  # 3 to 9 s of CPU, while the tasks import TensorFlow
        while not self._done:
            ending = self._ending.wait(INTERVAL)
            self._pending += self._follower.new()
            try:
                if any(event["event"] == "start" for event in self._pending) or self._final:
                    self._shipper.open(self._started)
                    self._shipper.ship(self._pending)
                    self._pending = []
                if ending and self._final:
                    self._shipper.close(*self._final)
                    self._done = True
                elif ending:
                    return
            except Exception as error:  # whatever a server, a driver or a proxy may raise
                if not self._warned:
                    self._warn(f"tracking: {str(error).splitlines()[0]}; training goes on")
                    self._warned = True
                if ending:
                    time.sleep(RETRY_SECONDS)

    def finish(self, status: str | None, ended: float) -> bool:
        """Ship the rest and set the status; with None nothing was recorded, and nothing is.

        Returns:
            Whether MLflow has everything.
        """
        self._final = (status, ended) if status is not None else None
        self._ending.set()
        self._thread.join(LAST_SECONDS)
        return self._done
