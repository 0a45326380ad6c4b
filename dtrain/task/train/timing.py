"""How long training takes, and where that time goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

from dtrain.run.times import HOST, INPUT, STEP, metric


class Timing:
    """Seconds of a run and of the interval between two points, by the calls of its steps.

    Attributes:
        calls: calls so far.
        step_seconds: seconds of a step of the last call.
        interval_seconds: seconds of the steps since the last point.
        interval_parts: of these, and of the time between, those of each part of
            :mod:`dtrain.run.times`.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.step_seconds = 0.0
        self.interval_seconds = 0.0
        self.interval_parts: dict[str, float] = {}
        self._began = self._ended = 0.0
        self._call: tuple[float, Mapping[str, float]] = 0.0, {}
        # The first call is left out: it compiles. So does one with other weights to train.
        self._compiles = True
        self._seconds, self._examples = 0.0, 0
        self._parts: dict[str, float] = {}

    def begin(self) -> None:
        """Begin a call."""
        self._began = time.perf_counter()

    def end(self, steps: int, examples: int, parts: Mapping[str, float]) -> None:
        """End a call.

        Args:
            steps: that it took.
            examples: of these steps.
            parts: seconds of the call that each part had.
        """
        now = time.perf_counter()
        seconds = now - self._began
        between = self._began - self._ended if self.calls else 0.0
        spent = {**parts, HOST: max(0.0, between)}
        self._call, self._ended = (seconds, spent), now
        self.calls += 1
        self.step_seconds = seconds / steps
        compiles, self._compiles = self._compiles, False
        if not compiles:
            self._seconds += seconds
            self._examples += examples
            for name, value in spent.items():
                self._parts[name] = self._parts.get(name, 0.0) + value

    def leave_next_out(self) -> None:
        """Take the next call, which compiles, for none of the training either."""
        self._compiles = True

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Take what is done inside for none of the training: an evaluation has its own time."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._ended += time.perf_counter() - begin

    def add_part(self, share: float) -> None:
        """Add a part of the last call to the interval: the call may span several."""
        seconds, parts = self._call
        self.interval_seconds += share * seconds
        for name, value in parts.items():
            self.interval_parts[name] = self.interval_parts.get(name, 0.0) + share * value

    def end_interval(self, steps: int, examples: int) -> dict[str, float]:
        """Return the metrics of an interval, and begin the next.

        Args:
            steps: that it has in this process: how long those before a resume waited is not known.
            examples: that it has in all.
        """
        metrics = {"examples_per_second": examples / self.interval_seconds}
        for name, value in self.interval_parts.items():
            metrics[metric(name)] = value / max(1, steps)
        self.interval_seconds, self.interval_parts = 0.0, {}
        return metrics

    @property
    def examples_per_second(self) -> float:
        """Throughput of training itself, all replicas together."""
        return self._examples / self._seconds if self._seconds else 0.0

    @property
    def seconds(self) -> float:
        """Of the calls, without the first, and of the time between them."""
        return self._seconds + self._parts.get(HOST, 0.0)

    @property
    def shares(self) -> dict[str, float]:
        """Part of these seconds that each part has had, 0 to 1; the rest is the steps'."""
        if not (whole := self.seconds):
            return {}
        shares = {name: min(1.0, value / whole) for name, value in self._parts.items()}
        return {STEP: max(0.0, 1.0 - sum(shares.values())), **shares}


#: Nothing is advised for a smaller share, and nothing is said of fewer seconds of training than
#: these: the first calls are not typical.
SHARE, SECONDS = 0.15, 5.0

_ADVICE = {
    INPUT: "steps waited for their input; python -m dtrain data shows how fast it can be read",
    HOST: "between the calls of steps are callbacks, metric points, checkpoints",
}


def described(seconds: float, shares: Mapping[str, float]) -> str | None:
    """Return a sentence about where the time went; None of a short training.

    Args:
        seconds: of the training, without validations.
        shares: the part of these that each part has had, 0 to 1.
    """
    if seconds < SECONDS:
        return None
    parts = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    advice = [text for name, text in _ADVICE.items() if shares.get(name, 0.0) > SHARE]
    return "; ".join([f"time of training: {parts}", *advice])


class Phases:
    """Seconds by phase, from when this was made; each phase begins where the one before ended.

    ``cluster``     devices are set up, and every task has joined
    ``data``        the dataset is loaded
    ``build``       the model is built, and a checkpoint restored
    ``steps``       the training step is tried, and the input pipeline made
    ``trace``       the call of many steps is traced, where that is apart from the first step
    ``first_step``  the first step has run

    Attributes:
        seconds: by name, in order.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.perf_counter()

    def end(self, phase: str) -> None:
        """End a phase; of one that ends twice the first time counts."""
        if phase not in self.seconds:
            now = time.perf_counter()
            self.seconds[phase] = round(now - self._at, 3)
            self._at = now
