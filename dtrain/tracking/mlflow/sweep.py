"""A sweep in MLflow: the names and tags of its jobs, and the parent run with what came of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

from dtrain import secrets
from dtrain.config import private, tree
from dtrain.config.overrides import parse
from dtrain.config.tree import Config
from dtrain.errors import DamagedFile
from dtrain.files import reading
from dtrain.files.fields import Json
from dtrain.run import failure, schemas
from dtrain.run.folder import RunDir, write_json
from dtrain.tracking.chosen import main_tracker
from dtrain.tracking.delivery import Delivery, ship_folder
from dtrain.tracking.mlflow.store import Store, import_mlflow, uri


def job_tags(job: Json, parent: str) -> dict[str, str]:
    """Return the tags of a child.

    Args:
        job: as of :func:`job_name`.
        parent: id of the parent run.
    """
    return {"mlflow.parentRunId": parent, "job": str(job["number"])}


def parent(store: Store, config: Config, folder: Path, started: float) -> str:
    """Return the id of the sweep's run; whoever asks first has it created.

    Args:
        store: where.
        config: of the sweep or one of its jobs.
        folder: of the sweep.
        started: seconds since the epoch, for a sweep that does not say when it began.
    """
    sweep: Any = schemas.read(folder / "sweep.json", schemas.Sweep) or {}

    def tags() -> dict[str, str]:
        return {
            "mlflow.source.name": "dtrain",
            "run_dir": str(folder),
            "sweep": folder.name,
            "host": platform.node(),
        }

    run_id, _ = store.run(
        folder / "tracking.json", sweep.get("name", folder.name), sweep.get("started", started),
        tags,
    )  # fmt: skip
    return run_id


#: Of a sweep folder, beside ``sweep.json``: what its end makes.
COMPARISON = ("comparison.html", "comparison.csv")
_NOTE_CHARACTERS = 7000  # of the run's description: MLflow cuts it off at 8,000


class SweepRun:
    """Records one sweep, from a thread of its own, as its jobs' trackers record them.

    The run itself is created with the first job that trains. Until the sweep ends the thread ships
    jobs that ended while the server was away, once it is back.

    Args:
        config: of the sweep; ``tracking`` and ``output_dir`` count.
        folder: of the sweep.
        warn: called with one line when the server is away, and when it is back.
    """

    def __init__(self, config: Config, folder: Path, warn: Callable[[str], None]):
        self._config = config
        self._folder = folder
        self._warn = warn
        self._delivery: Delivery | None = None
        self._shipped: set[Path] = set()  # jobs that MLflow has all of

    def open(self) -> None:
        """Begin; returns at once."""
        self._delivery = Delivery(
            secrets.mask(uri(self._config)), self._deliver, lambda: None, self._warn, import_mlflow
        )

    def close(self, status: str | None, ended: float) -> bool:
        """Record how the sweep ended. Call when ``sweep.json`` and the comparison are written.

        Args:
            status: ``FINISHED``, ``FAILED`` or ``KILLED``; None where nothing was trained: then
                nothing is recorded.
            ended: when, seconds since the epoch.

        Returns:
            Whether MLflow has everything, of every job as well.
        """
        if self._delivery is None:
            return True
        return self._delivery.finish(None if status is None else (status, ended))

    def _deliver(self, last: tuple[str, float] | None) -> bool:
        if last is not None:
            record(Store(self._config), self._config, self._folder, *last)
            self._shipped.clear()  # at the end all are looked at
        shipped = [job for job in self._unshipped() if _ship(job)]
        return last is not None or bool(shipped)

    def _unshipped(self) -> Iterator[RunDir]:
        """Yield the jobs that have ended and of which MLflow has not got everything."""
        # Of the others no file is looked at every few seconds: there may be thousands.
        for rundir in jobs_of(self._folder, leave=self._shipped, ended=True):
            result = schemas.glance(rundir.result, schemas.Result)
            tracked: Any = schemas.glance(rundir.tracking, schemas.Shipped) or {}
            if result is not None and result["status"] == tracked.get("shipped"):
                self._shipped.add(rundir.path)
            elif result is not None:
                yield rundir


def record(store: Store, config: Config, folder: Path, status: str, ended: float) -> None:
    """Write what a sweep folder says of the sweep as a whole to its run.

    Args:
        store, config, folder: as of :func:`parent`.
        status, ended: as of :meth:`SweepRun.close`.
    """
    run_id = parent(store, config, folder, ended)
    sweep: Any = schemas.read(folder / "sweep.json", schemas.Sweep) or {}
    words = (sweep.get("command") or {}).get("overrides", [])
    given = {each.name: each.value or "" for each in map(parse, words)}
    store.parameters(run_id, given, dict(store.call("get_run", run_id).data.params))
    jobs: list[Json] = sweep.get("jobs", [])
    best = next((job for job in jobs if job["number"] == sweep.get("best")), None)
    tags = {"overrides": " ".join(words)}
    if sweep.get("objective") is not None:
        tags["objective"] = sweep["objective"]
    points = {"jobs": float(len(jobs))}
    for kind in ("FINISHED", "FAILED", "KILLED"):
        points[f"jobs_{kind.lower()}"] = float(sum(job["status"] == kind for job in jobs))
    if best is not None:
        overrides = " ".join(best.get("overrides", []))
        tags |= {"best_job": str(best["number"]), "best_overrides": overrides}
        result = schemas.glance(folder / best["folder"] / "result.json", schemas.Result)
        metrics = result.get("metrics", {}) if result else {}
        points |= {f"best.{key}": float(v) for key, v in metrics.items() if v is not None}
        if best.get("objective") is not None:  # of its best checkpoint; the others are the last
            points[f"best.{sweep.get('objective')}"] = float(best["objective"])
    tags["mlflow.note.content"] = _note(jobs, sweep.get("best"))
    for key, value in tags.items():
        store.call("set_tag", run_id, key, secrets.mask(value))
    at = int(ended * 1000)
    store.points(run_id, [(key, value, at, 0) for key, value in points.items()])
    for name in ("sweep.json", *COMPARISON):
        if (folder / name).exists():
            store.call("log_artifact", run_id, str(folder / name))
    store.call("set_terminated", run_id, status, at)
    file = folder / "tracking.json"
    write_json(file, {**(schemas.read(file, schemas.Shipped) or {}), "shipped": status})


def jobs_of(folder: Path, leave: Container[Path] = (), ended: bool = False) -> list[RunDir]:
    """Return the run folders of a sweep, by their numbers.

    Args:
        folder: of the sweep.
        leave: folders that are left out.
        ended: only those of jobs that have ended, as far as the sweep says it.

    Raises:
        DamagedFile: its record cannot be used.
    """
    sweep = schemas.read(folder / "sweep.json", schemas.Sweep)
    jobs = sweep["jobs"] if sweep else []
    wanted = [job for job in jobs if not (ended and job["status"] in ("WAITING", "RUNNING"))]
    paths = [path for job in wanted if (path := folder / job["folder"]) not in leave]
    return [RunDir(path) for path in paths if path.is_dir() and not path.is_symlink()]


def _ship(rundir: RunDir) -> bool:
    """Ship the folder of a job unless a command is at work in it: its own tracker ships it."""
    try:
        lock = rundir.lock()
        if lock is None:
            return False
        try:
            config = tree.read(rundir.config)
            command = reading.read_json(rundir.command)
            if not private.is_own_address(command, tree.places(config)):
                return False  # `dtrain sync` says why
            ship_folder(main_tracker(config), config, rundir)
        finally:
            os.close(lock)
    except DamagedFile:  # the others are not to wait for it; `dtrain sync` says what it is
        return False
    return True


def _note(jobs: list[Json], best: int | None) -> str:
    """Return a table of the jobs in Markdown, the best in bold, as a description shows it."""
    keys = list(dict.fromkeys(key for job in jobs for key in job["differs"]))
    reported = ("status", "objective", "seconds")
    head = ["job", *keys, *reported, "error"]
    lines = [head, ["---"] * len(head)]
    for job in jobs:
        row = [str(job["number"]), *(str(job["differs"].get(key, "")) for key in keys)]
        row += ["" if job.get(name) is None else str(job[name]) for name in reported]
        row.append(failure.sentence(job.get("failure")) or "")
        cells = [cell.replace("|", "\\|").replace("\n", " ")[:100] for cell in row]
        lines.append([f"**{c}**" if c else "" for c in cells] if row[0] == str(best) else cells)
    text = ""
    for line in lines:
        text += f"| {' | '.join(line)} |\n"
        if len(text) > _NOTE_CHARACTERS:
            return f"{text}\n{len(jobs)} jobs in all: comparison.csv"
    return text
