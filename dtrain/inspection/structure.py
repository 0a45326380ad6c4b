"""What an example is made of: its inputs, targets and weights, with their types and shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dtrain.data import nest, transforms
from dtrain.data.example import spec_of
from dtrain.data.mixture import Concatenated
from dtrain.data.ragged import Ragged
from dtrain.data.streams import Stream
from dtrain.errors import UsageError
from dtrain.host.columns import aligned
from dtrain.task.data import reading
from dtrain.task.data.batch_reader import taken

_ROLES = ("input", "target", "weight")
#: Least height and width of an image, in pixels.
_LEAST = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf:
    """One array of the examples.

    Attributes:
        role: ``input``, ``target`` or ``weight``.
        name: its place among those of its role; empty where there is one.
        kind: name of its type, or ``text``.
        shape: of one example; None in the place of a length that differs.
        values: of the first examples, ``[b, ...]``.
    """

    role: str
    name: str
    kind: str
    shape: tuple[int | None, ...]
    values: np.ndarray | Ragged

    @property
    def label(self) -> str:
        """Role and name."""
        return f"{self.role} {self.name}".strip()

    @property
    def is_image(self) -> bool:
        """Whether it looks like an image: height, width and 1 or 3 channels."""
        return len(self.shape) == 3 and self.is_picture

    @property
    def is_picture(self) -> bool:
        """Whether it can be drawn: an image, or one without channels."""
        array, shape = self.values, self.shape
        if isinstance(array, Ragged) or not (array.dtype.kind == "f" or array.dtype == np.uint8):
            return False
        sizes = all(size is not None and size >= _LEAST for size in shape[:2])
        return len(shape) >= 2 and shape[2:] in ((), (1,), (3,)) and sizes

    def row(self) -> list[str]:
        """Return its cells of the table."""
        array, note = self.values, "an image" if self.is_image else ""
        if isinstance(array, Ragged):
            lengths, array = array.lengths, array.values
            note = f"{lengths.min()} to {lengths.max()} long, {lengths.mean():.3g} on average"
        shape = " x ".join("?" if size is None else str(size) for size in self.shape) or "-"
        notes = "; ".join(filter(None, (note, spread(array))))
        return [self.role, self.name, self.kind, shape, notes]


def leaves_of(source: Any, count: int) -> list[Leaf]:
    """Return the arrays of the first ``count`` examples.

    Raises:
        DataError: one cannot be read.
    """
    parts = _first(source, count)
    declared = source.spec if isinstance(source, Stream) else parts
    specs, leaves = spec_of(declared, transforms.by_batch(source)), []
    for name, values in nest.named(parts):
        if values is not None:  # no target beside a weight
            part, _, inside = name.partition(".")
            leaves.append(Leaf(_ROLES[int(part)], inside, *specs[name], values))
    return leaves


def refuse_ragged(leaves: list[Leaf]) -> None:
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


def _first(source: Any, count: int) -> tuple[Any, ...]:
    """Return the first examples, and where rows have different lengths as the source has them."""
    member = source
    while isinstance(member, Concatenated):
        member = member.members[0]
    if not isinstance(member, Stream) and not member.in_graph:
        parts = taken(member, np.arange(min(count, len(member))), None).parts
        if any(isinstance(leaf, Ragged) for leaf in nest.leaves(parts)):
            return parts
    return reading.first(source, count)


# -- values as short texts

#: Characters of a text, numbers of an array and texts of an array that are shown.
CHARACTERS, NUMBERS, TEXTS = 60, 12, 4


def number(value: Any) -> str:
    """Return a number with 4 digits; a whole one with all of its own."""
    if isinstance(value, np.bool_):
        return str(value).lower()
    return f"{value}" if isinstance(value, np.integer) else f"{float(value):.4g}"


def text(value: Any, most: int = CHARACTERS) -> str:
    """Return a text in quotes, cut where it is long; of bytes that are no text the first ones."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"{len(value):,} bytes: {value[: most // 5].hex(' ')}"
    whole = str(value)
    if len(whole) <= most:
        return f'"{whole}"'
    return f'"{whole[: most - 1]}…" ({len(whole):,} characters)'


def is_text(leaf: np.ndarray) -> bool:
    """Whether an array holds texts or bytes."""
    return leaf.dtype.kind in "OSU"


def shown(leaf: np.ndarray) -> str:
    """Return the value of one example: a number, a text, or the first of several.

    Args:
        leaf: ``[1, ...]``: NumPy makes of a single text something else.
    """
    flat = leaf.reshape(-1)
    if leaf.ndim == 1:
        return text(flat[0]) if is_text(leaf) else number(flat[0])
    most = TEXTS if is_text(leaf) else NUMBERS
    parts = [text(v, CHARACTERS // TEXTS) if is_text(leaf) else number(v) for v in flat[:most]]
    return ", ".join(parts) + (f", ... ({flat.size:,} in all)" if flat.size > most else "")


def spread(leaf: np.ndarray) -> str:
    """Return between what the values of some examples lie, as a clause.

    Args:
        leaf: ``[b, ...]``.
    """
    flat = leaf.reshape(-1)
    if not flat.size:
        return "no values"
    if is_text(leaf):
        lengths = [len(value) for value in flat]
        unit = "bytes" if isinstance(flat[0], bytes) else "characters"
        return f"{_between(min(lengths), max(lengths))} {unit}"
    if leaf.dtype.kind == "c":
        return "complex numbers"
    values = flat.astype(np.float64) if leaf.dtype.kind not in "biu" else flat
    sound = values[np.isfinite(values)]
    notes = [_between(number(sound.min()), number(sound.max()))] if len(sound) else []
    if odd := len(values) - len(sound):
        notes.append(f"{odd:,} NaN or infinite")
    return " and ".join(notes)


def _between(lowest: Any, highest: Any) -> str:
    return f"{lowest}" if lowest == highest else f"{lowest} to {highest}"
