"""Watches the tasks of one start of a job: who came, who died, who hangs, who asked to stop."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable
from typing import Any

from dtrain import errors
from dtrain.files.fields import Json
from dtrain.host import terminal
from dtrain.launchers import Launcher, LocalProcesses
from dtrain.run import schemas
from dtrain.run.cluster import Cluster
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir
from dtrain.run.outcome import cause
from dtrain.terminal.progress import View

#: Seconds between two looks at the tasks.
INTERVAL = 0.2
#: A task that is stopped (SIGSTOP) for so many seconds is given up. TensorFlow itself notices
#: after 10 s at the earliest, and a parameter server never.
FROZEN_SECONDS = 5.0
#: For the stacks of all tasks to reach their logs, in seconds.
DUMP_SECONDS = 2.0


class Requests:
    """Requests to stop a job: the first is to save a checkpoint, the second is obeyed at once.

    Attributes:
        count: how many there have been.
        started: there may be something to be saved.
        pruned: the job is not wanted any more: others of its sweep are better.
    """

    def __init__(self) -> None:
        self.count = 0
        self.started = False
        self.pruned = False

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing: another object counts."""


class Signals(Requests):
    """Counts the signals that ask this process to stop, while it is entered.

    Until :attr:`started` is set a request raises KeyboardInterrupt: nothing is there to be saved.
    """

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._note) for number in terminal.stops()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        # A terminal that is closed sends it, and its shell sends it again: that is one request.
        if number == signal.SIGHUP and self.count:
            return
        self.count += 1
        if not self.started:
            raise KeyboardInterrupt


