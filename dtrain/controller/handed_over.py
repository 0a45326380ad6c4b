"""A job that another command does, as SLURM starts it: prepared here, followed by its folder."""

from __future__ import annotations

import dataclasses
import functools
import os
import secrets
import shlex
import time
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config import load
from dtrain.config.schema import Config
from dtrain.controller.folders import claim, create, lock, unwritable
from dtrain.controller.launchers.slurm import Slurm, Steps, batch, client
from dtrain.controller.launchers.slurm.launcher import log_lines
from dtrain.controller.outcome import Outcome
from dtrain.controller.plan import Plan
from dtrain.controller.supervisor import INTERVAL, Requests, Signals
from dtrain.controller.terminal import report
from dtrain.controller.terminal.progress import Display, Log, View
from dtrain.errors import UsageError
from dtrain.files import writing
from dtrain.run import checkpoint, schemas
from dtrain.run.folder import RunDir, read_json, short, write_json, write_text
from dtrain.run.journal import Follower
from dtrain.tracking.choose import tracker

#: Seconds that the second Ctrl-C, which cancels, may come after the first, which detaches.
_SECOND = 3.0
#: Seconds that a result may take to be seen: the file systems of clusters are slow to show changes.
#: Of a job that did not end well there may be none.
_RESULT, _NO_RESULT = 30.0, 5.0
#: Seconds between two looks at what is done elsewhere: there may be hundreds of such jobs.
_LOOK = 1.0


