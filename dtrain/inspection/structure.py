"""What an example is made of, with types and shapes; its values as short texts, or small images."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.data import nest, transforms
from dtrain.data.example import spec_of
from dtrain.data.mixture import Concatenated
from dtrain.data.nest import Ragged
from dtrain.data.streams import Stream
from dtrain.errors import UsageError
from dtrain.host.columns import aligned
from dtrain.task.data import reading
from dtrain.task.data.batch_reader import by_rows, taken

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
        rows = np.arange(min(count, len(member)))
        parts = taken(member, rows, by_rows(rows)).parts
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


# -- images, small and as bytes, for a sheet of them

#: Images of a sheet, and pixels along a side of one, at most.
IMAGES, SIDE = 64, 128


def index_of(leaves: Sequence[Leaf], path: Path) -> int:
    """Return which input is drawn: the first image, or the first that can be one.

    Args:
        leaves: of the examples, the inputs first.
        path: value of ``--images``, for the message.

    Raises:
        UsageError: no input can be drawn.
    """
    found = [at for at, leaf in enumerate(leaves) if leaf.role == "input" and leaf.is_picture]
    if not found:
        raise UsageError(
            "--images", path, "no input of this dataset is an image",
            "an input of height x width x 1 or 3, floating or uint8",
            "the command without --images",
        )  # fmt: skip
    return max(found, key=lambda at: leaves[at].is_image)


def small(images: np.ndarray) -> np.ndarray:
    """Return every so many pixels of images, so that no side is longer than :data:`SIDE`."""
    step = -(-max(images.shape[1:3]) // SIDE)
    return images[:, ::step, ::step]


def drawable(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return images as uint8 ``[b, h, w, 1 or 3]``.

    Floating numbers of 0 to 1 and of 0 to 255 are what they look like. Of others the lowest becomes
    black and the highest white, by the same scale in all parts.

    Args:
        parts: ``[b, h, w]`` or ``[b, h, w, c]``, floating or uint8.
    """
    floats = [part[np.isfinite(part)] for part in parts if part.dtype != np.uint8]
    sound = np.concatenate([np.zeros(0), *floats])
    low, high = (float(sound.min()), float(sound.max())) if len(sound) else (0.0, 1.0)
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    scale = 255 / (high - low) if high > low else 0.0
    drawn = []
    for part in parts:
        if part.dtype != np.uint8:
            part = np.clip(np.nan_to_num((part - low) * scale), 0, 255).astype(np.uint8)
        drawn.append(part[..., np.newaxis] if part.ndim == 3 else part)
    return drawn


def captions(targets: Sequence[Any], names: Sequence[str], count: int) -> list[str]:
    """Return the class of each of the first examples, or its number where there is none.

    Args:
        targets: arrays ``[b, ...]`` of the targets, of which the first that is one number, or
            one-hot, is taken.
        names: of the classes, where they have any.
        count: examples.
    """
    for target in targets:
        values = target.reshape(len(target), -1)
        is_matrix = target.ndim == 2 and target.shape[1] > 1 and target.dtype.kind in "biuf"
        if is_matrix and np.isin(target, (0, 1)).all() and (target.sum(axis=1) == 1).all():
            values = np.argmax(target, axis=1)[:, np.newaxis]  # one-hot
        if values.shape[1] == 1:
            return [_caption(value, names) for value in values[:count, 0]]
    return [str(index) for index in range(count)]


def _caption(value: Any, names: Sequence[str]) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if np.asarray(value).dtype.kind in "iu" and 0 <= value < len(names):
        return names[int(value)]
    return f"{value:.4g}" if np.asarray(value).dtype.kind == "f" else str(value)
