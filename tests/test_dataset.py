"""From the ``dataset`` group to what a run reads: options that meet each other, and refusals."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.data.nest import Ragged
from dtrain.data.sources import Arrays, Info, Source, Splits
from dtrain.errors import DataError, UsageError
from tests.test_steps import settings

N = 24


class Rows(Source):
    """Rows of different lengths, of which some cannot be read, in blocks of four."""

    def __init__(self, n: int = N, bad: tuple[int, ...] = ()):
        self.n, self.bad = n, bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, indices: np.ndarray) -> Any:
        for index in indices:
            if index in self.bad:
                raise DataError(f"row {index}", "is damaged")
        return Ragged.of([np.full(i % 5 + 1, i) for i in indices]), indices % 3

    @property
    def info(self) -> Info:
        return Info(blocks=lambda: np.full(self.n // 4, 4), labels=lambda: np.arange(self.n) % 3)


def rows(bad: tuple[int, ...] = (), held: bool = True) -> Any:
    return Splits(Rows(bad=tuple(bad)), Rows(8) if held else None, 3)


def arrays(train: int = N, held: int = 8) -> Any:
    def part(n: int) -> Any:
        return np.arange(n, dtype=np.float32)[:, None], np.arange(n) % 4

    return Splits(Arrays(*part(train)), Arrays(*part(held)), 4)


def uneven(train: int = 40) -> Any:
    y = np.repeat([0, 1, 2], [train - 12, 10, 2])
    return (np.arange(train, dtype=np.float32)[:, None], y), None


def stream(kind: str, held: bool = True) -> Any:
    import tensorflow as tf

    x, y = np.arange(20, dtype=np.float32)[:, None], np.arange(20) % 3
    if kind == "generator":
        return lambda: iter(list(zip(x, y, strict=True)))
    made = tf.data.Dataset.from_tensor_slices((x, y))
    if kind == "shuffled":
        made = made.shuffle(20, seed=3)
    if kind == "unseeded":
        made = made.shuffle(20)
    if kind == "endless":
        made = made.repeat()
    if kind == "filtered":
        made = made.filter(lambda x, y: True)
    first = tf.data.Dataset.from_tensor_slices((x[:7], y[:7])).batch(4)
    return (made.batch(4), first) if held else made


def nothing() -> Any:
    return Arrays(np.zeros((0, 1)), np.zeros(0, np.int64))


def without_validation() -> Any:
    return Splits(Arrays(np.zeros((9, 1)), np.arange(9)), nothing())


def load(function: str, trainer: dict[str, Any] | None = None, **dataset: Any) -> Any:
    import os

    from dtrain.task.data import dataset as task

    os.environ["DTRAIN_TRUST"] = "tests"
    target = {"_target_": function if "." in function else f"tests.test_dataset.{function}"}
    base = {"loss": "mse", "metrics": [], "batch_size": 4}
    return task.load(settings(dataset={**target, **dataset}, trainer={**base, **(trainer or {})}))


def batches(data: Any, steps: int, batch: int = 4) -> list[Any]:
    from dtrain.task.backends.tensorflow import input_pipeline

    inputs = input_pipeline.Inputs(
        data.splits.train, data.splits.validation, batch, 0, 0, data.augment, order=data.order
    )
    iterator = input_pipeline.training(
        inputs, replicas=1, first_replica=0, local_replicas=1
    ).as_numpy_iterator()
    return [next(iterator) for _ in range(steps)]


PAD = {"x": {"length": 3}}


@pytest.mark.task
def test_rows_are_padded_before_anything_reads_them() -> None:
    data = load("rows", pad=PAD)
    assert data.identity["train"]["structure"] == "(int64 [3], int64)"
    assert data.identity["validation"]["examples"] == 8
    found = batches(data, 6)
    assert {x.shape for x, _ in found} == {(4, 3)}
    seen = np.concatenate([x[:, 0] for x, _ in found])
    assert sorted(seen.tolist()) == list(range(N))
    assert not data.notices
    with pytest.raises(UsageError, match=r"dataset\.pad=null: the input has rows of different"):
        batches(load("rows"), 1)
    with pytest.raises(UsageError, match=r"dataset\.pad=z: has no rows of different lengths"):
        load("rows", pad={"z": {"length": 3}})


@pytest.mark.task
@pytest.mark.parametrize("pad", [PAD, {"x": {"buckets": [2, 8]}}])
def test_examples_that_cannot_be_read_are_left_out(pad: Any) -> None:
    """The first one too, of which the structure would be known."""
    bad = (0, 1, 7, 23)
    with pytest.raises(UsageError, match=r"row 0: is damaged.*dataset\.on_error=skip"):
        load("rows", bad=bad, pad=pad)
    data = load("rows", bad=bad, pad=pad, on_error="skip")
    assert data.identity["train"]["examples"] == 20
    [notice] = data.notices
    assert notice == (
        "dataset.on_error=skip: 4 of 24 examples cannot be read and are left out, the first: "
        "row 0: is damaged"
    )
    seen = np.concatenate([x[:, 0] for x, _ in batches(data, 15)])
    counts = collections.Counter(seen.tolist())
    assert set(counts) == set(range(N)) - set(bad)
    assert set(counts.values()) == {3}
    with pytest.raises(UsageError, match="row 0: is damaged"):
        load("rows", bad=tuple(range(N)), pad=pad, on_error="skip")


@pytest.mark.task
def test_orders_by_the_keys() -> None:
    from dtrain.data import order as orders

    cases = [
        ({}, orders.Blocks), ({"shuffle": "blocks", "window": 2}, orders.Blocks),
        ({"shuffle": "examples"}, orders.Shuffled), ({"shuffle": "none"}, orders.Sequential),
        ({"balance": True}, orders.Balanced),
    ]  # fmt: skip
    for keys, kind in cases:
        assert type(load("rows", pad=PAD, **keys).order) is kind
    assert type(load("arrays").order) is orders.Shuffled
    with pytest.raises(UsageError, match=r"dataset\.shuffle=blocks: each example of this dataset"):
        load("arrays", shuffle="blocks")
    [first, *_] = batches(load("rows", pad=PAD, shuffle="none"), 1)
    assert first[0][:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.task
def test_classes_are_balanced() -> None:
    found = batches(load("uneven", balance=True), 30)
    y = np.concatenate([y for _, y in found])
    assert collections.Counter(y.tolist()) == {0: 40, 1: 40, 2: 40}
    x = collections.Counter(np.concatenate([x[:, 0] for x, _ in found]).tolist())
    assert {x[i] for i in range(28)} == {1, 2}
    assert {x[i] for i in range(28, 38)} == {4}
    assert {x[i] for i in (38.0, 39.0)} == {20}
    skipped = load("rows", bad=(0,), pad=PAD, on_error="skip", balance=True)
    y = np.concatenate([y for _, y in batches(skipped, 30)])
    assert set(collections.Counter(y.tolist()).values()) == {40}
    with pytest.raises(UsageError, match=r"dataset\.balance=true: the classes of the examples are"):
        load("stream", kind="filtered", held=False, balance=True, trainer={"steps_per_epoch": 3})


@pytest.mark.task
def test_class_weights_of_every_kind_of_data() -> None:
    weights = {0: 2.0, 1: 3.0}
    expected = np.array([2.0, 3.0, 1.0, 1.0])
    members = {
        "a": {"_target_": "tests.test_dataset.arrays", "train": 8},
        "b": {"_target_": "tests.test_dataset.arrays", "train": 12},
    }
    steps = {"steps_per_epoch": 3}
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("arrays", {}, {}), ("rows", {"pad": PAD}, {}),
        ("dtrain.datasets.mixture", {"members": members}, {}),
        ("stream", {"kind": "plain"}, steps), ("stream", {"kind": "generator"}, steps),
    ]  # fmt: skip
    for function, keys, trainer in cases:
        data = load(function, trainer={"class_weight": weights, **trainer}, **keys)
        for _, y, weight in batches(data, 5):
            np.testing.assert_array_equal(weight, expected[y])


@pytest.mark.task
def test_splits_without_examples() -> None:
    with pytest.raises(UsageError, match="there is nothing to train on"):
        load("nothing")
    with pytest.raises(UsageError, match="=the validation: has no example"):
        load("without_validation")
    assert load("arrays").without_validation().splits.validation is None


@pytest.mark.task
def test_streams_are_counted_and_noticed() -> None:
    from dtrain.task.data import dataset

    trainer = {"steps_per_epoch": 3}
    data = load("stream", kind="plain", trainer=trainer)
    assert data.order is None
    assert dataset.lengths(data.splits) == (None, 7)
    [notice] = data.notices
    assert notice.startswith("the data is a stream of batches: it is read in its own order")
    single = load("stream", kind="generator", trainer=trainer).notices[0]
    assert single.startswith("the data is a stream of single examples")
    assert load("stream", kind="plain", held=False).splits.train.length() == 20
    assert load("stream", kind="filtered", held=False).splits.train.length() == 20, "all are seen"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dtrain.data.streams.FIRST", 8)
        for kind, held, texts in (
            ("filtered", False, ("how many examples the stream has", "epoch=100")),
            ("plain", True, ("examples the 5 batches of the stream have", "epoch=10")),
        ):
            with pytest.raises(UsageError, match=rf"{texts[0]}.*{texts[1]}$"):
                load("stream", kind=kind, held=held, trainer={"batch_size": 2})
    for keys, text in (
        ({"shuffle": "examples"}, "a stream has an order of its own"),
        ({"pad": PAD}, "a stream has batches of its own"),
        ({"on_error": "skip"}, "examples of a stream or a mixture cannot be left out"),
    ):
        with pytest.raises(UsageError, match=text):
            load("stream", kind="plain", trainer=trainer, **keys)


@pytest.mark.task
@pytest.mark.parametrize("kind", ["plain", "shuffled", "unseeded", "generator"])
def test_which_streams_are_the_same_again(kind: str) -> None:
    data = load("stream", kind=kind, trainer={"steps_per_epoch": 3})
    assert data.splits.train.steady == (kind != "unseeded")
    again = load("stream", kind=kind, trainer={"steps_per_epoch": 3})
    same = [y.tolist() for _, y in batches(data, 9)] == [y.tolist() for _, y in batches(again, 9)]
    assert same == (kind != "unseeded")
    if kind == "shuffled":
        passes = np.concatenate([x[:, 0] for x, _ in batches(data, 10)]).reshape(2, 20)
        assert sorted(passes[0]) == sorted(passes[1]) == list(range(20))
        assert not np.array_equal(*passes), "each pass has an order of its own"


@pytest.mark.task
def test_how_many_of_a_stream_are_evaluated() -> None:
    """More batches than there are: refused as of arrays, and never counted."""
    from dtrain.data.prepare import evaluated

    for steps, expected in ((1, 4), (2, 7), (None, 7)):
        trainer = {"steps_per_epoch": 3, "validation_steps": steps}
        data = load("stream", kind="plain", trainer=trainer)
        config = settings(trainer={"loss": "mse", "batch_size": 4, **trainer})
        examples = data.splits.validation.length()
        assert evaluated(config.trainer, examples) == expected
    trainer = {"steps_per_epoch": 3, "validation_steps": 3}
    data = load("stream", kind="plain", trainer=trainer)
    config = settings(trainer={"loss": "mse", "batch_size": 4, **trainer})
    with pytest.raises(UsageError, match="the 7 validation examples are 2 batches of 4"):
        evaluated(config.trainer, data.splits.validation.length())


class Own(Source):
    """In Python, told from one of dtrain's by nothing but ``take`` and a length."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, indices: np.ndarray) -> Any:
        return {"a": indices / 2, "b": [f"t{i}" for i in indices]}, indices


