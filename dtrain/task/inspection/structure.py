"""What an example is made of: its inputs, targets and weights, with their types and shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.example import place
from dtrain.data.mixture import Concatenated
from dtrain.data.options import Options
from dtrain.data.ragged import Ragged
from dtrain.data.streams import Stream
from dtrain.errors import UsageError
from dtrain.host.columns import aligned
from dtrain.task import reading
from dtrain.task.host_pipeline import taken
from dtrain.task.inspection import values

_ROLES = ("input", "target", "weight")
#: Least height and width of an image, in pixels.
_LEAST = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf:
    """One array of the examples.

    Attributes:
        role: ``input``, ``target`` or ``weight``.
        name: its place among those of its role; empty where there is one.
        shape: of one example; None in the place of a length that differs.
        values: of the first examples, ``[b, ...]``.
    """

    role: str
    name: str
    shape: tuple[int | None, ...]
    values: np.ndarray | Ragged

    @property
    def label(self) -> str:
        """Role and name."""
        return f"{self.role} {self.name}".strip()

    @property
    def is_image(self) -> bool:
        """Whether it looks like an image: height, width and 1 or 3 channels."""
        return len(self.shape) == 3 and self.shape[2] in (1, 3) and self.is_picture

    @property
    def is_picture(self) -> bool:
        """Whether it can be drawn: an image, or one without channels."""
        array = self.values
        if isinstance(array, Ragged) or not (array.dtype.kind == "f" or array.dtype == np.uint8):
            return False
        shape = self.shape[:2] if self.shape[2:] in ((), (1,), (3,)) else ()
        return len(shape) == 2 and all(size is not None and size >= _LEAST for size in shape)

    def row(self) -> list[str]:
        """Return its cells of the table."""
        if isinstance(self.values, Ragged):
            lengths = self.values.lengths
            note = f"{lengths.min()} to {lengths.max()} long, {lengths.mean():.3g} on average"
            dtype, array = self.values.values.dtype, self.values.values
        else:
            dtype, array = self.values.dtype, self.values
            note = "an image" if self.is_image else ""
        kind = "text" if values.is_text(array) else dtype.name
        shape = " x ".join("?" if size is None else str(size) for size in self.shape) or "-"
        notes = "; ".join(filter(None, (note, values.spread(array))))
        return [self.role, self.name, kind, shape, notes]


def of(source: Any, options: Options, count: int) -> list[Leaf]:
    """Return the arrays of the first ``count`` examples.

    Raises:
        DataError: one cannot be read.
    """
    found = _ragged(source, count) or _arrays(reading.first(source, count))
    sizes = _sizes(source)
    leaves = []
    for name, value in nest.named(found):
        if value is None:  # no target beside a weight
            continue
        part, _, inside = name.partition(".")
        if isinstance(value, Ragged):
            shape: tuple[int | None, ...] = (None, *value.values.shape[1:])
        else:
            shape = sizes.get(name, value.shape[1:])
        if "buckets" in (options.pad or {}).get(place(name), {}):
            shape = (None, *shape[1:])
        leaves.append(Leaf(_ROLES[int(part)], inside, shape, value))
    return leaves


def check(leaves: list[Leaf]) -> None:
    """Refuse rows of different lengths, as training does, once they have been reported.

    Raises:
        UsageError: for the first one found.
    """
    for leaf in leaves:
        if isinstance(leaf.values, Ragged):
            name = leaf.name or ("y" if leaf.role == "target" else "x")
            raise UsageError(
                "dataset.pad", "null", f"the {leaf.label} has rows of different lengths",
                "a length for each such input or target: {NAME: {length: 128}}",
                f"dataset.pad={{{name}:{{length:{leaf.values.lengths.max()}}}}}",
            )  # fmt: skip


def table(leaves: list[Leaf], count: int) -> list[str]:
    """Return a row for each array."""
    rows = [["part", "name", "type", "shape", f"in the first {count:,}"]]
    rows += [leaf.row() for leaf in leaves]
    if not any(leaf.name for leaf in leaves):
        rows = [[row[0], *row[2:]] for row in rows]
    return aligned(rows)


def _arrays(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return nest.mapped(lambda leaf: leaf.numpy(), parts)


def _ragged(source: Any, count: int) -> tuple[Any, ...] | None:
    """Return the first examples as the source has them, where rows have different lengths."""
    if isinstance(source, Concatenated):
        return _ragged(source.members[0], min(count, len(source.members[0])))
    if isinstance(source, Stream) or source.in_graph:
        return None
    found = taken(source, np.arange(count), None).parts
    return found if any(isinstance(leaf, Ragged) for leaf in nest.leaves(found)) else None


def _sizes(source: Any) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes that a stream declares, by the place of the array."""
    if not isinstance(source, Stream):
        return {}
    begin = 1 if source.is_batched() else 0
    specs = nest.named(source.dataset().element_spec)
    return {name: tuple(spec.shape[begin:]) for name, spec in specs}
