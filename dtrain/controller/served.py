"""Where the versions that a server serves come from: a run, MLflow's registry, a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dtrain.config.schema import Config
from dtrain.controller import exporting
from dtrain.errors import CheckpointError, DtrainError, UsageError
from dtrain.files import writing
from dtrain.run import checkpoint, exports
from dtrain.run.checkpoint.format import read_manifest
from dtrain.run.folder import RunDir
from dtrain.serving.follow import Stopped
from dtrain.serving.problems import Unusable
from dtrain.serving.versions import Candidate
from dtrain.tracking.mlflow.registered import Registered

#: Of the names of folders with what is served, and seconds until one can be a killed server's.
_PREFIX, _SECONDS = "dtrain-serve-", 60.0


@contextmanager
def own_folder() -> Iterator[Path]:
    """Yield a folder for files that are served, which goes with the server.

    Those of servers that were killed go now.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or gone
            _remove_if_left(left)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        writing.remove(folder)
        os.close(descriptor)


def _remove_if_left(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        about = os.fstat(descriptor)
        # One that is being made has no lock yet.
        if about.st_uid != os.getuid() or time.time() - about.st_mtime < _SECONDS:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        writing.remove(folder)
    finally:
        os.close(descriptor)


def _remover(folder: Path) -> Callable[[], None]:
    return lambda: writing.remove(folder)


class OfRun:
    """A checkpoint of a run, exported.

    Args:
        rundir: of the run.
        config: of it, settled.
        word: ``best``, ``latest`` or a step; None: the best where one is known, else the latest.
        weights: ``raw`` or ``ema``.
        own: takes the exports; None: they are the run's, and stay.
        hear, waiting: of :class:`~dtrain.controller.exporting.Exporter`.
    """

    seconds = 1.0

    def __init__(
        self,
        rundir: RunDir,
        config: Config,
        word: str | None,
        weights: str,
        own: Path | None,
        hear: Callable[[str], None],
        waiting: Callable[[], None],
    ):
        self._rundir, self._word, self._weights, self._own = rundir, word, weights, own
        self._mode = config.objective_mode.name
        self._ends, self._served = threading.Event(), False

        def quietly() -> None:
            if self._ends.is_set():
                raise Stopped("the server stops")

        # The first is waited for; those after it must not be in the way of what is served.
        self._exporters = [
            exporting.Exporter(config, rundir, ["savedmodel"], weights, hear, waiting),
            exporting.Exporter(
                config, rundir, ["savedmodel"], weights, lambda _: None, quietly, gives_way=True
            ),
        ]
        self.name = exporting.name_of(rundir, weights)

    def end(self) -> None:
        """Let an export that is at work end."""
        self._ends.set()

    def choose(self) -> Path:
        """Return the folder of the checkpoint that is meant now.

        Raises:
            UsageError: there is none.
        """
        return checkpoint.choose(self._rundir.checkpoints, self._word, self._mode)[-1]

    def first(self) -> tuple[str, Candidate]:
        """Return the version to begin with, and its key.

        Raises:
            DtrainError, OSError: there is none, or it cannot be had.
        """
        while True:
            self.choose()  # says what is wrong
            key = self.newest() or ""
            try:
                return key, self.fetch(key)
            except (UsageError, CheckpointError):
                if self.newest() == key:
                    raise
                # A training has removed it: there is a better one.

    def newest(self) -> str | None:
        """Return step and digest of the checkpoint that is meant now; None where there is none."""
        try:
            path = self.choose()
            manifest = read_manifest(path)
        except (UsageError, CheckpointError):  # none yet, or it has just been removed
            return None
        return f"{manifest['step']} {manifest.get('digest')}"

    def fetch(self, key: str) -> Candidate:
        """Export a checkpoint.

        Raises:
            DtrainError: it is gone, cannot be exported, or computes other numbers than Keras.
            OSError: it cannot be written.
        """
        step, _, digest = key.partition(" ")
        there = self._rundir.path / "exports" / self.name / step
        if self._is_there(there, digest):
            self._served = True
            return Candidate(step, str(there))
        place = self._rundir.path / "exports"
        if self._own is not None:
            place = Path(tempfile.mkdtemp(dir=self._own))
        remove = _remover(place) if self._own is not None else lambda: None
        try:
            exporter = self._exporters[-1] if self._served else self._exporters[0]
            folder, mode = self._rundir.checkpoints, self._mode
            [made] = exporter.export(
                lambda: checkpoint.choose(folder, step, mode), place / self.name
            )
        except BaseException:
            remove()
            raise
        if made.refused:
            remove()
            raise Unusable(next(iter(made.refused.values())))
        self._served = True
        return Candidate(made.path.name, str(made.path), remove)

    def _is_there(self, path: Path, digest: str) -> bool:
        """Say whether the run's own exports have that version."""
        if not path.is_dir():
            return False
        try:
            record = exports.read(path)
        except DtrainError:
            return False
        same = (str(record["digest"]), record["weights"]) == (digest, self._weights)
        return same and "savedmodel" in record["formats"]


class OfRegistry:
    """A version of a registered model, downloaded.

    Args:
        model: what names it.
        own: takes the files.
    """

    seconds = 2.0

    def __init__(self, model: Registered, own: Path):
        self._model, self._own = model, own

    def end(self) -> None:
        """Do nothing: a download is short."""

    def newest(self) -> str | None:
        """Return the version that is meant now.

        Raises:
            DtrainError: the store does not answer.
        """
        return self._model.version()

    def fetch(self, key: str) -> Candidate:
        """Download a version.

        Raises:
            DtrainError: it cannot be had.
            OSError: it cannot be written.
        """
        folder = Path(tempfile.mkdtemp(dir=self._own))
        try:
            path = self._model.download(key, folder)
        except BaseException:
            _remover(folder)()
            raise
        return Candidate(key, str(path), _remover(folder))
