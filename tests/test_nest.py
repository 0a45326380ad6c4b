"""Structures of arrays: as tf.nest and keras.tree have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dtrain.data import nest
from dtrain.data.nest import Ragged

X = np.arange(6, dtype=np.float32).reshape(3, 2)
NESTS: list[Any] = [
    X, (X,), [X, X], {"b": X, "a": X + 1}, ({"z": (X, {"y": X, "x": X})}, X), {}, (), {"a": ()},
]  # fmt: skip


@pytest.mark.task
def test_leaves_are_in_the_order_of_tensorflow_and_keras() -> None:
    import keras
    import tensorflow as tf

    for value in NESTS:
        for flat in (tf.nest.flatten(value), keras.tree.flatten(value)):
            found = nest.leaves(value)
            assert len(found) == len(flat)
            assert all(a is b for a, b in zip(found, flat, strict=True))
        expected = tf.nest.map_structure(lambda leaf: leaf * 2, value)
        found = nest.mapped(lambda leaf: leaf * 2, value)
        for one, other in zip(nest.leaves(found), tf.nest.flatten(expected), strict=True):
            np.testing.assert_array_equal(one, other)


def test_lists_of_numbers_and_texts_are_arrays() -> None:
    assert nest.structured([1, 2]).tolist() == [1, 2]
    assert nest.structured([["a", "b"]]).shape == (1, 2)
    assert nest.structured(([1.5], [2.5])).shape == (2, 1), "however deep"
    two = nest.structured([X, [1, 2, 3]])
    assert isinstance(two, tuple)
    assert two[0] is X
    assert two[1].tolist() == [1, 2, 3]
    assert nest.structured({"a": [1], "b": {"c": X}})["a"].tolist() == [1]
    assert nest.structured(None) is None
    assert nest.structured([]).shape == (0,)


def test_lists_of_different_lengths_are_ragged() -> None:
    found = nest.structured([[1, 2], [3], []])
    assert isinstance(found, Ragged)
    assert found.padded(2).tolist() == [[1, 2], [3, 0], [0, 0]]


def test_ragged_rows_are_leaves() -> None:
    """Of a tuple of two NumPy would make one array of two objects."""
    rows = Ragged.of([[1, 2], [3]])
    found = nest.structured((rows, rows))
    assert isinstance(found, tuple)
    assert found[0] is rows
    assert nest.mapped(lambda leaf: leaf.padded(1).tolist(), {"a": rows}) == {"a": [[1], [3]]}


def plain(rows: list[list[int]], length: int, value: int = 0) -> list[list[int]]:
    return [(row + [value] * length)[:length] for row in rows]


def test_padded_and_cut() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        lengths = generator.integers(0, 9, 7)
        rows = [generator.integers(0, 99, n).tolist() for n in lengths]
        ragged = Ragged.of(rows)
        assert ragged.lengths.tolist() == lengths.tolist()
        for length in (1, 4, 12):
            assert ragged.padded(length).tolist() == plain(rows, length)
            assert ragged.padded(length, -1).tolist() == plain(rows, length, -1)


def test_the_type_is_that_of_rows_that_have_values() -> None:
    """Of an empty list NumPy guesses float64."""
    assert Ragged.of([[], [1, 2]]).dtype == np.int64
    assert Ragged.of([[1], []]).padded(2).dtype == np.int64
    assert Ragged.of([[], []]).padded(2).tolist() == [[0, 0], [0, 0]]


def test_texts_are_filled_by_the_empty_one_and_never_cut() -> None:
    rows = Ragged.of([["a", "b"], ["c"]])
    assert rows.padded(3).tolist() == [["a", "b", ""], ["c", "", ""]]
    assert rows.padded(2, "[PAD]").tolist() == [["a", "b"], ["c", "[PAD]"]]
    assert rows.padded(2).dtype == object
