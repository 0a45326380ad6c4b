"""The tracker that records each run folder as one MLflow run: its data, tags, points, artifacts."""

from __future__ import annotations

import contextlib
import json
import platform
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain import secrets
from dtrain.config import tree
from dtrain.config.objective import AUTO
from dtrain.config.tree import Config
from dtrain.errors import DamagedFile
from dtrain.files.fields import Json, Values
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.host.packages import version
from dtrain.run import code, failure, schemas
from dtrain.run.folder import RunDir, short, write_json
from dtrain.run.registry import Promotion
from dtrain.tracking.base import SweepRecord, TrackedRun, Tracker
from dtrain.tracking.mlflow.models import Models
from dtrain.tracking.mlflow.store import BATCH, Store, allowed, import_mlflow, uri
from dtrain.tracking.mlflow.sweep import SweepRun, first, job_name, job_tags, parent, record

#: Characters of a name, a digest, and what describes a dataset, that MLflow takes.
_NAME, _DIGEST, _TEXT = 500, 36, 60_000
#: What MLflow shows each split as.
_CONTEXT = {"train": "training", "validation": "validation"}


def inputs(event: Json, dataset: Values) -> list[Any]:
    """Return MLflow's inputs of a ``data`` event.

    Args:
        event: of the journal, which may be anybody's: what is of no use in it is left out.
        dataset: the ``dataset`` group, with references in the place of secrets.
    """
    entities = import_mlflow().entities
    target = str(dataset.get("_target_", "dataset"))
    path = secrets.hide(dataset.get("path"))
    found = []
    for split, context in _CONTEXT.items():
        record = event.get(split)
        if not isinstance(record, dict) or not isinstance(record.get("digest"), str):
            continue
        source = {"target": target, **({} if path is None else {"path": path})}
        shown = {
            "name": target.rpartition(".")[2][:_NAME] or "dataset",
            "digest": record["digest"][:_DIGEST],
            "source_type": "dtrain",
            "source": json.dumps(source, default=str)[:_TEXT],
            "schema": json.dumps({"structure": str(record.get("structure"))})[:_TEXT],
            "profile": json.dumps({"num_rows": record.get("examples")})[:_TEXT],
        }
        tag = entities.InputTag("mlflow.data.context", context)
        found.append(entities.DatasetInput(entities.Dataset(**shown), [tag]))
    return found


class Steps:
    """A set of steps, those of a page as bits of a number: of a long run they are little memory."""

    _PAGE = 4096

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def add(self, step: int) -> None:
        """Take in a step."""
        page, bit = divmod(step, self._PAGE)
        self._pages[page] = self._pages.get(page, 0) | 1 << bit

    def __contains__(self, step: int) -> bool:
        page, bit = divmod(step, self._PAGE)
        return bool(self._pages.get(page, 0) >> bit & 1)


#: Of the longest journal that is an artifact: MLflow has its points.
_JOURNAL_BYTES = 64 << 20
#: What the tag of a parameter begins with that a later start has changed.
_LATER = "resumed."
#: Of a log that is an artifact of a failed run, and characters of a tag: MLflow's own limit.
_LOG_BYTES, _TAG_CHARACTERS = 16 << 20, 8000
#: Packages whose versions are tags, beside those of the backend.
_PACKAGES = ("dtrain", "keras", "hydra-core", "mlflow")
#: Other names of distributions that they are installed from.
_OTHERS = {
    "tensorflow": ("tensorflow-cpu", "tensorflow-tpu", "tf-nightly", "tf-nightly-cpu"),
    "keras": ("keras-nightly",),
    "mlflow": ("mlflow-skinny",),
}


def tags(run: TrackedRun) -> dict[str, str]:
    """Describe where and with what the run was made.

    Host, versions and commit are those of the record that the run itself has made
    (:mod:`dtrain.run.code`). A run that trains in this moment and has no record yet is on this
    machine; of one that is shipped later without a record they are not known.
    """
    config = run.config
    values = {"strategy": config.strategy.name, "device_kind": run.cluster.device_kind}
    if config.fork is not None:
        values["forked_from"] = config.fork
        origin = schemas.glance(RunDir(Path(config.fork).parent.parent).tracking, schemas.Shipped)
        if origin is not None and "run_id" in origin:
            values["forked_from_run_id"] = origin["run_id"]
    records = code.folders(run.rundir.path)
    with contextlib.suppress(DamagedFile):
        if records:
            return values | _recorded(code.read(records[0]), config.backend)
    return values | (_here(Path(config.output_dir), config.backend) if run.live else {})


def _packages(backend: str) -> tuple[str, ...]:
    return (*_PACKAGES, *FRAMEWORKS[backend].packages)


def _recorded(record: code.Record, backend: str) -> dict[str, str]:
    """Return host, versions and commit of a record of the run's code."""
    installed = record["packages"]
    values = {"host": record["host"], "python": installed.get("python", "")}
    for name in _packages(backend):
        names = (name, *_OTHERS.get(name, ()))
        distribution = next((each for each in names if each in installed), None)
        if distribution is not None:
            values[name] = installed[distribution]
    tree = record["tree"]
    return values if tree is None else values | _source(tree["commit"], bool(tree["changed"]))