def nested(x: Any, seed: Any) -> Any:
    return {"a": x["a"] + 1, "b": x["b"]}


def other_structure(x: Any, seed: Any) -> Any:
    return x["a"]


def own() -> Any:
    return Own()


@pytest.mark.task
def test_nested_examples_are_augmented_one_by_one() -> None:
    data = load("own", augment={"_target_": "tests.test_dataset.nested"})
    for x, y in batches(data, 3):
        np.testing.assert_array_equal(x["a"], y / 2 + 1)
        assert [text.decode() for text in x["b"]] == [f"t{i}" for i in y]
    with pytest.raises(Exception, match=r"(?s)structure|nest"):
        batches(load("own", augment={"_target_": "tests.test_dataset.other_structure"}), 1)


def numbers() -> Iterator[Any]:
    yield from zip(np.arange(9.0)[:, None], range(9), strict=True)


@pytest.mark.task
def test_mixtures() -> None:
    from dtrain.datasets import mixture

    a, b = arrays(8, 4), arrays(16, 0)
    for weights, shares in ((None, [1, 2]), ({"a": 3, "b": 1}, [3, 1])):
        splits = mixture({"a": a, "b": b}, weights)
        assert splits.train.shares == shares
        assert len(splits.train) == 24
        assert len(splits.validation) == 4, "of those that have one"
        assert splits.count_classes() == 4
    tuples = mixture({"a": ((np.zeros((3, 1)), np.arange(3)), None), "b": Own()}, {"a": 1, "b": 1})
    assert tuples.validation is None
    assert tuples.count_classes() is None
    cases: list[tuple[Any, Any, str]] = [
        ({"a": numbers}, None, r"dataset\.members\.a=a stream: cannot be mixed"),
        ({"a": nothing()}, None, r"dataset\.members\.a=0 examples: there is nothing to train on"),
        ({"a": 3}, None, r"dataset\.members\.a"),
        ({"a": a, "b": b}, {"a": 1}, "is not a weight above 0 for each member"),
        ({"a": a}, {"a": 1, "c": 2}, "is not a weight above 0"),
        ({"a": a}, {"a": 0}, "is not a weight above 0"),
        ({"a": a}, {"a": math.inf}, "is not a weight above 0"),
        ({"a": a}, {"a": math.nan}, "is not a weight above 0"),
    ]
    for members, weights, text in cases:
        with pytest.raises(UsageError, match=text):
            mixture(members, weights)


def test_data_that_cannot_be_read_before_training_is_a_mistake_of_the_configuration() -> None:
    from dtrain.data.failures import before_training

    node = {"_target_": "mine.load"}
    text = r"dataset=mine\.load: FILE, row 3: is damaged; .*=skip"
    with pytest.raises(UsageError, match=text), before_training(node):
        raise DataError("FILE, row 3", "is damaged")
    with pytest.raises(KeyError), before_training(node):
        raise KeyError("of the user's own code")
    assert not Path("outputs").exists()
