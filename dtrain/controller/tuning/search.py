"""Which settings are tried, in which order, and which of them is chosen. Nothing is run here.

One coordinate after the other, each from the best setting so far; then as many of the other
combinations as there is time for. In the end the fastest are measured beside each other.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Values by key: what differs from the plain setting, which is ``{}``.
Setting = Mapping[str, Any]
#: Losses that differ by more than this, relative to their size where they are larger than 1, are
#: other numbers: it is what all strategies agree to.
TOLERANCE = 1e-5
#: A setting has to be so much faster than the best so far, or it is noise.
GAIN = 1.03
#: Part of the time that steps may wait for their input before readers are tried.
WAITS = 0.05
#: So many of the fastest are measured beside each other in the end, in so many rounds, where they
#: were nearly as fast as the fastest: by so much two measurements differ on a shared machine.
LAST, ROUNDS, NEAR = 3, 2, 0.85
#: How often the batch is doubled at most.
DOUBLINGS = 3
#: A larger batch has to be so much faster for the next one to be tried.
BATCH_GAIN = 1.05

THREADS = "hardware.intra_op_threads"
BATCH = "trainer.batch_size"


@dataclasses.dataclass(frozen=True)
class Found:
    """What a trial has found.

    Attributes:
        speed: examples a second; None where it has failed.
        losses: of the first steps.
        waited: part of the time in which steps waited for their input, 0 to 1.
        memory: bytes of the largest task at its peak.
        problem: why there is no speed, as a clause.
    """

    speed: float | None = None
    losses: Sequence[float] = ()
    waited: float = 0.0
    memory: int = 0
    problem: str | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        setting: what was tried.
        found: what came of it.
        ratio: of its speed to that of the plain setting; None where it has failed.
        difference: the largest of a loss from that of the plain setting, relative to losses above
            1; None where they cannot be compared.
        compared: how many losses were.
        again: it is a second measurement.
    """

    setting: Setting
    found: Found
    ratio: float | None
    difference: float | None
    compared: int = 0
    again: bool = False

    def within(self, tolerance: float) -> bool:
        """Say whether the losses are those of the plain setting, as far as was compared."""
        return self.difference is not None and self.difference <= tolerance


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """Settings of which one is chosen.

    Attributes:
        settings: that are tried, each instead of the others.
        fits: says of the best setting so far whether this is to be tried with it.
        apart: keys of the best setting without which these are tried as well: XLA may need the
            threads that other kernels are faster without.
    """

    settings: Sequence[Setting]
    fits: Callable[[Setting], bool] = lambda best: True
    apart: Sequence[str] = ()


