"""Keeps the evaluator of a job alive: its death never ends a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtrain import errors, secrets
from dtrain.controller import result
from dtrain.controller.outcome import cause
from dtrain.run import schemas
from dtrain.run.cluster import Task
from dtrain.run.folder import RunDir, short
from dtrain.run.sidecar import NOTICE, Sidecar


class Beside:
    """Starts the evaluator again where it died, as often as may be, and passes its reports on.

    Args:
        rundir: of the run.
        task: the evaluator.
        start_again: starts it once more; None where this command has not started it.
        most: times that it may die before it has done something.
        say: shows the user a sentence.
    """

    def __init__(
        self,
        rundir: RunDir,
        task: Task,
        start_again: Callable[[], None] | None,
        most: int,
        say: Callable[[str], None],
    ):
        self._rundir, self._task, self._say = rundir, task, say
        self._start_again = start_again
        self._most = most
        self._sidecar = Sidecar(rundir)
        self._notices = self._sidecar.notices()
        self._notices.skip()  # what was reported at an earlier start
        self._deaths, self._deeds = 0, self._sidecar.deeds()
        #: Whether its process is there, or another command's.
        self.is_alive = True

    def ended(self, code: int, stopping: bool) -> None:
        """Start it again after it has ended, unless it was to end.

        Args:
            code: its exit code.
            stopping: the job was asked to stop, or is over.
        """
        self.look()
        if code == errors.OK or stopping or self._start_again is None:
            self.is_alive = False
            return
        name, deeds = self._task.name, self._sidecar.deeds()
        self._deaths = 1 if deeds > self._deeds else self._deaths + 1
        self._deeds = deeds
        how = cause(code) or f"ended with exit code {code}"
        log = f"log: {short(self._rundir.log(name))}"
        if self._deaths <= self._most and code != errors.USAGE:
            self._say(f"{name} {how}: it is started again")
            self._start_again()
            return
        if cause(code) is None:
            how = secrets.mask(result.last_lines(self._rundir.log(name)).rpartition("\n")[2])
        self.lost(f"{how} ({log})")

    def lost(self, why: str) -> None:
        """Report that it is not coming back.

        Args:
            why: a clause.
        """
        self.is_alive = False
        self._sidecar.give_up()
        self._say(f"{self._task.name} {why}; training continues, and resume= evaluates the rest")

    def state(self) -> dict[str, Any]:
        """Return what changes while it does something."""
        progress: Any = schemas.glance(self._sidecar.progress, schemas.Step)
        return {"deeds": self._sidecar.deeds(), "progress": progress}

    def look(self) -> None:
        """Pass on what it has reported."""
        for event in self._notices.new():
            if event["event"] == NOTICE:
                self._say(secrets.mask(event.get("message", "")))
