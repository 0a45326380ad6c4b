"""The journal: one JSON object a line, appended by the chief alone; the truth about a run.

Between two starts of a job, when no task runs, the controller adds ``restart``.

Every line has ``event`` and ``time`` (seconds since the epoch). Events:

``start``       training is about to begin: what was derived (replicas, parameters, ...)
``metrics``     ``step``, ``epoch``, ``metrics``: means over the steps since the last point
``checkpoint``  ``step``, ``path``
``notice``      ``message``: something a person should know
``restart``     ``step``, ``message``: tasks died, and were started again from a checkpoint
``error``       ``kind`` (``usage`` or ``training``), ``message``
``end``         ``status``, ``step``, ``examples``, ``examples_per_second``
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any


def _finite(value: Any) -> Any:
    # JSON has no NaN: a number that is none is written as its name, and read back as a float.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


class Journal:
    """Appends events; each is on disk as one whole line when :meth:`write` returns.

    Args:
        path: the file. A last line that a killed writer left torn is cut off first.
    """

    def __init__(self, path: Path):
        self._path = path
        if path.exists():
            whole = path.read_bytes().rfind(b"\n") + 1
            os.truncate(path, whole)
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()  # checkpoints are reported from their own thread

    def write(self, event: str, **fields: Any) -> None:
        """Append one event, stamped with the present time unless ``time`` is given."""
        line = _finite({"event": event, "time": round(time.time(), 3), **fields})
        with self._lock:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Flush what was written to the disk itself."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush to the disk itself and close."""
        self.sync()
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Return all whole events of the journal at ``path``; an absent file has none."""
    return Follower(path).new()


def cut(path: Path, step: int, validated: bool = True) -> None:
    """Take back what a resumed run will write again: events of steps after ``step``, and ends.

    Args:
        path: the file.
        step: of the checkpoint that the run is resumed from.
        validated: whether it was saved after the validation that belongs to its step, if any does.
    """
    kept = [
        line
        for line in read(path)
        if line["event"] in ("start", "notice", "metrics", "checkpoint", "restart")
        and line.get("step", 0) <= step
        and (validated or line.get("step") != step or not _of_validation(line))
    ]
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        for line in kept:
            file.write(json.dumps(_finite(line)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _of_validation(line: dict[str, Any]) -> bool:
    names = line.get("metrics") or {}
    return bool(names) and all(name.startswith("val_") for name in names)


class Follower:
    """Reads a journal while it grows; one of which read lines were cut, from its beginning again.

    Args:
        path: the file; it need not exist yet.
    """

    def __init__(self, path: Path):
        self._path = path
        self._offset = 0
        self._last = b""  # line that was read; each has its time, so no two are alike

    def new(self) -> list[dict[str, Any]]:
        """Return the events completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset - len(self._last))
                if file.read(len(self._last)) != self._last:
                    self._offset = 0  # it is not where it was
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        if whole:
            self._last = whole[whole.rfind(b"\n", 0, -1) + 1 :]
        events = [json.loads(line) for line in whole.splitlines()]
        for event in events:
            if "metrics" in event:
                event["metrics"] = {k: float(v) for k, v in event["metrics"].items()}
        return events
