"""The input pipeline without TensorFlow: the batches of tf.data, read ahead in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from dtrain.data.mixture import Concatenated, Mixture, Subset
from dtrain.data.options import Shuffle
from dtrain.data.order import order_of
from dtrain.data.prepare import padded, weighted
from dtrain.data.ragged import Ragged
from dtrain.data.sources import Arrays, Source, Splits, Windows
from dtrain.data.streams import Stream
from dtrain.errors import DataError
from dtrain.task.data.host_pipeline import HostPipeline
from dtrain.task.data.inputs import Inputs


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


def sources() -> dict[str, Any]:
    import tensorflow as tf

    fixed, buckets = {"x": {"length": 4}}, {"x": {"buckets": [2, 5]}}
    ragged = padded(Splits(Python()), fixed).train
    rows = tf.data.Dataset.range(30).map(lambda n: (tf.cast(n, tf.float32)[None], n))
    return {
        "arrays": numbers(30),
        "windows": Windows(np.arange(100), 5, 3),
        "part": Subset(numbers(40), np.arange(3, 33)),
        "rows": ragged,
        "buckets": padded(Splits(Python()), buckets).train,
        "weights": weighted(Splits(ragged, classes=3), {1: 3.0}, lambda s, n: s[np.arange(n)]),
        "mixture": Mixture([Subset(ragged, np.arange(9)), ragged], [2, 1]),
        "stream": Stream(lambda: rows),
    }


def changed(x: Any, seed: Any) -> Any:
    import keras

    from dtrain.augment import uniform

    drawn = uniform(seed, [2]) * 100
    return keras.tree.map_structure(lambda leaf: leaf + keras.ops.cast(drawn[0], leaf.dtype), x)


@pytest.mark.task
@pytest.mark.parametrize("name", [
    "arrays", "windows", "part", "rows", "buckets", "weights", "mixture", "stream",
])  # fmt: skip
def test_batches_are_those_of_tf_data(name: str) -> None:
    from dtrain.data import nest
    from dtrain.task.backends.tensorflow import input_pipeline

    source = sources()[name]
    order = None if name == "stream" else order_of(source, Shuffle.auto, 8, 3)
    held = None if name == "stream" else Concatenated([source]) if name == "rows" else source
    augment = changed if name in ("part", "buckets", "stream") else None
    inputs = Inputs(source, held, 8, 3, 2, augment, order=order)
    place = {"replicas": 4, "first_replica": 1, "local_replicas": 2}
    pairs = [(input_pipeline.training(inputs, **place), True)]
    if held is not None:
        pairs.append((input_pipeline.evaluation_in_parts(inputs, **place), False))
    for dataset, training in pairs:
        theirs = dataset.as_numpy_iterator()
        with HostPipeline(inputs, 4, slice(1, 3), training) as ours:
            for _, parts in zip(range(9), ours, strict=False):
                for part in parts:
                    for one, other in zip(
                        nest.leaves(part), nest.leaves(next(theirs)), strict=True
                    ):
                        np.testing.assert_array_equal(one, other)
                        assert np.asarray(one).dtype == np.asarray(other).dtype


def test_what_is_read_ahead_is_bounded_and_ends() -> None:
    source = padded(Splits(Python()), {"x": {"length": 4}}).train
    before = threading.active_count()
    with HostPipeline(Inputs(source, None, 5, 0)) as pipeline:
        begun = source.reads
        [(x, y)] = next(pipeline)
        assert (x.shape, y.shape) == ((5, 4), (5,))
    ahead = min(8, os.cpu_count() or 1) + 1
    assert 1 <= source.reads - begun <= 1 + ahead, "a batch, and those that are read ahead"
    assert threading.active_count() == before


def test_what_cannot_be_read_is_raised_where_it_is_asked_for() -> None:
    source = padded(Splits(Python(bad=17)), {"x": {"length": 4}}).train
    inputs = Inputs(source, None, 5, 0, order=order_of(source, Shuffle.none, 8, 0))
    with HostPipeline(inputs) as pipeline:
        assert [len(next(pipeline)[0][1]) for _ in range(3)] == [5, 5, 5]
        with pytest.raises(DataError, match="row 17: is damaged"):
            next(pipeline)


def test_it_does_without_tensorflow() -> None:
    code = (
        "import sys, numpy as np\n"
        "from dtrain.data.sources import Arrays\n"
        "from dtrain.task.data.host_pipeline import HostPipeline\n"
        "from dtrain.task.data.inputs import Inputs\n"
        "with HostPipeline(Inputs(Arrays(np.arange(9), np.arange(9)), None, 4, 0)) as found:\n"
        "    next(found)\n"
        "print('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
