"""Two journals point by point: which numbers have the same bits, and where the first differ."""

from __future__ import annotations

import dataclasses
import math
import struct
from pathlib import Path
from typing import Any

from dtrain.data import identity
from dtrain.host.columns import aligned
from dtrain.run.journal import Follower
from dtrain.run.times import is_of_the_machine

#: Values by step, by metric.
Points = dict[str, dict[int, float]]
#: What :attr:`Metric.largest` is beside a value that is no number.
_NO_NUMBER = math.inf


@dataclasses.dataclass(frozen=True)
class Metric:
    """How the points of one metric of two runs compare.

    Attributes:
        name: of the metric.
        common: steps that both have a point of.
        differing: those of them where the bits differ.
        first: the first of those; None where there is none.
        largest: absolute difference; infinite where one of two values is no number.
        missing, more: points that only the first, or only the second, has.
    """

    name: str
    common: int
    differing: int
    first: int | None
    largest: float
    missing: int
    more: int


def read(journal: Path) -> tuple[Points, dict[str, Any]]:
    """Return the points of a journal, without those of how fast it went, and its ``data`` event.

    Raises:
        DamagedFile, OSError: it cannot be read.
    """
    points: Points = {}
    data: dict[str, Any] = {}
    for event in Follower(journal).events():
        if event["event"] == "data":
            data = event
        for name, value in event["metrics"].items() if event["event"] == "metrics" else ():
            if not is_of_the_machine(name):
                points.setdefault(name, {})[event["step"]] = value
    return points, data


def compare(one: Points, other: Points) -> list[Metric]:
    """Return how each metric of two runs compares, the loss first."""
    names = sorted({*one, *other}, key=lambda name: (name != "loss", name))
    return [_metric(name, one.get(name, {}), other.get(name, {})) for name in names]


def _metric(name: str, one: dict[int, float], other: dict[int, float]) -> Metric:
    common = sorted(one.keys() & other.keys())
    differing = [step for step in common if _bits(one[step]) != _bits(other[step])]
    gaps = [_gap(one[step], other[step]) for step in differing]
    return Metric(
        name, len(common), len(differing), differing[0] if differing else None,
        max(gaps, default=0.0), len(one.keys() - other.keys()), len(other.keys() - one.keys()),
    )  # fmt: skip


def _bits(value: float) -> bytes:
    # Of a NaN a file has the name, and no bits.
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


def _gap(one: float, other: float) -> float:
    if not (math.isfinite(one) and math.isfinite(other)):
        return _NO_NUMBER
    return abs(one - other)


def table(metrics: list[Metric]) -> list[str]:
    """Return lines with a row for each metric."""
    rows = [["metric", "points", "same bits", "largest difference", "first at step"]]
    for each in metrics:
        same = each.common - each.differing
        largest = f"{each.largest:.3g}" if each.differing else "0"
        first = "" if each.first is None else f"{each.first:,}"
        rows.append([each.name, f"{each.common:,}", f"{same:,}", largest, first])
    return aligned(rows, right=(1, 2, 3, 4))


def data_differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return a sentence for each split of which two runs had other data.

    Args:
        one, other: ``data`` events of their journals; empty where there is none.
    """
    found = []
    for split, before in one.items():
        now = other.get(split)
        if isinstance(before, dict) and isinstance(now, dict):
            changed = identity.differences(now, before)
            if changed is not None:
                found.append(f"the {split} data {changed.replace('where it is', 'where it was')}")
    return found
