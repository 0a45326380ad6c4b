"""``sweep.json``: what a sweep is made of and how far it is; and ``sweep.resume=``, by it."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dtrain import identity
from dtrain.controller import consent
from dtrain.controller.job import Outcome
from dtrain.controller.sweep.compose import Draft
from dtrain.errors import UsageError
from dtrain.rundir import RunDir, read_json, write_json

FILE = "sweep.json"
#: What the command that goes on with a sweep may say otherwise.
_FREE = ("sweep.resume", "sweep.parallel", "sweep.fail_fast", "sweep.baseline", "dry_run")


class Record:
    """The file ``sweep.json``, written anew at every change.

    Args:
        folder: of the sweep.
        data: its contents.
    """

    def __init__(self, folder: Path, data: dict[str, Any]):
        self.folder = folder
        self.data = data

    @classmethod
    def begin(cls, folder: Path, command: dict[str, Any], name: str, config: Any) -> Record:
        """Return that of a new sweep, of which ``config`` is of one job."""
        data = {
            "name": name,
            "started": time.time(),
            "command": command,
            "status": "RUNNING",
            "ended": None,
            "objective": config.objective,
            "objective_mode": config.objective_mode.name,
            "baseline": None,
            "best": None,
            "jobs": [],
        }
        return cls(folder, data)

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """One entry a job, in the order of their numbers."""
        jobs: list[dict[str, Any]] = self.data["jobs"]
        return jobs

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Those that failed."""
        return [job for job in self.jobs if job["status"] == "FAILED"]

    @property
    def left(self) -> list[dict[str, Any]]:
        """Those that wait, or were stopped and are still wanted."""
        ended = ("FINISHED", "FAILED")
        return [j for j in self.jobs if j["status"] not in ended and not j.get("pruned")]

    def add(self, number: int, overrides: list[str], draft: Draft | None) -> None:
        """Enter a job that waits, in the place of what is said of one with its number.

        Args:
            number: of the job.
            overrides: its words.
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
            "objective": None,
            "seconds": None,
            "exit_code": None,
            "error": None,
            "log": None,
        }
        self.data["jobs"] = [job for job in self.jobs if job["number"] != number]
        self.jobs.append(entry)
        self.jobs.sort(key=lambda job: job["number"])

    def began(self, number: int, folder: Path) -> None:
        """Note that a job runs, and where."""
        self._job(number).update(status="RUNNING", folder=folder.name)
        self.write()

    def ended(self, number: int, outcome: Outcome) -> None:
        """Note how a job ended."""
        entry = self._job(number)
        log = None if outcome.log is None else str(outcome.log.relative_to(self.folder))
        entry.update(
            status=outcome.status,
            objective=outcome.objective,
            seconds=outcome.seconds,
            exit_code=outcome.exit_code,
            error=outcome.error,
            log=log,
        )
        if outcome.pruned:
            entry["pruned"] = True
        self.data["best"] = self._best()
        self.write()

    def close(self, status: str) -> None:
        """Note how the sweep ended."""
        self.data.update(status=status, ended=time.time())
        self.write()

    def write(self) -> None:
        """Write the file; the jobs go on where that fails."""
        try:
            write_json(self.folder / FILE, self.data, lasting=True)
        except OSError as error:
            print(f"error: {self.folder / FILE}: {error.strerror}", file=sys.stderr)

    def _job(self, number: int) -> dict[str, Any]:
        return next(job for job in self.jobs if job["number"] == number)

    def _best(self) -> int | None:
        sign = 1 if self.data["objective_mode"] == "max" else -1
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
        UsageError: there is none, or it cannot be read.
    """
    try:
        data = read_json(folder / FILE)
    except (OSError, ValueError):
        data = {}
    if not data or not {"command", "jobs", "started", "name"} <= data.keys():
        spoilt = f"cannot be gone on with: its {FILE} is damaged"
        raise UsageError(
            "sweep.resume", folder,
            f"is not the folder of a sweep (it has no {FILE})" if data is None else spoilt,
            "a folder that a sweep printed as its sweep folder",
            "sweep.resume=outputs/multirun/DATE/TIME_NAME",
        )  # fmt: skip
    return Record(folder, data)


def arguments(given: list[str]) -> list[str]:
    """Put the words of the sweep that is resumed before those ``given``.

    Raises:
        UsageError: ``sweep.resume=`` names no sweep, or a word would change its jobs.
    """
    given = [_quoted(word) for word in given]
    words = {word.partition("=")[0].lstrip("+"): word.partition("=")[2] for word in given}
    folder = words.get("sweep.resume", "null").strip("'\"")
    if folder == "null":
        return given
    command = read(Path(folder)).data["command"]
    overrides, config_dir = consent.accept("sweep.resume", folder, command, given)
    for key, value in words.items():
        if not key.startswith("-") and key.split(".")[0] != "tracking" and key not in _FREE:
            raise UsageError(
                key, value, "would change the jobs of a sweep that is resumed",
                "sweep.parallel, sweep.fail_fast, sweep.baseline, tracking",
                f"sweep.resume={folder} without {key}=..., or a new sweep",
            )  # fmt: skip
    kept = [
        word
        for word in overrides
        if not any(
            word.partition("=")[0].lstrip("+") == key or word.startswith(f"{key}.") for key in words
        )
    ]
    flags = ["-m"] if not {"-m", "--multirun"} & set(given) else []
    if config_dir:
        flags += ["--config-dir", config_dir]
    options = [word for word in given if word.startswith("-")]
    # ORDER: options stand before the first word: Hydra takes no two groups of words.
    return [*flags, *options, *kept, *(word for word in given if word not in options)]


def _quoted(word: str) -> str:
    """Put into quotes, which a shell has eaten, a value that is a word itself."""
    key, _, value = word.partition("=")
    plain = key == "sweep.baseline" and value and value[0] not in "'\""
    return f"{key}='{value}'" if plain else word


def past(record: Record, draft: Draft) -> tuple[str | None, Outcome | None]:
    """Look for what an earlier command has done of a job.

    Returns:
        Its run folder if it is to be gone on with, and how it ended if it is done. Both are None
        where there is nothing of this very job.
    """
    folder = next((j["folder"] for j in record.jobs if j["number"] == draft.number), None)
    if folder is None:
        return None, None
    rundir = RunDir(record.folder / folder)
    try:
        config: Any = OmegaConf.load(rundir.config)
        same = identity.job_hash(config) == draft.hash
    except FileNotFoundError:  # it was killed before anything was trained
        shutil.rmtree(rundir.path, ignore_errors=True)
        return None, None
    except (OSError, ValueError, YAMLError, OmegaConfBaseException):
        same = False
    if not same:
        return None, None
    try:
        result = read_json(rundir.result) or {}
    except json.JSONDecodeError:
        result = {}
    if result.get("status") == "FINISHED" or result.get("pruned"):
        return None, Outcome(
            result["exit_code"],
            result["objective"],
            status=result["status"],
            seconds=result["seconds"],
            pruned=bool(result.get("pruned")),
        )
    return str(rundir.path), None
