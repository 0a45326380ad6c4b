from __future__ import annotations

import itertools
from typing import Any

import pytest

from dtrain.data.sources import Source


class Table(Source):
    """A person's source, in NumPy alone: three parts, kinds that NumPy chooses by itself."""

    def __init__(self, n: int):
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, indices: Any) -> tuple[Any, ...]:
        import numpy as np

        assert isinstance(indices, np.ndarray)
        assert indices.size == 0 or indices.max() < self.n, "no such example"
        return [[i, i / 2] for i in indices.tolist()], indices.astype(np.int32), 1.0 / (1 + indices)


class TooLong(Table):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return self.n + 10


def numbers(n: int) -> Any:
    """A source whose examples are their own numbers."""
    import numpy as np

    from dtrain.data.sources import Arrays

    return Arrays(np.arange(n, dtype=np.float32).reshape(n, 1), np.arange(n))


def global_batches(
    source: Any, steps: int, replicas: int = 1, pipelines: int = 1, start: int = 0, **options: Any
) -> list[Any]:
    """Put the parts of all replicas together: one tuple of arrays a step."""
    import numpy as np

    from dtrain.task.backends.tensorflow import input_pipeline

    local = replicas // pipelines
    inputs = input_pipeline.Inputs(
        source, None, **{"global_batch": 12, "seed": 3, "start_step": start, **options}
    )
    iterators = [
        input_pipeline.training(
            inputs, replicas=replicas, first_replica=i * local, local_replicas=local
        ).as_numpy_iterator()
        for i in range(pipelines)
    ]
    batches = []
    for _ in range(steps):
        parts = [next(each) for each in iterators for _ in range(local)]
        assert len({len(part[0]) for part in parts}) == 1
        batches.append(tuple(np.concatenate(column) for column in zip(*parts, strict=True)))
    return batches


def noisy(x: Any, seed: Any) -> Any:
    import tensorflow as tf

    return x + tf.random.stateless_uniform(tf.shape(x), seed)


@pytest.mark.task
def test_the_order_is_a_permutation_for_every_pass_and_seed() -> None:
    import numpy as np

    from dtrain.data.order import Shuffled

    n, passes = 37, 6
    orders = set()
    for seed in (0, 1, 2**31 + 5, 2**32 - 1):
        order = Shuffled(n, seed)(np.arange(passes * n))
        for each in order.reshape(passes, n):
            assert sorted(each) == list(range(n))
            orders.add(tuple(each))
    assert len(orders) == 4 * passes
    # One example, or two, can be shuffled as well.
    assert not np.any(Shuffled(1, 0)(np.arange(5)))
    pairs = Shuffled(2, 0)(np.arange(40)).reshape(20, 2)
    assert {tuple(pair) for pair in pairs} == {(0, 1), (1, 0)}


@pytest.mark.task
def test_no_pass_has_the_order_of_another() -> None:
    """The op uses 8 bits of each word of a key: pass 256 had the order of pass 0."""
    import numpy as np
    import tensorflow as tf

    from dtrain.data.order import Shuffled

    n, orders = 100, {}
    for seed in (0, 1, 255, 256, 257, 2**31 - 1):
        passes = 600 if seed in (0, 257) else 260  # each takes more than a millisecond
        of = Shuffled(n, seed)(np.arange(passes * n))
        orders[seed] = [row.tobytes() for row in of.reshape(passes, n)]
        assert len(set(orders[seed])) == passes, seed
    for one, other in itertools.combinations(orders.values(), 2):
        assert not any(a == b for a, b in zip(one, other, strict=False))
    first = [Shuffled(n, seed)(np.arange(n)) for seed in range(600)]
    assert len({row.tobytes() for row in first}) > 590
    old = tf.raw_ops.RandomIndexShuffle(  # of the first 256 passes they are what they were
        index=tf.range(n, dtype=tf.int64),
        seed=tf.constant([[7, 200, 200]] * n, tf.int64),
        max_index=tf.fill([n], tf.constant(n - 1, tf.int64)),
        rounds=16,
    )
    at = tf.range(200 * n, 201 * n, dtype=tf.int64)
    np.testing.assert_array_equal(Shuffled(n, 7)(at.numpy()), old)


