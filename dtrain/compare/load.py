"""Reads the runs that are compared: from run folders and sweeps, or from MLflow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dtrain import secrets
from dtrain.config import tree
from dtrain.config.objective import chosen
from dtrain.config.schema.running import STORE
from dtrain.errors import DamagedFile, DtrainError, UsageError, printable, refuse
from dtrain.files import reading
from dtrain.files.fields import Json
from dtrain.run import evaluations, failure, schemas
from dtrain.run.folder import RunDir, check_format
from dtrain.run.journal import Follower
from dtrain.tracking.delivery import reason
from dtrain.tracking.mlflow.store import import_mlflow

SWEEP = "sweep.json"
_GIVEN = re.compile(r"^.*/given/(data_[0-9a-f]{12}\.npz)$")
_GIVEN_MODULE = re.compile(r"\b(given_[0-9a-f]{8})[0-9a-f]{24}\b")
#: Bounds of what is compared: runs; of a run keys of its configuration, metrics, and events.
RUNS, KEYS, METRICS, EVENTS = 2_000, 2_000, 1_000, 500_000
#: How deep the folders may be nested that are looked through for runs.
_DEPTH = 16
#: Status of a run that has begun and has no ``result.json``: it is running, or was killed.
UNFINISHED = "UNFINISHED"
_ID = re.compile(r"[0-9a-f]{32}")  # of a run in MLflow
#: Python's words, and those that one types.
_WORDS = {"None": "null", "True": "true", "False": "false"}


@dataclasses.dataclass
class Run:
    """One run, or one job of a sweep that may not have begun.

    Attributes:
        name: unique among the runs that are compared.
        source: its folder, or its id in MLflow.
        status: FINISHED, FAILED, KILLED, UNFINISHED, DAMAGED, or what the sweep says of the job:
            PRUNED, WAITING, RUNNING.
        config: the resolved configuration, ``a.b.c: text``; of a job that has not begun, what it
            has of its own.
        differs: what the sweep says it has of its own, where all runs are of one sweep.
        curves: value by step, by metric.
        metrics: the last value of each.
        objective: the value of what ``config["objective"]`` names.
        speed: examples a second, over the whole run.
        seconds: from its beginning to its end.
        problem: why there is no good result, in a line.
    """

    name: str
    source: str
    status: str = UNFINISHED
    config: dict[str, str] = dataclasses.field(default_factory=dict)
    differs: dict[str, str] = dataclasses.field(default_factory=dict)
    curves: dict[str, dict[int, float]] = dataclasses.field(default_factory=dict)
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    objective: float | None = None
    replicas: int | None = None
    speed: float | None = None
    seconds: float | None = None
    problem: str | None = None

    def value(self, key: str) -> str | None:
        """Return what the run has for a configuration key or a group; None where it has not."""
        if key in self.differs:
            return self.differs[key]
        key = key.replace("/", ".")  # a group, as it is named on the command line
        return self.config[key] if key in self.config else kind(self.config, key)


def kind(config: dict[str, str], group: str) -> str | None:
    """Return which of the things that ``group`` may be ``config`` has there: a name."""
    name = config.get(f"{group}.name") or config.get(f"{group}._target_")
    return name.rpartition(".")[2] if name else config.get(group)


def public(values: Json) -> dict[str, str]:
    """Return values as one types them, without secrets."""
    flat = {key: text for key, text in tree.flatten(values).items() if not secrets.named(key)}
    return {key: _WORDS.get(text) or _mask(text) for key, text in flat.items()}


@functools.lru_cache(1 << 14)  # most runs have most values in common
def _mask(text: str) -> str:
    # Arrays that a caller gave lie in each run's own folder: their digest says which they are.
    text = _GIVEN.sub(r"given/\1", secrets.mask(text))
    # Of the digest of a module that was given less is shown, and so the name of the function is.
    return _GIVEN_MODULE.sub(r"\1", text)


def number(value: Any) -> float | None:
    """Return ``value`` as a number, None where it is none; NaN is one."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def last(curves: dict[str, dict[int, float]]) -> dict[str, float]:
    """Return the value of each curve at its last step."""
    return {name: points[max(points)] for name, points in curves.items() if points}


