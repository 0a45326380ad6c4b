"""``sweep.json``: what a sweep is made of and how far it is; and ``sweep.resume=``, by it."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from pathlib import Path
from typing import Any

from dtrain.config import private, schema, tree
from dtrain.config.node import Unresolvable
from dtrain.config.objective import AUTO
from dtrain.config.overrides import parse
from dtrain.config.tree import Config
from dtrain.errors import USAGE, DamagedFile, refuse
from dtrain.files import reading, writing
from dtrain.files.fields import Json
from dtrain.job.folders import open_existing, unwritable
from dtrain.run import failure, identity, journal, schemas
from dtrain.run.folder import FORMAT, RunDir, write_json
from dtrain.run.outcome import Outcome
from dtrain.sweep.compose import Draft

FILE = "sweep.json"


class Record:
    """The file ``sweep.json``, written anew at every change.

    What an earlier command wrote holds until a job of this one trains, or this one ends well.

    Args:
        folder: of the sweep.
        data: its contents.
        resumed: an earlier command began the sweep.

    Attributes:
        trained: a job of this command has begun to train.
        refused: why jobs of this command could not be run.
    """

    def __init__(self, folder: Path, data: Json, resumed: bool = False):
        self.folder = folder
        self.data = data
        self.resumed = resumed
        self.trained = False
        self.refused: list[str] = []
        self._others = 0  # jobs of this command that ended otherwise

    @classmethod
    def begin(cls, folder: Path, command: Json, name: str, config: Config) -> Record:
        """Return that of a new sweep, of which ``config`` is of one job."""
        data = {
            "format": FORMAT,
            "name": name,
            "started": time.time(),
            "command": command,
            "status": "RUNNING",
            "ended": None,
            "objective": None if config.objective == AUTO else config.objective,
            "objective_mode": None if config.objective == AUTO else config.objective_mode,
            "baseline": None,
            "best": None,
            "jobs": [],
        }
        return cls(folder, data)

    @property
    def jobs(self) -> list[Json]:
        """One entry a job, in the order of their numbers."""
        jobs: list[Json] = self.data["jobs"]
        return jobs

    @property
    def failed(self) -> list[Json]:
        """Those that failed."""
        return [job for job in self.jobs if job["status"] == "FAILED"]

    @property
    def left(self) -> list[Json]:
        """Those that wait, or were stopped and are still wanted."""
        ended = ("FINISHED", "FAILED")
        return [j for j in self.jobs if j["status"] not in ended and not j.get("pruned")]

    @property
    def course(self) -> list[list[Any]]:
        """What a search asked for and heard."""
        course: list[list[Any]] = self.data.get("course", [])
        return course

    def values(self, number: int) -> list[tuple[int, float]]:
        """Return the objectives that a job has written, and their steps."""
        rundir = RunDir(self.folder / self._job(number)["folder"])
        try:
            events = journal.read(rundir.journal)
        except (OSError, DamagedFile):
            return []
        name = self.data["objective"]
        return [
            (event["step"], event["metrics"][name])
            for event in events
            if event["event"] == "metrics" and name in event["metrics"]
        ]

    def add(self, number: int, overrides: list[str], draft: Draft | None) -> None:
        """Enter a job that waits, in the place of what is said of one with its number.

        Args:
            number: of the job.
            overrides: its own.
            draft: what they make; None where that is nothing.
        """
        past = next((job for job in self.jobs if job["number"] == number), {})
        entry = {
            "number": number,
            "folder": past.get("folder", str(number)),
            "overrides": overrides,
            "differs": draft.differs if draft else {},
            "hash": draft.hash if draft else None,
            "status": "WAITING",
            **dict.fromkeys(("objective", "seconds", "exit_code", "failure")),
        }
        self.data["jobs"] = [job for job in self.jobs if job["number"] != number]
        self.jobs.append(entry)
        self.jobs.sort(key=lambda job: job["number"])

    def began(self, number: int, folder: Path) -> None:
        """Note that a job runs, and where."""
        self._job(number).update(status="RUNNING", folder=folder.name)
        self.changed()

    @property
    def is_refused(self) -> bool:
        """Whether nothing was trained, as no job of this command could be run."""
        return bool(self.refused) and not self._others and not self.trained

    def undo(self) -> None:
        """Leave the disk as it was before this command, in which nothing was trained."""
        if not self.resumed:
            writing.discard(self.folder)

    def compare_by(self, objective: str | None, mode: str | None) -> bool:
        """Compare the jobs by the objective of one, unless that is settled; say whether it is new.

        With ``objective=auto`` each job chooses its own: that of the first to begin counts for all.
        """
        if self.data["objective"] is not None or objective is None or mode is None:
            return False
        self.data.update(objective=objective, objective_mode=mode)
        return True

    def with_objective(self, outcome: Outcome) -> Outcome:
        """Return how a job ended, with its value of what the jobs are compared by."""
        name = self.data["objective"]
        if outcome.objective_name in (None, name):
            return outcome
        value = None if outcome.objective is None else outcome.metrics.get(name)
        return dataclasses.replace(outcome, objective=value)

    def conclude(self, number: int, outcome: Outcome) -> None:
        """Note how a job of this command ended."""
        if outcome.exit_code == USAGE:
            self.refused.append(outcome.failure.sentence() if outcome.failure else "")
        elif not (self.refused and outcome.status == "KILLED"):  # not stopped because of these
            self._others += 1
        self.ended(number, outcome)

    def problem(self, number: int) -> str | None:
        """Return why a job failed, in words."""
        job = self._job(number)
        return failure.sentence(job["failure"], self.folder / job["folder"])

    def ended(self, number: int, outcome: Outcome) -> None:
        """Note how a job ended."""
        entry = self._job(number)
        for name in ("status", "objective", "seconds", "exit_code"):
            entry[name] = getattr(outcome, name)
        entry["failure"] = None if outcome.failure is None else outcome.failure.record()
        if outcome.pruned:
            entry["pruned"] = True
        self.data["best"] = self._best()
        self.changed()

    def close(self, status: str) -> None:
        """Note how the sweep ended."""
        self.data.update(status=status, ended=time.time())
        self.write()

    def changed(self) -> None:
        """Write the file, unless that of an earlier command still holds."""
        if self.trained or not self.resumed:
            self.write()

    def write(self) -> None:
        """Write the file; the jobs continue where that fails."""
        try:
            write_json(self.folder / FILE, self.data, lasting=True)
        except OSError as error:
            print(f"error: {self.folder / FILE}: {error.strerror}", file=sys.stderr)

    def _job(self, number: int) -> Json:
        return next(job for job in self.jobs if job["number"] == number)

    def _best(self) -> int | None:
        sign = -1 if self.data["objective_mode"] == "min" else 1
        values = {
            job["number"]: sign * job["objective"]
            for job in self.jobs
            if job["status"] == "FINISHED"
            and job["objective"] is not None
            and math.isfinite(job["objective"])
        }
        return max(values, key=lambda number: (values[number], -number), default=None)


def read(folder: Path) -> Record:
    """Read the record of a sweep that is resumed.

    Raises:
        DamagedFile: it is not as a sweep wrote it, or the folder holds links, pipes or the like.
        UsageError: there is none.
    """
    data = None
    if folder.is_dir():
        open_existing(folder, "sweep.resume")
        try:
            data = reading.read_json(folder / FILE)
        except OSError as error:
            raise unwritable("sweep.resume", folder, "it cannot be read", error) from None
    if data is None:
        refuse("sweep.resume", f"is not the folder of a sweep (it has no {FILE})", folder,
               accepted="a folder that a sweep printed",
               hint="sweep.resume=outputs/multirun/DATE/TIME_NAME")  # fmt: skip
    check(data, folder / FILE)
    return Record(folder, data, resumed=True)


def arguments(given: list[str]) -> list[str]:
    """Put the overrides of the sweep that is resumed before those ``given``.

    Raises:
        UsageError: ``sweep.resume=`` names no sweep, or an override would change its jobs.
    """
    given = [_quoted(override) for override in given]
    words = {each.name: each.value or "" for each in map(parse, given)}
    folder = words.get("sweep.resume", "null").strip("'\"")
    if folder == "null":
        return given
    command = read(Path(folder)).data["command"]
    overrides, config_dir = private.accept("sweep.resume", folder, command, given)
    for key, value in words.items():
        of_sweep = key.startswith("sweep.") or schema.has_mark(key, "once")
        free = of_sweep and key != "resume"
        if not key.startswith("-") and key.split(".")[0] != "tracking" and not free:
            refuse(key, "would change the jobs of a sweep that is resumed", value,
                   accepted="sweep.parallel, sweep.fail_fast, sweep.baseline, tracking",
                   hint=f"sweep.resume={folder} without {key}=..., or a new sweep")  # fmt: skip
    kept = [
        override
        for override in overrides
        if not any(f"{parse(override).name}.".startswith(f"{key}.") for key in words)
    ]
    flags = ["-m"] if not {"-m", "--multirun"} & set(given) else []
    if config_dir:
        flags += ["--config-dir", config_dir]
    options = [override for override in given if override.startswith("-")]
    # ORDER: options stand before the first override: Hydra takes no two groups of them.
    return [*flags, *options, *kept, *(override for override in given if override not in options)]


def _quoted(override: str) -> str:
    """Put into quotes, which a shell has eaten, a value that is an override itself."""
    _, key, value = parse(override)
    plain = key == "sweep.baseline" and value and value[0] not in "'\""
    return f"{key}='{value}'" if plain else override


def past(record: Record, draft: Draft) -> tuple[str | None, Outcome | None]:
    """Look for what an earlier command has done of a job.

    Returns:
        Its run folder if it is to be resumed, and how it ended if it is done. Both are None where
        there is nothing of this very job: it gets a new folder, and what is there stays.

    Raises:
        DamagedFile: its folder holds links, pipes or the like.
    """
    folder = next((j["folder"] for j in record.jobs if j["number"] == draft.number), None)
    if folder is None or not (record.folder / folder).is_dir():
        return None, None
    rundir = open_existing(record.folder / folder, "sweep.resume")
    try:
        if identity.job_hash(tree.read(rundir.config)) != draft.hash:
            return None, None
    except (OSError, DamagedFile, Unresolvable):  # not written yet, or spoilt
        return None, None
    result: Any = schemas.glance(rundir.result, schemas.Result) or {}
    if result.get("status") == "FINISHED" or result.get("pruned"):
        return None, Outcome.of(result, failure=None, pruned=bool(result.get("pruned")))
    return str(rundir.path), None


#: What a sweep that is resumed needs of itself and of each of its jobs; others only read a few.
_SWEEP = ("started", "command", "ended", "objective", "objective_mode", "baseline", "best")
_JOB = ("overrides", "hash", "objective", "seconds", "exit_code", "failure")


def check(data: Json, path: Path) -> None:
    """Refuse what no sweep has written.

    Raises:
        DamagedFile: naming the first field that is not of its form.
    """
    schemas.check(data, schemas.Sweep, path)
    _check_fields(data, _SWEEP, path, "")
    numbers: set[int] = set()
    for index, job in enumerate(data["jobs"]):
        place = f"jobs[{index}]"
        _check_fields(job, _JOB, path, f"{place}.")
        if job["number"] in numbers:
            raise DamagedFile(path, f"is that of another job, too: {job['number']}", place)
        numbers.add(job["number"])
        reading.below(path.parent, job["folder"], path, f"{place}.folder")


def _check_fields(data: Json, names: tuple[str, ...], path: Path, place: str) -> None:
    for name in names:
        if name not in data:
            raise DamagedFile(path, "is not there", f"{place}{name}")
