"""Orders of training: which example is at a position, whoever asks, and how often."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from dtrain.data import order
from dtrain.data.mixture import Concatenated, Mixture
from dtrain.data.options import Shuffle
from dtrain.data.order import order_of
from dtrain.data.sources import Arrays, Info, Source
from dtrain.data.transforms import InGraph


class InBlocks(Source):
    """In Python, read in blocks of uneven sizes."""

    def __init__(self, lengths: list[int]):
        self.lengths = np.array(lengths)

    def __len__(self) -> int:
        return int(self.lengths.sum())

    @property
    def info(self) -> Info:
        return Info(blocks=lambda: self.lengths)

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
        return (indices,)


def numbers(n: int, first: int = 0) -> Arrays:
    return Arrays(np.arange(first, first + n, dtype=np.float32)[:, None], np.arange(n) + first)


def at(each: Any, begin: int, count: int) -> np.ndarray:
    return each(np.arange(begin, begin + count))


def test_which_order_a_source_has() -> None:
    plain, blocks = numbers(20), InBlocks([4, 4, 4])
    cases = [
        (plain, Shuffle.auto, order.Shuffled),
        (plain, Shuffle.examples, order.Shuffled),
        (plain, Shuffle.none, order.Sequential),
        (blocks, Shuffle.auto, order.Blocks),
        (blocks, Shuffle.blocks, order.Blocks),
        (blocks, Shuffle.examples, order.Shuffled),
        (blocks, Shuffle.none, order.Sequential),
        (Mixture([plain, blocks], [1, 1]), Shuffle.auto, order.Mixed),
    ]
    for source, shuffle, kind in cases:
        found = order_of(source, shuffle, 2, 0)
        assert type(found) is kind
        assert at(found, 5, 3).dtype == np.int64


def test_the_order_of_the_source() -> None:
    assert at(order.Sequential(5), 3, 9).tolist() == [3, 4, 0, 1, 2, 3, 4, 0, 1]


MIXTURES: list[tuple[list[int], list[float], list[int]]] = [
    ([10, 10, 10], [1, 1, 1], [1, 1, 1]),
    ([7, 30], [0.7, 0.3], [7, 3]),
    ([5, 40, 3], [2, 1, 1], [2, 1, 1]),
]


@pytest.mark.parametrize(("lengths", "weights", "expected"), MIXTURES)
def test_members_are_drawn_as_often_as_their_weights_say(
    lengths: list[int], weights: list[float], expected: list[int]
) -> None:
    """By the ledger: of each cycle, and of each pass of each member."""
    members = [numbers(n) for n in lengths]
    mixture = Mixture(members, weights)
    assert mixture.shares == expected
    cycle, cycles = sum(expected), 60
    found = at(order_of(mixture, Shuffle.auto, 8, 5), 0, cycle * cycles)
    owners = np.searchsorted(mixture.starts, found, side="right") - 1
    for each in owners.reshape(cycles, cycle):
        counts = collections.Counter(each.tolist())
        assert [counts[member] for member in range(len(lengths))] == expected
    turns = {tuple(each) for each in owners.reshape(cycles, cycle)}
    assert len(turns) > 1 or cycle == 1, "whose turn it is differs by cycle"
    for member, n in enumerate(lengths):
        own = found[owners == member] - mixture.starts[member]
        whole = len(own) // n * n
        for each in own[:whole].reshape(-1, n):
            assert sorted(each) == list(range(n)), "no example is skipped within a pass"
        assert len(set(own[whole:].tolist())) == len(own) - whole


def test_a_member_that_hardly_counts() -> None:
    mixture = Mixture([numbers(3), numbers(50)], [1e-6, 1])
    found = at(order_of(mixture, Shuffle.auto, 8, 5), 0, 3 * 10_001)
    counts = collections.Counter(found.tolist())
    assert [counts[i] for i in range(3)] == [1, 1, 1], "one position of each cycle of 10,001"
    assert {counts[i] for i in range(3, 53)} == {600}


def test_members_of_one_length_have_orders_of_their_own() -> None:
    n = 200
    mixture = Mixture([numbers(n), numbers(n)], [1, 1])
    found = at(order_of(mixture, Shuffle.auto, 8, 5), 0, 4 * n)
    own = [found[found < n], found[found >= n] - n]
    rows = np.stack([each[:n] for each in own] + [each[n:] for each in own])
    correlations = np.corrcoef(rows) - np.eye(4)
    assert np.abs(correlations).max() < 6 / np.sqrt(n)


def test_mixtures_of_mixtures_of_blocks() -> None:
    inner = Mixture([InBlocks([3, 2, 4]), numbers(4)], [3, 1])
    mixture = Mixture([inner, numbers(6)], [2, 1])
    found = at(order_of(mixture, Shuffle.auto, 2, 1), 0, 36 * 6)
    counts = collections.Counter(found.tolist())
    assert {counts[i] for i in range(9)} == {12}
    assert {counts[i] for i in range(9, 13)} == {9}
    assert {counts[i] for i in range(13, 19)} == {12}


def batches(source: Any, replicas: int, start: int, steps: int) -> list[list[int]]:
    from dtrain.task.backends.tensorflow import input_pipeline

    inputs = input_pipeline.Inputs(
        source, None, 12, 3, start, order=order_of(source, Shuffle.auto, 2, 3)
    )
    iterator = input_pipeline.training(
        inputs, replicas=replicas, first_replica=0, local_replicas=replicas
    ).as_numpy_iterator()
    found = []
    for _ in range(steps):
        parts = [next(iterator) for _ in range(replicas)]
        found.append(np.concatenate([y for *_, y in parts]).tolist())
    return found


class Python(Source):
    """In Python, with what is decoded in the graph."""

    def __init__(self, n: int, first: int):
        self.n, self.first = n, first
        self.transforms = (InGraph(self.decode),)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
        indices = indices + self.first
        return indices[:, None], indices

    def decode(self, parts: Any) -> Any:
        import tensorflow as tf

        return tf.cast(parts[0], tf.float32), parts[1]


@pytest.mark.task
def test_batches_of_a_mixture_do_not_depend_on_replicas_or_start() -> None:
    mixture = Mixture([numbers(10), Python(25, 100), numbers(7, 200)], [3, 2, 1])
    whole = batches(mixture, 1, 0, 20)
    for replicas, start in ((1, 7), (3, 0), (3, 11), (4, 0), (4, 5)):
        assert batches(mixture, replicas, start, 20 - start) == whole[start:], (replicas, start)
    counts = collections.Counter(np.concatenate(whole).tolist())
    totals = [sum(counts[i] for i in range(b, b + 50)) for b in (0, 100, 200)]
    assert totals == [120, 80, 40]


@pytest.mark.task
def test_a_validation_has_all_members_one_after_the_other() -> None:
    from dtrain.task.backends.tensorflow import input_pipeline

    held = Concatenated([numbers(4), Python(5, 100), numbers(2, 200)])
    for replicas in (1, 3):
        inputs = input_pipeline.Inputs(numbers(4), held, 4, 0)
        iterator = iter(
            input_pipeline.evaluation(
                inputs, replicas=replicas, first_replica=0, local_replicas=replicas
            )
        )
        rows: list[int] = []
        for _ in range(3):
            (_, y), count = next(iterator)
            rows += y.numpy()[: int(count)].tolist()
        assert rows == [0, 1, 2, 3, 100, 101, 102, 103, 104, 200, 201]