class HandedOver:
    """Prepares the folder of one job, has it done, and follows it to its end.

    Args:
        config, planned, folder, command, requests, view, chosen: as of :class:`.job.Job`.
        launcher: submits the job, or starts it as a step.
    """

    def __init__(
        self,
        config: Config,
        planned: Plan,
        launcher: Slurm | Steps,
        folder: Path,
        command: dict[str, Any],
        requests: Requests | None = None,
        view: View | None = None,
        chosen: bool = False,
    ):
        self._config, self._cluster, self._command = config, planned.cluster, command
        self._launcher = launcher
        self._requests = requests or Signals()
        self._resumed = config.resume is not None
        #: The job that is at work on the run already.
        self.running: str | None = None
        self._rundir, descriptor = self._take(folder, chosen)
        if descriptor is not None:
            try:
                self._prepare()
            finally:
                os.close(descriptor)
        self._given = view
        self._follower = Follower(self._rundir.journal)
        self._console = Log(self._rundir.log(self._cluster.chief.name))
        self._past: Any = None
        if self._resumed:  # what an earlier start wrote is known
            self._follower.skip()
            self._console.skip()
            self._past = schemas.glance(self._rundir.progress, schemas.Progress)
        self._unread: str | None = None

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._rundir.path

    def _take(self, folder: Path, chosen: bool) -> tuple[RunDir, int | None]:
        """Return the run folder, and the descriptor of its lock; None where a job has it."""
        if self._config.resume is not None:
            rundir = RunDir(self._config.resume)
            jobs = self._submitted(rundir) if isinstance(self._launcher, Slurm) else []
            if jobs:
                self.running = self._at_work(rundir, jobs[0].id)
                return rundir, None
            return rundir, lock(rundir, "resume")
        if chosen:
            return claim(folder)
        rundir = create(folder, self._config.output_dir)
        try:
            return rundir, lock(rundir, "output_dir")
        except UsageError:
            writing.discard(rundir.path)
            raise

    def _submitted(self, rundir: RunDir) -> list[client.Found]:
        """Return the jobs of SLURM that have this run to do, and have not ended.

        Raises:
            UsageError: as of :func:`client.of_script`.
        """
        return client.of_script(rundir.path / client.SCRIPT) or [
            found
            for found in client.of_script(rundir.path.parent / client.SCRIPT)
            if found.id.rpartition("_")[2] == rundir.path.name
        ]

    def _at_work(self, rundir: RunDir, job: str) -> str:
        """Return the job that has this run to do.

        Raises:
            UsageError: this command would change what it does.
        """
        past = read_json(rundir.command) or {}
        if past.get("overrides") != self._command["overrides"]:
            raise UsageError(
                "resume", rundir.path, f"SLURM job {job} is at work on it, as it was "
                "submitted", "the command without changes, which follows it",
                f"python -m dtrain jobs cancel {job}",
            )  # fmt: skip
        return job

    def _prepare(self) -> None:
        """Write what the command that does the job is to find."""
        past = read_json(self._rundir.command) or {}
        job = past.get("job") or secrets.token_hex(16)
        self._before = past
        cluster = dataclasses.replace(self._cluster, job=job)
        try:
            if not self._resumed:
                write_text(self._rundir.config, load.to_yaml(self._config), lasting=True)
                write_json(self._rundir.cluster, cluster.to_json())
            # ORDER: with it the folder is that of a run, which can be resumed.
            began = past.get("began") or time.time()
            command = {**past, **self._command, "job": job, "began": began}
            write_json(self._rundir.command, command, lasting=True)
            self._rundir.logs.mkdir(exist_ok=True)
        except OSError as error:
            key, value = "output_dir", self._config.output_dir
            raise unwritable(key, value, "the run cannot be prepared", error) from None

    def submit(self) -> str:
        """Submit the job, unless it was; return its number.

        Raises:
            UsageError: SLURM does not take it; the disk is as it was.
        """
        assert isinstance(self._launcher, Slurm)
        if self._launcher.job is None:
            self._launcher.job = self.running or self._new()
        return self._launcher.job

    def _new(self) -> str:
        assert isinstance(self._launcher, Slurm)
        try:
            text = self._launcher.text(self._rundir, self._cluster, self._config.name)
            return self._launcher.submit(self._rundir.path, text)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Leave the disk as it was before this command."""
        if self._resumed:
            write_json(self._rundir.command, self._before, lasting=True)
        else:
            writing.discard(self._rundir.path)

    def withdraw(self) -> None:
        """Take note that its job was cancelled: others of its sweep were refused."""
        self._launcher.job = None

    @property
    def is_submitted(self) -> bool:
        """Whether SLURM has it."""
        return self.number is not None

    @property
    def number(self) -> str | None:
        """The number of the job that SLURM has for it."""
        return self._launcher.job or self.running

    def follow(self, job: str) -> None:
        """Note the number of the job that does it: it was submitted together with others."""
        assert isinstance(self._launcher, Slurm)
        self._launcher.job = job

    def shown(self, view: View, requests: Requests) -> None:
        """Say where it is shown, and what asks it to stop."""
        self._given, self._requests = view, requests

    @functools.cached_property
    def _view(self) -> View:
        return self._given or Display()

    def run(self) -> Outcome:
        """Have the job done, and follow it to its end, or until the user leaves it."""
        with self._requests as signals:
            try:
                return self._run(signals)
            finally:
                signals.started = True
                self._launcher.kill()
                self._view.close()

    def _run(self, signals: Requests) -> Outcome:
        launcher = self._launcher
        if isinstance(launcher, Slurm):
            self.submit()
            signals.started = True
            self._view.detail(f"run folder: {short(self._rundir.path)}")
            did = "has the run already" if self.running else "is submitted"
            self._view.detail(f"SLURM job {launcher.job} {did}")
            if not launcher.follow:
                self._view.detail(self._again())
                return Outcome(errors.OK, status="RUNNING")
        launcher.start(self._rundir, self._cluster)
        signals.started = True
        if not self._watch(signals):
            self._view.detail(self._again())
            return Outcome(errors.INTERRUPTED, interrupted=True, status="KILLED")
        return self._finish(signals.count > 0)

    def _again(self) -> str:
        path = shlex.quote(short(self._rundir.path))
        assert isinstance(self._launcher, Slurm)
        return (
            f"follow it with: python -m dtrain resume={path}; "
            f"cancel it with: python -m dtrain jobs cancel {self._launcher.job}"
        )

    def _watch(self, signals: Requests) -> bool:
        """Follow the job; return whether it has ended, and not this command's part in it."""
        heard, leaves = 0, float("inf")
        pause = _LOOK if self._launcher.detached else INTERVAL
        while True:
            ended = self._launcher.poll(pause)
            for line in self._launcher.news():
                self._view.detail(line)
            if (silence := client.watch.news()) is not None:
                self._view.message(silence)
            self._look()
            if ended:
                return True
            if self._launcher.unreachable is not None:
                self._view.message(self._launcher.unreachable)
                return False
            while heard < signals.count:
                heard += 1
                if not self._launcher.detached:
                    self._stop(heard)
                elif heard == 1:
                    self._view.detail("detaching: the job goes on (once more: cancel it)")
                    leaves = time.monotonic() + _SECOND
                elif heard == 2:
                    self._view.detail(f"cancelling SLURM job {self._launcher.job}")
                    leaves = float("inf")
                    self._launcher.stop()
                else:
                    return False
            if time.monotonic() > leaves:
                return False

    def _stop(self, heard: int) -> None:
        if heard == 1:
            self._view.detail("stopping: saving a checkpoint (once more: stop at once)")
            self._launcher.stop()
        else:
            self._launcher.kill()

    def _look(self) -> None:
        problem = None
        try:
            progress: Any = schemas.glance(self._rundir.progress, schemas.Progress)
            if progress != self._past:
                self._view.update(progress)
            for event in self._follower.events():
                self._view.event(event)
            for line in self._console.new():
                self._view.detail(f"{self._cluster.chief.name} | {line}")
        except OSError as error:
            problem = f"{error.filename} cannot be read now: {error.strerror}"
        if problem is not None and problem != self._unread:
            self._view.message(problem)
        self._unread = problem

    def _finish(self, interrupted: bool) -> Outcome:
        code = self._launcher.exit_codes()[self._cluster.chief.name]
        found = self._result(code)
        if found is None:
            lines = log_lines(self._rundir)
            problem = f"{self._launcher.problem}; it printed last:\n{lines}"
            self._view.detail(f"error: {problem}")
            self._view.detail(f"run folder: {short(self._rundir.path)}")
            if code != errors.INTERRUPTED:
                return Outcome(code, None, interrupted, "FAILED", error=problem)
            saved = checkpoint.steps(self._rundir.checkpoints)
            code = errors.INTERRUPTED if saved else errors.FAILED
            return Outcome(code, None, interrupted, "KILLED", error=problem)
        code = found.get("exit_code", code)
        report.print_end(self._view, tracker(self._config), self._rundir, found, True)
        pruned = self._requests.pruned and found["status"] == "KILLED"
        return Outcome.of(found, exit_code=code, interrupted=interrupted, pruned=pruned)

    def _result(self, code: int) -> Any:
        """Return what the run's command wrote in the end; None where that is not of this job."""
        deadline = time.monotonic() + (_RESULT if code == errors.OK else _NO_RESULT)
        while True:
            result = batch.result(self._rundir.path, str(self._launcher.job))
            if result is not None and result.get("exit_code") == code:
                return result
            if time.monotonic() > deadline:
                return None
            time.sleep(INTERVAL)
