"""Whether a job stands still, by the pace that it has had."""

from __future__ import annotations

import collections
import statistics
import time

#: A pause between two steps counts from so many seconds on, and from so many times the usual one.
LEAST, FACTOR = 5.0, 5.0
#: Pauses that tell the usual one, at least and at most.
FEW, MANY = 3, 50
#: Part of a time that a job stands still for, if it does.
MOST = 0.75


class Pace:
    """When a job made steps.

    Where packets are lost, a step comes through now and then, and each would begin the waiting
    anew: so it is the sum of the pauses that counts, not the last one.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._moved = False
        self._usual: collections.deque[float] = collections.deque(maxlen=MANY)
        self._pauses: collections.deque[tuple[float, float]] = collections.deque()

    def move(self) -> None:
        """Note that there was a step."""
        now = time.monotonic()
        if self._moved and self._is_pause(now - self._last):
            self._pauses.append((self._last, now))
        if self._moved:  # what comes before the first is no pace
            self._usual.append(now - self._last)
        self._moved, self._last = True, now

    def stands(self, seconds: float) -> bool:
        """Say whether it stood still for the last ``seconds``, or for most of them.

        Before the first step it is all of them: imports and tracing are no pauses.
        """
        now = time.monotonic()
        if now - self._last >= seconds or not self._moved:
            return now - self._last >= seconds
        begin = now - seconds
        while self._pauses and self._pauses[0][1] < begin:
            self._pauses.popleft()
        stood = sum(end - max(start, begin) for start, end in self._pauses)
        if self._is_pause(now - self._last):
            stood += now - self._last
        return stood >= MOST * seconds

    def _is_pause(self, seconds: float) -> bool:
        usual = statistics.median(self._usual) if len(self._usual) >= FEW else 0.0
        return seconds > max(LEAST, FACTOR * usual)
