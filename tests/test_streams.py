"""Streams: batches of the run's own size, at the same positions wherever they are read."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dtrain.data.convert import adapted
from dtrain.data.streams import Stream, examples_in, settle_streams
from dtrain.errors import DataError, UsageError
from tests.sampled import sampled, thinned

N = 23


def slices(n: int = N) -> Any:
    import tensorflow as tf

    numbers = np.arange(n)
    return tf.data.Dataset.from_tensor_slices((numbers[:, None].astype(np.float32), numbers))


def examples() -> Iterator[Any]:
    for i in range(N):
        yield np.array([i], np.float32), i


def batches() -> Iterator[Any]:
    for i in range(0, N, 5):
        rows = np.arange(i, min(i + 5, N))
        yield rows[:, None].astype(np.float32), rows


class Loader:
    """As a ``DataLoader`` of PyTorch."""

    def __len__(self) -> int:
        return -(-N // 5)

    def __iter__(self) -> Iterator[Any]:
        return map(list, batches())


def forever(of: int = 1) -> Iterator[Any]:
    while True:
        for i in range(N):
            yield np.array([i], np.float32), i // of


class Forever:
    def examples(self) -> Iterator[Any]:
        while True:
            yield np.zeros([1], np.float32), 1


def cycled() -> Iterator[Any]:
    for i in itertools.count():
        yield np.array([i % N], np.float32), i % N


def of(value: Any) -> Stream:
    found = adapted(value).train
    assert isinstance(found, Stream)
    return found


#: Streams of the same 23 examples, and whether they are read as batches.
KINDS: dict[str, tuple[Callable[[], Any], bool]] = {
    "unbatched": (slices, False),
    "batched": (lambda: slices().batch(5), True),
    "large batches": (lambda: slices().batch(64), True),
    "cut batches": (lambda: slices(N + 1).batch(N, drop_remainder=True), True),
    "unknown length": (lambda: slices().filter(lambda x, y: True), False),
    "examples": (lambda: examples, False),
    "loader": (Loader, True),
    "batches": (lambda: batches, True),
    "function": (lambda: lambda: iter(list(examples())), False),
    "partial": (lambda: functools.partial(examples), False),
    "function of a dataset": (lambda: lambda: slices().batch(4), True),
}


def global_batches(
    stream: Stream,
    steps: int,
    replicas: int = 1,
    pipelines: int = 1,
    start: int = 0,
    batch: int = 4,
) -> list[list[int]]:
    from dtrain.task.backends.tensorflow import input_pipeline

    local = replicas // pipelines
    inputs = input_pipeline.Inputs(stream, None, batch, 0, start)
    iterators = [
        input_pipeline.training(
            inputs, replicas=replicas, first_replica=i * local, local_replicas=local
        ).as_numpy_iterator()
        for i in range(pipelines)
    ]
    found = []
    for _ in range(steps):
        parts = [next(each) for each in iterators for _ in range(local)]
        assert {len(y) for _, y in parts} == {batch // replicas}
        for x, y in parts:
            np.testing.assert_array_equal(x[:, 0], y)
        found.append(np.concatenate([y for _, y in parts]).tolist())
    return found


def expected(steps: int, start: int = 0, batch: int = 4) -> list[list[int]]:
    rows = itertools.islice(itertools.cycle(range(N)), start * batch, (start + steps) * batch)
    return np.array(list(rows)).reshape(steps, batch).tolist()


@pytest.mark.task
@pytest.mark.parametrize("kind", thinned(KINDS, 3))
def test_batches_are_those_of_the_positions(kind: str) -> None:
    """Pass after pass, without a gap; on any replicas and hosts, and after a resume."""
    make, batched = KINDS[kind]
    stream = of(make())
    assert stream.is_batched() == batched
    cases = [(1, 1, 0), (2, 1, 3), (4, 1, 0), (2, 2, 7), (4, 2, 11)]
    for replicas, pipelines, start in cases if kind in ("batched", "examples") else cases[::3]:
        found = global_batches(stream, 9, replicas, pipelines, start)
        assert found == expected(9, start), (replicas, pipelines, start)
    assert global_batches(of(make()), 3, batch=20) == expected(3, batch=20)


@pytest.mark.task
@pytest.mark.parametrize(
    ("kind", "replicas", "pipelines"),
    sampled(
        [
            (kind, *of)
            for kind in ("unbatched", "batched", "examples")
            for of in ((1, 1), (3, 1), (2, 2))
        ],
        ("batched", 2, 2), ("examples", 3, 1),
    ),
)  # fmt: skip
def test_a_validation_has_every_example_once(kind: str, replicas: int, pipelines: int) -> None:
    from dtrain.task.backends.tensorflow import input_pipeline

    stream = of(KINDS[kind][0]())
    assert stream.count() == N
    local = replicas // pipelines
    for batch, steps, total in ((4, None, N), (4, 3, 12), (50, None, N), (4, 6, N)):
        inputs = input_pipeline.Inputs(
            stream, stream, 4, 0, validation_batch=batch, validation_steps=steps
        )
        assert inputs.evaluation_examples == total
        iterators = [
            iter(
                input_pipeline.evaluation(
                    inputs, replicas=replicas, first_replica=i * local, local_replicas=local
                )
            )
            for i in range(pipelines)
        ]
        turns = -(-inputs.evaluation_steps // replicas)
        rows: list[int] = []
        for _ in range(2 * turns):  # it begins again by itself
            for iterator in iterators:
                for _ in range(local):
                    (x, y), count = next(iterator)
                    assert len(x) == len(y) == inputs.evaluation_batch, "a replica has a whole one"
                    rows += y.numpy()[: int(count)].tolist()
        assert rows == 2 * list(range(total)), (batch, steps)


@pytest.mark.task
def test_structures_and_texts() -> None:
    import tensorflow as tf

    def parts() -> Iterator[Any]:
        for i in range(7):
            yield {"name": f"é{i}", "at": (np.float64(i), [i, i])}, {"a": i}, 0.5 * i

    dataset = tf.data.Dataset.from_tensor_slices(
        ({"name": [f"é{i}" for i in range(7)], "at": (np.arange(7.0), np.arange(14).reshape(7, 2))},
         {"a": np.arange(7)}, np.arange(7) * 0.5)
    )  # fmt: skip
    for value in (parts, dataset, dataset.batch(3)):
        from dtrain.task.backends.tensorflow import input_pipeline

        stream = of(value)
        inputs = input_pipeline.Inputs(stream, None, 4, 0, 3)
        place = {"replicas": 2, "first_replica": 0, "local_replicas": 2}
        x, y, weight = next(iter(input_pipeline.training(inputs, **place)))
        assert [text.decode() for text in x["name"].numpy()] == ["é5", "é6"], "12 and 13 modulo 7"
        assert x["at"][0].numpy().tolist() == [5.0, 6.0]
        assert x["at"][1].numpy().tolist() == [[5, 5], [6, 6]] or value is not parts
        assert y["a"].numpy().tolist() == [5, 6]
        assert weight.numpy().tolist() == [2.5, 3.0]


@pytest.mark.task
def test_inputs_alone_and_parts_that_there_are_none_of() -> None:
    import tensorflow as tf

    numbers = tf.data.Dataset.range(6)
    for value in (
        numbers, numbers.map(lambda x: (x, None)), numbers.map(lambda x: (x, None, None)),
        lambda: iter([(i, None) for i in range(6)]),
    ):  # fmt: skip
        [x] = next(iter(of(value).batches(4)))
        assert np.asarray(x).tolist() == [0, 1, 2, 3]
    [x] = next(iter(of(numbers.map(lambda i: {"a": i, "b": i})).batches(2)))
    assert x["b"].numpy().tolist() == [0, 1]


@pytest.mark.task
def test_lengths() -> None:
    import tensorflow as tf

    cases = [("unbatched", N), ("cut batches", N), ("batched", None), ("unknown length", None),
             ("examples", None)]  # fmt: skip
    for kind, length in cases:
        stream = of(KINDS[kind][0]())
        assert stream.length() == length, kind
        assert stream.count() == N
        assert stream.length() == N, "it is not read twice"
        assert examples_in(stream) == N
    assert of(slices().batch(4).repeat()).length() is None
    assert of(slices().repeat()).count(most=30) >= 30
    for endless in (slices().repeat(), forever, functools.partial(forever, 2), Forever().examples):
        with pytest.raises(UsageError, match=r"has no end.*trainer\.validation_steps=10"):
            of(endless).count()
        assert of(endless).count(most=30) >= 30
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dtrain.data.streams.COUNTING", 0)
        for unknown in (slices().repeat().filter(lambda x, y: True), cycled):
            with pytest.raises(UsageError, match=r"has not ended after 1,024 examples and 0 s"):
                of(unknown).count()
    assert of(slices().batch(5)).count(most=1000) == N
    empty = of(tf.data.Dataset.range(3).filter(lambda x: x > 9))
    with pytest.raises(UsageError, match="it has no example"):
        empty.first(1)
    assert examples_in(None) == 0


@pytest.mark.task
def test_the_first_examples_are_read_once() -> None:
    read = []

    def noted() -> Iterator[Any]:
        read.append(0)
        yield from examples()

    stream = of(noted)
    for count in (1, 8, 3, 100):
        assert stream.first(count)[1].tolist() == list(range(min(count, N)))
    assert len(read) == 2, "for the structure of an element, and for the examples"


def shuffled(seed: int | None, again: bool = True) -> Any:
    return slices().shuffle(N, seed=seed, reshuffle_each_iteration=again)


@pytest.mark.task
def test_streams_that_are_the_same_again() -> None:
    """A shuffle with a seed has another order for each pass, and the same ones in each process."""
    from dtrain.data.sources import Splits
    from dtrain.task.data import data_identity

    cases: list[tuple[Callable[[], Any], bool]] = [
        (slices, True),
        (lambda: shuffled(5), True),
        (lambda: lambda: shuffled(5), True),
        (lambda: functools.partial(lambda dataset: dataset, shuffled(5)), True),
        (lambda: shuffled(5).batch(4).prefetch(2), True),
        (lambda: shuffled(5).repeat(), True),
        (lambda: shuffled(5, again=False), True),
        (lambda: shuffled(None), False),
        # In another process it is another one: its digest says so.
        (lambda: shuffled(None, again=False), True),
        (lambda: examples, True),
        (lambda: lambda: iter(np.random.default_rng().permutation(N)[:, None]), False),
        (lambda: lambda: iter(np.random.default_rng(3).permutation(N)[:, None]), True),
    ]
    for number, (make, steady) in enumerate(cases):

        def made(make: Callable[[], Any] = make) -> Splits:
            return adapted((make(), make()))

        splits = made()
        splits.train.first(1)
        settle_streams(splits, made)
        assert (splits.train.steady, splits.validation.steady) == (steady, steady), number
        notice = data_identity.check_stream(splits, alone=True)
        assert (notice is None) == steady
        if steady:
            assert data_identity.check_stream(splits, alone=False) is None
            continue
        assert notice is not None
        assert "give its shuffle a seed" in notice
        with pytest.raises(UsageError, match="gives other examples each time it is read"):
            data_identity.check_stream(splits, alone=False)


@pytest.mark.task
def test_a_seeded_shuffle_is_resumed_where_it_was() -> None:
    """Whatever was read of it before: another process reads the same order, and goes on in it."""
    from dtrain.data.sources import Splits

    def run(start: int, replicas: int, steps: int, looks: int) -> list[list[int]]:
        def made() -> Splits:
            return adapted(shuffled(5).repeat().batch(3).prefetch(4))

        splits = made()
        for _ in range(looks):
            splits.train.first(8)
            splits.train.repeats()
        settle_streams(splits, made)
        return global_batches(splits.train, steps, replicas, start=start)

    whole = run(0, 1, 15, 0)
    for each in np.concatenate(whole)[: 2 * N].reshape(2, N):
        assert sorted(each) == list(range(N))
    assert not np.array_equal(*np.concatenate(whole)[: 2 * N].reshape(2, N))
    for start, replicas, looks in ((0, 2, 1), (5, 1, 0), (9, 4, 3)):
        assert run(start, replicas, 15 - start, looks) == whole[start:], (start, replicas, looks)


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("kind", ["Mirrored", "CentralStorage"])
def test_replicas_share_one_reading_of_a_shuffle(kind: str) -> None:
    """Two of them would repeat and drop examples. Without a seed, too, each comes once a pass.

    What is trained on and evaluated is of one shuffle, which counts how often it is opened.
    """
    from dtrain.data.sources import Splits
    from dtrain.task.backends.tensorflow import input_pipeline
    from tests.test_strategies import make

    strategy = make(kind)

    def read(seed: int | None, reader: Any, steps: int, **given: Any) -> list[int]:
        def made() -> Splits:
            dataset = shuffled(seed).batch(3)
            return adapted((dataset, dataset))

        splits = made()
        splits.validation.count()
        settle_streams(splits, made)
        inputs = input_pipeline.Inputs(splits.train, splits.validation, 4, 0, **given)
        iterator, found = strategy.distribute(reader, inputs), []
        for _ in range(steps):
            for part in strategy.engine.experimental_local_results(next(iterator)):
                (_, y), count = part if reader is input_pipeline.evaluation else (part, None)
                found += y.numpy()[:count].tolist()
        return found

    for seed in (5, None):
        trained = read(seed, input_pipeline.training, 11)
        evaluated = read(seed, input_pipeline.evaluation, 6)  # two passes of three turns
        for whole in (trained[:N], evaluated[:N], evaluated[N:]):
            assert sorted(whole) == list(range(N))
        assert len(set(trained[N:])) == len(trained[N:])
    dataset = shuffled(5).batch(3)
    passes = [np.concatenate([y for _, y in dataset.as_numpy_iterator()]).tolist() for _ in "12"]
    trained = read(5, input_pipeline.training, 11)
    assert trained == [*passes[0], *passes[1]][:44], "as often as fit opens it"
    assert read(5, input_pipeline.evaluation, 6) == [*passes[0], *passes[1]]
    assert read(5, input_pipeline.evaluation, 3, validations=1) == passes[1], "of a resume"


@pytest.mark.task
def test_not_a_number_is_like_itself() -> None:
    import tensorflow as tf

    values = np.array([[1.0, np.nan], [np.nan, 2.0]], np.float32)
    assert of(tf.data.Dataset.from_tensor_slices((values, ["a", "b"]))).repeats()


@pytest.mark.task
def test_batches_are_changed() -> None:
    stream = of(slices().batch(5))
    changed = stream.changed(lambda example: dataclasses.replace(example, y=example.y * 10))
    twice = changed.changed(lambda example: dataclasses.replace(example, y=example.y + 1))
    assert twice.first(3)[1].numpy().tolist() == [1, 11, 21]
    assert next(iter(twice.endless(4)))[1].numpy().tolist() == [1, 11, 21, 31]
    assert next(iter(stream.endless(2)))[1].numpy().tolist() == [0, 1]


@pytest.mark.task
def test_rows_of_a_length_that_is_not_known() -> None:
    import tensorflow as tf

    from dtrain.task.backends.tensorflow import input_pipeline

    dataset = tf.data.Dataset.range(1, 9).map(lambda n: (tf.range(n), n)).padded_batch(4)
    assert dataset.element_spec[0].shape.as_list() == [None, None]
    inputs = input_pipeline.Inputs(of(dataset), None, 4, 0)
    place = {"replicas": 2, "first_replica": 1, "local_replicas": 1}
    x, n = next(iter(input_pipeline.training(inputs, **place)))
    assert n.numpy().tolist() == [3, 4]
    assert x.numpy().tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]


@pytest.mark.task
def test_what_is_no_stream_of_examples() -> None:
    import tensorflow as tf

    numbers = tf.data.Dataset.range(6)
    with pytest.raises(UsageError, match="its elements have 4 parts"):
        of(numbers.map(lambda i: (i, i, i, i))).dataset()
    rows = tf.ragged.constant([[1], [2, 3]])
    ragged = tf.data.Dataset.from_tensor_slices((rows, [0, 1])).batch(2)
    with pytest.raises(UsageError, match="part 0 of its elements is a RaggedTensorSpec"):
        of(ragged).dataset()
    different = tf.data.Dataset.range(1, 4).map(lambda n: (tf.range(n), n))
    with pytest.raises(DataError, match="the stream: Cannot batch tensors with different shapes"):
        of(different).first(2)
    sparse = tf.data.Dataset.from_tensors(tf.sparse.from_dense([[1, 0]]))
    with pytest.raises(UsageError, match=r"is a SparseTensorSpec.*to_dense"):
        of(sparse).dataset()


class Broken(Exception):
    pass


def failing() -> Iterator[Any]:
    yield from itertools.islice(examples(), 6)
    raise Broken("a page is missing")


def uneven() -> Iterator[Any]:
    yield from itertools.islice(examples(), 6)
    yield np.zeros(2, np.float32), 1


def truncated() -> Iterator[Any]:
    yield from itertools.islice(examples(), 6)
    yield np.zeros(1, np.float32), 2.5


def other() -> Iterator[Any]:
    yield from itertools.islice(examples(), 6)
    yield {"a": np.zeros(1, np.float32)}, 2


@pytest.mark.task
@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (failing, Broken, "a page is missing"),
        (
            uneven,
            UsageError,
            r"element 6 of a generator: has float32 \[2\] as x instead of float32 \[1\]",
        ),
        (truncated, UsageError, "element 6 of a generator: has float32 values, .* has int64"),
        (other, UsageError, "element 6 of a generator"),
    ],
)
def test_a_generator_that_fails_says_why(
    function: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    """And not what TensorFlow makes of it."""
    from dtrain.task.backends.tensorflow import input_pipeline
    from dtrain.task.data import reading

    stream = of(function)
    with pytest.raises(kind, match=text):
        stream.first(10)
    with pytest.raises(kind, match=text):
        stream.count()
    inputs = input_pipeline.Inputs(stream, None, 2, 0)
    iterator = iter(input_pipeline.training(inputs, replicas=1, first_replica=0, local_replicas=1))
    text = f"Broken: {text}" if kind is Broken else text
    kind = DataError if kind is Broken else kind
    with pytest.raises(kind, match=text), reading.raising_read_errors(inputs):
        for _ in range(5):
            next(iterator)
