"""Rows of different lengths."""

from __future__ import annotations

import numpy as np

from dtrain.data.ragged import Ragged


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


def test_rows_of_arrays() -> None:
    rows = [np.ones((n, 2, 3), np.float32) * n for n in (2, 0, 4)]
    found = Ragged.of(rows).padded(3, 7)
    assert found.shape == (3, 3, 2, 3)
    assert found.dtype == np.float32
    assert found[:, :, 0, 0].tolist() == [[2, 2, 7], [7, 7, 7], [4, 4, 4]]


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


def test_rows_of_one_length() -> None:
    array = np.arange(12).reshape(2, 3, 2)
    ragged = Ragged.of_array(array)
    assert (len(ragged), ragged.shape, ragged.ndim) == (2, (2, None, 2), 3)
    np.testing.assert_array_equal(ragged.padded(3), array)
    np.testing.assert_array_equal(ragged.padded(2), array[:, :2])


def test_other_values_of_the_same_rows() -> None:
    found = Ragged.of([[1, 2], [3]]).mapped(lambda values: values * 2.5)
    assert found.padded(2).tolist() == [[2.5, 5.0], [7.5, 0.0]]