@pytest.mark.task
def test_orders_have_nothing_to_do_with_each_other() -> None:
    import numpy as np

    from dtrain.data.order import Shuffled

    for n in (37, 200, 5000):
        # Small numbers, as people choose and as a run begins with: 4 passes of each seed.
        orders = [Shuffled(n, seed)(np.arange(4 * n)).reshape(4, n) for seed in range(6)]
        every = np.concatenate([[np.arange(n)], *orders])
        correlations = np.corrcoef(every) - np.eye(len(every))
        # Of random orders: normal, with a standard deviation of 1/sqrt(n).
        assert np.abs(correlations).max() < 6 / np.sqrt(n), n


@pytest.mark.task
def test_global_batches_do_not_depend_on_replicas_or_start() -> None:
    import numpy as np

    source = numbers(50)
    expected = [x[:, 0] for x, _ in global_batches(source, 20)]
    for replicas, pipelines in ((2, 1), (2, 2), (4, 1), (4, 2), (4, 4)):
        for start in (0, 1, 13):
            found = global_batches(source, 7, replicas, pipelines, start)
            for batch, (x, y) in zip(expected[start:], found, strict=False):
                np.testing.assert_array_equal(x[:, 0], batch)
                np.testing.assert_array_equal(y, batch)
    # 50 examples and batches of 12: a pass ends inside a batch, and nothing is dropped there.
    for each in np.concatenate(expected)[:200].reshape(4, 50):
        assert sorted(each) == list(range(50))
    other = [x[:, 0] for x, _ in global_batches(source, 20, seed=4)]
    assert not np.array_equal(other, expected)


@pytest.mark.task
def test_fewer_examples_than_a_batch() -> None:
    import numpy as np

    stream = np.concatenate([y for _, y in global_batches(numbers(5), 5, replicas=2)])
    for each in stream.reshape(12, 5):
        assert sorted(each) == list(range(5))


@pytest.mark.task
def test_evaluation_has_every_example_once() -> None:
    import numpy as np

    from dtrain.task.backends.tensorflow import input_pipeline

    cases = [  # examples, global batch, replicas, input pipelines
        (10, 4, 1, 1), (10, 4, 2, 1), (10, 4, 4, 2), (9, 8, 4, 1), (3, 8, 2, 2), (8, 8, 4, 1),
        (1, 8, 8, 1), (17, 8, 2, 1),
    ]  # fmt: skip
    for n, batch, replicas, pipelines in cases:
        source, local = numbers(n), replicas // pipelines
        inputs = input_pipeline.Inputs(source, source, global_batch=batch, seed=0)
        batches = inputs.evaluation_steps
        assert batches == int(np.ceil(n / batch))
        steps = int(np.ceil(batches / replicas))
        iterators = [
            input_pipeline.evaluation(
                inputs, replicas=replicas, first_replica=i * local, local_replicas=local
            ).as_numpy_iterator()
            for i in range(pipelines)
        ]
        rows: list[int] = []
        for _ in range(2 * steps):  # it begins again by itself
            for iterator in iterators:
                for _ in range(local):
                    (x, y), count = next(iterator)
                    assert len(x) == len(y) == batch, "a replica has a whole one"
                    np.testing.assert_array_equal(x[:, 0], y)
                    rows += y[:count].tolist()
        assert rows == 2 * list(range(n)), (n, batch, replicas, pipelines)


