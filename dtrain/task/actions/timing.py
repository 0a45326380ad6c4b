"""How long training takes, and how much of that time its steps wait for their input."""

from __future__ import annotations


class Timing:
    """Seconds of a run and of the interval between two points, by the calls of its steps.

    Attributes:
        calls: calls so far.
        step_seconds: seconds of a step of the last call.
        interval_seconds: seconds of the steps since the last point.
        interval_waited: of these, those in which steps waited for their input; None where that is
            not measured.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.step_seconds = 0.0
        self.interval_seconds = 0.0
        self.interval_waited: float | None = 0.0
        # The first call is left out: it compiles.
        self._seconds, self._examples, self._waited = 0.0, 0, 0.0

    def add(self, steps: int, examples: int, seconds: float, waited: float | None) -> None:
        """Add a call.

        Args:
            steps: that it took.
            examples: of these steps.
            seconds: of the whole call.
            waited: of these, in the mean over the tasks, those for input; None: not measured.
        """
        self.calls += 1
        self.step_seconds = seconds / steps
        if self.calls > 1:
            self._seconds += seconds
            self._examples += examples
            self._waited += waited or 0.0

    def add_part(self, share: float, seconds: float, waited: float | None) -> None:
        """Add a part of a call to the interval: the call may span several."""
        self.interval_seconds += share * seconds
        if waited is None or self.interval_waited is None:
            self.interval_waited = None
        else:
            self.interval_waited += share * waited

    def end_interval(self, steps: int, examples: int) -> dict[str, float]:
        """Return the metrics of an interval, and begin the next.

        Args:
            steps: that it has in this process: how long those before a resume waited is not known.
            examples: that it has in all.
        """
        found = {"examples_per_second": examples / self.interval_seconds}
        if self.interval_waited is not None:
            found["input_seconds"] = self.interval_waited / max(1, steps)
        self.interval_seconds = self.interval_waited = 0.0
        return found

    @property
    def examples_per_second(self) -> float:
        """Throughput of training itself, all replicas together."""
        return self._examples / self._seconds if self._seconds else 0.0

    @property
    def input_share(self) -> float:
        """Part of the time of training in which steps waited for their input, 0 to 1."""
        return min(1.0, self._waited / self._seconds) if self._seconds else 0.0
