"""Facts of a report: how much data there is, in which order, of which classes and structure.

Values are shown as short texts, or as small images.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dtrain.config.tree import Config
from dtrain.data import nest, transforms
from dtrain.data.example import spec_of
from dtrain.data.mixture import Concatenated, Mixture
from dtrain.data.nest import Parts, Ragged
from dtrain.data.order import Blocks, Mixed, Sequential
from dtrain.data.sources import Arrays, Source, Splits
from dtrain.data.streams import Stream, examples_in
from dtrain.errors import UsageError, refuse
from dtrain.host.terminal import aligned
from dtrain.task.data import reading
from dtrain.task.data.batch_reader import by_rows, taken
from dtrain.task.data.dataset import Data, lengths
from dtrain.task.data.inputs import Inputs
from dtrain.task.train.step_schedule import make_schedule

#: Members of a mixture that are named.
_MEMBERS = 10
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def inputs(config: Config, data: Data) -> Inputs:
    """Return what a run of one replica reads."""
    trainer = config.trainer
    return Inputs(
        data.splits.train, data.splits.validation, trainer.batch_size, config.seed, 0,
        data.augment, trainer.validation_batch_size, trainer.validation_steps, data.order,
    )  # fmt: skip


def rows(config: Config, data: Data) -> dict[str, str]:
    """Return facts by their names, in the order in which they are shown.

    Raises:
        DataError: a file is not there any more.
        UsageError: the steps do not go with the data.
    """
    schedule = make_schedule(config, *lengths(data.splits))
    facts = {
        "training": _amount(data.splits.train),
        "validation": _amount(data.splits.validation),
        "order of training": _order(config, data),
        "batch": counted(config.trainer.batch_size, "example"),
        "epoch": counted(schedule.steps_per_epoch, "step"),
    }
    if schedule.validation_examples:
        reading = inputs(config, data)
        facts["a validation"] = (
            f"{counted(schedule.validation_examples, 'example')} in "
            f"{counted(reading.evaluation_steps, 'batch')} of {reading.evaluation_batch:,}"
        )
    # Others are counted, which may take reading.
    if isinstance(data.splits.classes, int) or isinstance(data.splits.train, Arrays):
        count = classes(data.splits)
        facts |= {} if count is None else {"classes": f"{count:,}"}
    if data.options.augment is not None:
        nodes = data.options.augment
        nodes = [nodes] if isinstance(nodes, Mapping) else nodes
        facts["augmentation"] = ", ".join(str(node["_target_"]) for node in nodes)
    digests = {split: record["digest"] for split, record in data.identity.items()}
    return {**facts, **_files(data), "digests": ", ".join(f"{k} {v}" for k, v in digests.items())}


def classes(splits: Splits) -> int | None:
    """Return how many classes there are; None where the targets are none, or not counted from 0."""
    try:
        return splits.count_classes()
    except UsageError:  # a loss and a model of the user's own may take them
        return None


def _amount(source: Source | Stream) -> str:
    if source is None:
        return "none"
    examples = examples_in(source)
    amount = "unknown length" if examples is None else counted(examples, "example")
    return f"a stream of {amount}" if isinstance(source, Stream) else amount


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: ``1 step``, ``2,000 batches``."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def _order(config: Config, data: Data) -> str:
    order, source = data.order, data.splits.train
    if order is None:
        return "its own: it is a stream"
    if data.options.balance:
        return "each class is drawn as often as any other"
    if isinstance(order, Mixed):
        return _mixture(config, data, source)
    if isinstance(order, Sequential):
        return "none: that of the dataset, in every pass"
    if isinstance(order, Blocks):
        blocks = source.info.blocks()
        least, most = int(blocks.min()), int(blocks.max())
        sizes = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        return (
            f"{len(blocks):,} blocks of {sizes} examples are shuffled, and examples inside a "
            f"window of {data.options.window}"
        )
    return "all examples are shuffled, in every pass"


def _mixture(config: Config, data: Data, source: Mixture) -> str:
    names = list(config.dataset.get("members") or ())
    if len(names) != len(source.members):
        names = [str(index) for index in range(len(source.members))]
    total = sum(source.shares)
    parts = [
        f"{name} {100 * share / total:.4g} % (of {length:,} examples)"
        for name, share, length in zip(names, source.shares, source.lengths, strict=True)
    ]
    others = f" and {len(parts) - _MEMBERS} others" if len(parts) > _MEMBERS else ""
    return f"a mixture: {', '.join(parts[:_MEMBERS])}{others}"


def _files(data: Data) -> dict[str, str]:
    """Return how many files the data is of, how large they are, and the first and the last one."""
    sources = [data.splits.train, data.splits.validation]
    every = [s.info.files() for s in sources if s is not None and not isinstance(s, Stream)]
    sizes = {file.name: file.size() for file in itertools.chain.from_iterable(every)}
    if not sizes:
        return {}
    ends = " to ".join(dict.fromkeys([min(sizes), max(sizes)]))
    return {"files": f"{len(sizes):,}, {_size(sum(sizes.values()))}: {ends}"}


def _size(amount: float) -> str:
    unit = 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:,.0f} {_UNITS[unit]}" if unit == 0 else f"{amount:.3g} {_UNITS[unit]}"


#: Classes that a table has a row for, at most.
_CLASSES = 20


def known_classes(source: Source | Stream) -> np.ndarray | None:
    """Return the classes of all examples of a source, ``[n]``; None where it does not know them."""
    if source is None or isinstance(source, Stream):
        return None
    if isinstance(source, Concatenated):
        parts = [part for part in map(known_classes, source.members) if part is not None]
        return np.concatenate(parts) if len(parts) == len(source.members) else None
    numbers = source.info.labels()
    if numbers is not None and numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]  # as some of keras.datasets have it
    usable = numbers is not None and numbers.ndim == 1 and numbers.dtype.kind in "biu"
    return numbers if usable else None


def class_table(
    parts: Mapping[str, np.ndarray], classes: int | None, words: Sequence[str]
) -> list[str]:
    """Return a table of classes, or of the most and the least frequent where there are many.

    Args:
        parts: whole numbers ``[n]``, by the name of their split; that of the first is ``training``.
        classes: their number, of which some may have no example; None where that is not known.
        words: the names of the classes, where they have any.
    """
    found = {part: pd.Series(labels.astype(np.int64)) for part, labels in parts.items()}
    table = pd.DataFrame({part: labels.value_counts() for part, labels in found.items()})
    known = range(classes if classes is not None and classes <= 1 << 20 else 0)
    table = table.reindex(table.index.union(known).sort_values()).fillna(0).astype(np.int64)
    absent, half = 0, _CLASSES // 2
    if len(table) > _CLASSES:  # the most frequent first; of those without any only the number
        absent = int((~table.any(axis=1)).sum())
        table = table[table.any(axis=1)].sort_values("training", ascending=False, kind="stable")
    table.index = [f"{n} {words[n]}" if 0 <= n < len(words) else str(n) for n in table.index]
    if len(table) > _CLASSES:
        others = table[half:-half]
        line = others.sum().to_frame(f"{len(others):,} others").T
        table = pd.concat([table[:half], line, table[-half:]])
    rows = [["class", *(cell for part in parts for cell in (part, "share"))]]
    for name, counts in table.iterrows():
        cells = ((f"{n:,}", _percent(n, len(found[part]))) for part, n in counts.items())
        rows.append([name, *itertools.chain.from_iterable(cells)])
    lines = aligned(rows, set(range(1, len(rows[0]))))
    return [*lines, f"{absent:,} more without examples"] if absent else lines


def _percent(count: int, total: int) -> str:
    percent = 100 * count / max(1, total)
    return f"{percent:.{1 if percent >= 0.1 or not percent else 3}f} %"


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


def leaves_of(source: Source | Stream, count: int) -> list[Leaf]:
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
            refuse("dataset.pad", f"the {leaf.label} has rows of different lengths", "null",
                   accepted="a length for each such input or target",
                   typed=f"dataset.pad={{{name}:{{length:{leaf.values.lengths.max()}}}}}"
                   )  # fmt: skip


def table(leaves: list[Leaf], count: int) -> list[str]:
    """Return a row for each array."""
    rows = [["part", "name", "type", "shape", f"in the first {count:,}"]]
    rows += [leaf.row() for leaf in leaves]
    if not any(leaf.name for leaf in leaves):
        rows = [[row[0], *row[2:]] for row in rows]
    return aligned(rows)


def _first(source: Source | Stream, count: int) -> Parts:
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
        path: value of ``images``, for the message.

    Raises:
        UsageError: no input can be drawn.
    """
    found = [at for at, leaf in enumerate(leaves) if leaf.role == "input" and leaf.is_picture]
    if not found:
        refuse("images", "no input of this dataset is an image", path,
               accepted="an input of height x width x 1 or 3, floating or uint8")  # fmt: skip
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


def captions(targets: Sequence[np.ndarray], names: Sequence[str], count: int) -> list[str]:
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