class Supervisor:
    """Follows one start of the tasks to its end.

    Args:
        launcher: has started them.
        cluster: what was started.
        rundir: where the chief reports its progress.
        view: shows the user what happens.
        saving: what the tasks do when they are asked to stop.
    """

    def __init__(
        self, launcher: Launcher, cluster: Cluster, rundir: RunDir, view: View,
        saving: str = "saving a checkpoint",
    ):  # fmt: skip
        self._saving = saving
        self._launcher = launcher
        self._processes = launcher if isinstance(launcher, LocalProcesses) else None
        self._cluster = cluster
        self._rundir = rundir
        self._view = view
        followed = launcher.followed(cluster)
        self._training = {task.name for task in followed if not task.serves}
        self._waited_for = {task.name for task in followed}  # have not joined
        self._begun = False  # there is something that a stop has to save
        self._over = False  # a stop was asked for before that
        self._not_started = set(self._waited_for)
        self._causes: dict[str, Json] = {}  # what tasks have said of their failures
        self._start_deadline = time.monotonic() + launcher.start_timeout
        self._deadline = math.inf  # for all to end
        self._frozen_since: dict[str, float] = {}
        self._report: Json | None = None
        self._moved_at = time.monotonic()
        self.replaced = 0  # workers that were started again
        self.asked = False  # the user or a scheduler asked the job, or one of its tasks, to stop

    def watch(self, signals: Requests, look: Callable[[], None]) -> Failure | None:
        """Return when the job has ended, well or not, or cannot continue.

        Args:
            signals: requests to stop; the second one is obeyed at once.
            look: called at each turn.
        """
        asked = 0
        while True:
            events = self._launcher.poll(INTERVAL)
            failure = self._hear(events)
            look()
            if failure is not None:
                return failure
            if self._over or not self._training:
                return None
            if signals.count > asked:
                asked += 1
                # Ctrl-C in a terminal reaches the tasks as well: they may have been the first to
                # tell, and only a second one is meant so.
                if asked > 1:
                    self._view.detail("stopping at once")
                    return None
                why = "given up: others of the sweep are better" if signals.pruned else "stopping"
                self._view.detail(f"{why}: {self._saves('(once more: stop at once)')}")
                self._stop()
                if self._over:
                    return None
            now = time.monotonic()
            if now > self._deadline:
                self._view.message("the tasks did not stop in time: ended by force")
                return None
            failure = self._absent(now) or self._frozen(now) or self._stalled(now)
            if failure is not None:
                return failure

    def _saves(self, more: str = "") -> str:
        if self._has_begun():
            return f"{self._saving} {more}".strip()
        return "no step was taken, nothing is to be saved"

    def _has_begun(self) -> bool:
        # A launcher of the user's own may pass no status on.
        return self._begun or schemas.glance(self._rundir.progress, schemas.Step) is not None

    def _stop(self) -> None:
        if not self.asked:
            self.asked = True
            if not self._has_begun():
                # The tasks may be in the midst of what takes minutes: reading, tracing.
                self._over = True
                return
            self._launcher.stop()
            patience = time.monotonic() + self._launcher.grace_seconds
            self._deadline = min(self._deadline, patience)

    def _hear(self, events: list[tuple[str, str]]) -> Failure | None:
        ended, lost = [], []
        if any(status == "training" for _, status in events):
            self._begun = True
        for name, status in events:
            if status == "started":
                self._not_started.discard(name)
            elif status == "joined":
                self._waited_for.discard(name)
                if not self.replaced:  # a worker that dies after each restart makes no progress
                    self._moved_at = time.monotonic()
            elif status == "stop":
                if not self.asked:
                    self._view.message(f"{name} was asked to stop: {self._saves()}")
                self._stop()
            elif status == "reading":
                self._reads(name)
            elif status.startswith("failed "):
                self._causes[name] = json.loads(status[7:])
            elif status == "lost":
                lost.append(name)
            elif status == "ended":
                ended.append(name)
        codes = self._launcher.exit_codes()
        # Of several that are found dead together, one that a signal ended is the cause; but a
        # chief that has done all has no need of the others.
        done = (self._cluster.chief.name, errors.OK), (self._cluster.chief.name, errors.INTERRUPTED)
        for name in sorted(ended, key=lambda n: ((n, codes[n]) not in done, codes[n] >= 0)):
            failure = self._handle_exit(name, codes[name])
            if failure is not None:
                return failure
        if lost and self._training:  # else the chief has done all
            return self._launcher.losses[lost[0]]
        return None

    def _reads(self, name: str) -> None:
        """Give a task that reads (the framework, a checkpoint, its data) as much time again."""
        now = time.monotonic()
        if name in self._waited_for:
            self._start_deadline = max(self._start_deadline, now + self._launcher.start_timeout)
        if name in self._training and not self._begun:
            self._moved_at = now

    def _handle_exit(self, name: str, code: int) -> Failure | None:
        task = self._cluster.task(name)
        if not task.serves and code in (errors.OK, errors.INTERRUPTED):
            self._training.discard(name)
            # The others are at the same point: they will not be waited for without an end.
            if not task.alone:
                patience = time.monotonic() + self._launcher.grace_seconds
                self._deadline = min(self._deadline, patience)
            return None
        if self._cluster.chief.name not in self._training:  # what it does after that is no loss
            self._training.discard(name)
            return None
        if code == errors.PORT_TAKEN:
            return Failure("port", name, "its port was taken by another program")
        reason = cause(code)
        if task.replaceable and name not in self._waited_for and self._processes is not None:
            self._view.message(
                f"{name} {reason or f'ended with exit code {code}'}: it is started again"
            )
            self._processes.start_again(name)
            self._waited_for.add(name)
            self._start_deadline = time.monotonic() + self._launcher.start_timeout
            self.replaced += 1
            return None
        words = self._causes.get(name, {})
        return Failure(
            "died" if code < 0 else "failed", name, reason or words.get("reason"),
            None if reason else words.get("place"), silent=tuple(self._launcher.silent()),
        )  # fmt: skip

    def _absent(self, now: float) -> Failure | None:
        """Name the task that never came."""
        if not self._waited_for or now < self._start_deadline:
            return None
        # The chief is named last: it waits for the others, and lacks because they do.
        names = self._not_started & self._waited_for or self._waited_for
        missing = sorted(names, key=lambda name: (name == self._cluster.chief.name, name))
        did = "start" if missing[0] in self._not_started else "join the cluster"
        others = f"; nor did {', '.join(missing[1:])}" if missing[1:] else ""
        return Failure(
            "absent",
            missing[0],
            f"did not {did} within {self._launcher.start_timeout:g} s "
            f"(launcher.start_timeout){others}",
        )

    def _frozen(self, now: float) -> Failure | None:
        frozen = self._processes.frozen() if self._processes is not None else set()
        self._frozen_since = {name: self._frozen_since.get(name, now) for name in frozen}
        for name, since in self._frozen_since.items():
            if now - since < FROZEN_SECONDS:
                continue
            if self._cluster.task(name).replaceable and self._processes is not None:
                self._processes.end(name)
            else:
                return Failure("frozen", name, f"was stopped (SIGSTOP) for {FROZEN_SECONDS:g} s")
        return None

    def _stalled(self, now: float) -> Failure | None:
        """Have every task write its stacks where nothing has moved for too long."""
        timeout = self._launcher.stall_timeout
        report: Any = schemas.glance(self._rundir.progress, schemas.Step)
        if timeout is None or report != self._report:
            self._report, self._moved_at = report, now
        elif now - self._moved_at >= timeout:
            stacks = ""
            if self._processes is not None:
                self._processes.dump()
                time.sleep(DUMP_SECONDS)
                stacks = "; where every task was stands at the end of its log"
            reason = f"no step in {timeout:g} s (launcher.stall_timeout){stacks}"
            return Failure("stalled", self._cluster.chief.name, reason)
        return None
