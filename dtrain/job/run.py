"""One job: checked, planned, launched, followed, recorded."""

from __future__ import annotations

import dataclasses
import functools
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.node import to_plain
from dtrain.config.tree import Config
from dtrain.errors import DamagedFile, TrainingError, UsageError
from dtrain.files import writing
from dtrain.files.fields import Json
from dtrain.host import frameworks
from dtrain.job import exporting, report
from dtrain.job.folders import begin, lock
from dtrain.job.plan import Plan
from dtrain.job.run_files import RunFiles
from dtrain.job.start_times import Start
from dtrain.job.supervisor import Requests, Signals, Supervisor
from dtrain.launchers import Launcher
from dtrain.launchers.questions import ask
from dtrain.run import checkpoint, outcome, schemas
from dtrain.run.cluster import Cluster
from dtrain.run.devices import Machine
from dtrain.run.failure import Failure, Kind
from dtrain.run.folder import RunDir, short
from dtrain.run.journal import Follower
from dtrain.run.outcome import Outcome
from dtrain.terminal.progress import Display, Log, View
from dtrain.tracking.base import TrackedRun
from dtrain.tracking.chosen import make_tracker
from dtrain.tracking.delivery import RunDelivery

#: How often the tasks are started anew on other ports because one was taken.
PORT_TRIES = 3


@dataclasses.dataclass(frozen=True)
class JobSpec:
    """A job whose configuration is in order, and whose tasks are planned.

    Attributes:
        config: resolved.
        planned: its processes, as the launcher's ``check`` has placed them.
        launcher: starts them.
        folder: where a new run folder goes.
        command: contents of ``command.json``; its ``overrides`` are those of the user's command.
        chosen: the user has named ``folder``.
        kind: what it is: a training, or something else.
        requests: to stop it; of this process' signals if None.
        view: where it is shown; a display of its own if None.
        began: gets the run folder, when the job has one here.
        alone: it is the one job of this command, whose start is that of the job.
    """

    config: Config
    planned: Plan
    launcher: Any
    folder: Path
    command: Json
    chosen: bool = False
    kind: type[Job] | None = None
    requests: Requests | None = None
    view: View | None = None
    began: Callable[[Path], None] = lambda folder: None
    alone: bool = False

    @property
    def cluster(self) -> Cluster:
        """Its tasks."""
        return self.planned.cluster

    def show(self) -> None:
        """Print the plan."""
        (self.kind or Job).show(self.config, self.planned, self.folder)


def run_job(spec: JobSpec) -> Outcome:
    """Run a job to its end, in the way that its launcher says; of a dry run, print the plan."""
    if spec.config.dry_run:
        spec.launcher.show(spec)
        spec.launcher.kill()
        return Outcome(errors.OK)
    delegate = spec.launcher.delegate(spec.cluster)
    if delegate is not None:
        ended: Outcome = delegate(spec)
        return ended
    job = (spec.kind or Job)(spec)
    spec.began(job.folder)
    return job.run()