class Search:
    """Tries settings, and keeps the rows of the table.

    Args:
        measure: runs a trial.
        tolerance: by how much losses may differ of a setting that is chosen.
        report: called with each row.
    """

    def __init__(
        self,
        measure: Callable[[Setting], Found],
        tolerance: float = TOLERANCE,
        report: Callable[[Row], None] = lambda row: None,
    ):
        self._measure, self._tolerance, self._report = measure, tolerance, report
        self.rows: list[Row] = []
        self.plain = Found()
        self._best: Row | None = None

    def begin(self) -> Found:
        """Try the plain setting, which all others are compared with."""
        self.plain = self._measure({})
        self._best = self._row({}, self.plain)
        return self.plain

    @property
    def best(self) -> Row:
        """The best row so far."""
        assert self._best is not None, "begin() first"
        return self._best

    def walk(self, coordinates: Sequence[Coordinate]) -> None:
        """Try the coordinates, one after the other."""
        for each in coordinates:
            self._try(each)

    def _try(self, coordinate: Coordinate) -> None:
        start = self.best.setting
        if not coordinate.fits(start):
            return
        without = {key: value for key, value in start.items() if key not in coordinate.apart}
        starts = [start] if without == start else [start, without]
        for whole in [{**each, **setting} for setting in coordinate.settings for each in starts]:
            if any(dict(row.setting) == whole for row in self.rows):
                continue
            row = self._row(whole, self._measure(whole))
            if self._may_be_chosen(row) and _speed(row) > GAIN * _speed(self.best):
                self._try_again(whole)

    def _try_again(self, setting: Setting) -> None:
        """Measure the best setting and a faster one beside each other: a gain has to be seen twice.

        The machine may have become faster or slower since the best one was measured.
        """
        before = self.best.setting
        old = self._row(before, self._measure(before), again=True)
        new = self._row(setting, self._measure(setting), again=True)
        if self._may_be_chosen(new) and _speed(new) > _speed(old):
            self._best = new
        elif old.found.speed is not None:
            self._best = old

    def combine(self, coordinates: Sequence[Coordinate], over: Callable[[], bool]) -> None:
        """Try combinations of the same settings that were not tried, those like the best first.

        Two settings can be fast together of which each is slow alone: one coordinate after the
        other never meets them. What was never within the tolerance, or has failed, is left out.

        Args:
            coordinates: those of :meth:`walk`.
            over: says whether there is no time left.
        """
        parts = [[s for s in each.settings if self._is_hopeful(s)] for each in coordinates]
        best = self.best.setting
        known = [row.setting for row in self.rows]
        left = [setting for setting in combinations(parts) if setting not in known]
        left.sort(key=lambda other: sum(best.get(k) != other.get(k) for k in {*best, *other}))
        for setting in left:
            if over():
                return
            self._row(setting, self._measure(setting))

    def _is_hopeful(self, part: Setting) -> bool:
        """Say whether a part of settings was in one that may be chosen, or in none at all."""
        rows = [row for row in self.rows if part.items() <= row.setting.items()]
        return not rows or any(map(self._may_be_chosen, rows))

    def compare_last(self) -> None:
        """Measure the fastest settings beside each other, and choose the fastest of these."""
        last = self._nearly_best()
        if len(last) == 1:
            return
        rows: list[list[Row]] = [[] for _ in last]
        for turn in range(ROUNDS):
            order = range(len(last)) if turn % 2 == 0 else range(len(last) - 1, -1, -1)
            for index in order:
                setting = last[index]
                rows[index].append(self._row(setting, self._measure(setting), again=True))
        speeds = [math.prod(map(_speed, each)) ** (1 / ROUNDS) for each in rows]
        chosen = speeds.index(max(speeds))
        if {} in last and speeds[chosen] <= GAIN * speeds[last.index({})]:
            chosen = last.index({})
        if speeds[chosen]:
            self._best = rows[chosen][-1]

    def _nearly_best(self) -> list[Setting]:
        """Return the fastest settings so far that may be chosen, the best one among them."""
        settings: list[Setting] = []
        for row in self.rows:
            if self._may_be_chosen(row) and row.setting not in settings:
                settings.append(row.setting)
        speeds = [
            statistics.mean(_speed(row) for row in self.rows if row.setting == setting)
            for setting in settings
        ]
        pairs = sorted(zip(speeds, settings, strict=True), key=lambda each: each[0], reverse=True)
        found = [setting for speed, setting in pairs[:LAST] if speed >= NEAR * pairs[0][0]]
        return found if self.best.setting in found else [*found, self.best.setting]

    def _may_be_chosen(self, row: Row) -> bool:
        return row.found.speed is not None and row.within(self._tolerance)

    def batches(self, batch: int, room: Callable[[int], bool]) -> None:
        """Try larger batches with the best setting. They are shown, and never chosen.

        Args:
            batch: of the plain setting.
            room: says whether there is memory for a task that takes so many bytes.
        """
        before, memory = self.best, [self.best.found.memory]
        for _ in range(DOUBLINGS):
            batch *= 2
            # What the batch takes doubles with it; the rest does not.
            step = memory[-1] - memory[-2] if len(memory) > 1 else 0
            if not room(memory[-1] + 2 * max(0, step)):
                self._row({**self.best.setting, BATCH: batch}, Found(problem="needs more memory "
                          "than is free"))  # fmt: skip
                return
            setting = {**self.best.setting, BATCH: batch}
            row = self._row(setting, self._measure(setting), comparable=False)
            if _speed(row) < BATCH_GAIN * _speed(before):
                return
            before = row
            memory.append(row.found.memory)

    def _row(
        self, setting: Setting, found: Found, again: bool = False, comparable: bool = True
    ) -> Row:
        difference, compared = None, 0
        if comparable and found.speed is not None:
            difference, compared = differing(self.plain.losses, found.losses)
        ratio = None
        if found.speed is not None and self.plain.speed:
            ratio = found.speed / self.plain.speed
        row = Row(setting, found, ratio, difference, compared, again)
        self.rows.append(row)
        self._report(row)
        return row


def combinations(parts: Sequence[Sequence[Setting]]) -> list[Setting]:
    """Return all settings that have one part of each list, or none of it; the plain one first."""
    found: list[Setting] = []
    for chosen in itertools.product(*([{}, *each] for each in parts)):
        whole = {key: value for part in chosen for key, value in part.items()}
        if whole not in found:
            found.append(whole)
    return found


def differing(plain: Sequence[float], other: Sequence[float]) -> tuple[float | None, int]:
    """Return the largest difference of two runs' losses, and of how many.

    Args:
        plain, other: of the first steps of each; of slow steps there may be fewer. One that is not
            finite differs from all others.
    """
    pairs = list(zip(plain, other, strict=False))
    if not pairs:
        return None, 0
    found = [abs(a - b) / max(1.0, abs(a)) for a, b in pairs]
    # NaN is less than nothing and more than nothing: `max` would pass over it.
    return max(found) if all(map(math.isfinite, found)) else math.inf, len(pairs)


def _speed(row: Row) -> float:
    return row.found.speed or 0.0
