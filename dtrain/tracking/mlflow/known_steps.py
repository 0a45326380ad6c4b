"""Which steps a metric has points at, in little memory however many they are."""

from __future__ import annotations

import bisect


class Steps:
    """A set of steps. They mostly come in order and evenly spaced, and are kept as ranges."""

    def __init__(self) -> None:
        self._ranges: list[range] = []  # each begins behind the end of the one before
        self._others: set[int] = set()  # those that came late

    def add(self, step: int) -> None:
        """Take in a step; none that is there already."""
        if not self._ranges or step > self._ranges[-1][-1]:
            last = self._ranges[-1] if self._ranges else None
            if last is not None and (len(last) == 1 or step - last[-1] == last.step):
                self._ranges[-1] = range(last[0], step + 1, step - last[-1])
            else:
                self._ranges.append(range(step, step + 1))
        else:
            self._others.add(step)

    def __contains__(self, step: int) -> bool:
        at = bisect.bisect_right(self._ranges, step, key=lambda each: each[0]) - 1
        return (at >= 0 and step in self._ranges[at]) or step in self._others