class Job:
    """A training, whose tasks are started and followed here. A subclass does something else.

    Args:
        spec: what is run.
    """

    #: Whether it trains.
    trains = True
    #: Whether its folder is that of a run, which another command can resume.
    is_run = True
    #: What its tasks do when they are asked to stop.
    saving = "saving a checkpoint"
    #: Why a job that was stopped has nothing to continue from.
    unsaved = "stopped before a checkpoint was saved"

    @staticmethod
    def spread(config: Config, planned: Plan, machine: Machine) -> Plan:
        """Return the plan as this kind of job carries it out.

        Raises:
            UsageError: it cannot.
        """
        return planned

    @staticmethod
    def show(config: Config, planned: Plan, folder: Path) -> None:
        """Print what would be started (``dry_run=true``)."""
        layouts: list[str] = []
        if planned.strategy.divides is not None:  # what they make is known once there is a model
            layouts = ask("model", to_plain(config), planned.cluster, {})
        report.print_plan(config, planned, folder, layouts)

    def __init__(self, spec: JobSpec):
        self._command = spec.command
        self._requests = spec.requests or Signals()
        self._config = config = spec.config
        self._cluster: Cluster = spec.cluster
        self._hosts_here = report.hosts_here(config, spec.planned)
        self._launcher: Launcher = spec.launcher
        self._resumed = config.resume is not None
        self._rundir, self._lock = self._take(spec.folder, spec.chosen)
        self._view: View = spec.view or Display(shows=config.trainer.progress)
        self._tracker = make_tracker(config)
        self._delivery: RunDelivery | None = None
        self._events: list[Json] = []
        self._follower = Follower(self._rundir.journal)
        self._console = Log(self._rundir.log(self._cluster.chief.name))
        self._unread: str | None = None  # what was said last of files that cannot be read
        #: Its way to the first step.
        self.start = Start()
        if spec.alone:
            self.start.of_the_command()
        self._restarts = self._replaced = 0  # of all tasks; workers alone
        self._asked = False  # to stop
        self._prepared = False
        self._trained = False  # a task has reported `start`
        say = self._view.message if self.trains else None
        self._files = RunFiles(self._rundir, config, self._resumed, say)

    def _take(self, folder: Path, chosen: bool) -> tuple[RunDir, int]:
        if self._config.resume is not None:
            return (rundir := RunDir(self._config.resume)), lock(rundir, "resume")
        return begin(folder, self._config.output_dir, chosen)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._rundir.path

    def run(self) -> Outcome:
        """Start the tasks, follow them to their end, and write ``result.json``."""
        try:
            with self._requests as signals:
                return self._run(signals)
        finally:
            self._files.close(self._lock)

    def _run(self, signals: Requests) -> Outcome:
        failure: Failure | None = None
        refused: UsageError | None = None
        try:
            self._prepare()
            if self._hosts_here is not None:
                self._view.detail(self._hosts_here)
            self._view.detail(f"starting: {frameworks.of(self._cluster.environment).importing}")
            failure = self._attempts(signals)
        except KeyboardInterrupt:
            signals.count = max(1, signals.count)
        except UsageError as error:
            refused = error
        except OSError as error:
            failure = self._of_chief("disk", str(error))
        except Exception as error:  # whatever it is, result.json says so
            traceback.print_exc()
            failure = self._of_chief("failed", f"{type(error).__name__}: {error}")
        finally:
            signals.started = True  # what comes now is short and must not be torn
            self._launcher.kill()
            self._view.close()
        if refused is not None and not self._trained:
            self._leave(self._files.discard)
            raise refused
        if refused is not None:
            failure = self._of_chief("refused", str(refused))
        if self._prepared:
            self._look(tries=2)  # at what was written since the last look
        ended = self._finish(signals.count > 0, failure)
        self._launcher.farewell(ended.exit_code)
        return ended

    def _prepare(self) -> None:
        self._report(self._files.prepare(self._command, self._cluster))
        self._follower.skip()  # what an earlier start wrote is not news
        self._console.skip()
        if self._tracker.address is not None:
            run = TrackedRun(self._config, self._rundir, self._cluster, live=True)
            self._delivery = RunDelivery(
                self._tracker, run, self._view.message, past=self._files.past
            )
        self._prepared = True

    def _of_chief(self, kind: Kind, reason: str) -> Failure:
        return Failure(kind, self._cluster.chief.name, reason)

    def _report(self, sentence: str | None) -> None:
        if sentence is not None:
            self._view.message(sentence)

    def _attempts(self, signals: Requests) -> Failure | None:
        """Start the tasks, and again after a failure as often as may be."""
        stolen = 0
        while True:
            self.start.launching()
            try:
                placed: Any = self._launcher.start(self._rundir, self._cluster)
            except TrainingError as error:
                return self._of_chief("start", str(error))
            except OSError as error:
                return self._of_chief("start", f"cannot be started ({error})")
            if not isinstance(placed, Cluster):
                why = f"start of {type(self._launcher).__name__} returned {placed!r:.80}"
                return self._of_chief("start", f"{why}, not the cluster that it placed")
            self._cluster = placed
            self.start.launched()
            signals.started = True
            supervisor = Supervisor(
                self._launcher, self._cluster, self._rundir, self._view, self.saving
            )
            failure = supervisor.watch(signals, self._look)
            self._launcher.kill()
            self._replaced += supervisor.replaced
            # A signal may have come at the very look at which a task was found dead.
            self._asked = self._asked or supervisor.asked or signals.count > 0
            if failure is None or self._asked or self._refused():
                return failure
            if failure.kind == "port" and stolen < PORT_TRIES:
                stolen += 1
            elif self._restarts < self._launcher.max_restarts and failure.kind != "port":
                self._restart(failure)
            else:
                return failure

    def _refused(self) -> bool:
        return errors.USAGE in self._launcher.exit_codes().values()

    def _restart(self, failure: Failure) -> None:
        self._look()
        explained = outcome.explained(failure, self._cluster, self._rundir, self._events)
        problem = explained.sentence(self._rundir.path)
        self._restarts += 1
        message = self._files.restart(
            f"restart {self._restarts} of {self._launcher.max_restarts} from step STEP: {problem}"
        )
        self._follower = Follower(self._rundir.journal)
        # All that still holds:
        self._events = [e for e in self._follower.events() if e["event"] in outcome.KEPT]
        self._view.message(message)

    def _look(self, tries: int = 1) -> None:
        self._unread = read_new(self._take_in, self._view, self._unread, tries)

    def _take_in(self) -> None:
        progress: Any = schemas.glance(self._rundir.progress, schemas.Progress)
        self.start.stepped(progress)
        self._view.update(progress)
        for event in self._follower.events():
            if event["event"] in outcome.KEPT:  # a long run has millions of the others
                self._events.append(event)
            if self.is_run or event["event"] != "epoch":  # those of a check say nothing
                self._view.event(event)
            is_start = event["event"] == "start" and event["time"] not in self._files.past
            if is_start and not self._trained:
                self._trained = True
                self._change(self._files.begin)
                # Before, the folder may be removed again: a task refuses what it cannot train.
                kind = "run folder" if self.is_run else "folder"
                self._view.detail(f"{kind}: {short(self._rundir.path)}")
        for line in self._console.new(outcome.said(self._events)):  # that is reported at the end
            self._view.detail(f"{self._cluster.chief.name} | {line}")

    def _change(self, action: Callable[[], None]) -> None:
        """Change files of the run; what cannot be changed is reported."""
        try:
            action()
        except OSError as error:
            self._view.message(f"error: {error.filename or self._rundir.path}: {error.strerror}")

    def _finish(self, interrupted: bool, failure: Failure | None) -> Outcome:
        code = self._exit_code(interrupted or self._asked)
        problem: Failure | None = None
        if code == errors.FAILED:
            failure = failure or Failure("failed", self._cluster.chief.name)
            problem = outcome.explained(failure, self._cluster, self._rundir, self._events)
            full = writing.unwritable(self._rundir.path)  # then a task could not say so
            if full is not None:
                last = str(problem.reason).splitlines()[-1]
                why = f"{self._rundir.path} cannot be written ({full}); {last}"
                problem = dataclasses.replace(problem, kind="disk", reason=why)
        if code == errors.USAGE:
            # Where all refuse the same, another task than the chief may have been the first.
            said_by = self._cluster.chief.name if failure is None else failure.task
            reason = failure.reason if failure is not None else None
            log = self._rundir.log(str(said_by))
            message = outcome.said(self._events) or reason or outcome.last_lines(log)
            self._leave(self._files.discard)
            self._view.detail(f"error: {message}")
            return Outcome(code, failure=Failure("refused", reason=message))
        status = {errors.OK: "FINISHED", errors.FAILED: "FAILED"}.get(code, "KILLED")
        if (interrupted or self._asked) and code == errors.FAILED:
            status, problem = "KILLED", Failure("unsaved", reason=self.unsaved)
        kept = self._resumed and not self._trained and code != errors.OK
        if kept:
            self._leave(self._files.put_back)
        result = self._result(
            self._config, self._cluster, self._rundir, self._events,
            status=status, exit_code=code, failure=problem and problem.record(),
            restarts=self._restarts,
            replaced_workers=self._replaced, **self.start.times(self._events),
        )  # fmt: skip
        if pruned := self._requests.pruned and status == "KILLED":
            result["pruned"] = True
        if self.trains and status == "FINISHED" and self._config.report:
            # ORDER: with a result the run is finished, and no resume would write the page.
            report.write_page(self._view, self._config, self._rundir, result)
        if not kept or not self._rundir.result.exists():  # else how it ended before holds
            self._change(functools.partial(self._files.write_result, result))
        if self.trains and status == "FINISHED" and self._delivery is not None:
            exporting.export_at_end(self._config, self._rundir, self._view, self._requests)
        delivery = None if kept else self._delivery
        lacking = [] if delivery is None else delivery.finish(status, time.time())
        self._print_end(result, lacking)
        return Outcome.of(result, interrupted=interrupted, pruned=pruned,
                          folder=self._rundir.path)  # fmt: skip

    #: Makes the contents of ``result.json``.
    _result = staticmethod(outcome.result)

    def _print_end(self, result: Json, lacking: Collection[str]) -> None:
        """Print how the job ended.

        Args:
            result: the contents of ``result.json``.
            lacking: names of the trackers that have not got everything.
        """
        report.print_end(self._view, self._config, self._tracker, self._rundir, result, lacking)

    def _may_continue(self) -> bool:
        """Say whether the same command, once more, would not begin from nothing."""
        return bool(checkpoint.steps(self._rundir.checkpoints))

    def _leave(self, put_back: Callable[[], None]) -> None:
        """Nothing was trained: leave tracking and disk as they were before."""
        if self._delivery is not None:
            self._delivery.finish(None, time.time())
        self._change(put_back)

    def _exit_code(self, interrupted: bool) -> int:
        """Reduce the tasks' exit codes to the command's."""
        codes = self._launcher.exit_codes()
        chief = codes.get(self._cluster.chief.name)
        if chief in (errors.OK, errors.INTERRUPTED):
            return chief  # it is the last to be done, and has saved everything
        if self._refused() and not self._trained:
            return errors.USAGE
        if interrupted and self._may_continue():
            return errors.INTERRUPTED
        return errors.FAILED


def read_new(read: Callable[[], None], view: View, known: str | None, tries: int = 1) -> str | None:
    """Show what a run has written; what cannot be read now, of a network's disk, may be later.

    Args:
        read: reads and shows it.
        view: where a problem is shown, once.
        known: the problem of the last time.
        tries: how often it may fail.

    Returns:
        The problem of this time; None where there was none.
    """
    problem = None
    for _ in range(tries):
        try:
            read()
            return None
        except OSError as error:
            problem = f"{error.filename} cannot be read now: {error.strerror}"
        except DamagedFile as error:  # a log in whose place is a folder or a pipe
            problem = str(error)
    if problem is not None and problem != known:
        view.message(problem)
    return problem
