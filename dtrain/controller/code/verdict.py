"""What a replay gave, beside the run: numbers, data, configuration, checkpoints."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from dtrain.compare import bits
from dtrain.compare.load_folders import public
from dtrain.errors import DtrainError
from dtrain.files import reading
from dtrain.run import checkpoint, identity, schemas
from dtrain.run.checkpoint.format import STATE, read_manifest
from dtrain.run.folder import RunDir

#: Keys that a sentence names; the others are counted.
_NAMED = 8


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How a replay and its run compare.

    Attributes:
        metrics: point by point.
        notes: what else is not the same, in sentences.
        same: all points of the run are there, and within the tolerance of the replay's.
        sentence: the end of it, in a line.
    """

    metrics: list[bits.Metric]
    notes: list[str]
    same: bool
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; a difference from what is no number is null."""
        metrics = [dataclasses.asdict(each) for each in self.metrics]
        for each in metrics:
            each["largest"] = each["largest"] if math.isfinite(each["largest"]) else None
        return {
            "same": self.same, "sentence": self.sentence, "metrics": metrics, "notes": self.notes,
        }  # fmt: skip


def of(run: RunDir, replay: RunDir, tolerance: float, whole: bool) -> Verdict:
    """Compare a replay with its run.

    Args:
        run, replay: their folders.
        tolerance: largest absolute difference of two points; 0 asks for the same bits.
        whole: every point of the run is to be there: the user has changed no key.

    Raises:
        DamagedFile, OSError: a file cannot be read.
    """
    one, data = bits.read(run.journal)
    other, data_now = bits.read(replay.journal)
    metrics = bits.compare(one, other)
    notes = [*bits.data_differences(data, data_now), *_configuration(run, replay)]
    notes += _replicas(run, replay)
    weights, weights_same = _weights(run, replay)
    common = sum(each.common for each in metrics)
    missing = sum(each.missing for each in metrics)
    gap = max((each.largest for each in metrics), default=0.0)
    differing = [each for each in metrics if each.differing]
    close = gap <= tolerance and (tolerance > 0 or (not differing and weights_same))
    same = common > 0 and close and not (whole and missing)
    if not common:
        sentence = "nothing to compare: no point is there of both"
    elif differing:
        first = min(differing, key=lambda each: each.first or 0)
        largest = max(differing, key=lambda each: each.largest)
        sentence = (
            f"{'within the tolerance' if close else 'differs'}: first {first.name} at step "
            f"{first.first:,}, by at most {largest.largest:.3g} ({largest.name})"
        )
    else:
        sentence = f"same bits: {common:,} points of {len(metrics)} metrics"
    if weights is not None:
        sentence += f"; {weights}"
    if missing:
        sentence += f"; {missing:,} points of the run are not in the replay"
    return Verdict(metrics, notes, same, sentence)


def _configuration(run: RunDir, replay: RunDir) -> list[str]:
    one, other = (public(reading.read_plain(each.config)) for each in (run, replay))
    keys = [
        key
        for key in sorted({*one, *other})
        if key.partition(".")[0] not in (*identity.OUTSIDE, "action")
        and one.get(key) != other.get(key)
    ]
    if not keys:
        return []
    shown = [f"{key}: {one.get(key)} is now {other.get(key)}" for key in keys[:_NAMED]]
    more = f" and {len(keys) - _NAMED:,} others" if len(keys) > _NAMED else ""
    return [f"the configuration differs: {'; '.join(shown)}{more}"]


def _replicas(run: RunDir, replay: RunDir) -> list[str]:
    one, other = (schemas.glance(each.cluster, schemas.Replicas) or {} for each in (run, replay))
    then, now = one.get("replicas"), other.get("replicas")
    if None in (then, now) or then == now:  # MLflow does not hold the number
        return []
    return [f"the run had {then} replicas, and the replay {now}"]


def _weights(run: RunDir, replay: RunDir) -> tuple[str | None, bool]:
    """Compare the last checkpoint that both have: weights, optimizer, metrics."""
    common = set(checkpoint.steps(run.checkpoints)) & set(checkpoint.steps(replay.checkpoints))
    if not common:
        return None, True
    step = max(common)
    try:
        digests = [
            read_manifest(each.checkpoints / str(step))["files"][STATE]["sha256"]
            for each in (run, replay)
        ]
    except (DtrainError, OSError, KeyError) as error:
        return f"checkpoint {step} cannot be compared ({error})", True
    if digests[0] == digests[1]:
        return f"checkpoint {step} has the same bits", True
    return f"checkpoint {step} has other bits", False
