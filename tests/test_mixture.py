"""Parts of sources, and several sources as one: which examples they have, and where."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from dtrain.data.files import DataFile
from dtrain.data.mixture import Concatenated, Mixture, Subset, by_member
from dtrain.data.sources import Info, Source
from dtrain.data.transforms import InGraph


class Numbers(Source):
    """Examples that are their own numbers, read in blocks of four."""

    def __init__(self, n: int, first: int = 0):
        self.n, self.first = n, first
        self.transforms = (InGraph(lambda parts: parts),)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
        return indices + self.first, indices * 10

    @property
    def info(self) -> Info:
        return Info(
            files=lambda: [DataFile(f"file{self.first}")],
            blocks=lambda: np.full(self.n // 4, 4),
            labels=lambda: np.arange(self.n) * 10,
            place=lambda index: f"file{self.first}, row {index}",
        )


class Plain(Source):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
        return (indices,)


ROWS = np.array([1, 2, 3, 9, 11])


def test_a_part_of_a_source() -> None:
    part = Subset(Numbers(12), ROWS)
    assert len(part) == 5
    x, y = part[np.array([4, 0, 0])]
    assert (x.tolist(), y.tolist()) == ([11, 1, 1], [110, 10, 10])
    assert part.info.labels().tolist() == [10, 20, 30, 90, 110]
    assert part.info.blocks().tolist() == [3, 2], "of the block in the middle there is none"
    assert part.info.place(3) == "file0, row 9"
    assert [file.name for file in part.info.files()] == ["file0"]
    assert len(part.transforms) == 1
    there = pickle.loads(pickle.dumps(Subset(Plain(), ROWS[:1])))
    assert there[np.array([0])][0].tolist() == [1]
    assert len(copy.copy(part)) == 5


def test_what_a_source_has_not_its_part_has_not() -> None:
    part = Subset(Plain(), np.array([2, 0]))
    assert part.info.blocks() is None
    assert part.info.labels() is None
    assert part.info.place(0) == "example 2"
    assert not part.info.files() and not part.transforms
    assert (part.in_graph, part.thread_safe) == (False, False)


@pytest.mark.task
def test_a_part_of_a_source_in_the_graph() -> None:
    import tensorflow as tf

    from dtrain.data.sources import Arrays

    part = Subset(Arrays(np.arange(12), np.arange(12) * 10), ROWS)
    take = tf.function(part.gather)
    x, y = take(tf.constant([4, 0], tf.int64))
    assert (x.numpy().tolist(), y.numpy().tolist()) == ([11, 1], [110, 10])


def test_one_source_after_the_other() -> None:
    whole = Concatenated([Numbers(3), Numbers(5, 100), Plain()])
    assert len(whole) == 11
    assert whole.starts.tolist() == [0, 3, 8]
    assert [whole.info.place(i) for i in (0, 2, 3, 7, 8, 10)] == [
        "file0, row 0", "file0, row 2", "file100, row 0", "file100, row 4", "example 0",
        "example 2",
    ]  # fmt: skip
    assert [file.name for file in whole.info.files()] == ["file0", "file100"]


def test_members_of_members_are_changed() -> None:
    inner = Mixture([Plain(), Numbers(4)], [1, 2])
    whole = Concatenated([inner, Numbers(5)])
    found = by_member(whole, lambda member: Subset(member, np.array([0])))
    assert type(found) is Concatenated
    assert isinstance(found.members[0], Mixture)
    assert found.members[0].shares == [1, 2]
    assert isinstance(found.members[0].members[1], Subset)
    assert isinstance(whole.members[1], Numbers), "the one before is as it was"
    assert by_member(3, lambda member: member + 1) == 4
