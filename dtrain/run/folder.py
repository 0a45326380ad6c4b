"""The run folder: the only thing that the controller and the tasks share."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from dtrain.errors import DamagedFile, UsageError, refuse
from dtrain.files import locks, reading, writing
from dtrain.files.fields import Json

#: The file that a command locks for as long as it is at work in a folder.
LOCK = ".lock"
#: The number of the form of a run folder and of a sweep's, in ``command.json`` and ``sweep.json``.
FORMAT = 2
#: The version of dtrain that began each; without a number it is the first.
_VERSIONS = {1: "0.1.0", FORMAT: "0.2.0"}
#: Below ``output_dir``: where checks are, which are no runs (``debug=``).
CHECKS = "debug"


class RunDir:
    """Names the files of one run folder (the contract is in ``docs/run-folder.md``).

    Args:
        path: the folder; it need not exist.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()
        self.config = self.path / "config.yaml"
        self.command = self.path / "command.json"
        self.cluster = self.path / "cluster.json"
        self.journal = self.path / "journal.jsonl"
        self.progress = self.path / "progress.json"
        self.result = self.path / "result.json"
        self.tracking = self.path / "tracking.json"
        self.trackers = self.path / "trackers"  # what each has, besides MLflow
        self.logged = self.path / "logged"  # images, tables and files that user code has logged
        self.checkpoints = self.path / "checkpoints"
        self.tensorboard = self.path / "tensorboard"
        self.logs = self.path / "logs"
        self.model = self.path / "model.keras"
        self.weights = self.path / "model.weights.h5"  # of a model that Keras cannot serialize
        self.state = self.path / "model.safetensors"  # of a plain module
        self.registry = self.path / "registry.json"  # models that MLflow is to hold
        self.columns = self.path / "columns.json"  # of a table: what its columns became
        self.evaluated = self.path / "evaluations.jsonl"  # what was evaluated after training
        self.report = self.path / "report.json"  # scores and figures of held-out examples
        self.page = self.path / "report.html"

    def log(self, task_name: str) -> Path:
        """Return the log file of the task called ``task_name`` (``<role>-<index>``)."""
        return self.logs / f"{task_name}.log"

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """Make a new folder at ``path``, or at ``path-2``, ``path-3``... where it is taken."""
        for attempt in range(1, 1000):
            candidate = path if attempt == 1 else path.with_name(f"{path.name}-{attempt}")
            try:
                writing.make_folder(candidate)
            except FileExistsError:
                continue
            return cls(candidate)
        raise FileExistsError(path)

    def lock(self, name: str = LOCK) -> int | None:
        """Take the folder for this process, until it ends or closes the descriptor returned.

        Args:
            name: of the file that is locked.

        Returns:
            None where another process has it: its id is in the file.

        Raises:
            DamagedFile: something that is no regular file, or has a second name, is in its place.
            OSError: it cannot be made or written.
        """
        descriptor = writing.open_lock(self.path / name)
        if not locks.take(descriptor):
            os.close(descriptor)
            return None
        with contextlib.suppress(OSError):  # a full disk: it is locked all the same
            os.pwrite(descriptor, f"{os.getpid():<31}\n".encode(), 0)
        return descriptor

    def is_locked(self) -> bool:
        """Say whether a process has the folder, without being in its way."""
        try:
            return locks.is_held(self.path / LOCK)
        except (OSError, UsageError):
            return False

    def holder(self, name: str = LOCK) -> str:
        """Return the id of the process that took the folder last; ``?`` where it is not there."""
        try:
            text = reading.read_bytes(self.path / name, 100).decode().strip()
        except (OSError, UsageError, UnicodeDecodeError):
            return "?"
        return text if text.isdecimal() and text.isascii() else "?"


def check_format(folder: Path, key: str) -> None:
    """Refuse the folder of a run or a sweep that another version of dtrain wrote.

    Args:
        folder: what is none passes, and files that cannot be read: who reads them says so.
        key: that names it.

    Raises:
        UsageError: with both versions.
    """
    for name in ("command.json", "sweep.json"):
        try:
            contents = read_json(folder / name)
        except (OSError, DamagedFile):
            continue
        number = FORMAT if contents is None else contents.get("format", 1)
        if number == FORMAT:
            continue
        version = _VERSIONS.get(number if isinstance(number, int) else 0, f"format {number!r}")
        own = _VERSIONS[FORMAT]
        refuse(key, f"is of dtrain {version}, and this is {own}", folder,
               accepted=f"a folder of dtrain {own}",
               hint=f"use dtrain {version} for it, or begin a new run with {own}")  # fmt: skip


def write_text(path: Path, text: str, lasting: bool = False) -> None:
    """Write ``text``, as UTF-8, so that a reader sees the old file or the new one, whole.

    Args:
        path, text: what goes where.
        lasting: on the disk itself on return, for what a run cannot be resumed without.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    writing.write_bytes(path, text.encode(), lasting)


def write_json(path: Path, value: object, lasting: bool = False) -> None:
    """Write ``value`` as :func:`write_text` does; half of a character in a text becomes ``?``."""
    text = json.dumps(value, indent=1, default=str, ensure_ascii=False) + "\n"
    # Names of files that are no UTF-8, in a message of an error: it has to be readable again.
    writing.write_bytes(path, text.encode(errors="replace"), lasting)


def read_json(path: Path) -> Json | None:
    """Return the object in a JSON file; None where there is no file.

    Raises:
        DamagedFile: it is no regular file, too long, too deep, or not a JSON object.
        OSError: it cannot be read.
    """
    return reading.read_json(path)


def short(path: Path) -> str:
    """Return ``path`` relative to the current directory where it lies below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):  # the current folder may be gone by now
        return str(path)
