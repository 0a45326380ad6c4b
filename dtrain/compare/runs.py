"""What there is to know of a run, and where it is found: run folders and sweeps of them."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from dtrain import journal, secrets
from dtrain.controller.tracking import flatten
from dtrain.errors import UsageError
from dtrain.rundir import RunDir, read_json

#: Of a run that was begun and has no result: it goes on, or its command was killed.
UNFINISHED = "UNFINISHED"
#: Python's words, and those that one types.
_WORDS = {"None": "null", "True": "true", "False": "false"}


@dataclasses.dataclass
class Run:
    """One run, or one job of a sweep that may not have begun.

    Attributes:
        name: unique among the runs that are compared.
        source: its folder, or its id in MLflow.
        status: FINISHED, FAILED, KILLED, UNFINISHED, or what the sweep says of the job: PRUNED,
            WAITING, RUNNING.
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


def public(values: dict[str, Any]) -> dict[str, str]:
    """Return values as one types them, without secrets."""
    flat = {key: text for key, text in flatten(values).items() if not secrets.named(key)}
    return {key: _WORDS.get(text, secrets.mask(text)) for key, text in flat.items()}


def number(value: Any) -> float | None:
    """Return ``value`` as a number, None where it is none; NaN is one."""
    try:
        return float(value)
    except (TypeError, ValueError):
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
    rundir, run = RunDir(folder), Run(name, str(folder))
    try:
        # References to the environment stay what they are: they may stand for secrets.
        config: Any = OmegaConf.to_container(OmegaConf.load(rundir.config), resolve=False)
        run.config = public(dict(config))
        for event in journal.read(rundir.journal):
            for metric, value in event["metrics"].items() if event["event"] == "metrics" else ():
                run.curves.setdefault(metric, {})[event["step"]] = value
        cluster, result = read_json(rundir.cluster) or {}, read_json(rundir.result) or {}
    except Exception as error:  # whatever a damaged file makes of a parser: the others are shown
        run.status = "DAMAGED"
        run.problem = f"cannot be read: {(str(error).splitlines() or [''])[0]}"
        return run
    run.replicas = result.get("replicas") or cluster.get("replicas")
    tell(run, result)
    return run


def tell(run: Run, result: dict[str, Any]) -> None:
    """Put what ``result.json`` says into ``run``; it may be empty."""
    run.status = result.get("status") or run.status
    told = {name: number(value) for name, value in (result.get("metrics") or {}).items()}
    run.metrics = {**last(run.curves), **{k: v for k, v in told.items() if v is not None}}
    run.objective = number(result.get("objective"))
    run.speed = number(result.get("examples_per_second"))
    run.seconds = number(result.get("seconds"))
    run.problem = secrets.mask(result["error"]) if result.get("error") else None


def _below(folder: Path) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Yield the run folders in ``folder``, and with each what its sweep says of the job."""
    sweep = read_json(folder / "sweep.json")
    if sweep is not None:
        yield from ((folder / job["folder"], job) for job in sweep["jobs"])
    elif (folder / "config.yaml").is_file() and (folder / "cluster.json").is_file():
        yield folder, None
    else:
        inside = [Path(each.path) for each in os.scandir(folder) if each.is_dir() and _open(each)]
        for each in sorted(inside, key=_natural):
            yield from _below(each)


def _open(entry: os.DirEntry[str]) -> bool:
    if entry.is_symlink() or entry.name == "mlartifacts":  # copies of what the runs have
        return False
    return os.access(entry.path, os.R_OK | os.X_OK)


def _natural(path: Path) -> list[tuple[str, int]]:
    """Sort 2 before 10."""
    return [(text, int(n or 0)) for text, n in re.findall(r"(\D*)(\d*)", path.name)]


def of_folders(paths: Sequence[Path]) -> tuple[list[Run], dict[str, Any] | None]:
    """Find and read the runs in folders.

    Args:
        paths: run folders, sweeps, or folders with such somewhere below them.

    Returns:
        The runs, each once, and ``sweep.json`` where all of them are jobs of one sweep.

    Raises:
        UsageError: a path is not there, or holds no run.
    """
    found: dict[Path, dict[str, Any] | None] = {}
    for path in paths:
        if not path.is_dir():
            raise _nothing(path, "is no folder" if path.exists() else "is not there")
        inside = dict(_below(path.resolve()))
        if not inside:
            raise _nothing(path, "holds no run folder")
        found.update(inside)
    base = Path(os.path.commonpath([folder.parent for folder in found]))
    whole = all(job is not None and folder.parent == base for folder, job in found.items())
    runs = []
    for folder, job in found.items():
        begun = (folder / "config.yaml").is_file()
        name = str(folder.relative_to(base))
        runs.append(read(folder, name) if begun else Run(name, str(folder)))
        if job is not None:
            _of_the_sweep(runs[-1], job, whole)
    return runs, read_json(base / "sweep.json") if whole else None


def _of_the_sweep(run: Run, job: dict[str, Any], whole: bool) -> None:
    differs = public(dict(job["differs"]))
    run.differs = differs if whole else {}
    run.config = run.config or differs
    if job.get("pruned"):
        run.status = "PRUNED"
    elif run.status == UNFINISHED:
        run.status = str(job["status"])
    run.problem = run.problem or (secrets.mask(str(job["error"])) if job.get("error") else None)
    objective = number(job.get("objective"))
    run.objective = run.objective if objective is None else objective
    run.seconds = number(job.get("seconds")) if run.seconds is None else run.seconds


def _nothing(path: Path, problem: str) -> UsageError:
    return UsageError(
        "PATH", path, problem, "a folder with runs in it, or the id of a run in MLflow",
        "python -m dtrain.compare outputs",
    )  # fmt: skip
