"""Takes newer versions from where they appear: a training's checkpoints, an alias, a folder."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dtrain.errors import DtrainError
from dtrain.run.exports import FORMATS
from dtrain.serving.problems import Unusable
from dtrain.serving.versions import Candidate, Versions

#: Times that one version is tried.
_TRIES = 3
#: The file that makes a folder a SavedModel.
SAVED = FORMATS["savedmodel"].files[-1]


class Stopped(DtrainError):
    """The server stops while a version is being made."""


class Source(Protocol):
    """Where versions come from.

    Attributes:
        seconds: between two looks.
    """

    seconds: float

    def end(self) -> None:
        """Have :meth:`fetch`, in another thread, end soon."""

    def newest(self) -> str | None:
        """Return a word for the version that is to serve, another for each; None: as before."""

    def fetch(self, key: str) -> Candidate:
        """Make the files of a version; that may take long.

        Args:
            key: of :meth:`newest`.

        Raises:
            DtrainError, OSError: it cannot be had.
        """


class Follower(threading.Thread):
    """Looks for a newer version, and hands it over.

    Args:
        source: where they come from.
        served: the key of the one that serves.
        versions: that it is handed to.
        loop: on which they are.
        notice: takes a sentence for the user.
    """

    def __init__(
        self,
        source: Source,
        served: str,
        versions: Versions,
        loop: asyncio.AbstractEventLoop,
        notice: Callable[[str], None],
    ):
        super().__init__(name="follow", daemon=True)
        self._source, self._served = source, served
        self._versions, self._loop, self._notice = versions, loop, notice
        self._ends = threading.Event()
        self._failed: tuple[str, int] = ("", 0)  # a version that could not serve, how often
        self._said = ""

    def end(self) -> None:
        """Look no more."""
        self._ends.set()
        self._source.end()

    def run(self) -> None:
        """Look until the end."""
        pause = self._source.seconds
        while not self._ends.wait(pause):
            pause = self._source.seconds
            try:
                key = self._source.newest()
            except Exception as error:  # whatever a library raises: the server goes on
                self._say(f"nothing newer can be seen: {_reason(error)}")
                continue
            if key is None or key == self._served or self._failed == (key, _TRIES):
                continue
            try:
                self._take(key)
            except Exception as error:
                if self._ends.is_set():
                    return
                times = self._failed[1] + 1 if self._failed[0] == key else 1
                self._failed = (key, times)
                again = "" if times < _TRIES else "; it is not tried again"
                self._say(f"version {key.partition(' ')[0]} is not served: {_reason(error)}{again}")
                pause = self._source.seconds * (1 << times)
            else:
                self._served, self._said = key, ""

    def _take(self, key: str) -> None:
        candidate = self._source.fetch(key)
        taken = asyncio.run_coroutine_threadsafe(self._versions.take(candidate), self._loop)
        model = taken.result()
        before = self._versions.kept[1:]
        kept = f"; version {before[0].version} is kept for a rollback" if before else ""
        self._notice(f"version {model.version} serves now{kept}")

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._notice(text)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return str(error) if isinstance(error, DtrainError) else f"{type(error).__name__}: {error}"


class Folder:
    """A folder with a SavedModel, or with one in each of its folders that has a number for a name.

    The highest number is the newest, as for TensorFlow Serving.

    Args:
        path: of it.
    """

    seconds = 1.0

    def __init__(self, path: Path):
        self._path = path

    def end(self) -> None:
        """Do nothing: what is there need not be made."""

    def newest(self) -> str | None:
        """Return the number, or ``.`` where the folder itself is a SavedModel."""
        if (self._path / SAVED).is_file():
            return "."
        found = [
            int(name)
            for name in os.listdir(self._path)
            if re.fullmatch("[0-9]{1,18}", name) and (self._path / name / SAVED).is_file()
        ]
        return str(max(found)) if found else None

    def fetch(self, key: str) -> Candidate:
        """Return that version, which is there already."""
        path = (self._path / key).resolve()
        if not (path / SAVED).is_file():
            raise Unusable(f"{path} is gone")
        return Candidate(path.name if path.name.isdecimal() else "1", str(path))
