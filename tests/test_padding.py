"""``dataset.pad``: rows of different lengths become arrays of one shape, on any replicas."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from dtrain.data.example import Example
from dtrain.data.foreign import Rows
from dtrain.data.mixture import Concatenated, Mixture, Subset
from dtrain.data.nest import Ragged
from dtrain.data.sources import Info, Source, Splits
from dtrain.data.streams import Stream
from dtrain.data.transforms import Padding, applied, by_batch, padded
from dtrain.errors import DataError, UsageError


@pytest.mark.task
def test_a_batch_is_read_once_on_any_number_of_replicas() -> None:
    from dtrain.task.backends.tensorflow import input_pipeline

    class Counted(Source):
        asked: list[list[int]] = []

        def __len__(self) -> int:
            return 64

        def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
            if len(indices) > 1:  # not that of the structure
                self.asked.append(sorted(indices.tolist()))
            return Ragged.of([np.ones(1 + i % 7) for i in indices]), indices

    for replicas in (1, 2, 8):
        source = with_padding(Counted(), {"x": {"buckets": [4, 8]}})
        inputs = input_pipeline.Inputs(source, None, 64, 0)
        dataset = input_pipeline.training(
            inputs, replicas=replicas, first_replica=0, local_replicas=replicas
        )
        for _ in zip(range(3 * replicas), dataset, strict=False):
            pass
    assert all(rows == list(range(64)) for rows in Counted.asked), "a step is a pass"


def with_padding(source: Any, lengths: dict[str, Any]) -> Any:
    return padded(Splits(source), lengths).train


def take(source: Any, rows: list[int]) -> tuple[Any, ...]:
    return applied(source, Example.of(source[np.array(rows)]), of_arrays=True).parts


LENGTHS = [3, 1, 9, 2, 5, 2, 7, 1, 4, 2, 3, 6]
ROWS = [[10 * i + j for j in range(n)] for i, n in enumerate(LENGTHS)]


class Texts(Source):
    """Two ragged inputs, one of texts, and a ragged target; in Python."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
        rows = [ROWS[i] for i in indices]
        texts = [[str(value) for value in row] for row in rows]
        return {"tokens": Ragged.of(rows), "words": Ragged.of(texts)}, Ragged.of(rows), indices

    @property
    def info(self) -> Info:
        return Info(place=lambda index: f"row {index}")


def pads(length: int, value: Any = 0) -> list[list[Any]]:
    return [(row + [value] * length)[:length] for row in ROWS]


def test_lengths_and_values() -> None:
    source = with_padding(
        Texts(), {"tokens": {"length": 4, "value": -1}, "words": {"length": 2}, "y": {"length": 9}}
    )
    x, y, weight = take(source, list(range(12)))
    assert x["tokens"].tolist() == pads(4, -1)
    assert x["words"].tolist() == [[str(v) if v != "" else v for v in row] for row in pads(2, "")]
    assert y.tolist() == pads(9)
    assert weight.tolist() == list(range(12))
    assert not by_batch(source)
    assert source.info.place(3) == "row 3"
    again = pickle.loads(pickle.dumps(source))
    assert take(again, [1])[1].shape == (1, 9)


def test_a_batch_has_the_smallest_bucket_that_all_fit_into() -> None:
    given = {"length": 9}
    source = with_padding(
        Texts(), {"tokens": {"buckets": [8, 2, 4]}, "words": given, "y": {"buckets": [16, 3]}}
    )
    assert by_batch(source) == {"tokens", "y"}
    for batch in ([1, 3], [0, 1], [2, 1], [7], list(range(12))):
        x, y, _ = take(source, batch)
        longest = max(LENGTHS[i] for i in batch)
        assert x["tokens"].shape[1] == next((b for b in (2, 4, 8) if b >= longest), 8)
        assert y.shape[1] == (3 if longest <= 3 else 16)


def test_rows_that_happen_to_have_one_length() -> None:
    """Of map-style datasets nothing says that lengths differ: a batch may be one array."""
    source = with_padding(Rows([(row, i) for i, row in enumerate(ROWS)]), {"x": {"length": 4}})
    for batch in ([0], [3, 5], [2, 3], list(range(12))):
        x, y = take(source, batch)
        assert x.tolist() == [pads(4)[i] for i in batch]
        assert y.tolist() == batch
    buckets = with_padding(Rows([(row, 0) for row in ROWS]), {"x": {"buckets": [2, 4]}})
    assert take(buckets, [3, 5])[0].shape == (2, 2)
    assert take(buckets, [3, 8])[0].shape == (2, 4)


