"""What dataset functions have in common: a part held out, and batches that the examples fill."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.files import DataFile, files
from dtrain.data.holdout import Holdout
from dtrain.data.images import with_images
from dtrain.data.sources import Arrays, Splits
from dtrain.data.streams import known_length
from dtrain.data.tabular.source import TableSource, counted
from dtrain.data.tabular.table import Names, Table, described
from dtrain.data.target_kind import of_labels
from dtrain.errors import UsageError


def check_batch(batch: int, replicas: int, examples: int | None) -> None:
    """Refuse a global batch that the replicas cannot share, or the examples cannot fill.

    What is to be typed holds for both at once.

    Args:
        batch: ``trainer.batch_size``.
        replicas: that share it.
        examples: to train on; None where that is not known.

    Raises:
        UsageError: naming a size that both have.
    """
    most = None if examples is None else examples // replicas * replicas
    if most == 0 and batch > 0:
        there = f"{examples} training example" + ("" if examples == 1 else "s")
        problem = f"{replicas} replicas cannot share {there}" if examples else "there are none"
        raise UsageError(
            "trainer.batch_size", batch, problem, "more examples, or fewer replicas",
            f"strategy=one_device trainer.batch_size={examples}"
            if examples else "python -m dtrain data shows what a dataset has",
        )  # fmt: skip
    below, above = batch // replicas * replicas, (batch // replicas + 1) * replicas
    largest = above if most is None else most
    near = [size for size in (below, above) if 0 < size <= largest] or [largest]
    if batch % replicas:
        raise UsageError(
            "trainer.batch_size", batch, f"{replicas} replicas cannot share it evenly",
            f"multiples of {replicas}, the nearest being {' and '.join(map(str, near))}",
            f"trainer.batch_size={near[-1]}",
        )  # fmt: skip
    if most is not None and batch > most:
        raise UsageError(
            "trainer.batch_size", batch, f"the dataset has {examples:,} training examples",
            f"up to {most:,}", f"trainer.batch_size={most}",
        )  # fmt: skip


def evaluated(trainer: Any, examples: int | None) -> int:
    """Return how many of the validation examples are evaluated: all, or those of the first batches.

    Args:
        trainer: the ``trainer`` group, of which ``validation_batch_size`` and ``validation_steps``
            are read.
        examples: of the validation; None of a stream of which that is not known, and of which so
            many steps are evaluated.

    Raises:
        UsageError: there are fewer batches than ``trainer.validation_steps``.
    """
    batch, steps = trainer.validation_batch_size or trainer.batch_size, trainer.validation_steps
    if examples is None:
        return int(steps * batch)
    batches = -(-examples // batch)
    if steps is not None and steps > batches:
        raise UsageError(
            "trainer.validation_steps", steps,
            f"the {examples:,} validation examples are {batches:,} batches of {batch:,}",
            f"up to {batches:,}, or null for all" if batches else "null, or a validation dataset",
            f"trainer.validation_steps={batches or 'null'}",
        )  # fmt: skip
    return examples if steps is None else min(examples, steps * batch)


def of_tables(
    table: Callable[[list[DataFile]], Table],
    path: str | Sequence[str],
    inputs: Names,
    target: Names,
    weight: Names = None,
    validation: str | Sequence[str] | None = None,
    holdout: Holdout = Holdout(),
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
    source: Callable[..., TableSource] = TableSource,
) -> Splits:
    """Return the examples of the rows of files.

    Where nothing knows how many rows there are without passing them, which of them are held out is
    drawn when it is first needed; and where that is none, the validation is there, and empty.

    Args:
        table: makes the table of files; reads headers alone.
        path: a file, a pattern, or a list of them.
        inputs, target, weight: columns (:class:`dtrain.data.tabular.source.TableSource`).
        validation: files to evaluate on; None: a part of the rows is held out.
        holdout: how.
        classes: number of classes; None: those of the target's column, which is read for it.
        images: columns of encoded images, by name: height, width and channels of each.
        source: makes the examples of a table.

    Raises:
        UsageError: a file or a column cannot be what it is to be.
    """
    whole, held = source(table(files(path)), inputs, target, weight), None
    if validation is not None:
        with of_validation():
            other = table(files(validation))
        held = source(other, whole.inputs.names, target, weight, words=whole.words)
        check_alike(whole, held, validation)
    return of_sources(whole, held, "path", path, holdout, classes, images)


@contextlib.contextmanager
def of_validation() -> Iterator[None]:
    """Raise what is wrong with ``dataset.path`` as an error of ``dataset.validation``."""
    try:
        yield
    except UsageError as error:
        key = "dataset.validation"
        raise error.of_key(key) if error.key == "dataset.path" else error from None


def check_alike(whole: TableSource, held: TableSource, path: object) -> None:
    """Refuse files to evaluate on whose columns hold something else than those to train on."""
    for role in (whole.inputs, whole.target, whole.weight):
        for name in role.columns() if role is not None else ():
            one, other = whole.table.columns[name], held.table.columns[name]
            if (one.is_number, one.shape) != (other.is_number, other.shape):
                raise UsageError(
                    "dataset.validation", path, f"the column {name} holds {described(other)}, "
                    f"and {described(one)} in what is trained on",
                    "files with the same columns", "dataset.validation=ANOTHER",
                )  # fmt: skip


def of_sources(
    whole: TableSource,
    held: TableSource | None,
    key: str,
    value: object,
    holdout: Holdout,
    classes: int | None,
    images: Mapping[str, Sequence[int]] | None,
) -> Splits:
    """Return the examples of tables.

    Args:
        whole: to train on, and to split a part off where ``held`` is None.
        held: to evaluate on.
        key, value: of the ``dataset`` group, that say what ``whole`` is; for messages.
        holdout, classes, images: as of :func:`of_tables`.

    Raises:
        UsageError: there is nothing to train on, or an image cannot be what it is to be.
    """
    if known_length(whole) == 0:
        raise UsageError(
            f"dataset.{key}", value, "has no row to train on", "data with at least one row",
            f"dataset.{key}=ANOTHER",
        )  # fmt: skip
    train = whole
    if held is None and holdout.holds:
        drawn = _Drawn(whole, holdout)
        if not whole.info.counted:
            train, held = whole.subset(drawn.train), whole.subset(drawn.held)
        else:
            train = whole.subset(drawn.train())
            held = whole.subset(drawn.held()) if len(drawn.held()) else None
    count: int | Callable[[], int | None] | None = classes
    if classes is None:
        count = counted(train, *([] if held is None else [held]))
    columns = {
        "inputs": whole.inputs.names,
        "target": None if whole.target is None else whole.target.names,
    }
    if images:
        decoded = None if held is None else with_images(held, images)
        return Splits(with_images(train, images), decoded, count, columns=columns)
    return Splits(train, held, count, columns=columns)


@dataclasses.dataclass
class _Drawn:
    """Which rows are trained on and which are held out, drawn when that is first asked for."""

    source: TableSource
    holdout: Holdout

    @functools.cached_property
    def _parts(self) -> tuple[np.ndarray, np.ndarray]:
        info = self.source.info
        return self.holdout.rows(len(self.source), info.labels, info.column)

    def train(self) -> np.ndarray:
        return self._parts[0]

    def held(self) -> np.ndarray:
        return self._parts[1]


def split(whole: Arrays, holdout: Holdout) -> Splits:
    """Hold a part of the arrays out; whichever part is needed first has the inputs read."""
    parts = holdout.rows(len(whole), whole.info.labels)

    def some(values: Any, rows: np.ndarray) -> Any:
        return nest.mapped(lambda array: array[rows], values)

    @functools.cache
    def inputs() -> list[Any]:
        return [some(whole.x, rows) for rows in parts]

    def source(part: int) -> Arrays:
        rows = parts[part]
        y, weight = some(whole.y, rows), some(whole.weight, rows)
        return Arrays(lambda: inputs()[part], y, weight, len(rows), whole.info.class_names())

    return Splits(source(0), source(1) if len(parts[1]) else None, of_labels(whole.y))
