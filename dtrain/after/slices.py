"""Slices of the examples that are evaluated: by their label, or by a column of the data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dtrain.data.mixture import Concatenated, Subset
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import UsageError
from dtrain.task.data import reading
from dtrain.task.data.inputs import Inputs

LABEL = "label"
#: Most slices: each is a pass of its own.
MOST = 1000
#: Examples that are read at once where the values come with all else.
_CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class Slices:
    """The examples of a validation, by the values of something.

    Attributes:
        names: of the slices, in the order of the values.
        sizes: how many examples each has.
        rows: int64 ``[n]``: the examples, those of a slice next to each other.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    rows: np.ndarray


def find_slices(source: Source | Stream, examples: int, by: str) -> Slices:
    """Find the slices of the first ``examples`` of a source.

    Args:
        source: what is evaluated.
        examples: how many of it.
        by: ``label``: the target; else a column of its table, or an input of that name.

    Raises:
        UsageError: there is no such thing, or it has too many values.
    """
    if isinstance(source, Stream | Concatenated):
        raise _refused(by, "slices are of a dataset with random access, and this is none")
    values, words = _values(source, examples, by)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if by == LABEL and values.ndim == 2:  # one-hot
        values = np.argmax(values, axis=1)
    if values.ndim != 1:
        raise _refused(
            by, f"has the shape {list(values.shape[1:])} for each example, not one value"
        )
    distinct, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(distinct) > MOST:
        raise _refused(by, f"has {len(distinct):,} different values, of at most {MOST:,}")
    names = tuple(_name(value, words) for value in distinct)
    return Slices(names, tuple(map(int, counts)), np.argsort(place, kind="stable"))


def class_names(source: Any, classes: int) -> list[str]:
    """Return the names of the classes of a source, or their numbers."""
    words = list(source.info.class_names())
    return words if len(words) == classes else [str(number) for number in range(classes)]


def arranged(inputs: Inputs, slices: Slices) -> Inputs:
    """Return the input of a pass over all examples, and then over those of each slice.

    Args:
        inputs: whose validation has random access.
        slices: of it.
    """
    source: Any = inputs.validation
    examples = inputs.evaluation_examples
    rows = np.concatenate([np.arange(examples, dtype=np.int64), slices.rows])
    return dataclasses.replace(
        inputs,
        validation=Subset(source, rows),
        # It is the smaller of both: of a dataset with fewer examples than a batch, say.
        validation_batch=inputs.evaluation_batch,
        validation_steps=None,
        stretches=(examples, *slices.sizes),
    )


def _values(source: Any, examples: int, by: str) -> tuple[np.ndarray, list[str]]:
    """Return the values that slices are made by, and the names of classes if they are such."""
    is_label = by == LABEL
    values = source.info.labels() if is_label else source.info.column(by)
    if values is None:
        values = _read(source, examples, by)
    if values is None:
        table = "is neither a column of the dataset's table nor one of its inputs"
        raise _refused(by, "the dataset has not one array of targets" if is_label else table)
    return np.asarray(values)[:examples], list(source.info.class_names()) if is_label else []


def _read(source: Any, examples: int, by: str) -> np.ndarray | None:
    """Return the targets, or an input, of the first examples; None where it is not one array."""
    arrays = []
    for begin in range(0, examples, _CHUNK):
        rows = np.arange(begin, min(begin + _CHUNK, examples))
        x, *rest = reading.arrays(source, rows)
        if by == LABEL:
            array = rest[0] if rest else None
        else:
            array = x.get(by) if isinstance(x, dict) else None
        if not isinstance(array, np.ndarray):
            return None
        arrays.append(array)
    return np.concatenate(arrays)


def _name(value: Any, words: list[str]) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if words and 0 <= int(value) < len(words):
        return words[int(value)]
    return str(value)


def _refused(by: str, problem: str) -> UsageError:
    return UsageError(
        "evaluate.by", by, problem, "label, a column of a table, or the name of an input",
        "evaluate.by=label",
    )  # fmt: skip