def test_what_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"dataset\.pad=token: has no rows.*tokens, words, y.*type"
    ):
        with_padding(Texts(), {"token": {"length": 3}})
    with pytest.raises(UsageError, match=r"dataset\.pad=weight: has no rows of different lengths"):
        with_padding(Texts(), {"weight": {"length": 3}})
    numbers = Rows([(1.0, 2)] * 3)
    with pytest.raises(UsageError, match="accepted: nothing of this dataset"):
        with_padding(numbers, {"x": {"length": 3}})
    for name, value in (("tokens", "a"), ("tokens", 0.5), ("words", 0), ("tokens", 2**70)):
        with pytest.raises(UsageError, match=f"{name}: .value: .*cannot fill rows of"):
            with_padding(Texts(), {name: {"length": 3, "value": value}})
    small = Rows([(np.zeros(2, np.uint8), 0)])
    with pytest.raises(UsageError, match="a number that uint8 has"):
        with_padding(small, {"x": {"length": 3, "value": -1}})


def test_the_first_example_that_can_be_read_shows_the_structure() -> None:
    class Damaged(Texts):
        good = 2

        def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
            if min(indices) < self.good:
                raise DataError(self.info.place(int(min(indices))), "is damaged")
            return super().__getitem__(indices)

    source = with_padding(Damaged(), {"y": {"length": 3}})
    assert take(source, [2])[1].tolist() == [pads(3)[2]]
    Damaged.good = 99
    with pytest.raises(DataError, match="is damaged"):
        with_padding(Damaged(), {"y": {"length": 3}})


def test_splits_and_their_members() -> None:
    lengths = {"tokens": {"length": 3}, "words": {"length": 3}, "y": {"length": 3}}
    splits = Splits(Mixture([Texts(), Texts()], [2, 1]), Concatenated([Texts()]), 5)
    assert padded(splits, None) is splits
    found = padded(splits, lengths)
    assert found.classes == 5
    assert found.train.shares == [2, 1]
    for part in (found.train, found.validation):
        assert all(isinstance(member.transforms[0], Padding) for member in part.members)
    assert padded(Splits(Texts()), lengths).validation is None
    with pytest.raises(UsageError, match=r"a stream.*type: dataset.pad=null"):
        padded(Splits(Stream(lambda: None)), lengths)
    with pytest.raises(UsageError, match=r"\.pad=.*a mixture"):
        padded(splits, {"y": {"buckets": [1, 2]}})


@pytest.mark.task
@pytest.mark.parametrize("part", [False, True])
def test_shapes_are_the_same_on_any_replicas(part: bool) -> None:
    """Each replica pads its part to the longest row of the whole batch."""

    from dtrain.task.backends.tensorflow import input_pipeline
    from dtrain.task.data import reading

    rows = Rows([(row, i) for i, row in enumerate(ROWS)])
    source: Any = with_padding(rows, {"x": {"buckets": [2, 4, 8, 16]}})
    if part:  # as of dataset.on_error=skip
        source = Subset(source, np.arange(1, 12))
    spec = reading.ArraySpec((None, None), "int64")
    assert reading.specs(source, None)[0] == spec
    inputs = input_pipeline.Inputs(source, source, 4, 3)
    found: dict[int, list[Any]] = {}
    for replicas in (1, 2, 4):
        dataset = input_pipeline.training(
            inputs, replicas=replicas, first_replica=0, local_replicas=replicas
        )
        assert dataset.element_spec[0].shape.as_list() == [4 // replicas, None]
        iterator = dataset.as_numpy_iterator()
        found[replicas] = []
        for _ in range(9):
            parts = [next(iterator) for _ in range(replicas)]
            assert len({x.shape for x, _ in parts}) == 1
            x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
            longest = max(LENGTHS[i] for i in y)
            assert x.shape[1] == next(b for b in (2, 4, 8, 16) if b >= longest)
            found[replicas].append((x.tolist(), y.tolist()))
    assert found[2] == found[1]
    assert found[4] == found[1]
    assert len({len(x[0]) for x, _ in found[1]}) > 1, "batches have lengths of their own"
