"""Rows of other data than that of the run: whether they are inputs of its model."""

from __future__ import annotations

from typing import Any

from dtrain.data import nest, options
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import UsageError
from dtrain.task import reading


def differ(one: Any, other: Any) -> bool:
    """Say whether two ``dataset`` groups are of other examples."""
    return bool(options.deciding(dict(one)) != options.deciding(dict(other)))


def check(source: Source | Stream, built_on: Source | Stream) -> None:
    """Refuse rows that are no inputs of the model.

    Args:
        source: has the rows.
        built_on: what the model was built on.

    Raises:
        UsageError: an input is absent, or of another type or shape.
    """
    here, there = (reading.specs(each, None)[0] for each in (source, built_on))

    def outlined(x: Any) -> dict[str, tuple[Any, Any]]:
        return {
            name: (spec.dtype.name, [length for length in spec.shape[1:]])
            for name, spec in nest.named(x)
        }

    ours, theirs = outlined(here), outlined(there)
    for name in {**theirs, **ours}:
        if name not in ours or name not in theirs or not _alike(ours[name], theirs[name]):
            raise UsageError(
                "dataset", name or "inputs", f"is {_worded(ours.get(name))}, and the model of the "
                f"run takes {_worded(theirs.get(name))}",
                "data with the inputs of the run's own", "dataset.inputs=[COLUMN,COLUMN]",
            )  # fmt: skip


def _alike(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    if one[0] != other[0] or len(one[1]) != len(other[1]):
        return False
    return all(a == b or None in (a, b) for a, b in zip(one[1], other[1], strict=True))


def _worded(found: tuple[Any, Any] | None) -> str:
    return "absent" if found is None else f"{found[0]} {found[1]}"
