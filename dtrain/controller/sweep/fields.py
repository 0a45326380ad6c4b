"""The form of ``sweep.json``: of each field what it may hold."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from dtrain.controller.folders import check_command
from dtrain.errors import DamagedFile
from dtrain.files import reading


def _is(*kinds: type) -> Any:
    return lambda value: type(value) in kinds  # a bool is no number


def _all(container: type, kind: type) -> Any:
    def is_so(value: Any) -> bool:
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, container) and all(isinstance(item, kind) for item in items)

    return is_so


_NONE = type(None)
_STATUSES = ("WAITING", "RUNNING", "FINISHED", "FAILED", "KILLED")
_STATUS = (lambda value: value in _STATUSES, f"one of {', '.join(_STATUSES)}")
#: Of the file, and of each entry of its ``jobs``: what holds of a value, and that in words.
SWEEP: dict[str, Any] = {
    "name": (_is(str), "a text"),
    "started": (_is(int, float), "a number"),
    "command": (_is(dict), "a mapping"),
    "status": _STATUS,
    "ended": (_is(int, float, _NONE), "a number or null"),
    "objective": (_is(str, _NONE), "a text or null"),
    "objective_mode": (lambda value: value in ("min", "max", None), "min, max or null"),
    "baseline": (_is(str, _NONE), "a text or null"),
    "best": (_is(int, _NONE), "the number of a job or null"),
    "jobs": (_is(list), "a list of jobs"),
    "course": (_all(list, list), "a list of lists"),
}
JOB: dict[str, Any] = {
    "number": (lambda value: type(value) is int and value >= 0, "a number from 0"),
    "folder": (_is(str), "the name of a folder"),
    "overrides": (_all(list, str), "a list of overrides"),
    "differs": (_all(dict, str), "a mapping of keys to values"),
    "hash": (_is(str, _NONE), "a text or null"),
    "status": _STATUS,
    "objective": (_is(int, float, _NONE), "a number or null"),
    "seconds": (_is(int, float, _NONE), "a number or null"),
    "exit_code": (_is(int, _NONE), "a number or null"),
    "error": (_is(str, _NONE), "a text or null"),
    "log": (_is(str, _NONE), "a path or null"),
    "pruned": (_is(bool, _NONE), "true or false"),
}


def check(data: dict[str, Any], path: Path) -> None:
    """Refuse what no sweep has written.

    Raises:
        DamagedFile: naming the first field that is not of its form.
    """
    _fields(data, SWEEP, path, "")
    check_command(data["command"], path, "command.")
    numbers: set[int] = set()
    for index, job in enumerate(data["jobs"]):
        place = f"jobs[{index}]"
        if not isinstance(job, dict):
            raise DamagedFile(path, "is not a mapping", place)
        _fields(job, JOB, path, f"{place}.")
        if job["number"] in numbers:
            raise DamagedFile(path, f"is that of another job, too: {job['number']}", place)
        numbers.add(job["number"])
        reading.below(path.parent, job["folder"], path, f"{place}.folder")
        log = PurePosixPath(job["log"] or "")
        if log.is_absolute() or ".." in log.parts:
            raise DamagedFile(path, f"{str(log)[:80]!r} is not below the sweep", f"{place}.log")


def _fields(data: dict[str, Any], fields: dict[str, Any], path: Path, place: str) -> None:
    for name, (kind, accepted) in fields.items():
        if name not in data:
            if name in ("pruned", "course"):  # most have none
                continue
            raise DamagedFile(path, "is missing", f"{place}{name}")
        if not kind(data[name]):
            raise DamagedFile(path, f"is not {accepted}", f"{place}{name}")