def read(folder: Path, name: str) -> Run:
    """Read a run folder, of which anything but the configuration may be missing.

    Args:
        folder: where ``config.yaml`` is.
        name: of the run.
    """
    rundir, run = RunDir(folder), Run(name, printable(str(folder)))
    try:
        # References to the environment stay what they are: they may stand for secrets.
        run.config = public(reading.read_plain(rundir.config))
        if len(run.config) > KEYS:
            raise DamagedFile(rundir.config, f"has more than {KEYS:,} keys")
        passed = _read_curves(rundir.journal, run)
        for event in evaluations.as_points(evaluations.read(rundir)):
            for metric, value in event["metrics"].items():
                run.curves.setdefault(metric, {})[event["step"]] = value
        cluster = schemas.read(rundir.cluster, schemas.Replicas) or {}
        result: Any = schemas.read(rundir.result, schemas.Result) or {}
    except (OSError, DamagedFile) as error:
        return _mark_damaged(run, error)
    run.replicas = result.get("replicas") or cluster.get("replicas")
    set_result(run, result, rundir.path)
    run.problem = "; ".join(each for each in (run.problem, passed) if each) or None
    return run


def _mark_damaged(run: Run, error: Exception) -> Run:
    run.status = "DAMAGED"
    run.problem = f"cannot be read: {printable(str(error))}"
    return run


def _read_curves(path: Path, run: Run) -> str | None:
    """Put the points of a journal into ``run``; return a sentence about what is left out."""
    follower, left_out = Follower(path), None
    for number, event in enumerate(follower.events(), 1):
        if event["event"] in ("start", "objective"):  # it may have chosen its objective
            name, mode = chosen([event])
            run.config |= {"objective": name, "objective_mode": mode} if name and mode else {}
        for metric, value in event["metrics"].items() if event["event"] == "metrics" else ():
            if metric in run.curves or len(run.curves) < METRICS:
                run.curves.setdefault(metric, {})[event["step"]] = value
            else:
                left_out = f"{path.name}: more than {METRICS:,} metrics are left out"
        if number == EVENTS:
            left_out = f"{path.name}: what follows the first {EVENTS:,} events is left out"
            break
    return "; ".join(each for each in (follower.notice(), left_out) if each) or None


def set_result(run: Run, result: Json, folder: Path | None = None) -> None:
    """Put what ``result.json`` of a folder says into ``run``; it may be empty."""
    run.status = result.get("status") or run.status
    metrics = {name: number(value) for name, value in (result.get("metrics") or {}).items()}
    run.metrics = {**last(run.curves), **{k: v for k, v in metrics.items() if v is not None}}
    run.objective = number(result.get("best_objective", result.get("objective")))
    run.speed = number(result.get("examples_per_second"))
    run.seconds = number(result.get("seconds"))
    run.problem = failure.sentence(result.get("failure"), folder)


def _below(
    folder: Path, damaged: dict[Path, DamagedFile], depth: int = 0
) -> Iterator[tuple[Path, schemas.Job | None]]:
    """Yield the run folders in ``folder``, and with each what its sweep says of the job.

    Args:
        folder: where to look.
        damaged: gets the records of sweeps that cannot be used; their jobs are found as runs.
        depth: of ``folder`` below the first one.
    """
    sweep = None
    try:
        sweep = schemas.read(folder / SWEEP, schemas.Sweep)
    except DamagedFile as error:
        damaged[folder / SWEEP] = error
    if sweep is not None:
        yield from ((folder / job["folder"], job) for job in sweep["jobs"])
    elif (folder / "config.yaml").is_file() and (folder / "cluster.json").is_file():
        if not _is_derived(folder):
            yield folder, None
    elif depth < _DEPTH:
        with os.scandir(folder) as entries:
            inside = [
                Path(each.path)
                for each in entries
                if each.is_dir(follow_symlinks=False) and _is_readable(each)
            ]
        for each in sorted(inside, key=_natural):
            yield from _below(each, damaged, depth + 1)


