"""What ``python -m dtrain export`` prints of what it has made."""

from __future__ import annotations

from collections.abc import Sequence

from dtrain.host.columns import aligned
from dtrain.run.exports import Exported, Record, Tensor


def lines(record: Record) -> Sequence[str]:
    """Return what was exported, a line each; of no format its head alone.

    Args:
        record: of what was made.
    """
    step, weights, kept = record["step"], record["weights"], record["formats"]
    found = [
        f"step {step}, {weights} weights, compared with Keras on {record['examples']} examples"
    ]
    found += [f"inputs: {_tensors(record['signature']['inputs'])}"]
    found += [f"outputs: {_tensors(record['signature']['outputs'])}"]
    if kept:
        rows = [["format", "bytes", "deviation", "limit", "batch 1", "batch 64"]]
        rows += [[name, *_cells(each)] for name, each in kept.items()]
        found += ["", *aligned(rows, {1, 2, 3, 4, 5}), ""]
    return found


def _cells(found: Exported) -> list[str]:
    times = found.get("latency_ms", {})
    shown = [f"{times[rows]:.3g} ms" if rows in times else "-" for rows in ("1", "64")]
    return [f"{found['bytes']:,}", f"{found['deviation']:.2g}", f"{found['limit']:g}", *shown]


def _tensors(tensors: Sequence[Tensor]) -> str:
    found = []
    for tensor in tensors:
        shape = ", ".join("?" if length is None else str(length) for length in tensor["shape"])
        found.append(f"{tensor['name']} {tensor['dtype']} [{shape}]")
    return ", ".join(found)
