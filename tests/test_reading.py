"""From sources to tensors: the lock, errors as sentences, types, and what is left out."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.data.mixture import Concatenated, Mixture, Subset
from dtrain.data.sources import Arrays, Info, Source
from dtrain.data.transforms import InGraph
from dtrain.errors import DataError, UsageError

N = 40


class Python(Source):
    """Examples that are their own numbers."""

    def __init__(self, n: int = N, first: int = 0):
        self.n, self.first = n, first
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, indices: np.ndarray) -> Any:
        self.asked += indices.tolist()
        indices = indices + self.first
        return indices[:, None].astype(np.float32), indices


class Failing(Python):
    """Raises at one example."""

    def __init__(self, error: Exception, at: int = 13):
        super().__init__()
        self.error, self.at = error, at

    def __getitem__(self, indices: np.ndarray) -> Any:
        if self.at in indices:
            raise self.error
        return super().__getitem__(indices)

    @property
    def info(self) -> Info:
        return Info(place=lambda index: f"FILE, row {index}")


def train(source: Any, steps: int = 20, replicas: int = 1, **options: Any) -> list[Any]:
    """Read batches in a graph, as a run does."""
    from dtrain.task.backends.tensorflow import input_pipeline
    from dtrain.task.data import reading

    # The end of an iterator waits for its readers. Python must not end that of an earlier call
    # while one of these reads, and the others wait for it.
    gc.collect()
    inputs = input_pipeline.Inputs(source, None, 4, 0, **options)
    with reading.raising_read_errors(inputs):
        iterator = input_pipeline.training(
            inputs, replicas=replicas, first_replica=0, local_replicas=replicas
        ).as_numpy_iterator()
        return [next(iterator) for _ in range(steps)]
    raise AssertionError


@pytest.mark.task
@pytest.mark.parametrize("mixed", [False, True])
def test_an_error_in_python_is_one_sentence(mixed: bool) -> None:
    damaged = DataError("FILE, row 13, column 'age'", "'x' is no number")
    source: Any = Failing(damaged)
    if mixed:
        source = Mixture([Python(), source], [1, 1])
    with pytest.raises(DataError) as caught:
        train(source)
    assert str(caught.value) == "FILE, row 13, column 'age': 'x' is no number"
    assert caught.value.__suppress_context__


@pytest.mark.task
def test_a_usage_error_is_one_too() -> None:
    with pytest.raises(UsageError, match="dataset=x: y"):
        train(Failing(UsageError("dataset", "y", "x", accepted="z", hint="w")))


@pytest.mark.task
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (LookupError("a page is missing"), "LookupError: a page is missing"),
        (KeyError("label"), "KeyError: 'label'"),
        (StopIteration("none"), "StopIteration: none"),
    ],
)
def test_an_error_of_the_user_keeps_its_type_and_message(error: Exception, text: str) -> None:
    with pytest.raises(DataError, match=text) as caught:
        train(Failing(error))
    assert caught.value.__cause__ is error, "its traceback is in the log"


@pytest.mark.task
def test_an_error_that_is_none_of_the_reading_stays() -> None:
    import tensorflow as tf

    from dtrain.data import failures
    from dtrain.task.backends.tensorflow import input_pipeline
    from dtrain.task.data import reading

    with pytest.raises(DataError), failures.kept():
        raise DataError("FILE", "of before")
    inputs = input_pipeline.Inputs(Python(), None, 4, 0)
    error = tf.errors.InvalidArgumentError(None, None, "of the model")
    other = tf.errors.InvalidArgumentError
    with pytest.raises(other, match="of the model"), reading.raising_read_errors(inputs):
        raise error
    with pytest.raises(ValueError, match="plain"), reading.raising_read_errors(inputs):
        raise ValueError("plain")


def write_images(folder: Path, bad: list[int]) -> list[str]:
    import tensorflow as tf

    paths = []
    for i in range(12):
        path = folder / f"{i}.png"
        image = tf.fill([4, 4, 3], tf.constant(i, tf.uint8))
        path.write_bytes(b"no image" if i in bad else tf.io.encode_png(image).numpy())
        paths.append(str(path))
    return paths


class Encoded(Source):
    """Encoded images of files, decoded in the graph."""

    def __init__(self, paths: list[str]):
        self.paths = paths
        self.transforms = (InGraph(self.decode),)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: np.ndarray) -> Any:
        found = np.array([Path(self.paths[i]).read_bytes() for i in indices], object)
        return found, indices

    def decode(self, parts: Any) -> Any:
        from dtrain.data.images import decoded

        return decoded(parts[0], 4, 4, 3), parts[1]

    @property
    def info(self) -> Info:
        return Info(place=lambda index: self.paths[index])


@pytest.mark.task
def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    from dtrain.task.data import reading

    paths = write_images(tmp_path, [7])
    sources: list[Any] = [
        Encoded(paths), Subset(Encoded(paths), np.arange(12)),
        Mixture([Arrays(np.zeros((5, 4, 4, 3), np.float32), np.arange(5)), Encoded(paths)], [1, 2]),
    ]  # fmt: skip
    for source in sources:
        with pytest.raises(DataError, match=r"7\.png: .*[Ii]mage") as caught:
            train(source)
        assert "\n" not in str(caught.value)
        assert "function_node" not in str(caught.value)
    for source in sources[:2]:
        with pytest.raises(DataError, match=r"7\.png: .*[Ii]mage"):
            reading.first(source, 9)
        assert reading.first(source, 7)[0].shape == (7, 4, 4, 3)


@pytest.mark.task
def test_what_cannot_be_read_is_found(tmp_path: Path) -> None:
    """On_error=skip leaves out exactly the bad ones, the first and the last too."""
    from dtrain.task.data import dataset, reading

    paths = write_images(tmp_path, [0, 4, 5, 11])
    assert [i for i, _ in reading.bad_examples(Encoded(paths), np.arange(12))] == [0, 4, 5, 11]
    found, sentence = dataset._sound(Encoded(paths))
    assert sentence is not None
    assert "4 of 12 examples cannot be read and are left out, the first: " in sentence
    assert f"{paths[0]}: " in sentence
    batches = train(found, 6)
    assert sorted(np.concatenate([y for _, y in batches]).tolist()) == sorted(
        3 * [1, 2, 3, 6, 7, 8, 9, 10]
    )
    source = Encoded(write_images(tmp_path, []))
    assert dataset._sound(source) == (source, None)
    bad = Encoded(write_images(tmp_path, list(range(12))))
    with pytest.raises(DataError, match=r"0\.png"):
        dataset._sound(bad)
    assert dataset._sound(None) == (None, None)

    class Odd(Python):
        def __getitem__(self, indices: np.ndarray) -> Any:
            if any(indices % 7 == 3):
                raise OSError("of the user's own code")
            return super().__getitem__(indices)

    rows = [(i, str(problem)) for i, problem in reading.bad_examples(Odd(600), np.arange(600))]
    assert [i for i, _ in rows] == [i for i in range(600) if i % 7 == 3]
    assert rows[0][1] == "example 3: OSError: of the user's own code"


class Alone(Python):
    """Refuses that two threads are in it, or in another one, at once."""

    inside = threading.Lock()

    def __getitem__(self, indices: np.ndarray) -> Any:
        assert Alone.inside.acquire(blocking=False), "another thread reads"
        for _ in range(50):
            os.sched_yield()
        examples = super().__getitem__(indices)
        Alone.inside.release()
        return examples


@pytest.mark.task
def test_one_thread_reads_however_sources_are_put_together() -> None:
    from dtrain.task.backends.tensorflow import input_pipeline
    from dtrain.task.data.batch_reader import is_alone

    one, other = Alone(), Alone(N, 100)
    sources: list[Any] = [
        Mixture([one, other], [1, 1]), Concatenated([one, other]),
        Subset(one, np.arange(5, 30)), Mixture([Arrays(*one[np.arange(N)]), one], [1, 2]),
    ]  # fmt: skip
    for source in sources:
        assert is_alone(source)
        inputs = input_pipeline.Inputs(source, source, 4, 0)
        place = {"replicas": 2, "first_replica": 0, "local_replicas": 2}
        held = iter(input_pipeline.evaluation(inputs, **place))
        training = iter(input_pipeline.training(inputs, **place))
        for _ in range(15):
            next(held)
            next(training)
    for source in (Arrays(np.zeros(3)), Concatenated([Arrays(np.zeros(3))])):
        assert not is_alone(source)


@pytest.mark.task
def test_members_that_have_no_turn_are_not_read() -> None:
    from dtrain.data.options import Shuffle
    from dtrain.data.order import order_of

    rare = Python(3, 500)
    mixture = Mixture([Python(), rare], [50, 1])
    batches = train(mixture, 60, order=order_of(mixture, Shuffle.auto, 8, 0))
    seen = np.concatenate([y for _, y in batches])
    turns = int((seen >= 500).sum())
    assert turns in (len(seen) // 51, len(seen) // 51 + 1)
    # Once to know the structure; those that were prepared ahead are at most as many batches again.
    assert len(rare.asked) <= 1 + 2 * (turns + 4)


@pytest.mark.task
def test_forms_of_what_a_source_returns() -> None:
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.reading import take
    from dtrain.task.data import reading

    class Given(Python):
        def __init__(self, value: Any):
            super().__init__(4)
            self.value = value

        def __getitem__(self, indices: np.ndarray) -> Any:
            return self.value(indices)

    cases: list[tuple[Any, Any]] = [
        (lambda i: i, ([0, 1],)),
        (lambda i: (i,), ([0, 1],)),
        (lambda i: [i, i * 2], ([0, 1], [0, 2])),
        (lambda i: (i, None, i / 2), ([0, 1], None, [0.0, 0.5])),
        (lambda i: ({"a": i, "b": (i, i + 1)}, i), ({"a": [0, 1], "b": ([0, 1], [1, 2])}, [0, 1])),
        (lambda i: (i.tolist(), [str(n) for n in i]), ([0, 1], [b"0", b"1"])),
        (lambda i: (np.array([b"\xff", "é"], object)[i % 2], i), ([b"\xff", "é".encode()], [0, 1])),
        (lambda i: (np.array(["a", "bcd"])[i % 2], i), ([b"a", b"bcd"], [0, 1])),
        (lambda i: (i > 0, i.astype(np.uint8)), ([False, True], [0, 1])),
    ]
    rows = tf.constant([0, 1], tf.int64)
    for value, expected in cases:
        source = Given(value)
        in_graph = tf.function(lambda rows, source=source: take(source, rows))
        for found in (take(source, rows), in_graph(rows)):
            plain = tf.nest.map_structure(
                lambda leaf: None if leaf is None else leaf.numpy().tolist(), found
            )
            assert plain == expected
    refused: list[tuple[Any, str]] = [
        (lambda i: (i, i, i, i), "4 parts"),
        (lambda i: (np.array([None] * len(i)), i), "holds an array with a NoneType"),
        (lambda i: (i.astype("datetime64[s]"), i), "datetime64"),
        (lambda i: ([[1] * (n + 1) for n in i], i), "has rows of different lengths"),
    ]
    for value, text in refused:
        with pytest.raises(UsageError, match=text):
            reading.first(Given(value), 2)


@pytest.mark.task
def test_later_examples_must_be_as_the_first_is() -> None:
    """A value is never cut to fit the type of the first example."""

    kept = [np.arange(4.0), np.arange(4, dtype=np.int32), np.arange(4, dtype=np.uint8)]
    for value in kept:
        assert any(y.tolist() == [0, 1, 2, 3] for _, y in train(Whole(value)))
    for value, text in (
        (np.arange(4) + 0.5, "the target: has float64 values, and the first example has int64"),
        (np.array(["a", "b", "c", "d"]), "the target: has texts, and the first example has int64"),
        (np.array([1, 2, 3, np.nan]), "the target: has float64 values"),
    ):
        with pytest.raises(UsageError, match=text):
            train(Whole(value))
    with pytest.raises(DataError, match=r"the batch of row \d+: has int64 \[2\] as y instead of"):
        train(Whole(np.zeros((4, 2), np.int64)))


class Whole(Python):
    """Of one batch the targets are given."""

    def __init__(self, value: np.ndarray):
        super().__init__()
        self.value = value

    def __getitem__(self, indices: np.ndarray) -> Any:
        x, y = super().__getitem__(indices)
        return x, self.value if 13 in indices and len(indices) == 4 else y

    @property
    def info(self) -> Info:
        return Info(place=lambda index: f"row {index}")


@pytest.mark.task
def test_members_must_be_alike() -> None:
    from dtrain.task.data import reading

    base = Arrays(np.zeros((5, 3), np.float32), np.arange(5))
    others = [
        (Arrays(np.zeros((5, 4), np.float32), np.arange(5)), r"float32 \[4\] as x instead"),
        (Arrays(np.zeros((5, 3), np.float64), np.arange(5)), r"float64 \[3\] as x"),
        (Arrays({"a": np.zeros((5, 3), np.float32)}, np.arange(5)), "no x"),
        (Arrays(np.zeros((5, 3), np.float32)), "no y, unlike"),
        (Arrays(np.zeros((5, 3), np.float32), np.arange(5), np.ones(5)), "weight besides"),
    ]
    for other, text in others:
        with pytest.raises(UsageError, match=f"dataset.members=member 2: has {text}"):
            reading.first(Mixture([base, other], [1, 1]), 3)
    weighted = Arrays(np.zeros((5, 3)), None, np.arange(5))
    _, y, weight = reading.first(Concatenated([weighted, weighted]), 3, 4)
    assert y is None
    assert weight.tolist() == [4, 0, 1]


@pytest.mark.task
def test_shapes_and_numbers_before_training() -> None:
    import tensorflow as tf

    from dtrain.data.example import label
    from dtrain.data.streams import Stream
    from dtrain.task.data import reading
    from dtrain.task.data.reading import ArraySpec

    source = Arrays({"a": np.zeros((5, 3), np.float32), "b": np.array(list("abcde"))}, np.arange(5))
    assert reading.specs(source, 7) == (
        {"a": ArraySpec((7, 3), "float32"), "b": ArraySpec((7,), "string")},
        ArraySpec((7,), "int64"),
    )  # fmt: skip
    assert reading.specs(source, None)[1].shape == (None,)
    two = Arrays((np.zeros((5, 3)), np.zeros((5, 2))), None, np.ones(5))
    assert reading.specs(two, 1) == (
        (ArraySpec((1, 3), "float64"), ArraySpec((1, 2), "float64")), None,
        ArraySpec((1,), "float64"),
    )  # fmt: skip
    rows = tf.data.Dataset.range(1, 5).map(lambda n: (tf.range(n), n))
    open_rows = Stream(lambda: rows.padded_batch(2))
    assert reading.specs(open_rows, 4)[0] == ArraySpec((4, None), "int64")
    assert reading.available(source, 3) == 3
    assert reading.available(source, 30) == 5
    stream = Stream(lambda: tf.data.Dataset.range(9))
    assert reading.available(stream, 30) == 9
    assert reading.available(stream, 4) == 4
    assert reading.first(stream, 3, 2)[0].tolist() == [2, 3, 4]
    assert reading.first(source, 2, 3)[1].tolist() == [3, 4]
    assert label("0.a.b") == "the input a.b"
    assert label("1") == "the target"
