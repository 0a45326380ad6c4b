"""The files of a folder as they were before a command resumed it.

A command that resumes a run writes its configuration and cuts its journal before a task can say
whether the two fit. So the files are kept in ``.before`` until training begins; a command that
ends before that puts them back. One that was killed cannot: the next one does it
(:func:`recover`). At every moment the files are in their places, or in ``.before``, or in both.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dtrain.errors import DamagedFile
from dtrain.files import reading, writing
from dtrain.run import journal

FOLDER = ".before"
INDEX = "index.json"
#: What is kept of a run and of a sweep. Everything else is changed by tasks that train.
NAMES = (
    "config.yaml",
    "command.json",
    "cluster.json",
    "journal.jsonl",
    "progress.json",
    "result.json",
    "tracking.json",
    "sweep.json",
)
JOURNAL, RESULT, LOGS = "journal.jsonl", "result.json", "logs"


def keep(folder: Path) -> None:
    """Keep the files of a folder, which is locked, until :func:`forget` or :func:`restore`.

    Raises:
        OSError: there is no room for them; nothing has changed.
        DamagedFile: one is no regular file; likewise.
    """
    with writing.made_aside(folder / FOLDER) as temporary:
        os.mkdir(temporary)
        present = [name for name in NAMES if os.path.lexists(folder / name)]
        for name in present:
            writing.copy(folder / name, temporary / name)
        index = {"files": present, "logs": _sizes(folder / LOGS)}
        writing.write_bytes(temporary / INDEX, json.dumps(index).encode(), lasting=True)
        writing.rename(temporary, folder / FOLDER)
        writing.sync(folder)


def _sizes(logs: Path) -> dict[str, int]:
    if not logs.is_dir():
        return {}
    return {entry.name: entry.stat().st_size for entry in os.scandir(logs) if entry.is_file()}


def restore(folder: Path, logs: bool) -> None:
    """Put back what :func:`keep` has kept, if it has; it may have been begun before.

    Args:
        folder: of a run or a sweep.
        logs: cut them off where they ended, too. They are wanted where a task has failed.

    Raises:
        DamagedFile: ``.before`` is not as it was written.
        OSError: a file cannot be put back; it stays in ``.before``.
    """
    index = _index(folder)
    if index is None:
        forget(folder)
        return
    for name in NAMES:
        if name not in index["files"]:
            writing.remove(folder / name)
        elif os.path.lexists(folder / FOLDER / name):
            writing.replace(folder / FOLDER / name, folder / name)
    if logs:
        sizes: dict[str, int] = index["logs"]
        for name, now in _sizes(folder / LOGS).items():
            if name not in sizes:
                writing.remove(folder / LOGS / name)
            elif sizes[name] < now:
                writing.truncate(folder / LOGS / name, sizes[name])
    forget(folder)


def _index(folder: Path) -> dict[str, Any] | None:
    path = folder / FOLDER / INDEX
    index = reading.read_json(path)
    if index is None:
        return None
    names, sizes = index.get("files"), index.get("logs")
    if not isinstance(names, list) or not set(map(str, names)) <= set(NAMES):
        raise DamagedFile(path, "is not a list of files of a run", "files")
    if not isinstance(sizes, dict) or any(type(s) is not int or s < 0 for s in sizes.values()):
        raise DamagedFile(path, "does not have the size of each log", "logs")
    return index


def begin(folder: Path) -> None:
    """Note that the tasks train: how the run ended before is of the past.

    Raises:
        OSError: it cannot be done.
    """
    writing.remove(folder / RESULT)
    forget(folder)


def forget(folder: Path) -> None:
    """Remove what :func:`keep` has kept, if it has: what is in the folder counts.

    Raises:
        OSError: it cannot be removed.
    """
    if os.path.lexists(folder / FOLDER):
        gone = writing.aside(folder / FOLDER)
        writing.rename(
            folder / FOLDER, gone
        )  # ORDER: at once, or it would be half of what was kept
        writing.remove(gone)


def recover(folder: Path) -> None:
    """Put right what a killed command has left in a folder, which is locked.

    Raises:
        DamagedFile, OSError: as of :func:`restore`.
    """
    if os.path.lexists(folder / FOLDER):
        index = _index(folder)
        kept = folder / FOLDER / JOURNAL
        back = index is not None and JOURNAL in index["files"] and not os.path.lexists(kept)
        if not back and journal.starts(folder / JOURNAL) - journal.starts(kept):
            begin(folder)
        else:
            restore(folder, logs=False)
    writing.remove_leftovers(folder)
