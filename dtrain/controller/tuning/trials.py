"""Trials: short runs of the ordinary machinery, one after the other, each with a time limit."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain.config.schema import Config
from dtrain.controller.job import Job
from dtrain.controller.plan import sizes
from dtrain.controller.supervisor import Signals
from dtrain.controller.tuning.search import Found, Setting
from dtrain.controller.tuning.settings import for_trial
from dtrain.controller.validate import check
from dtrain.data.sources import Splits
from dtrain.errors import DtrainError

#: Characters of the reason why a setting has failed.
_REASON = 100


class _Quiet:
    """What a trial reports: its :class:`.progress.View`. Only its event is of interest.

    Args:
        waiting: called a few times a second.
    """

    def __init__(self, waiting: Callable[[], None]):
        self._waiting = waiting
        self.found: dict[str, Any] | None = None

    def message(self, text: str) -> None:
        """Nothing: why a trial fails is in its outcome."""

    def detail(self, text: str) -> None:
        """Nothing."""

    def event(self, event: dict[str, Any]) -> None:
        """Take the event of the trial."""
        if event["event"] == "trial":
            self.found = event

    def update(self, report: dict[str, Any] | None) -> None:
        """Let the command show that it is alive."""
        self._waiting()

    def close(self) -> None:
        """Nothing."""


class _Limited(Signals):
    """Requests to stop: those of the user, and the end of the time, which is obeyed at once.

    Args:
        seconds: that there are.
    """

    def __init__(self, seconds: float):
        self._deadline = time.monotonic() + seconds
        self.asked = 0  # by the user
        super().__init__()

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._deadline

    @property
    def count(self) -> int:
        """How many there have been; two are obeyed at once."""
        return self.asked + (2 if self.late else 0)

    @count.setter
    def count(self, value: int) -> None:
        # Ctrl-C once is enough: there is nothing to be saved.
        self.asked = 2 if value else 0


class _Job(Job):
    """A job that is a trial."""

    trains = False  # nothing is copied to an address, and no model is logged

    def _print_end(self, found: dict[str, Any], shipped: bool) -> None:
        """Nothing: it is a row of a table."""


class Trials:
    """Runs trials of one configuration.

    Args:
        config: settled, of the plain setting.
        folder: where trials have their folders; the caller removes it.
        steps: whose losses are compared.
        seconds: that each is timed.
        limit: seconds that each may take, with its start.
        waiting: called a few times a second.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        steps: int,
        seconds: float,
        limit: float,
        waiting: Callable[[], None] = lambda: None,
    ):
        self._config, self._folder, self._waiting = config, folder, waiting
        self._steps, self._seconds, self._limit = steps, seconds, limit
        self._number = 0

    @functools.cached_property
    def _splits(self) -> Splits | None:
        return sizes(self._config)  # looked at once: the data of all trials is the same

    def measure(self, setting: Setting) -> Found:
        """Run one trial, and return what it has found: a failure, too.

        Raises:
            KeyboardInterrupt: the user has asked for a stop.
        """
        self._number += 1
        folder = self._folder / str(self._number)
        config = for_trial(self._config, setting, str(self._folder), self._steps, self._seconds)
        view, requests = _Quiet(self._waiting), _Limited(self._limit)
        try:
            checked = check(config, look=lambda _: self._splits, prepare=False)
            job = _Job(
                config, checked.planned, checked.launcher, folder, {"overrides": []}, requests,
                view, chosen=True,
            )  # fmt: skip
            outcome = job.run()
        except DtrainError as error:
            return Found(problem=_short(str(error)))
        if requests.asked:
            raise KeyboardInterrupt
        if view.found is None or outcome.exit_code:
            late = f"is not done within {self._limit:g} s"
            return Found(problem=late if requests.late else _short(outcome.error or "has failed"))
        return _found(view.found)


def _found(event: dict[str, Any]) -> Found:
    if not event["speed"]:
        return Found(problem="took no second call of steps: nothing is known of its speed")
    losses = [float(loss) for loss in event["losses"]]  # in a journal NaN is a text
    return Found(event["speed"], losses, event["waited"], event["memory"])


def _short(text: str) -> str:
    """Return the reason of a failure in one line; of a wrong key without what is accepted."""
    text = text.partition("; accepted: ")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = next((each for each in lines if "Error" in each), lines[0] if lines else "has failed")
    return line if len(line) <= _REASON else f"{line[: _REASON - 1]}…"
