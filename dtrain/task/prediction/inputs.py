"""Rows of other data than that of the run: whether they are inputs of its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dtrain.data import nest, options
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import UsageError
from dtrain.task import reading

_HINTS = {
    "inputs": "x of that form, data=((a, b),) of a tuple, or dataset.inputs=[COLUMN,COLUMN]",
    "targets": "data=(x, y) with y of that form, or the columns of the run's data",
}


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
    _compare(here, there, "inputs", "the model of the run takes", lambda dtype: dtype.name)


def explain(
    source: Source | Stream, built_on: Source | Stream, *, targets_alone: bool = False
) -> None:
    """Raise what examples that did not fit have otherwise than those of the run, if anything.

    Args:
        source: has the examples.
        built_on: what the model was built on.
        targets_alone: leave the inputs out.

    Raises:
        UsageError: an input or a target is absent, or of another kind or shape.
    """
    here, there = ([*reading.specs(each, None), None][:2] for each in (source, built_on))
    if not targets_alone:
        _compare(here[0], there[0], "inputs", "the model of the run takes", _kind)
    _compare(here[1], there[1], "targets", "those of the run are", _kind)


def _compare(
    here: Any, there: Any, part: str, clause: str, kind: Callable[[tf.DType], str]
) -> None:
    """Refuse specs that are not alike, where ``kind`` says which types are."""
    ours, theirs = (
        {name: spec for name, spec in nest.named(each) if spec is not None}
        for each in (here, there)
    )
    for name in {**theirs, **ours}:
        one, other = ours.get(name), theirs.get(name)
        if one is None or other is None or not _alike(one, other, kind):
            whole = (None, None) if name else (here, there)
            found, wanted = (
                "absent" if each is None else nest.outline(each)
                for each in (one or whole[0], other or whole[1])
            )
            raise UsageError(
                "dataset", name or part, f"is {found}, and {clause} {wanted}",
                f"data with the {part} of the run's own", _HINTS[part],
            )  # fmt: skip


def _kind(dtype: tf.DType) -> str:
    return "float" if dtype.is_floating else "int" if dtype.is_integer else str(dtype.name)


def _alike(one: tf.TensorSpec, other: tf.TensorSpec, kind: Callable[[tf.DType], str]) -> bool:
    if kind(one.dtype) != kind(other.dtype) or one.shape.rank != other.shape.rank:
        return False
    pairs = zip(one.shape[1:], other.shape[1:], strict=True)
    return all(a == b or None in (a, b) for a, b in pairs)