def _is_derived(folder: Path) -> bool:
    """Say whether a folder is that of an evaluation, or the like, of a run."""
    try:
        command = reading.read_json(RunDir(folder).command)
    except (OSError, DamagedFile):  # what reads the run says so
        return False
    return command is not None and "derived" in command


def _is_readable(entry: os.DirEntry[str]) -> bool:
    if entry.name == "mlartifacts":  # copies of what the runs have
        return False
    return os.access(entry.path, os.R_OK | os.X_OK)


def _natural(path: Path) -> list[tuple[str, int]]:
    """Sort 2 before 10."""
    return [(text, int(n or 0)) for text, n in re.findall(r"(\D*)(\d*)", path.name)]


def of_folders(paths: Sequence[Path]) -> tuple[list[Run], Json | None]:
    """Find and read the runs in folders.

    Args:
        paths: run folders, sweeps, or folders with such somewhere below them.

    Returns:
        The runs, each once, and ``sweep.json`` where all of them are jobs of one sweep. What is
        damaged is a run with the status DAMAGED.

    Raises:
        UsageError: a path is not there, or holds no run, or there are too many.
    """
    folders: dict[Path, schemas.Job | None] = {}
    damaged: dict[Path, DamagedFile] = {}
    for path in paths:
        if not path.is_dir():
            raise _refusal(path, "is no folder" if path.exists() else "is not there")
        inside = dict(itertools.islice(_below(path.resolve(), damaged), RUNS + 1))
        folders.update(inside)
        if len(folders) > RUNS:
            raise _refusal(path, f"makes more than {RUNS:,} runs", f"{RUNS:,} runs at most")
        if not inside:
            raise next(iter(damaged.values()), _refusal(path, "holds no run folder"))
    base = Path(os.path.commonpath([folder.parent for folder in folders]))
    whole = all(job is not None and folder.parent == base for folder, job in folders.items())
    runs = []
    for folder, job in folders.items():
        check_format(folder, "RUN")
        name = printable(str(folder.relative_to(base)))
        runs.append(_run(folder, name))
        if job is not None:
            _set_job(runs[-1], job, whole)
    for path, error in damaged.items():
        name = printable(os.path.relpath(path, base))
        runs.append(_mark_damaged(Run(name, printable(str(path.parent))), error))
    sweep: Any = schemas.read(base / SWEEP, schemas.Sweep) if whole else None
    return runs, sweep


def _run(folder: Path, name: str) -> Run:
    run = Run(name, printable(str(folder)))
    if folder.is_symlink():
        return _mark_damaged(run, DamagedFile(folder, "is a symbolic link"))
    return read(folder, name) if os.path.lexists(folder / "config.yaml") else run


def _set_job(run: Run, job: schemas.Job, whole: bool) -> None:
    differs = public(dict(itertools.islice(job["differs"].items(), KEYS)))
    run.differs = differs if whole else {}
    run.config = run.config or differs
    if job.get("pruned"):
        run.status = "PRUNED"
    elif run.status == UNFINISHED:
        run.status = str(job["status"])
    failed: Json | None = job.get("failure")  # type: ignore[assignment] # checked as it was read
    run.problem = run.problem or failure.sentence(failed)
    objective = number(job.get("objective"))
    run.objective = run.objective if objective is None else objective
    run.seconds = number(job.get("seconds")) if run.seconds is None else run.seconds


def _refusal(path: Path, problem: str, accepted: str | None = None) -> UsageError:
    return UsageError("PATH", problem, path,
                      accepted=accepted or "a folder with runs in it, or the id of a run in MLflow",
                      typed="python -m dtrain compare outputs")  # fmt: skip


# --- runs as MLflow has them, for those whose folders are elsewhere


def is_id(word: str) -> bool:
    """Return whether ``word`` may be the id of a run in MLflow."""
    return _ID.fullmatch(word) is not None and not Path(word).exists()


