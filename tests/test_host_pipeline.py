"""The input pipeline without TensorFlow: the batches of tf.data, read ahead in bounded memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.data import record_files
from dtrain.data.foreign import Generated
from dtrain.data.mixture import Concatenated, Mixture, Subset
from dtrain.data.nest import Ragged
from dtrain.data.options import Shuffle
from dtrain.data.order import order_of
from dtrain.data.sources import Arrays, Source, Splits, Windows
from dtrain.data.streams import Stream
from dtrain.data.transforms import ClassWeights, padded, weighted
from dtrain.datasets.images import image_folder
from dtrain.datasets.records import tfrecord
from dtrain.errors import DataError, UsageError
from dtrain.task.data.inputs import HostPipeline, Inputs
from tests.conftest import need
from tests.test_records import write_tfrecord


class Python(Source):
    """Rows of different lengths, and their numbers."""

    thread_safe = True

    def __init__(self, n: int = 30, bad: int | None = None):
        self.n, self.bad, self.reads = n, bad, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, indices: np.ndarray) -> Any:
        self.reads += 1
        if self.bad in indices:
            raise DataError(f"row {self.bad}", "is damaged")
        return Ragged.of([np.full(1 + i % 5, i) for i in indices]), indices % 3


def numbers(n: int) -> Arrays:
    return Arrays({"a": np.arange(n, dtype=np.float32)[:, None], "b": np.arange(n)}, np.arange(n))


def one_by_one() -> Iterator[Any]:
    kept = np.zeros(1, np.float32)
    for n in range(30):
        kept[:] = n
        yield kept, n


def in_batches() -> Iterator[Any]:
    for n in range(0, 31, 7):
        rows = np.arange(n, min(n + 7, 31))
        yield {"a": rows[:, None] / 2, "t": rows.astype(str)}, rows % 3


def pictures(size: tuple[int, int]) -> str:
    from PIL import Image

    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        Path(name).mkdir(exist_ok=True)
        for number in range(15):
            pixels = draw.integers(0, 255, (*size, 3), np.uint8)
            Image.fromarray(pixels).save(f"{name}/{number}.png")
    return "."


def records(rows: int) -> Source:
    """Examples of TensorFlow's format: numbers, lists of different lengths, texts as classes."""
    features: dict[str, Any] = {
        "vec": {"dtype": "float32", "shape": [2]}, "tokens": {"dtype": "int64", "shape": [None]},
        "word": {"dtype": "string"},
    }  # fmt: skip
    made = []
    for row in range(rows):
        example = record_files.message_class()()
        feature = example.features.feature
        feature["vec"].float_list.value[:] = [row / 3, -row]
        feature["tokens"].int64_list.value[:] = range(row % 4)
        feature["word"].bytes_list.value[:] = [b"ab"[row % 2 :][:1]]
        made.append(example.SerializeToString())
    write_tfrecord("a.tfrecord", made)
    found = tfrecord("a.tfrecord", features, "word", {"v": "vec", "t": "tokens"}, classes=2)
    return padded(found, {"t": {"length": 3, "value": 7}}).train


def sources() -> dict[str, Any]:
    fixed, buckets = {"x": {"length": 4}}, {"x": {"buckets": [2, 5]}}
    ragged = padded(Splits(Python()), fixed).train
    return {
        "arrays": numbers(30),
        "windows": Windows(np.arange(100), 5, 3),
        "part": Subset(numbers(40), np.arange(3, 33)),
        "rows": ragged,
        "buckets": padded(Splits(Python()), buckets).train,
        "weights": weighted(Splits(ragged, classes=3), {1: 3.0}, lambda s, _: s[np.arange(9)]),
        "mixture": Mixture([Subset(ragged, np.arange(9)), ragged], [2, 1]),
        "generator": Generated(one_by_one, "dataset"),
        "batches": Generated(in_batches, "dataset").changed(ClassWeights({1: 3.0})),
        "images": image_folder(pictures((9, 7)), [9, 7]).train,
        "resized": image_folder(pictures((9, 7)), [5, 8]).train,
        "kept": image_folder(pictures((9, 7)), [9, 7], cache="memory").train,
        "records": records(38),
    }


