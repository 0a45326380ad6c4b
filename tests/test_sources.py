"""Examples in memory: arrays, and structures of arrays."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from dtrain.data.example import Example
from dtrain.data.holdout import Holdout, divided
from dtrain.data.nest import leaves
from dtrain.data.prepare import renumbered
from dtrain.data.sources import Arrays
from dtrain.data.transforms import applied
from dtrain.errors import UsageError

X = np.arange(24, dtype=np.float32).reshape(6, 4)
NAMES = np.array(["a", "b", "c", "d", "e", "f"])


def test_lengths() -> None:
    assert len(Arrays(X)) == len(Arrays({"b": X, "a": NAMES}, [NAMES, X[:, 0]])) == 6
    assert len(Arrays(lambda: X, None, X[:, 0])) == len(Arrays(lambda: X, None, None, 6)) == 6
    assert len(Arrays([X, (X, {"c": X})])) == 6

    def never() -> Any:
        pytest.fail("the inputs were read")

    assert len(Arrays(never, X)) == 6
    for parts in ([X, X[1:]], [{"a": X, "b": X[:2]}], [X, X, X[:3]], [X, None, None, 5]):
        with pytest.raises(UsageError, match=r"^dataset=Arrays: its arrays have \d and 6 rows"):
            Arrays(*parts)


def test_lists_of_numbers_are_arrays() -> None:
    source = Arrays([X, X], [[1, 0], [0, 1], [1, 0], [0, 1], [1, 0], [0, 1]])
    assert isinstance(source.x, tuple) and source.y.shape == (6, 2)
    source = Arrays({"a": ["x", "y"], "b": [1.5, 2.5]}, [0, 1])
    assert source.x["a"].tolist() == ["x", "y"] and source.x["b"].dtype == np.float64
    assert Arrays([0, 1]).x.tolist() == [0, 1]


def test_labels() -> None:
    assert Arrays(X, X[:, 0]).info.labels() is not None
    assert Arrays(X).info.labels() is None and Arrays(X, {"a": X}).info.labels() is None


def test_splits_of_structures() -> None:
    numbers = np.arange(6)
    y, weight = {"p": numbers, "q": numbers * 2}, numbers * 0.5
    for x in ({"a": X, "b": (numbers, numbers)}, lambda: {"a": X, "b": [numbers, numbers]}):
        seen = []
        for part in divided(Arrays(x, y, weight), Holdout(0.5, 3)):
            rows = part.y["p"]
            assert np.array_equal(part.x["a"], X[rows])
            assert all(np.array_equal(each, rows) for each in part.x["b"])
            assert np.array_equal(part.y["q"], rows * 2)
            assert np.array_equal(part.weight, rows * 0.5) and len(part) == 3
            seen += rows.tolist()
        assert sorted(seen) == list(range(6))
    bare, _ = divided(Arrays(lambda: X, examples=6), Holdout(0.5, 3))
    assert bare.y is None and bare.x.shape == (3, 4)


@pytest.mark.task
def test_structures_are_taken_eagerly_and_in_a_graph() -> None:
    import tensorflow as tf

    x = {"b": X, "a": (NAMES, X[:, 0].astype(np.int32))}
    for source, parts in (
        (Arrays(x, [X[:, 1], NAMES], X[:, 2]), (x, (X[:, 1], NAMES), X[:, 2])),
        (Arrays(lambda: x, None, X[:, 2]), (x, None, X[:, 2])),
        (Arrays(x), (x,)),
        (pickle.loads(pickle.dumps(Arrays(X, NAMES))), (X, NAMES)),
    ):
        wanted = np.array([5, 0, 5])
        # In a graph first: what it captures must be usable outside.
        traced = tf.function(source.gather).get_concrete_function(tf.TensorSpec([3], tf.int64))
        for taken in (traced(tf.constant(wanted)), source.gather(tf.constant(wanted))):
            assert isinstance(taken, tuple)
            for one, other in zip(leaves(taken), leaves(source[wanted]), strict=True):
                assert (one is None and other is None) or np.array_equal(
                    one.numpy(), other.astype("S") if other.dtype.kind == "U" else other
                )
            tf.nest.assert_same_structure(taken, parts)
            for one, other in zip(tf.nest.flatten(taken), tf.nest.flatten(parts), strict=True):
                if other is not None:
                    values = one.numpy().astype("U") if one.dtype == tf.string else one.numpy()
                    assert np.array_equal(values, other[wanted]) and one.shape == values.shape


@pytest.mark.task
def test_structures_can_be_read_elsewhere() -> None:
    import tensorflow as tf

    source = Arrays({"b": X, "a": NAMES}, X[:, 0], X[:, 1])
    assert [tensor.dtype for tensor in source.tensors()] == [tf.string] + [tf.float32] * 3
    other = Arrays({"b": X * 0, "a": NAMES}, X[:, 0] * 0, X[:, 1] * 0)
    other.bind(source.tensors())
    x, y, weight = other.gather(tf.constant([3, 1]))
    assert np.array_equal(x["b"], X[[3, 1]]) and np.array_equal(y, X[[3, 1], 0])
    assert np.array_equal(weight, X[[3, 1], 1]) and list(x) == ["b", "a"]


def test_classes_of_other_data_have_the_numbers_of_the_run() -> None:
    other = Arrays(X, np.array([0, 1, 1, 0, 1, 0]), np.ones(6), class_names=["b", "c"])
    made = renumbered(other, ["a", "b", "c"])
    assert made.info.class_names() == ["a", "b", "c"]
    example = applied(made, Example.of(made[np.arange(6)]), of_arrays=False)
    assert example.y.tolist() == made.info.labels().tolist() == [1, 2, 2, 1, 2, 1]
    assert example.weight.tolist() == [1] * 6 and renumbered(other, ["b", "c"]) is other
    with pytest.raises(UsageError, match="dataset=c: is none of the classes of the run"):
        renumbered(other, ["a", "b"])
