"""Following a run (``follow=true``): its checkpoints as they come, until it ends.

The run knows nothing of it: who follows sees the run folder, from this machine or another one.
A checkpoint that the run removes before it is looked at is not seen (``checkpoint.keep``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from dtrain.errors import CheckpointError, UsageError, refuse
from dtrain.run import checkpoint
from dtrain.run.checkpoint.format import read_manifest
from dtrain.run.folder import RunDir

#: Seconds between two looks for another checkpoint.
LOOK = 0.5


class Followed:
    """The checkpoints of a run that may still train.

    Args:
        rundir: of the run.
        word: which of them are meant: ``best``, ``latest`` or ``all``; None: the best, or else the
            latest.
        mode: which objective is better, ``max`` or ``min``.

    Raises:
        UsageError: the word means a single one.
    """

    def __init__(self, rundir: RunDir, word: str | None, mode: str):
        if word not in (None, *checkpoint.WORDS):
            refuse("checkpoint", "cannot be followed", word, accepted="best or latest",
                   typed="checkpoint=best")  # fmt: skip
        self._rundir, self._word, self._mode = rundir, word, mode

    @contextlib.contextmanager
    def alone(self, command: str) -> Iterator[None]:
        """Be the only one of a kind that follows the run.

        Args:
            command: that follows.

        Raises:
            UsageError: another process does so.
        """
        name = f".follow-{command}"
        descriptor = self._rundir.lock(name)
        if descriptor is None:
            refuse("follow", f"process {self._rundir.holder(name)} follows this run already",
                   "true", accepted=f"one {command} at a time that follows a run")  # fmt: skip
        try:
            yield
        finally:
            os.close(descriptor)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended: no command is at work in its folder any more."""
        return self._rundir.result.is_file() and not self._rundir.is_locked()

    def choose(self) -> list[Path]:
        """Return the checkpoints that are meant now, by step.

        Raises:
            UsageError: there is none yet.
            OSError: the folder cannot be read.
        """
        return checkpoint.choose(self._rundir.checkpoints, self._word, self._mode)

    def newest(self) -> str | None:
        """Return step and digest of the checkpoint that is meant now; None where there is none."""
        try:
            return _key(self.choose()[-1])
        except (UsageError, CheckpointError):  # none yet, or it has just been removed
            return None

    def wait_for_first(self, wait: Callable[[], None]) -> str:
        """Return :meth:`newest` when there is a checkpoint.

        Args:
            wait: called as long as there is none.

        Raises:
            UsageError: the run has ended without one.
        """
        while (key := self.newest()) is None:
            if self.is_over:
                self.choose()  # says what is wrong
            wait()
        return key

    def pending(self) -> Iterator[Path | None]:
        """Yield each checkpoint once, as it comes, and None where there is none now.

        It ends when the run has ended and all are yielded.
        """
        done: set[str] = set()
        while True:
            is_over = self.is_over  # ORDER: before the checkpoints: the last is there by then
            path = self._next(done)
            if path is None and is_over:
                return
            yield path

    def _next(self, done: set[str]) -> Path | None:
        """Return the first that is not done, which it is from now on."""
        with contextlib.suppress(UsageError):
            for path in self.choose():
                try:
                    key = _key(path)
                except CheckpointError:  # it has been removed, or is damaged, as who loads it says
                    key = path.name
                if key not in done and path.exists():
                    done.add(key)
                    return path
        return None


def _key(path: Path) -> str:
    """Return what tells a checkpoint from others: a run that went back saves a step again."""
    manifest = read_manifest(path)
    return f"{manifest['step']} {manifest.get('digest')}"
