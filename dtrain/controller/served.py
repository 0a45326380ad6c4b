"""What a server serves: where versions come from, and the process that serves them."""

from __future__ import annotations

import collections
import json
import multiprocessing.connection
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dtrain.controller.launchers.questions import ModelProcess
from dtrain.errors import DtrainError
from dtrain.files import writing
from dtrain.run.exports import FORMATS
from dtrain.tracking.mlflow.store import Registered

#: The file that makes a folder a version that may serve, and the backend that loads it.
_LOADED_BY = {FORMATS[name].files[-1]: backend
              for name, backend in (("savedmodel", "tensorflow"), ("pt2", "torch"))}  # fmt: skip
_LOOK = 1.0  # seconds between two looks for a newer version
_TRIES = 3  # of one version
#: Seconds before a process that has died is started again, the last from then on.
_PAUSES = (0.0, 1.0, 5.0, 30.0)


class Version(NamedTuple):
    """A version that may serve: what answers call it, and the folder of its model."""

    number: str
    path: Path

    @property
    def backend(self) -> str:
        """What loads it."""
        return _loaded_by(self.path) or "tensorflow"


def _loaded_by(path: Path) -> str | None:
    """Return the backend that loads the model in a folder; None where there is none."""
    return next((name for file, name in _LOADED_BY.items() if (path / file).is_file()), None)


class Source(Protocol):
    """Where versions come from."""

    def newest(self) -> str | None:
        """Return a key of the version that is to serve now; None where there is none yet."""

    def fetch(self, key: str) -> Version:
        """Make the files of a version."""


class OfRegistry:
    """A :class:`Source`: versions of a registered model, downloaded to ``own``."""

    def __init__(self, model: Registered, own: Path):
        self._model, self._own = model, own

    def newest(self) -> str | None:
        """Return the version that is meant now."""
        return self._model.version()

    def fetch(self, key: str) -> Version:
        """Download a version."""
        return Version(key, self._model.download(key, Path(tempfile.mkdtemp(dir=self._own))))


class Folder:
    """A :class:`Source`: an exported model, or a folder of several that have numbers for names."""

    def __init__(self, path: Path):
        self._path = path

    def newest(self) -> str | None:
        """Return the highest number; ``.`` where the folder itself is an exported model."""
        if _loaded_by(self._path):
            return "."
        names = filter(str.isdecimal, os.listdir(self._path))
        versions = [name for name in names if _loaded_by(self._path / name)]
        return max(versions, key=int, default=None)

    def fetch(self, key: str) -> Version:
        """Return that version, which is there already."""
        path = (self._path / key).resolve()
        return Version(path.name if path.name.isdecimal() else "1", path)


class Server:
    """The process that serves; it is started again where it dies.

    Args:
        start: starts one for a backend.
        say: prints a sentence.
    """

    def __init__(self, start: Callable[[str], ModelProcess], say: Callable[[str], None]):
        self._start, self._say, self.ends = start, say, False
        self._process: ModelProcess | None = None
        self.version: Version | None = None
        self._deaths = 0

    def load(self, version: Version) -> dict[str, Any]:
        """Have a version serve, beside which the one before goes on until then.

        Returns:
            The description of the model: ``about`` of :class:`dtrain.export.served.Served`.

        Raises:
            DtrainError: it cannot serve; the one before goes on.
        """
        process = self._process = self._process or self._start(version.backend)
        asked = {"version": version.number, "path": str(version.path)}
        try:
            process.link.send_bytes(json.dumps(asked).encode())
            about: dict[str, Any] = json.loads(process.link.recv_bytes())
        except (EOFError, OSError):
            raise DtrainError("its process died while it was loaded") from None
        if "failed" in about:
            raise DtrainError(about["failed"])
        self.version = version
        return about

    def revive(self, seconds: float = 0.0) -> None:
        """Start the process again if it dies within so many seconds, with what it served."""
        process, version = self._process, self.version
        if process is None or version is None:
            return
        if not multiprocessing.connection.wait([process.sentinel], seconds) or self.ends:
            return
        process.kill()
        self._process = None
        time.sleep(_PAUSES[min(self._deaths, len(_PAUSES) - 1)])
        self._deaths += 1
        try:
            self.load(version)
            self._say(f"the process has died; version {version.number} serves again")
        except (DtrainError, OSError) as error:
            self._say(f"version {version.number} cannot be loaded again: {error}")

    def run(self, source: Source | None, key: str, own: Path) -> None:
        """Keep the process alive, and load newer versions as they appear, until the end.

        Args:
            source: where they come from; None: what serves stays.
            key: of the version that serves.
            own: folder with the files of versions, which are removed once they serve no more.
        """
        tries: collections.Counter[str] = collections.Counter()
        newest, last = key, ""
        while not self.ends:
            self.revive(_LOOK)
            if source is None:
                continue
            try:
                if (newest := source.newest() or key) == key or tries[newest] == _TRIES:
                    continue
                tries[newest] += 1
                version = source.fetch(newest)
                self.load(version)
                key, text = newest, f"version {version.number} serves now"
                for folder in own.iterdir():
                    if folder not in version.path.parents:
                        writing.remove(folder)
            except Exception as error:  # of a library, too: what serves goes on
                text = f"version {newest.partition(' ')[0]} does not serve: {error}"
                text = text if newest != key else f"newer versions cannot be looked for: {error}"
            if text != last:
                self._say(text)
            last = text

    def close(self) -> None:
        """End the process once the requests that it has are answered."""
        self.ends = True
        if self._process is not None:
            try:
                self._process.link.close()
                self._process.join()
            finally:
                self._process.kill()
