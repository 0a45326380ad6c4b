"""Two runs point by point: which numbers have the same bits, and where the first differ."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from dtrain.errors import DtrainError, printable
from dtrain.files.fields import Json
from dtrain.host.terminal import aligned
from dtrain.run import checkpoint
from dtrain.run.checkpoint.format import STATE, read_manifest
from dtrain.run.folder import RunDir, check_format
from dtrain.run.journal import Follower
from dtrain.run.times import is_of_the_machine

#: Values by step, by metric.
Points = dict[str, dict[int, float]]


def report(run: RunDir, other: RunDir) -> tuple[list[str], bool]:
    """Return lines that compare two runs bit by bit, and whether they are the same.

    What says how fast they were is not compared.

    Args:
        run, other: their folders.

    Raises:
        UsageError: one is of another version of dtrain.
        DamagedFile, OSError: a journal cannot be read.
    """
    for each in (run, other):
        check_format(each.path, "RUN")
    (one, data), (two, other_data) = read(run.journal), read(other.journal)
    names = sorted({*one, *two}, key=lambda name: (name != "loss", name))
    rows = [["metric", "points", "same bits", "largest difference", "first at step"]]
    points = equal = missing = 0
    for name in names:
        values, others = one.get(name, {}), two.get(name, {})
        common = sorted(values.keys() & others.keys())
        differing = [step for step in common if _bits(values[step]) != _bits(others[step])]
        # Beside a value that is no number the difference is none either.
        largest = max((abs(values[step] - others[step]) for step in differing), default=0.0)
        same, first = len(common) - len(differing), f"{differing[0]:,}" if differing else ""
        rows.append([name, f"{len(common):,}", f"{same:,}", f"{largest:.3g}", first])
        points, equal = points + len(common), equal + same
        missing += len(values.keys() - others.keys())
    weights, weights_same = _weights(run, other)
    result = "same bits" if equal == points else "other bits"
    lines = [f"{result}: {equal:,} of {points:,} points of {len(names)} metrics; {weights}"]
    if not points:
        lines = ["nothing to compare: no point is there of both"]
    if missing:
        lines.append(f"{missing:,} points of {run.path} are not in {other.path}")
    lines += [f"the {split} data are not the same" for split in data.keys() & other_data.keys()
              if isinstance(data[split], dict) and _content(data[split]) != (
                  _content(other_data[split]))]  # fmt: skip
    same_bits = 0 < points == equal and weights_same and not missing
    table = aligned(rows, right=(1, 2, 3, 4)) if names else []
    return [*table, *map(printable, lines)], same_bits


def read(journal: Path) -> tuple[Points, Json]:
    """Return the points of a journal, without those of how fast it went, and its ``data`` event.

    Raises:
        DamagedFile, OSError: it cannot be read.
    """
    points: Points = {}
    data: Json = {}
    for event in Follower(journal).events():
        if event["event"] == "data":
            data = event
        for name, value in event["metrics"].items() if event["event"] == "metrics" else ():
            if not is_of_the_machine(name):
                points.setdefault(name, {})[event["step"]] = value
    return points, data


def _bits(value: float) -> bytes:
    # Of a NaN a file has the name, and no bits.
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


def _content(split: Json) -> Any:
    return split.get("examples"), split.get("digest")


def _weights(run: RunDir, other: RunDir) -> tuple[str, bool]:
    """Compare the last checkpoint that both have: weights, optimizer, metrics."""
    common = set(checkpoint.steps(run.checkpoints)) & set(checkpoint.steps(other.checkpoints))
    if not common:
        return "no checkpoint of a common step", True
    step = max(common)
    try:
        one, two = (
            read_manifest(each.checkpoints / str(step))["files"][STATE]["sha256"]
            for each in (run, other)
        )
    except (DtrainError, OSError, KeyError) as error:
        return f"checkpoint {step} cannot be compared ({error})", True
    return f"checkpoint {step} has {'the same' if one == two else 'other'} bits", one == two