@pytest.mark.task
def test_no_batch_holds_examples_of_two_stretches() -> None:
    import dataclasses

    import numpy as np

    from dtrain.task.backends.tensorflow import input_pipeline
    from dtrain.task.data.inputs import Inputs

    source, sizes = numbers(30), (20, 1, 4, 5)
    whole = Inputs(source, source, global_batch=4, seed=0)
    inputs = dataclasses.replace(whole, stretches=sizes)
    assert (inputs.evaluation_steps, whole.evaluation_steps) == (5 + 1 + 1 + 2, 8)
    assert inputs.evaluation_batches(1).tolist() == [
        [0, 4], [4, 4], [8, 4], [12, 4], [16, 4], [20, 1], [21, 4], [25, 4], [29, 1]
    ]  # fmt: skip
    np.testing.assert_array_equal(  # what it is without stretches
        whole.evaluation_batches(3)[:8, 0], np.arange(8) * 4
    )
    for replicas in (1, 3, 4):
        iterator = input_pipeline.evaluation(
            inputs, replicas=replicas, first_replica=0, local_replicas=replicas
        ).as_numpy_iterator()
        for _ in range(2):  # it begins again by itself
            first = 0
            for size in sizes:
                rows: list[int] = []
                for _ in range(-(-size // (4 * replicas)) * replicas):  # whole turns of them
                    (_, y), count = next(iterator)
                    assert len(y) == 4
                    rows += y[:count].tolist()
                assert rows == list(range(first, first + size))
                first += size


@pytest.mark.task
def test_shapes_are_known_in_the_graph() -> None:
    import tensorflow as tf

    from dtrain.task.backends.tensorflow import input_pipeline

    def inputs(source: Any, augment: Any = None) -> Any:
        return input_pipeline.Inputs(source, source, global_batch=12, seed=0, augment=augment)

    place = {"replicas": 3, "first_replica": 0, "local_replicas": 3}
    train = input_pipeline.training(inputs(numbers(50), noisy), **place)
    assert train.element_spec == (
        tf.TensorSpec([4, 1], tf.float32), tf.TensorSpec([4], tf.int64)
    )  # fmt: skip
    own = input_pipeline.training(inputs(Table(50)), **place)
    assert own.element_spec == (
        tf.TensorSpec([4, 2], tf.float64), tf.TensorSpec([4], tf.int32),
        tf.TensorSpec([4], tf.float64),
    )  # fmt: skip
    held = input_pipeline.evaluation(inputs(numbers(50)), **place)
    assert held.element_spec[1] == tf.TensorSpec([], tf.int64)
    for dataset in (train, own, held):
        policy = dataset.options().experimental_distribute.auto_shard_policy
        assert policy == tf.data.experimental.AutoShardPolicy.OFF


@pytest.mark.task
def test_augmentation_depends_on_seed_and_place_alone() -> None:
    import numpy as np

    source = numbers(18)
    plain = np.concatenate([y for _, y in global_batches(source, 6)])
    drawn = np.stack([x[:, 0] for x, _ in global_batches(source, 6, augment=noisy)])
    noise = drawn.ravel() - plain
    assert np.all((noise >= 0) & (noise < 1))
    # The same example in another pass is drawn anew, and so is every example of a pass.
    assert len(np.unique(noise.round(4))) > 65
    for replicas, start in ((2, 0), (4, 0), (1, 3), (4, 3)):
        found = global_batches(source, 6 - start, replicas, start=start, augment=noisy)
        np.testing.assert_array_equal(np.stack([x[:, 0] for x, _ in found]), drawn[start:])
        np.testing.assert_array_equal(np.concatenate([y for _, y in found]), plain[12 * start :])
    other = np.stack([x[:, 0] for x, _ in global_batches(source, 6, augment=noisy, seed=4)])
    assert not np.any(np.isin(other.ravel() - np.floor(other.ravel()), noise))


@pytest.mark.task
def test_augmentation_with_a_large_seed() -> None:
    # NumPy and Keras take seeds up to 2**32 - 1.
    small, large = (
        global_batches(numbers(18), 2, augment=noisy, seed=seed) for seed in (3, 2**32 - 1)
    )
    assert (small[0][0] - small[0][1][:, None] != large[0][0] - large[0][1][:, None]).all()


@pytest.mark.task
def test_a_source_in_numpy() -> None:
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow import input_pipeline

    parts = global_batches(Table(50), 20, replicas=2)
    expected = np.concatenate([y for _, y in global_batches(numbers(50), 20)])
    x, y, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(x, np.stack([expected, expected / 2], 1))
    np.testing.assert_allclose(weight, 1 / (1 + expected))

    inputs = input_pipeline.Inputs(Table(3), Table(3), global_batch=8, seed=0)
    (held, count) = next(iter(input_pipeline.evaluation(
        inputs, replicas=1, first_replica=0, local_replicas=1
    )))  # fmt: skip
    assert count == 3
    assert held[1][:3].numpy().tolist() == [0, 1, 2]

    with pytest.raises(tf.errors.OpError, match="no such example"):
        global_batches(TooLong(50), 10)


class Handle(Source):
    """Two sources over one open file: its position is where the last to read has left it."""

    def __init__(self, n: int, thread_safe: bool, together: int = 0):
        import threading

        self.n = n
        self.thread_safe = thread_safe
        self.inside, self.most = 0, 0
        self.lock = threading.Lock()
        self.barrier = threading.Barrier(together) if together else None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, indices: Any) -> tuple[Any, ...]:
        import os

        from dtrain.task.data import batch_reader

        assert batch_reader.reading_lock.locked() != self.thread_safe
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        if len(indices) > 1 and self.barrier is not None:
            self.barrier.wait(30)  # two must be inside, or it breaks
        for _ in range(200):
            os.sched_yield()  # gives the others a chance to come in
        with self.lock:
            self.inside -= 1
        return indices.reshape(-1, 1).astype("float32"), indices


@pytest.mark.task
def test_a_source_in_python_is_read_by_one_thread() -> None:
    """Whatever is evaluated on meanwhile, from the same file."""
    import numpy as np

    from dtrain.task.backends.tensorflow import input_pipeline

    expected = [y for _, y in global_batches(numbers(50), 30, augment=noisy)]
    x = [x for x, _ in global_batches(numbers(50), 30, augment=noisy)]
    handle = Handle(50, thread_safe=False)
    held = iter(input_pipeline.evaluation(
        input_pipeline.Inputs(handle, handle, global_batch=4, seed=0),
        replicas=1, first_replica=0, local_replicas=1,
    ))  # fmt: skip
    found = []
    for data in global_batches(handle, 30, augment=noisy):
        found.append(data)
        next(held)
    np.testing.assert_array_equal([y for _, y in found], expected)
    np.testing.assert_allclose([x for x, _ in found], x, rtol=1e-6)
    assert handle.most == 1


@pytest.mark.task
def test_a_source_that_says_so_is_read_by_several_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    import tensorflow as tf

    from dtrain.task.backends.tensorflow.reading import take
    from dtrain.task.backends.tensorflow.tpu import Stretch

    handle = Handle(50, thread_safe=True, together=2)
    for source in (handle, Stretch(handle, 0, 50)):
        with ThreadPoolExecutor(2) as threads:
            reads = [threads.submit(take, source, tf.constant([i, 7], tf.int64)) for i in range(2)]
            assert [read.result()[1].numpy().tolist() for read in reads] == [[0, 7], [1, 7]]
    assert handle.most == 2
    [y] = [y for _, y in global_batches(Handle(50, thread_safe=True), 1)]
    assert y.tolist() == global_batches(numbers(50), 1)[0][1].tolist()


@pytest.mark.task
def test_a_part_is_a_pure_function_of_step_and_place() -> None:
    """A worker gets the rows of a step and reads its part, from a source bound elsewhere."""
    import numpy as np
    import tensorflow as tf

    from dtrain.data.sources import Arrays
    from dtrain.task.backends.tensorflow import input_pipeline

    source, replicas = numbers(50), 3
    inputs = input_pipeline.Inputs(
        source, source, global_batch=12, seed=3, start_step=5, augment=noisy
    )
    elsewhere = Arrays(np.zeros_like(source.x), np.zeros_like(source.y))
    elsewhere.bind(source.tensors())

    @tf.function(autograph=False)
    def part(begin: Any, indices: Any) -> Any:
        return input_pipeline.training_part(inputs, elsewhere, begin, indices)

    expected = global_batches(source, 9, augment=noisy)
    for step in (8, 0, 3, 8):  # in any order, and as often as is wanted
        rows = inputs.rows(np.array([step]), replicas, slice(0, replicas))
        parts = [part(*map(tf.constant, row)) for row in zip(*rows, strict=True)]
        assert {len(y) for _, y in parts} == {4}
        for column in (0, 1):
            found = np.concatenate([each[column] for each in parts])
            np.testing.assert_array_equal(found, expected[step][column])

    counts, rows = [], []
    for begin, number in inputs.parts(replicas, slice(0, replicas)):
        (_, y), count = input_pipeline.evaluation_part(source, 4, begin, number)
        counts.append(int(count))
        rows += y[: int(count)].numpy().tolist()
    assert rows == list(range(50))
    assert counts == [4] * 12 + [2, 0, 0]
