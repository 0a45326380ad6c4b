"""The examples that are evaluated or predicted: whether they fit the model, and their slices."""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any

import numpy as np

from dtrain.config import tree
from dtrain.config.tree import Config
from dtrain.data.example import Spec, spec_difference, spec_of
from dtrain.data.mixture import Concatenated, Subset
from dtrain.data.nest import Leaf
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import UsageError, nearest, refuse
from dtrain.run import identity
from dtrain.run.folder import RunDir
from dtrain.task.data import reading
from dtrain.task.data.inputs import Inputs

_HINTS = {
    "inputs": "x of that form, data=((a, b),) of a tuple, or dataset.inputs=[COLUMN,COLUMN]",
    "targets": "data=(x, y) with y of that form, or the columns of the run's data",
}


def of_run(rundir: RunDir, config: Config) -> Config | None:
    """Return the configuration with the run's own data; None where it has that already.

    Args:
        rundir: of the run.
        config: of the command on it.
    """
    own = tree.read(rundir.config).dataset
    if identity.deciding(dict(own)) == identity.deciding(dict(config.dataset)):
        return None
    config = copy.copy(config)
    config.dataset = own
    return config


def check(
    source: Source | Stream, built_on: Source | Stream, part: str = "inputs", sizes: bool = True
) -> None:
    """Refuse rows that are no inputs, or no targets, of the model.

    Args:
        source: has the rows.
        built_on: what the model was built on.
        part: ``inputs`` or ``targets``.
        sizes: whether float32 and float64 differ.

    Raises:
        UsageError: one is absent, or of another type or shape.
    """

    def spec(of: Source | Stream) -> Spec:
        parts, at = [*reading.specs(of, None), None], list(_HINTS).index(part)
        named = spec_of((None,) * at + (parts[at],))
        general = r"[bu]?(float|int)\d+"  # of any size
        return {
            name: (kind if sizes else re.sub(general, r"\1", kind), shape)
            for name, (kind, shape) in named.items()
        }

    if (problem := spec_difference(spec(built_on), spec(source))) is not None:
        refuse("dataset", problem, part, accepted=f"data with the {part} of the run's own",
               hint=_HINTS[part])  # fmt: skip


def explain(source: Source | Stream, built_on: Source | Stream) -> None:
    """Raise what examples that did not fit have otherwise than those of the run, if anything.

    Args:
        source: has the examples.
        built_on: what the model was built on.

    Raises:
        UsageError: an input or a target is absent, or of another kind or shape.
    """
    for part in _HINTS:
        check(source, built_on, part, sizes=False)


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
        shape = list(values.shape[1:])
        raise _refused(by, f"has the shape {shape} for each example, not one value")
    distinct, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(distinct) > MOST:
        raise _refused(by, f"has {len(distinct):,} different values, of at most {MOST:,}")
    names = tuple(_name(value, words) for value in distinct)
    return Slices(names, tuple(map(int, counts)), np.argsort(place, kind="stable"))


def class_names(source: Source | Stream, classes: int) -> list[str]:
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


def _values(source: Source, examples: int, by: str) -> tuple[np.ndarray, list[str]]:
    """Return the values that slices are made by, and the names of classes if they are such."""
    is_label = by == LABEL
    values = source.info.labels() if is_label else source.info.column(by)
    if values is None:
        values = _read(source, examples, by)
    if values is None:
        if is_label:
            raise _refused(by, "the dataset has not one array of targets")
        x, *_ = reading.arrays(source, np.arange(1))
        near = nearest(by, [LABEL, *(x if isinstance(x, dict) else ())])
        raise _refused(by, "is neither a column of the dataset's table nor one of its inputs",
                       typed=near and f"by={near}")  # fmt: skip
    return np.asarray(values)[:examples], list(source.info.class_names()) if is_label else []


def _read(source: Source, examples: int, by: str) -> np.ndarray | None:
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


def _name(value: Leaf, words: list[str]) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if words and 0 <= int(value) < len(words):
        return words[int(value)]
    return str(value)


def _refused(by: str, problem: str, typed: str | None = None) -> UsageError:
    accepted = "label, a column of a table, or the name of an input"
    return UsageError("by", problem, by, accepted=accepted, typed=typed)