def changed(x: Any, seed: Any) -> Any:
    import keras

    from dtrain.augment import uniform

    drawn = uniform(seed, [2]) * 100
    return keras.tree.map_structure(lambda leaf: leaf + keras.ops.cast(drawn[0], leaf.dtype), x)


@pytest.mark.task
@pytest.mark.parametrize("name", [
    "arrays", "windows", "part", "rows", "buckets", "weights", "mixture", "generator", "batches",
    "images", "resized", "kept", "records",
])  # fmt: skip
def test_batches_are_those_of_tf_data(name: str) -> None:
    from dtrain.data import nest
    from dtrain.task.backends.tensorflow import input_pipeline

    source = sources()[name]
    streamed = isinstance(source, Stream)
    order = None if streamed else order_of(source, Shuffle.auto, 8, 3)
    held = Concatenated([source]) if name == "rows" else source
    augment = changed if name in ("part", "buckets", "generator") else None
    if name == "kept":
        source[np.zeros(1, np.int64)]  # decodes all
    inputs = Inputs(source, held, 8, 3, 2, augment, order=order)
    if streamed:
        source.count()
    place = {"replicas": 4, "first_replica": 1, "local_replicas": 2}
    alone = {"replicas": 1, "first_replica": 0, "local_replicas": 1}
    pipelines = [
        (input_pipeline.training(inputs, **place), HostPipeline(inputs, 4, slice(1, 3))),
        (input_pipeline.evaluation(inputs, **alone), HostPipeline(inputs, training=False)),
    ]
    for dataset, ours in pipelines:
        theirs = dataset.as_numpy_iterator()
        for _, parts in zip(range(9), ours, strict=False):
            for part in parts:
                for one, other in zip(nest.leaves(part), nest.leaves(next(theirs)), strict=True):
                    if name == "resized":
                        np.testing.assert_allclose(one, other, atol=1e-6)
                    else:
                        np.testing.assert_array_equal(one, text(one, other))
                        assert np.asarray(one).dtype == np.asarray(other).dtype


def text(one: Any, other: Any) -> Any:
    """Texts of TensorFlow are bytes."""
    is_text = np.asarray(other).dtype == object and isinstance(one.flat[0], str)
    return np.char.decode(other.astype("S")) if is_text else other


def test_what_is_read_ahead_is_bounded_and_ends() -> None:
    source = padded(Splits(Python()), {"x": {"length": 4}}).train
    before = set(threading.enumerate())
    pipeline = HostPipeline(Inputs(source, None, 5, 0))
    begun = source.reads
    [(x, y)] = next(pipeline)
    assert (x.shape, y.shape) == ((5, 4), (5,))
    readers = set(threading.enumerate()) - before
    del pipeline
    assert readers
    while any(reader.is_alive() for reader in readers):
        gc.collect()  # a read that is under way holds the pipeline until it is done
        next(iter(readers)).join(0.01)
    ahead = min(8, os.cpu_count() or 1) + 1
    assert 1 <= source.reads - begun <= 1 + ahead, "a batch, and those that are read ahead"


def test_what_cannot_be_read_is_raised_where_it_is_asked_for() -> None:
    source = padded(Splits(Python(bad=17)), {"x": {"length": 4}}).train
    inputs = Inputs(source, None, 5, 0, order=order_of(source, Shuffle.none, 8, 0))
    pipeline = HostPipeline(inputs)
    assert [len(next(pipeline)[0][1]) for _ in range(3)] == [5, 5, 5]
    with pytest.raises(DataError, match="row 17: is damaged"):
        next(pipeline)


