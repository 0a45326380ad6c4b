"""A run that SLURM does: its folder is prepared and submitted here, and followed to its end."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shlex
import time
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config import tree
from dtrain.errors import refuse
from dtrain.files import writing
from dtrain.job import report
from dtrain.job.folders import begin, lock, unwritable
from dtrain.job.run import JobSpec, read_new
from dtrain.job.supervisor import INTERVAL, Requests, Signals
from dtrain.launchers.slurm import Slurm, batch, client
from dtrain.run import checkpoint, schemas
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, read_json, short, write_json, write_text
from dtrain.run.journal import Follower
from dtrain.run.outcome import Outcome, last_lines
from dtrain.terminal.progress import Display, Log, View
from dtrain.tracking.chosen import make_tracker

#: Seconds that the second Ctrl-C, which cancels, may come after the first, which detaches.
_SECOND = 3.0
#: Seconds that a result may take to be seen: the file systems of clusters are slow to show changes.
#: Of a job that did not end well there may be none.
_RESULT, _NO_RESULT = 30.0, 5.0
#: Seconds between two looks at the run folder: there may be hundreds of such jobs.
_LOOK = 1.0
#: Seconds that a job which SLURM does not know any more is still looked for.
_FORGOTTEN = 30.0


def run(spec: JobSpec) -> Outcome:
    """Submit a job, and follow it."""
    job = SlurmJob(spec)
    spec.began(job.folder)
    return job.run(spec.view, spec.requests)


class SlurmJob:
    """Prepares the folder of one job, submits it, and follows it to its end.

    Args:
        spec: of the job; its launcher is a :class:`Slurm`.
    """

    def __init__(self, spec: JobSpec):
        self._config, self._cluster, self._command = spec.config, spec.cluster, spec.command
        self._launcher: Slurm = spec.launcher
        self._resumed = spec.config.resume is not None
        #: The number of the job of SLURM that does it; None before there is one.
        self.number: str | None = None
        self._rundir, descriptor = self._take(spec.folder, spec.chosen)
        #: Whether SLURM had the job before this command.
        self.is_running = self.number is not None
        if descriptor is not None:
            try:
                self._prepare()
            finally:
                os.close(descriptor)
        self._follower = Follower(self._rundir.journal)
        self._console = Log(self._rundir.log(self._cluster.chief.name))
        self._past: Any = None
        if self._resumed:  # what an earlier start wrote is known
            self._follower.skip()
            self._console.skip()
            self._past = schemas.glance(self._rundir.progress, schemas.Progress)
        self._unread: str | None = None
        #: The job as the queue had it last, and since when it has had none; None while it has.
        self._queued: client.QueuedJob | None = None
        self._unseen: float | None = None

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._rundir.path

    def _take(self, folder: Path, chosen: bool) -> tuple[RunDir, int | None]:
        """Return the run folder, and the descriptor of its lock; None where a job has it."""
        if self._config.resume is not None:
            rundir = RunDir(self._config.resume)
            self.number = self._submitted(rundir)
            return rundir, None if self.number is not None else lock(rundir, "resume")
        return begin(folder, self._config.output_dir, chosen)

    def _submitted(self, rundir: RunDir) -> str | None:
        """Return the job of SLURM that has this run to do, and has not ended.

        Raises:
            UsageError: the queue cannot be read; or this command would change what the job does.
        """
        jobs = client.of_script(rundir.path / client.SCRIPT) or [
            element
            for element in client.of_script(rundir.path.parent / client.SCRIPT)
            if element.id.rpartition("_")[2] == rundir.path.name
        ]
        if not jobs:
            return None
        job = jobs[0].id
        if (read_json(rundir.command) or {}).get("overrides") != self._command["overrides"]:
            refuse("resume", f"SLURM job {job} is at work on it, as it was submitted", rundir.path,
                   hint=f"scancel {job}, or the command without changes, which follows "
                   "it")  # fmt: skip
        return job

    def _prepare(self) -> None:
        """Write what the command that does the job is to find."""
        past = read_json(self._rundir.command) or {}
        job = past.get("job") or secrets.token_hex(16)
        self._before = past
        cluster = dataclasses.replace(self._cluster, job=job)
        try:
            if not self._resumed:
                write_text(self._rundir.config, tree.to_yaml(self._config), lasting=True)
                write_json(self._rundir.cluster, cluster.to_json())
            # ORDER: with it the folder is that of a run, which can be resumed.
            began = past.get("began") or time.time()
            command = {**past, **self._command, "job": job, "began": began}
            write_json(self._rundir.command, command, lasting=True)
            self._rundir.logs.mkdir(exist_ok=True)
        except OSError as error:
            key, value = "output_dir", self._config.output_dir
            raise unwritable(key, value, "the run cannot be prepared", error) from None

    def submit(self) -> None:
        """Submit the job, unless it was.

        Raises:
            UsageError: SLURM does not take it; the disk is as it was.
        """
        if self.number is not None:
            return
        try:
            text = self._launcher.text(self._rundir.path, self._cluster, self._config.name)
            self.number = self._launcher.submit(self._rundir.path, text)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Leave the disk as it was before this command."""
        if self._resumed:
            write_json(self._rundir.command, self._before, lasting=True)
        else:
            writing.discard(self._rundir.path)

    def run(self, view: View | None = None, requests: Requests | None = None) -> Outcome:
        """Submit the job, and follow it to its end, or until the user leaves it.

        Args:
            view, requests: as of :class:`JobSpec`.
        """
        self._view = view or Display(shows=self._config.trainer.progress)
        with requests or Signals() as signals:
            try:
                return self._run(signals)
            finally:
                signals.started = True
                self._view.close()

    def _run(self, signals: Requests) -> Outcome:
        self.submit()
        signals.started = True
        self._view.detail(f"run folder: {short(self._rundir.path)}")
        state = "has the run already" if self.is_running else "is submitted"
        self._view.detail(f"SLURM job {self.number} {state}")
        assert self.number is not None
        client.watch.add(self.number)
        code = self._follow(signals) if self._launcher.settings.follow else None
        if code is not None:
            return self._finish(code, signals.count > 0)
        path = shlex.quote(short(self._rundir.path))
        self._view.detail(
            f"follow it with: python -m dtrain resume={path}; cancel it with: scancel {self.number}"
        )
        if not self._launcher.settings.follow:
            return Outcome(errors.OK, status="RUNNING")
        return Outcome(errors.INTERRUPTED, interrupted=True, status="KILLED")

    def _follow(self, signals: Requests) -> int | None:
        """Follow the job to its end; return its exit code, None where it goes on without us."""
        heard, leaves = 0, float("inf")
        while True:
            time.sleep(_LOOK)
            code = self._exit_code()
            if (silence := client.watch.news()) is not None:
                self._view.message(silence)
            self._unread = read_new(self._show_new, self._view, self._unread)
            if code is not None:
                return code
            while heard < signals.count:
                heard += 1
                if heard == 1:
                    self._view.detail("detaching: the job goes on (once more: cancel it)")
                    leaves = time.monotonic() + _SECOND
                elif heard == 2:
                    self._view.detail(f"cancelling SLURM job {self.number}")
                    leaves = float("inf")
                    self._cancel()
                else:
                    return None
            if time.monotonic() > leaves:
                return None

    def _cancel(self) -> None:
        assert self.number is not None
        try:
            client.cancel(self.number)
        except client.Refused as error:
            self._view.detail(f"SLURM job {self.number} cannot be cancelled: {error}")

    def _exit_code(self) -> int | None:
        """Return the exit code of the job; None while it has not ended, as far as is known."""
        assert self.number is not None
        job = client.watch.state(self.number)
        code = batch.left(self._rundir.path, self.number)
        if client.watch.problem is not None:  # the run folder alone says something
            self._unseen = None
            return errors.OK if code == errors.OK else None
        if job is None:
            # Just submitted, or long gone: SLURM forgets a job minutes after its end.
            self._unseen = self._unseen or time.monotonic()
            if time.monotonic() - self._unseen < _FORGOTTEN:
                return None
            return errors.FAILED if code is None else code
        self._unseen = None
        if self._queued is None or job.text != self._queued.text:
            self._queued = job
            self._view.detail(f"SLURM job {job.id}: {job.text}")
        if not job.ended:
            return None
        if job.state == "COMPLETED":
            return errors.OK
        if job.state == "CANCELLED":
            return errors.INTERRUPTED if code is None else code
        return errors.FAILED if code in (None, errors.OK) else code

    def _show_new(self) -> None:
        progress: Any = schemas.glance(self._rundir.progress, schemas.Progress)
        if progress != self._past:
            self._view.update(progress)
        for event in self._follower.events():
            self._view.event(event)
        for line in self._console.new():
            self._view.detail(f"{self._cluster.chief.name} | {line}")

    def _finish(self, code: int, interrupted: bool) -> Outcome:
        result = self._result(code)
        if result is not None:
            code = result.get("exit_code", code)
            tracker = make_tracker(self._config)
            report.print_end(self._view, self._config, tracker, self._rundir, result)
            return Outcome.of(result, exit_code=code, interrupted=interrupted)
        problem = f"SLURM job {self.number}: {self._queued.text}" if self._queued else (
            f"SLURM knows nothing of job {self.number} any more"
        )  # fmt: skip
        problem += f"; it printed last:\n{last_lines(self._rundir.path / client.LOG)}"
        failure = Failure("failed", reason=problem)
        self._view.detail(f"error: {failure.sentence()}")
        self._view.detail(f"run folder: {short(self._rundir.path)}")
        status = "KILLED" if code == errors.INTERRUPTED else "FAILED"
        if status == "KILLED" and not checkpoint.steps(self._rundir.checkpoints):
            code = errors.FAILED
        return Outcome(code, None, interrupted, status, failure=failure)

    def _result(self, code: int) -> Any:
        """Return what the run's command wrote in the end; None where that is not of this job."""
        deadline = time.monotonic() + (_RESULT if code == errors.OK else _NO_RESULT)
        while True:
            result = batch.result(self._rundir.path, str(self.number))
            if result is not None and result.get("exit_code") == code:
                return result
            if time.monotonic() > deadline:
                return None
            time.sleep(INTERVAL)
