"""What a dataset function may return: every form that users have their data in, and what is not."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import pickle
import random
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from dtrain.data import generators, nest
from dtrain.data.convert import adapted
from dtrain.data.example import joined
from dtrain.data.foreign import Batches, Rows
from dtrain.data.nest import Ragged
from dtrain.data.sources import Arrays, Source, Splits
from dtrain.data.streams import Stream
from dtrain.datasets.made import Columns
from dtrain.errors import UsageError

X = np.arange(20, dtype=np.float64).reshape(10, 2)
Y = np.arange(10)


def refused(value: Any, *texts: str) -> None:
    with pytest.raises(UsageError) as caught:
        adapted(value)
    message = str(caught.value)
    assert message.startswith("dataset")
    assert "\n" not in message
    for text in texts:
        assert text in message, message


class Torch:
    """As a tensor of PyTorch: an array by ``__array__``, with a shape and a type of its own."""

    class Type:
        pass

    def __init__(self, values: Any):
        self._values = np.asarray(values)
        self.dtype, self.shape = Torch.Type(), tuple(self._values.shape)
        self.ndim = len(self.shape)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self._values, dtype)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Torch:
        return Torch(self._values[index])


class Map:
    """As a map-style dataset of PyTorch."""

    def __init__(self, parts: tuple[Any, ...], kind: Any = tuple):
        self.parts, self.kind = parts, kind

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.kind(part[index] for part in self.parts)


class Four(Source):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, indices: Any) -> Any:
        return indices[:, None], indices


def ragged() -> np.ndarray:
    return np.array([np.zeros(1), np.zeros(2)], object)


class Tensor:
    """As a ``tf.RaggedTensor``."""

    dtype, shape = np.float32, (2, None)

    def __init__(self, rows: Any):
        self.values, self._lengths = np.concatenate(rows), list(map(len, rows))

    def row_lengths(self) -> list[int]:
        return self._lengths


def everything(source: Any) -> tuple[Any, ...]:
    return source[np.arange(len(source))]


def test_arrays() -> None:
    found = adapted((X, Y))
    assert isinstance(found.train, Arrays)
    assert found.validation is None
    assert found.count_classes() == 10
    assert found.train.x.dtype == np.float32, "as Keras' fit has it"
    assert found.train.y.dtype == np.int64
    three = adapted((X, Y, np.ones(10))).train
    assert (three.x.shape, three.y.shape, three.weight.shape) == ((10, 2), (10,), (10,))
    for alone in (X, (X,), {"a": X, "b": Y}):
        source = adapted(alone).train
        assert isinstance(source, Arrays)
        assert source.y is None
    assert adapted((X, None)).train.y is None


def test_structures_of_arrays() -> None:
    source = adapted(({"a": X, "b": (X, Y)}, {"p": Y, "q": X})).train
    assert nest.outline(source.x) == "{a: float32 [2], b: (float32 [2], int64)}"
    assert nest.outline(source.y) == "{p: int64, q: float32 [2]}"
    source = adapted(([X, X], Y)).train
    assert isinstance(source.x, tuple)
    source = adapted(((X, X), Y)).train
    assert len(source.x) == 2
    lists = adapted(([[1.5, 2], [3, 4]], [0, 1])).train
    assert lists.x.tolist() == [[1.5, 2], [3, 4]]
    assert lists.y.tolist() == [0, 1]
    texts = adapted((["a", "b"], [0, 1])).train
    assert texts.x.tolist() == ["a", "b"]


def test_training_and_validation() -> None:
    small = (X[:4], Y[:4])
    cases: list[Any] = [
        Splits((X, Y), small), ((X, Y), small), [(X, Y), small], [[X, Y], [*small]],
        {"train": (X, Y), "test": small}, {"training": (X, Y), "val": small},
        {"train": (X, Y), "validation": small, "test": (X, Y)},
    ]  # fmt: skip
    for value in cases:
        found = adapted(value)
        assert (len(found.train), len(found.validation)) == (10, 4)
        assert found.count_classes() == 10
    assert adapted({"train": (X, Y)}).validation is None
    alone = adapted({"train": X, "validation": X[:4]})
    assert (len(alone.train), len(alone.validation), alone.train.y) == (10, 4, None)
    assert adapted((X, X)).validation is None, "a tuple of two arrays is (x, y), as in fit"
    mixed = adapted((Four(), (X, Y)))
    assert isinstance(mixed.train, Four)
    assert isinstance(mixed.validation, Arrays)
    assert isinstance(adapted(((X, Y), Four())).validation, Four)
    assert adapted((Four(), None)).validation is None
    assert adapted(Splits((X, Y), None, classes=3)).classes == 3


def test_keras_datasets_habit() -> None:
    """``(x_train, y_train), (x_test, y_test)``: told from two inputs and two targets by rows."""
    train, test = (X, Y), (X[:7], Y[:7])
    found = adapted((train, test))
    assert (len(found.train), len(found.validation)) == (10, 7)
    weighted = adapted(((X, Y, np.ones(10)), test))
    assert weighted.train.weight is not None
    same = ((X, Y), (X, Y))
    refused([*same], "return dtrain.datasets.Splits(train=(x, y), validation=(x, y))")
    assert len(adapted(Splits(*same)).validation) == 10


def test_classes_are_counted_where_labels_are() -> None:
    assert adapted(((X, Y), (X[:4], Y[:4] + 9))).count_classes() == 13, "those of both splits"
    assert adapted((X, Y.astype(np.float32))).count_classes() == 10
    for y in (X, Y[:, None], {"a": Y}, np.array(list("abcdefghij"))):
        assert adapted((X, y)).count_classes() is None
    assert adapted(((X, Y), Four())).classes is None
    assert adapted(Four()).classes is None


def test_arrays_of_other_libraries() -> None:
    source = adapted((Torch(X), Torch(Y))).train
    assert isinstance(source, Arrays)
    np.testing.assert_array_equal(source.x, X.astype(np.float32))
    found = adapted(((Torch(X), Torch(Y)), (Torch(X[:3]), Torch(Y[:3]))))
    assert (len(found.train), len(found.validation)) == (10, 3)


@pytest.mark.task
def test_tensors() -> None:
    import tensorflow as tf

    source = adapted((tf.constant(X), tf.constant(Y))).train
    assert isinstance(source, Arrays)
    assert source.x.dtype == np.float32
    assert len(adapted(((tf.constant(X), tf.constant(Y)), (X[:3], Y[:3]))).validation) == 3


def test_tables_of_pandas() -> None:
    """As ``fit(df, series)``: columns side by side, and targets of one column."""
    import pandas as pd

    frame = pd.DataFrame({"a": np.arange(6), "b": np.arange(6) / 2, "c": [True, False] * 3})
    labels = pd.Series([0, 1, 2, 0, 1, 2], name="label")
    found = adapted((frame, labels))
    assert found.validation is None
    assert found.count_classes() == 3
    expected = np.stack([np.arange(6), np.arange(6) / 2, [1, 0] * 3], 1).astype(np.float32)
    np.testing.assert_array_equal(found.train.x, expected)
    assert found.train.x.dtype == np.float32
    assert found.train.y.tolist() == labels.tolist()
    split = adapted(((frame, labels), (frame[:2], labels[:2])))
    assert (len(split.train), len(split.validation)) == (6, 2)
    whole = adapted((frame[["a"]], frame[["b", "c"]], frame["b"])).train
    assert (whole.x.dtype, whole.y.shape, whole.weight.shape) == (np.int64, (6, 2), (6,))
    assert adapted(frame).train.x.shape == (6, 3), "and no source with take and a length"
    assert adapted((frame["a"], labels)).train.x.shape == (6, 1), "a column, as in fit"
    by_name = adapted(({"a": frame["a"], "bc": frame[["b", "c"]]}, labels)).train
    assert by_name.x["bc"].shape == (6, 2)
    assert adapted((frame.astype("Float64"), labels)).train.x.dtype == np.float32
    words = frame.assign(city=list("abcdef"))
    refused((words, labels), "its columns city hold no numbers", "{'a': table['city'], ...}")
    refused((frame, pd.Series(["a", 1, 2, None, 1, 2], dtype=object)), "holds an array with a int")
    texts = adapted((pd.Series(list("abcdef")), labels)).train
    assert texts.x.reshape(-1).tolist() == list("abcdef")


@pytest.mark.task
def test_tables_train_as_in_fit() -> None:
    import pandas as pd

    from dtrain.task.data import reading

    frame = pd.DataFrame({"a": np.arange(6.0), "b": np.arange(6)})
    x, y = reading.first(adapted((frame, pd.Series(np.arange(6)))).train, 6)
    np.testing.assert_array_equal(x, frame.to_numpy(np.float32))
    assert y.tolist() == list(range(6))


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (None, ["its function returned None (train)", "hint: return the data"]),
        (3, ["a int", "is no data (train)", "return dtrain.datasets.Splits"]),
        ("data.csv", ["a str", "is no data"]),
        ((), ["is no data"]),
        ((X, Y[:9]), ["numbers of rows (0: 10, 1: 9)", "{'train': x, 'validation': x_val}"]),
        (([X[:n] for n in range(9)], Y), ["(0.0: 0, 0.1: 1, 0.2: 2, 0.3: 3, ...)"]),
        ((X, Y, np.ones(3)), ["different numbers of rows (0: 10, 1: 10, 2: 3)"]),
        (({"a": X, "b": Y[:5]}, Y), ["(0.a: 10, 0.b: 5, 1: 10)"]),
        (((X, Y), (X, Y), Y, Y), ["is no data"]),
        ((X, 3), ["different numbers of rows (0: 10, 1: None)"]),
        ((np.array([None] * 10), Y), ["holds an array with a NoneType"]),
        ((np.array(["2020-01-01"] * 10, "datetime64[D]"), Y), ["an array of type datetime64[D]"]),
        (([[1, 2], [3]], [0, 1]), ["rows of different lengths", "dataset.pad"]),
        ((ragged(), [0, 1]), ["rows of different lengths", "[(x, y), ...]"]),
        ((Tensor(ragged()), [0, 1]), ["rows of different lengths"]),
        ((scipy.sparse.csr_matrix(X), Y), ["train: is sparse", "values.toarray()"]),
        ((Four(), Four(), Four()), ["3 parts", "return train, validation"]),
        (Four, ["is the class Four"]),
        (lambda: (X, Y), ["returns a tuple and no iterator"]),
        (lambda: X, ["returns a ndarray and no iterator"]),
        (lambda: {"a": X}, ["returns a dict and no iterator"]),
        (lambda x: iter([x]), ["is no data"]),
        ({"train": None, "test": (X, Y)}, ["returned None (train)"]),
    ],
)  # fmt: skip
def test_what_is_refused(value: Any, texts: list[str]) -> None:
    refused(value, *texts)


def test_a_validation_that_is_no_data_is_named() -> None:
    refused(Splits((X, Y), 3), "is no data (validation)")


def test_what_has_no_length_is_named() -> None:
    class Indexed:
        def __getitem__(self, index: int) -> Any:
            return index

    refused(Indexed(), "has __getitem__ and no __len__")


def one_by_one() -> Iterator[Any]:
    yield from zip(X, Y, strict=True)


def test_generators() -> None:
    refused(one_by_one(), "can be read once", "the generator function itself")
    refused(iter([1, 2]), "can be read once")
    refused((one_by_one(), one_by_one()), "can be read once")
    functions: list[Any] = [
        one_by_one, lambda: one_by_one(), functools.partial(one_by_one), lambda: [(X[0], 1)],
    ]  # fmt: skip
    for function in functions:
        assert isinstance(adapted(function).train, Stream)
    pair = adapted((one_by_one, one_by_one))
    assert isinstance(pair.validation, Stream)


def test_sources_and_streams_stay_what_they_are() -> None:
    source, stream = Four(), Stream(lambda: None)
    found = adapted(Splits(source, stream))
    assert found.train is source
    assert found.validation is stream


@pytest.mark.parametrize("kind", [tuple, list])
def test_map_style_datasets(kind: Any) -> None:
    dataset = Map((X, Y), kind)
    found = adapted((dataset, Map((X[:3], Y[:3]))))
    assert isinstance(found.train, Rows)
    assert (len(found.train), len(found.validation)) == (10, 3)
    x, y = found.train[np.array([3, 0, 3])]
    np.testing.assert_array_equal(x, X[[3, 0, 3]].astype(np.float32))
    assert x.dtype == np.float32
    assert y.tolist() == [3, 0, 3]
    assert found.train.info.place(1234) == "example 1,234"
    assert not found.train.thread_safe
    again = pickle.loads(pickle.dumps(found.train))
    assert again[np.array([2])][1].tolist() == [2]


def test_examples_of_all_kinds() -> None:
    Point = collections.namedtuple("Point", "x y")
    examples: list[tuple[Any, Any]] = [
        ((1.5, 2), "1.5 2"),
        ([1.5, 2], "1.5 2"),
        (Point(1.5, 2), "1.5 2"),
        ((np.float64(1.5), np.int32(2)), "1.5 2"),
        ((Torch(1.5), Torch(2)), "1.5 2"),
        ((1.5, 2, None), "1.5 2"),
        ((1.5, None), "1.5"),
        (1.5, "1.5"),
        ((1.5, 2, 0.5), "1.5 2 0.5"),
        (("a", True), "a True"),
    ]
    for example, text in examples:
        found = everything(Rows([example] * 3))
        assert " ".join(str(part[0]) for part in found) == text
        assert all(len(part) == 3 for part in found)
    [x, y] = everything(Rows([({"a": [1, 2], "b": (1.0, "t")}, [[1], [2]])] * 2))
    assert x["a"].tolist() == [[1, 2], [1, 2]], "a list is an array, and a tuple several"
    assert x["b"][0].tolist() == [1.0, 1.0]
    assert x["b"][1].tolist() == ["t", "t"]
    assert y.shape == (2, 2, 1)
    x, y, weight = everything(Rows([(1.0, None, 0.5)] * 2))
    assert y is None
    assert weight.tolist() == [0.5, 0.5]


def test_lists_of_examples() -> None:
    pairs = [(X[i], Y[i]) for i in range(10)]
    found = adapted(pairs)
    assert isinstance(found.train, Rows)
    np.testing.assert_array_equal(everything(found.train)[1], Y)
    two = adapted((pairs, pairs[:3]))
    assert (len(two.train), len(two.validation)) == (10, 3)
    assert len(adapted(pairs[:2]).train) == 2, "of which each is no pair of arrays of one length"
    few = adapted([([1.0, 2.0, 3.0], 0), ([1.0, 2.0, 3.0], 1)]).train
    assert everything(few)[0].shape == (2, 3)
    rows = adapted([{"a": 1, "b": 2.5}] * 5).train
    assert everything(rows)[0]["b"].tolist() == [2.5] * 5
    assert len(adapted(Splits(pairs, pairs[:4])).validation) == 4


def test_a_batch_is_asked_for_at_once_where_that_is_known() -> None:
    asked = []

    class Several(Map):
        thread_safe = True

        def __getitems__(self, indices: list[int]) -> list[Any]:
            asked.append(indices)
            return [self[i] for i in indices]

    source = Rows(Several((X, Y)))
    assert source[np.array([5, 1])][1].tolist() == [5, 1]
    assert asked == [[5, 1]]
    assert {type(i) for i in asked[0]} == {int}
    assert source.thread_safe

    class Short(Map):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[indices[0]]]

    with pytest.raises(UsageError, match="returns 1 examples where 2 are asked for"):
        Rows(Short((X, Y)))[np.array([0, 1])]


def test_rows_of_different_lengths() -> None:
    source = Rows([([1, 2, 3], 0), ([4], 1), ([], 0)])
    x, y = everything(source)
    assert isinstance(x, Ragged)
    assert x.dtype == np.int64
    assert x.padded(3).tolist() == [[1, 2, 3], [4, 0, 0], [0, 0, 0]]
    assert y.tolist() == [0, 1, 0]
    floats = joined([np.zeros((2, 3)), np.zeros((0,)), np.ones((1, 3))])
    assert isinstance(floats, Ragged)
    assert floats.padded(2).shape == (3, 2, 3)
    assert floats.dtype == np.float32


@pytest.mark.parametrize(
    ("examples", "text"),
    [
        ([(1, 2), (1, 2, 3)], "example 1: has weight besides, unlike example 0"),
        ([({"a": 1}, 2), ({"b": 1}, 2)], "example 1: has no a, unlike example 0"),
        ([(np.zeros((2, 3)), 0), (np.zeros((3, 2)), 0)], "are shapes of the same input"),
        ([(np.zeros(2), 0), (np.zeros((2, 2)), 0)], r"\[2\] and \[2, 2\]: are shapes"),
        ([(1, 2, 3, 4)] * 2, "an example: has 4 parts"),
        ([(object(), 1)] * 2, "holds a object"),
        ([(None, 1), (2, 1)], "example 0.*|holds"),
    ],
)
def test_examples_that_do_not_fit_together(examples: list[Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        everything(Rows(examples))


def test_a_source_in_the_graph_gathers() -> None:
    class Own(Source):
        in_graph = True

        def __len__(self) -> int:
            return 3

        def __getitem__(self, indices: Any) -> Any:
            return indices

    refused(Own(), "no gather(indices)")


def test_columns_of_mappings() -> None:
    rows = [{"text": f"t{i}", "label": i, "w": i / 2, "n": [i, i]} for i in range(4)]
    cases = [
        (("text", "label"), lambda x, y: (x.tolist()[1], y.tolist()[1]) == ("t1", 1)),
        ((["label", "w"], None), lambda x: (x[0].tolist()[2], x[1].tolist()[2]) == (2, 1.0)),
        (({"a": "text", "b": {"c": "n"}}, {"y": "label"}),
         lambda x, y: x["b"]["c"].tolist()[3] == [3, 3] and y["y"].tolist()[3] == 3),
        (("text", "label", "w"), lambda x, y, w: w.tolist()[3] == 1.5),
        (("text", None, "w"), lambda x, y, w: y is None and w.tolist()[1] == 0.5),
    ]  # fmt: skip
    for roles, holds in cases:
        source = adapted(Columns(rows, *roles)).train
        assert isinstance(source, Rows)
        assert holds(*everything(source)), roles
    with pytest.raises(UsageError, match="dataset=labels: no such column in an example"):
        everything(adapted(Columns(rows, "text", "labels")).train)


class Hugging:
    """As a dataset of Hugging Face: by its module alone."""

    column_names = ("text", "label")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": "a", "label": index}


Hugging.__module__ = "datasets.arrow_dataset"


def test_datasets_of_hugging_face_do_not_say_what_is_the_target() -> None:
    refused(Hugging(), "does not say which columns are inputs", "(text, label)",
            "dataset=huggingface")  # fmt: skip
    refused({"train": Hugging(), "test": Hugging()}, "of Hugging Face")
    assert len(adapted(Columns(Hugging(), "text", "label")).train) == 3


@pytest.mark.parametrize("has_own", [False, True])
def test_batches_that_draw_do_so_by_their_pass_whatever_was_kept(has_own: bool) -> None:
    class Drawn:
        num_batches = 20

        def __init__(self) -> None:
            self.own = np.random.default_rng() if has_own else None

        def __getitem__(self, batch: int) -> Any:
            return (self.own or np.random).normal(size=(4, 2)), np.arange(4)

    def read(source: Batches, begin: int) -> Any:
        rows = np.random.default_rng(begin).integers(0, 80, 8)
        with generators.reading(generators.Draws((3, begin))):
            return source[rows][0].tolist()

    whole = Batches(Drawn())
    expected = [read(whole, begin) for begin in range(0, 240, 8)]
    resumed = Batches(Drawn())
    assert [read(resumed, begin) for begin in range(104, 240, 8)] == expected[13:]
    of_passes = [whole._read(0).parts[0].tolist()]
    with generators.reading(generators.Draws((3, 80))):
        of_passes.append(whole._read(0).parts[0].tolist())
    assert of_passes[0] != of_passes[1]


def test_reads_that_draw_wait_for_no_other_thread_and_draw_by_their_keys() -> None:
    lock, drawn = threading.Lock(), dict[int, list[float]]()

    def read(key: int) -> None:
        numbers = drawn[key] = []
        with generators.reading(generators.Draws((key,))):
            for _ in range(20):
                with lock:  # the user's own
                    numbers += random.random(), np.random.normal()
                    time.sleep(1e-4)
                np.random.seed(len(numbers))

    def readers() -> list[threading.Thread]:
        return [threading.Thread(target=read, args=(key,), daemon=True) for key in range(3)]

    before = random.getstate(), str(np.random.get_state())
    for thread in readers():
        thread.start()
        thread.join()
    alone, threads = dict(drawn), readers()
    with generators.stepping():
        for thread in threads:
            thread.start()
        own = random.random()
        for thread in threads:
            thread.join(20)
    assert drawn == alone and not any(thread.is_alive() for thread in threads)
    random.setstate(before[0])
    assert own == random.random() and str(np.random.get_state()) == before[1]


def test_a_generator_that_a_stream_holds_is_seeded_by_the_pass() -> None:
    own = np.random.default_rng()
    stream: Any = adapted(lambda: ((own.normal(size=2), 1) for _ in range(3))).train

    def read() -> list[Any]:
        return [batch[0].tolist() for batch in itertools.islice(stream.endless(3), 2)]

    first = read()
    assert read() == first and first[0] != first[1]


def test_generators_of_a_source_are_looked_for_without_its_code() -> None:
    class Source:
        def __init__(self) -> None:
            self.examples = [(str(row), row) for row in range(100_000)]
            self.draw, self.own = random.choice, np.random.default_rng()
            self.empty = lambda: absent

        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    if random is None:
        absent = 0
    source = Source()
    assert generators.own_of(source) == generators.own_of(source) == [source.own]
    transformed = functools.partial(zip, list(range(100_000)), [], [source])
    assert generators.own_of(transformed) == [source.own]
    del transformed
    alive = weakref.ref(source)
    del source
    assert alive() is None
    generators.watch()
    assert pickle.loads(pickle.dumps(random.choice))([1]) == 1
    pickle.loads(pickle.dumps(np.random.seed))(1)  # as an initializer of processes


@pytest.mark.task
def test_sets_of_batches_of_keras() -> None:
    import keras

    class Sequence(keras.utils.PyDataset):
        def __init__(self, parts: tuple[Any, ...], size: int = 4):
            super().__init__()
            self.parts, self.size, self.read = parts, size, collections.Counter()

        def __len__(self) -> int:
            return math.ceil(len(self.parts[0]) / self.size)

        def __getitem__(self, index: int) -> Any:
            self.read[index] += 1
            at = slice(index * self.size, (index + 1) * self.size)
            return tuple(None if part is None else part[at] for part in self.parts)

    numbers = np.arange(22)
    dataset = Sequence((numbers[:, None] / 2, numbers))
    found = adapted((dataset, Sequence((numbers[:5, None] / 2, numbers[:5]))))
    source = found.train
    assert isinstance(source, Batches)
    assert (len(source), len(found.validation)) == (22, 5)
    assert source.info.blocks().tolist() == [4, 4, 4, 4, 4, 2], "the last is smaller"
    asked = np.array([21, 3, 3, 0, 9, 20])
    x, y = source[asked]
    assert y.tolist() == asked.tolist()
    assert x.dtype == np.float32
    assert x[:, 0].tolist() == (asked / 2).tolist()
    assert source.info.place(9) == "batch 2, row 1"
    assert max(dataset.read.values()) == 1, "batches of a window are kept"
    big = Batches(Sequence((np.arange(200), np.arange(200))))
    for index in range(50):
        big[np.array([4 * index])]
    assert len(big._kept) == Batches.KEPT
    # Keras' fit on the same object sees the same examples.
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    seen: list[Any] = []

    class Noted(Sequence):
        def __getitem__(self, index: int) -> Any:
            parts = super().__getitem__(index)
            seen.extend(parts[1].tolist())
            return parts

    model.compile(loss="mse")
    model.fit(Noted((numbers[:, None] / 2, numbers)), verbose=0, shuffle=False)
    assert list(dict.fromkeys(seen)) == everything(source)[1].tolist()  # it looks at one before

    none = adapted(Sequence((numbers[:, None], numbers, None))).train
    assert len(everything(none)) == 2
    texts = np.array(["a", "bb", "ccc", "dddd", "eeeee", "ffffffff"])
    [names] = everything(adapted(Sequence((texts,), 2)).train)
    assert names.tolist() == texts.tolist(), "none is cut"


@pytest.mark.task
def test_batches_that_do_not_fit_together() -> None:
    import keras

    class Given(keras.utils.PyDataset):
        def __init__(self, *batches: Any):
            super().__init__()
            self.batches = batches

        @property
        def num_batches(self) -> Any:
            return len(self.batches) if self.batches else None

        def __getitem__(self, index: int) -> Any:
            return self.batches[index]

    def batch(rows: int, width: int = 2, labels: int | None = None) -> Any:
        return np.zeros((rows, width)), np.zeros(rows if labels is None else labels)

    cases = [
        (Given(batch(4), batch(3), batch(4)), "batch 1: has 3 examples, and the first has 4"),
        (Given(batch(4), batch(4, 5)), r"batch 1: has float32 \[5\] as x"),
        (Given(batch(4), (np.zeros((4, 2)),)), "batch 1: has no y, unlike"),
        (Given(batch(4, labels=3)), r"different numbers of rows \(0: 4, 1: 3\)"),
        (Given((np.zeros((4, 2)), 3)), r"different numbers of rows \(0: 4, 1: None\)"),
        (Given(), "has no end"),
    ]
    for dataset, text in cases:
        with pytest.raises(UsageError, match=text):
            everything(adapted(dataset).train)

    for hook in ("on_epoch_begin", "on_epoch_end"):
        kind = type("Shuffles", (Given,), {hook: lambda self: None})
        with pytest.raises(UsageError, match=rf"=Shuffles\.{hook}: would never be called"):
            adapted((np.zeros((4, 2)), kind(batch(4))))
        changes = type("Inherits", (kind,), {})(batch(4))
        with pytest.raises(UsageError, match=r"=Shuffles\."):
            adapted(changes)

    class Empty(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 0

    with pytest.raises(UsageError, match="has no batches"):
        adapted(Empty())


@pytest.mark.task
def test_a_dataset_of_tensorflow() -> None:
    import tensorflow as tf

    slices = tf.data.Dataset.from_tensor_slices
    found = adapted((slices((X, Y)).batch(4), slices((X[:3], Y[:3])).batch(2)))
    assert isinstance(found.train, Stream)
    assert found.train.single
    assert found.train.count() == 10
    assert found.validation.count() == 3
    refused((slices(X), slices(X), slices(X)), "3 parts")
    assert isinstance(adapted({"train": slices((X, Y)), "test": (X, Y)}).train, Stream)