IMPORTS = """
import dtrain.task.preload
import dtrain.after.evaluate, dtrain.after.predict, dtrain.augment, dtrain.debug
import dtrain.inspection.report, dtrain.models, dtrain.replicas
import dtrain.task.entry, dtrain.task.main, dtrain.task.train.train
import functools, sys, keras, numpy as np
from pathlib import Path
from dtrain.data.mixture import Mixture
from dtrain.data.transforms import weighted
from dtrain.data.sources import Splits
from dtrain.datasets.images import image_folder
from dtrain.datasets.records import tfrecord
from dtrain.datasets import Arrays, table
from dtrain.task.backends.runtime import runtime
from dtrain.task.data import data_identity, reading
from dtrain.task.data import dataset
from dtrain.task.data.inputs import HostPipeline
from dtrain.task.data.inputs import Inputs
from dtrain.data import record_files
from dtrain.data.foreign import Generated
from dtrain.errors import UsageError
from tests.test_host_pipeline import records

def read(train, held=None, augment=None):
    splits = runtime().readable(Splits(train, held), "it")
    data_identity.records(splits)
    reading.specs(splits.train, 4)
    inputs = Inputs(splits.train, splits.validation, 4, 1, augment=augment)
    batches = HostPipeline(inputs)
    [batch] = [next(batches) for _ in range(3)][-1]
    if held is not None:
        [(_, count)] = next(HostPipeline(inputs, training=False))
    return batch

arrays = Arrays(np.arange(27.0).reshape(9, 3, 1), np.arange(9) % 2)
read(arrays, arrays)
x, y, weight = read(weighted(Splits(arrays, classes=2), {1: 3.0}, reading.first))
assert (weight == np.where(y == 1, 3, 1)).all()
Path("t.csv").write_text("a,b,y\\n" + "1,x,0\\n2,y,1\\n" * 10)
rows = table("t.csv", target="y").train
assert read(rows)[0].dtype == np.float32
read(Mixture([rows, rows], [1, 2]))
read(Generated(lambda: iter([(np.ones(3), 1)] * 9), "it"))
x, y = read(records(38))
rows = -x["v"][:, 1].astype(int)
assert x["t"].tolist() == [[*range(row % 4), 7, 7, 7][:3] for row in rows]
assert y.tolist() == (rows % 2).tolist()
images = image_folder(".", [9, 7]).train
turned = dataset.Layer(keras.layers.RandomRotation(0.2), "it")
shifted = functools.partial(dtrain.augment.shift_flip, pixels=2, flip=True)
both = dataset.in_turn([shifted, turned])
x, y = read(images, images, both)
assert x.shape == (4, 9, 7, 3) and x.dtype == np.float32
assert dtrain.replicas.mean(x) is x
assert (x == read(images, None, both)[0]).all() and (x != read(images)[0]).any()
try:
    read(images, None, dataset.Layer(keras.layers.RandomCrop(8, 6), "it"))
    raise AssertionError
except UsageError as error:
    problem = {"jax": "cannot be compiled by JAX (IndexError: Slice entries must be",
               "torch": "changes the shape of an example"}[keras.backend.backend()]
    assert problem in str(error), error
print({"tensorflow", "jax", "torch"} & set(sys.modules))
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_task_reads_without_another_framework(backend: str) -> None:
    need(backend)
    pictures((9, 7))
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == f"{{'{backend}'}}\n", done.stderr


@pytest.mark.task
def test_what_only_tensorflow_reads_is_refused() -> None:
    import tensorflow as tf

    from dtrain.data.transforms import InGraph
    from dtrain.task.data.batch_reader import as_arrays

    rows = numbers(9)
    for split, problem in (
        (Stream(lambda: tf.data.Dataset.range(9)), "is a tf.data.Dataset, and this"),
        (Mixture([rows, rows.changed(InGraph(tuple))], [1, 1]), "operations of TensorFlow make"),
    ):
        for splits in (Splits(split), Splits(rows, split)):
            with pytest.raises(UsageError, match=problem) as caught:
                as_arrays(splits, "my.load")
            assert "dataset=my.load" in str(caught.value)
            assert "backend=tensorflow" in str(caught.value)
