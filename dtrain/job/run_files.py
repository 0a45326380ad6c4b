"""What the controller itself writes into a run folder, and how it takes that back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from dtrain.config import private, tree
from dtrain.config.tree import Config
from dtrain.files import writing
from dtrain.files.fields import Json
from dtrain.job import remote
from dtrain.job.code_recorder import Recorder
from dtrain.job.folders import unwritable
from dtrain.run import checkpoint, journal
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir, read_json, write_json, write_text

#: Those of a run that a command writes when it resumes it, before a task can say whether the two
#: fit. Where they do not, and nothing was trained, the files are put back.
_WRITTEN = ("config", "command", "cluster", "progress", "tracking")


class RunFiles:
    """The files of one run that its controller writes.

    Args:
        rundir: locked by this command.
        config: resolved.
        resumed: the folder was there before this command.
        report: is called with a line about the copying to its address; None: it is not copied, and
            it is no training, whose code is recorded.
    """

    def __init__(
        self, rundir: RunDir, config: Config, resumed: bool,
        report: Callable[[str], None] | None = None,
    ):  # fmt: skip
        self._rundir = rundir
        self._config = config
        self._resumed = resumed
        self._report = report
        self._output: remote.Uploader | None = None
        self._code: Recorder | None = None
        self._began = self._counts = False
        self._before: writing.KeptFiles | None = None  # of a run that is resumed, until it trains
        self._journal_size = 0  # then
        #: When earlier starts of a resumed run were.
        self.past: set[float] = set()

    def prepare(self, command: Json, cluster: Cluster) -> str | None:
        """Write what the tasks read; of a resumed run all that is changed is kept, too.

        Returns:
            A sentence about damaged lines of the journal; None where there is none.

        Raises:
            UsageError: something cannot be written.
        """
        passed = None
        try:
            if self._resumed:
                writing.remove_leftovers(self._rundir.path)
                paths: list[Path] = [getattr(self._rundir, name) for name in _WRITTEN]
                self._before = writing.KeptFiles(paths)
                journal_file = self._rundir.journal
                self._journal_size = journal_file.stat().st_size if journal_file.is_file() else 0
                self.past = journal.starts(self._rundir.journal)
                passed = self._go_back(journal.RESUMED)
            # Resolved but for references to secrets, which the tasks have in their environment.
            write_text(self._rundir.config, tree.to_yaml(self._config), lasting=True)
            past = read_json(self._rundir.command) or {}  # it may be one of a sweep
            if "derived" not in command:
                private.keep_given(self._rundir.path, command.get("overrides", ()))
            began = past.get("began") or time.time()
            write_json(self._rundir.command, {**past, **command, "began": began}, lasting=True)
            write_json(self._rundir.cluster, cluster.to_json())
            self._rundir.logs.mkdir(exist_ok=True)
            if self._report is not None and self._config.record_code:
                self._code = Recorder(self._rundir.path, Path(self._config.output_dir))
        except OSError as error:
            key, value = "output_dir", Path(self._config.output_dir)
            if self._resumed:
                key, value = "resume", self._rundir.path
            did = "resumed" if self._resumed else "started"
            raise unwritable(key, value, f"the run cannot be {did}", error) from None
        if self._report is not None:
            key = "resume" if self._resumed else "output_dir"
            self._output = remote.output_of(
                self._rundir.path, key, lambda: self._began, self._report
            )
        if self._output is not None and self._report is not None:
            self._output.open(self._resumed)
            self._report(f"output: copied to {self._output.address}")
        return passed

    def restart(self, message: str) -> str:
        """Note that tasks are started again from the newest checkpoint.

        Args:
            message: with ``STEP`` in the place of its step.

        Returns:
            The message.
        """
        newest, _ = checkpoint.newest(self._rundir.checkpoints)
        message = message.replace("STEP", str(newest.step if newest else 0), 1)
        self._go_back("restart", message=message)
        return message

    def _go_back(self, event: str, **fields: object) -> str | None:
        """Note in the journal that what was recorded after the newest checkpoint counts no more.

        Returns:
            As :meth:`prepare`.
        """
        newest, _ = checkpoint.newest(self._rundir.checkpoints)
        step = newest.step if newest else 0
        pending = newest is not None and newest.meta["pending_validation"]
        follower = journal.Follower(self._rundir.journal)
        for _ in follower.events():
            pass
        written = journal.Journal(self._rundir.journal)  # no task runs: nobody else writes
        try:
            written.write(event, step=step, validated=not pending, **fields)
        finally:
            written.close()
        writing.remove(self._rundir.progress)
        return follower.notice()

    def begin(self) -> None:
        """Let what the tasks do from now on count, and no longer what an earlier command did.

        Raises:
            OSError: it cannot be done.
        """
        writing.remove(self._rundir.result)
        if self._before is not None:
            self._before.forget()
        self._before, self._began = None, True
        if self._code is not None:
            self._code.write()

    def discard(self) -> None:
        """Nothing was trained: leave the disk as it was before this command.

        Raises:
            OSError: of a resumed run something cannot be put back.
        """
        if self._resumed:
            self.put_back()
        else:
            if self._output is not None:
                self._output.withdraw()
            writing.discard(self._rundir.path)

    def put_back(self) -> None:
        """Put the files of a resumed run back.

        Raises:
            OSError: as of :meth:`discard`.
        """
        if self._before is not None:
            self._before.put_back()
            if self._journal_size:
                writing.truncate(self._rundir.journal, self._journal_size)
            else:
                writing.remove(self._rundir.journal)

    def write_result(self, result: Json) -> None:
        """Write ``result.json``.

        Raises:
            OSError: it cannot be written.
        """
        self._counts = True
        try:
            write_json(self._rundir.result, result)
        except OSError:  # on a full disk: what was of use to the display makes room
            writing.remove(self._rundir.progress)
            write_json(self._rundir.result, result)

    def close(self, lock: int) -> None:
        """Let the rest be copied, and give the folder back.

        Args:
            lock: descriptor of its lock.
        """
        try:
            if self._code is not None:
                self._end_code(self._code)
            if self._output is not None:
                self._output.finish(self._counts)
        finally:
            os.close(lock)

    def _end_code(self, recorder: Recorder) -> None:
        if not (self._began or self._counts):
            recorder.cancel()
            return
        try:
            recorder.write(last=True)
        except OSError as error:
            if self._report is not None:
                self._report(f"error: {error.filename or self._rundir.path}: {error.strerror}")