def of_ids(ids: Sequence[str], uri: str) -> list[Run]:
    """Read runs from a tracking store.

    Args:
        ids: of runs; that of a sweep's parent stands for its children.
        uri: of the store.

    Raises:
        UsageError: there is no such store, or no such run in it.
        DtrainError: the store does not answer.
    """
    _check(uri)
    mlflow = import_mlflow()
    members: Json = {}
    client: Any = None
    for each in ids:
        with _explained(mlflow, uri, each):
            client = client or mlflow.tracking.MlflowClient(uri)
            run = client.get_run(each)
            for member in _children(client, run) or [run]:
                members[member.info.run_id] = member
    names = [str(run.info.run_name) for run in members.values()]
    of_one = (
        len({run.data.tags.get("mlflow.parentRunId", each) for each, run in members.items()}) == 1
    )
    return [
        _tracked_run(client, run, name if names.count(name) == 1 else f"{name} {each[:8]}", of_one)
        for (each, run), name in zip(members.items(), names, strict=True)
    ]


def _check(uri: str) -> None:
    path = uri.removeprefix("sqlite:///")
    if path != uri and not Path(path).is_file():  # MLflow would make it
        refuse("tracking.uri", "is not there", uri, accepted=STORE.accepted,
               hint="tracking.uri=sqlite:////PATH/OF/outputs/mlflow.db")  # fmt: skip
    problem = STORE.why_not(uri)
    if problem is not None:
        refuse("tracking.uri", problem, uri, accepted=STORE.accepted,
               typed="tracking.uri=http://HOST:PORT")  # fmt: skip


@contextlib.contextmanager
def _explained(mlflow: Any, uri: str, run_id: str) -> Iterator[None]:
    """Say in a sentence what a store has answered, or that it has not."""
    try:
        yield
    except mlflow.exceptions.MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            raise UsageError("RUN", f"is not in {secrets.mask(uri)}", run_id,
                             hint="tracking.uri=STORE of it") from None  # fmt: skip
        raise DtrainError(f"{secrets.mask(uri)} does not answer: {reason(error)}") from None
    except Exception as error:  # of a driver or a proxy
        raise DtrainError(f"{secrets.mask(uri)} cannot be read: {reason(error)}") from None


def _children(client: Any, parent: Any) -> list[Any]:
    children = client.search_runs(
        [parent.info.experiment_id],
        f"tags.mlflow.parentRunId = '{parent.info.run_id}'",
        order_by=["attributes.start_time"],
    )
    return sorted(children, key=lambda child: _integer(child.data.tags.get("job")) or 0)


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,15}", text) else None


def _tracked_run(client: Any, tracked: Any, name: str, of_one_sweep: bool) -> Run:
    info, parameters = tracked.info, tracked.data.params
    run = Run(name, info.run_id, info.status)
    # What distinguishes a job from the others of its sweep is there twice, so that it comes first.
    differs = {key[1:]: text for key, text in parameters.items() if key.startswith("_")}
    run.differs = public(differs) if of_one_sweep else {}
    # Parameters are what was chosen; the whole is an artifact of a run that has ended.
    whole = public(_artifact(client, info.run_id, "config.yaml", reading.read_plain) or {})
    chosen = public({k: text for k, text in parameters.items() if not k.startswith("_")})
    choices = {key for key in chosen if any(name.startswith(f"{key}.") for name in whole)}
    run.config = whole | {k: text for k, text in chosen.items() if k not in choices}
    for metric in tracked.data.metrics:
        history = client.get_metric_history(info.run_id, metric)
        run.curves[metric.removeprefix("time/")] = {point.step: point.value for point in history}
    run.replicas = _integer(parameters.get("replicas"))
    result = _artifact(client, info.run_id, "result.json", _read_result)
    if result is not None:
        set_result(run, result)
    else:  # it is not over, or its artifacts are out of reach: what is left is less
        run.metrics = last(run.curves)
        run.objective = run.metrics.get(parameters.get("objective", ""))
        run.seconds = (info.end_time - info.start_time) / 1000 if info.end_time else None
    return run


def _read_result(path: Path) -> Json | None:
    result: Any = schemas.read(path, schemas.Result)
    return result


def _artifact(client: Any, run_id: str, name: str, read_file: Callable[[Path], Any]) -> Json | None:
    """Return the contents of an artifact; None where it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            contents: Json | None = read_file(Path(client.download_artifacts(run_id, name, folder)))
        except Exception:  # whatever a store, a server or a proxy may raise
            return None
    return contents