def _here(outputs: Path, backend: str) -> dict[str, str]:
    """Return host, versions and commit of this moment, as :func:`_recorded` does of a record."""
    values = {"host": platform.node(), "python": platform.python_version()}
    values |= {name: number for name in _packages(backend) if (number := version(name)) is not None}
    commit, top = _git("rev-parse", "HEAD"), _git("rev-parse", "--show-toplevel")
    if not commit:
        return values
    whole = ["--", top]
    if outputs.absolute().is_relative_to(top):  # what runs write is no change of the code
        whole.append(f":(exclude,top){outputs.absolute().relative_to(top)}")
    return values | _source(commit, bool(_git("status", "--porcelain", *whole)))


def _source(commit: str, dirty: bool) -> dict[str, str]:
    return {
        "mlflow.source.git.commit": commit, "git_commit": commit, "git_dirty": str(dirty).lower(),
    }  # fmt: skip


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _is_table(path: Path) -> bool:
    """Say whether a file of an evaluation's folder is a table or a picture of one."""
    return path.suffix in (".csv", ".png") and path.is_file() and not path.is_symlink()


class MLflow(Tracker):
    """One run folder, as one MLflow run.

    ``tracking.json`` in the folder holds the MLflow run's id once it exists.

    Args:
        config: of the run, with references in the place of secrets; ``tracking`` and
            ``output_dir`` count.
    """

    keeps_models = True

    def __init__(self, config: Config):
        self._config = config
        self._run: TrackedRun  # after open
        self._job: Any = None
        self._store: Store  # after open
        self._run_id = ""
        self._resumed = False
        self._known: dict[str, Steps] = {}
        #: Parameters that MLflow has of the run, None where that is not known; and names of those
        #: that have another value since a later start.
        self._present: dict[str, str] | None = None
        self._changed: set[str] = set()
        self._derived: Json = {}

    @property
    def address(self) -> str:
        """The tracking URI, without a password."""
        return secrets.mask(uri(self._config))

    def view(self) -> str:
        """Return what opens MLflow's UI on the store: a command, or its address."""
        given = self.address
        if given.startswith("http"):
            return given
        if self._config.tracking.uri is not None:
            return f"mlflow ui --backend-store-uri {shlex.quote(given)}"
        folder = short(Path(self._config.output_dir))
        other = "" if folder == "outputs" else f" output_dir={shlex.quote(folder)}"
        return f"python -m dtrain ui{other}"

    def prepare(self) -> None:
        """Import MLflow: 3 to 9 s of CPU."""
        import_mlflow()

    def open(self, run: TrackedRun, started: float) -> None:
        """Connect, and find or create the MLflow run.

        Args:
            run: what is recorded.
            started: when it began, seconds since the epoch.
        """
        if self._run_id:
            return
        self._find(run, started)
        if self._resumed:
            self._call_store("update_run", status="RUNNING")

    def add(self, run: TrackedRun, events: list[Json], ended: tuple[float, str, float]) -> None:
        """Write events of a run that has ended: its status and its artifacts stay."""
        self._find(run, ended[0])
        self.write(events)
        self._evaluations(run.rundir)
        self._models().ship()
        if not self._resumed:  # the store is another one by now
            self.close(*ended[1:])

    def _call_store(self, method: str, **named: Any) -> None:
        self._store.call(method, self._run_id, **named)

    def _find(self, run: TrackedRun, started: float) -> None:
        self._run = run
        command = schemas.read(run.rundir.command, schemas.Command)
        self._job = command.get("sweep") if command else None
        self._store = store = Store(self._config)
        name, more = run.config.name, {}
        if self._job is not None:
            name = job_name(self._job, name)
            above = parent(store, self._config, run.rundir.path.parent, started)
            more = job_tags(self._job, above)

        def described() -> dict[str, str]:
            origin = {"mlflow.source.name": "dtrain", "run_dir": str(run.rundir.path)}
            return {**origin, **more, **tags(run)}

        self._run_id, self._resumed = store.run(run.rundir.tracking, name, started, described)

    def doubt(self) -> None:
        """Look again at what MLflow has: a call failed, and may have been done all the same."""
        self._known.clear()
        self._present = None
        self._resumed = True

    def write(self, events: list[Json]) -> None:
        """Write what ``events`` say; a point that is already there is not written again."""
        points = []
        for event in events:
            if event["event"] in ("start", "objective"):
                derived = {k: v for k, v in event.items() if k not in ("event", "time", "step")}
                self._describe(derived)
            elif event["event"] == "data":
                self._store.inputs(self._run_id, *inputs(event, self._config.dataset))
            elif event["event"] == "metrics":
                points += [
                    (key, value, int(event["time"] * 1000), event["step"])
                    for key, value in event["metrics"].items()
                    if event["step"] not in self._steps(key)
                ]
        for begin in range(0, len(points), BATCH):
            part = points[begin : begin + BATCH]
            self._store.points(self._run_id, part)
            for key, _, _, step in part:
                self._known[key].add(step)

    def _steps(self, key: str) -> Steps:
        """Return the steps at which MLflow has a point of ``key``."""
        if key not in self._known:
            known = self._known[key] = Steps()
            if self._resumed:
                history = self._store.call("get_metric_history", self._run_id, allowed(key))
                for point in history:
                    known.add(point.step)
        return self._known[key]

    def _describe(self, derived: Json) -> None:
        """Write the parameters of a start of the run.

        MLflow keeps the first value of a parameter. One that a later start has changed, such as
        ``trainer.epochs`` of a run that was resumed for more, is a tag ``resumed.NAME`` as well.
        """
        differing = first((self._job or {}).get("differs", {}))
        plain = tree.written(self._run.config)
        self._derived.update(derived)
        if plain["objective"] == AUTO:  # a parameter keeps its first value: not before it is known
            del plain["objective"], plain["objective_mode"]
        values = {**differing, **tree.flatten(plain), **tree.flatten(self._derived)}
        if self._present is None:
            data = self._store.call("get_run", self._run_id).data if self._resumed else None
            self._present = dict(data.params) if data else {}
            past = data.tags if data else {}
            self._changed = {tag[len(_LATER) :] for tag in past if tag.startswith(_LATER)}
        changed = self._store.parameters(self._run_id, values, self._present)
        changed.pop("resume", None)  # of each later start, and no property of the run
        for name, value in changed.items():
            self._call_store("set_tag", key=f"{_LATER}{name}", value=value)
        for name in self._changed - set(changed):  # it has its first value again
            self._call_store("delete_tag", key=f"{_LATER}{name}")
        self._changed = set(changed)

    def close(self, status: str, ended: float) -> None:
        """Add the artifacts and set the final status.

        Args:
            status: ``FINISHED``, ``FAILED`` or ``KILLED``.
            ended: when the run did, seconds since the epoch.
        """
        rundir, call = self._run.rundir, self._store.call
        result: Any = schemas.read(rundir.result, schemas.Result) or {}
        for name in ("restarts", "pruned"):
            if name in result:
                call("set_tag", self._run_id, name, str(result[name]).lower())
        if self._present is None:
            self._describe({})  # it failed before training began
        if status == "FAILED":
            self._explain(result)
        whole = [rundir.config, rundir.result, rundir.model, rundir.weights, rundir.state]
        if folders := code.folders(rundir.path):  # what replay makes the run again from
            whole += [rundir.command, rundir.journal]
        for path in whole:
            large = (
                path == rundir.journal and path.is_file() and path.stat().st_size > _JOURNAL_BYTES
            )
            if path.is_file() and not path.is_symlink() and not large:
                call("log_artifact", self._run_id, str(path))
        for folder in folders:
            call("log_artifacts", self._run_id, str(folder), f"{code.FOLDER}/{folder.name}")
        self._evaluations(rundir)
        call("set_terminated", self._run_id, status, int(ended * 1000))
        self._models().ship()
        tracked: Any = schemas.read(rundir.tracking, schemas.Shipped) or {}
        write_json(rundir.tracking, {**tracked, "shipped": status})

    def _explain(self, result: Json) -> None:
        """Add why the run failed, and the logs of its tasks."""
        call, logs = self._store.call, self._run.rundir.logs
        folder = self._run.rundir.path
        if error := failure.sentence(result.get("failure"), folder):
            call("set_tag", self._run_id, "error", error[:_TAG_CHARACTERS])
        for path in sorted(logs.glob("*.log")):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= _LOG_BYTES:
                call("log_artifact", self._run_id, str(path), logs.name)

    def promote(self, run: TrackedRun, promotion: Promotion) -> str:
        """Let an alias name a model of a run that is recorded, and is registered where need be."""
        self._find(run, time.time())
        return self._models().promote(promotion)

    def _models(self) -> Models:
        target = str(self._config.dataset.get("_target_", "dataset"))
        return Models(self._store, self._run.rundir, self._run_id, target.rpartition(".")[2])

    def _evaluations(self, rundir: RunDir) -> None:
        """Add the tables and pictures of evaluations that are not there yet."""
        call = self._store.call
        for folder in sorted((rundir.path / "evaluations").glob("*")):
            if folder.is_symlink():
                continue
            place = f"evaluations/{folder.name}"
            files = [path for path in sorted(folder.glob("*_*.*")) if _is_table(path)]
            there = set()
            if files and self._resumed:
                there = {Path(f.path).name for f in call("list_artifacts", self._run_id, place)}
            for path in files:
                if path.name not in there:
                    call("log_artifact", self._run_id, str(path), place)

    def sweep(self, config: Config, folder: Path, warn: Callable[[str], None]) -> SweepRecord:
        """Return the parent run of the sweep's jobs."""
        return SweepRun(config, folder, warn)

    def record_sweep(self, config: Config, folder: Path, status: str, ended: float) -> None:
        """Write what a sweep's folder says of it to the parent run."""
        record(Store(config), config, folder, status, ended)
