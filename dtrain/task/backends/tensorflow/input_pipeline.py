"""The input pipeline: which examples a step has is a pure function of (seed, pass, position).

Training reads an endless sequence of examples, pass after pass over the source, in an order
(:mod:`dtrain.data.order`). Global batch ``s`` is positions ``s*B .. s*B+B-1`` of that sequence;
replica ``r`` of ``R`` gets the ``r``-th of its ``R`` equal parts. Nothing else describes the data:
a run resumes from a step number, on any number of replicas, and sees every example of every pass
exactly once. A stream has its own order, and the same positions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.data import generators, nest
from dtrain.data.foreign import Generated
from dtrain.data.sources import Arrays, Source, Windows
from dtrain.data.streams import Stream
from dtrain.data.transforms import by_batch
from dtrain.task.aliases import Batch, Function, Nest
from dtrain.task.backends.tensorflow.reading import take, tensor_specs
from dtrain.task.data import reading
from dtrain.task.data.batch_reader import threads
from dtrain.task.data.inputs import Augment, Inputs


def training_part(inputs: Inputs, source: Source, begin: tf.Tensor, indices: tf.Tensor) -> Batch:
    """Return what a replica trains on in a step.

    Args:
        inputs: how it is changed.
        source: ``inputs.train``, or the same bound elsewhere.
        begin, indices: of :meth:`Inputs.rows`.

    Returns:
        ``(x, y)`` and the like, nests of ``[b, ...]``.
    """
    return _augmented(inputs, begin, take(source, indices, tf.stack([inputs.seed, begin])))


def _augmented(inputs: Inputs, begin: tf.Tensor, data: Batch) -> Batch:
    if inputs.augment is None:
        return data
    size = nest.leaves(data[0])[0].shape[0]
    positions = begin + tf.range(size, dtype=tf.int64)
    # 31 bits of the position are enough to keep 2^31 draws of one experiment apart.
    seed = tf.constant(inputs.seed, tf.int32)
    keys = tf.stack([tf.fill([size], seed), tf.cast(positions % 2**31, tf.int32)], 1)
    with generators.reading(generators.Draws((inputs.seed,))):  # constants of the graph
        return changed(inputs.augment, data[0], keys), *data[1:]


def changed(augment: Augment, x: Nest, keys: tf.Tensor) -> Nest:
    """Return inputs, each changed by its key.

    Args:
        augment: a function of one example, and its seed.
        x: a nest of tensors or arrays ``[b, ...]``.
        keys: int32 ``[b, 2]``.

    Raises:
        ValueError: an example has another structure or shape afterwards.
    """

    def one(pair: tuple[Nest, tf.Tensor]) -> Nest:
        made = augment(pair[0], seed=pair[1])
        tf.nest.assert_same_structure(pair[0], made)
        return made

    x = nest.mapped(tf.convert_to_tensor, x)
    if any(leaf.dtype == tf.string for leaf in nest.leaves(x)):  # which cannot be vectorized
        types = nest.mapped(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), x)
        made = tf.map_fn(one, (x, keys), fn_output_signature=types)
    else:
        made = tf.vectorized_map(
            one,
            (x, keys),
            warn=False,  # random draws have no vectorized form and run one after the other
        )
    return nest.mapped(lambda after, before: tf.ensure_shape(after, before.shape), made, x)


def evaluation_part(
    source: Source, size: int, begin: tf.Tensor, count: tf.Tensor
) -> tuple[Batch, tf.Tensor]:
    """Return neighbouring examples of a validation.

    Args:
        source: ``inputs.validation``, or the same bound elsewhere.
        size: how many rows are returned.
        begin: the first.
        count: how many there are.

    Returns:
        ``(data, count)``: the first ``count`` of the rows of ``data`` are real, the others repeat
        the last example and must not be looked at.
    """
    last = tf.maximum(begin + count - 1, 0)
    return take(source, tf.minimum(begin + tf.range(size, dtype=tf.int64), last)), count


def training(
    inputs: Inputs, *, replicas: int, first_replica: int, local_replicas: int
) -> tf.data.Dataset:
    """Return the training batches of some of the replicas.

    Args:
        inputs: what to read.
        replicas: how many share a global batch.
        first_replica: the first of those that this input pipeline feeds.
        local_replicas: how many it feeds.

    Returns:
        An endless dataset of :func:`training_part`: for each step, one element for each local
        replica in turn.
    """
    source, size = inputs.train, inputs.global_batch
    assert source is not None
    mine, whole = slice(first_replica, first_replica + local_replicas), slice(0, 1)

    def augment(begin: tf.Tensor, data: Batch) -> Batch:
        return _augmented(inputs, begin, data)

    if isinstance(source, Stream):
        begins = tf.data.Dataset.range(inputs.start_step * size, tf.int64.max, size)
        batches = _batches(source, size, endless=True).skip(inputs.start_step)
        loaded = tf.data.Dataset.zip(begins, batches)
        return _endless(_mapped(_divided(loaded, size, replicas, mine), augment))

    def load(begin: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, Batch]:
        return begin, take(source, indices, tf.stack([inputs.seed, begin]))

    at_once = threads(source, tf.data.AUTOTUNE)
    if by_batch(source):
        loaded = _mapped(_looked_up(inputs, 1, whole), load, at_once)
        return _endless(_mapped(_divided(loaded, size, replicas, mine), augment), at_once)
    elements = _looked_up(inputs, replicas, mine)
    if at_once == tf.data.AUTOTUNE:
        return _endless(_mapped(elements, lambda *element: augment(*load(*element))))
    # What comes after the reading has all threads.
    return _endless(_mapped(_mapped(elements, load, at_once), augment), at_once)


def _looked_up(inputs: Inputs, replicas: int, chosen: slice) -> tf.data.Dataset:
    """Return :meth:`Inputs.rows` of all steps, some of which NumPy looks up at once."""
    many, size = inputs.steps_ahead, inputs.global_batch // replicas

    def rows(step: np.int64) -> tuple[np.ndarray, np.ndarray]:
        return inputs.rows(np.arange(step, step + many), replicas, chosen)

    def load(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        begins, indices = tf.numpy_function(rows, [step], [tf.int64, tf.int64])
        return tf.ensure_shape(begins, [None]), tf.ensure_shape(indices, [None, size])

    steps = tf.data.Dataset.range(inputs.start_step, tf.int64.max, many)
    return _mapped(steps, load, 1).prefetch(1).unbatch()


def _divided(loaded: tf.data.Dataset, size: int, replicas: int, chosen: slice) -> tf.data.Dataset:
    """Return the parts of some replicas of whole batches, each with its first position.

    Args:
        loaded: (first position, data).
        size: of a batch.
        replicas: that share it.
        chosen: those whose parts are returned, in turn.
    """
    if replicas == 1:
        return loaded
    part, local = size // replicas, chosen.stop - chosen.start

    def cut(begin: tf.Tensor, data: Batch) -> tuple[tf.Tensor, Batch]:
        def mine(leaf: tf.Tensor) -> tf.Tensor:
            own = leaf[chosen.start * part : chosen.stop * part]
            parts = tf.reshape(own, tf.concat([[local, part], tf.shape(leaf)[1:]], 0))
            return tf.ensure_shape(parts, [local, part, *leaf.shape[1:]])

        begins = begin + tf.range(chosen.start, chosen.stop, dtype=tf.int64) * part
        return begins, nest.mapped(mine, data)

    return _mapped(loaded, cut).unbatch()


def evaluation(
    inputs: Inputs, *, replicas: int, first_replica: int, local_replicas: int
) -> tf.data.Dataset:
    """Return the evaluation batches of some of the replicas: each example once a pass, in order.

    A batch goes whole to one replica. What a step computes of a batch (a mean over the tokens that
    are not masked, say) is then what one device computes, on any number of replicas.

    Returns:
        An endless dataset of :func:`evaluation_part`: for each step, one batch for each local
        replica in turn.
    """
    source = inputs.validation
    assert source is not None
    batches = inputs.evaluation_batches(replicas)
    turns, last = len(batches) // replicas, first_replica + local_replicas
    if isinstance(source, Stream):
        held = _held_stream(inputs, source, turns * replicas)
        mine = held.filter(
            lambda number, *_: tf.logical_and(
                number % replicas >= first_replica, number % replicas < last
            )
        )
        passes = mine.map(lambda _, data, count: (data, count)).repeat()
        if source.reshuffles:
            passes = passes.skip(inputs.validations * turns * local_replicas)
        return _endless(passes)
    own = batches.reshape(turns, replicas, 2)[:, first_replica:last].reshape(-1, 2)
    return _held(source, inputs.evaluation_batch, own)


def _held(source: Source, size: int, batches: np.ndarray) -> tf.data.Dataset:
    """Return :func:`evaluation_part` of batches, pass after pass."""

    def load(batch: tf.Tensor) -> tuple[Batch, tf.Tensor]:
        return evaluation_part(source, size, batch[0], batch[1])

    at_once = threads(source, tf.data.AUTOTUNE)
    elements = tf.data.Dataset.from_tensor_slices(batches).repeat()
    return _endless(_mapped(elements, load, at_once), at_once)


def _batches(stream: Stream, size: int, endless: bool) -> tf.data.Dataset:
    """Return the batches of a stream, pass after pass or of one with what remains at its end."""

    def batches() -> Iterator[Batch]:
        return stream.endless(size) if endless else stream.batches(size, remainder=True)

    if not isinstance(stream, Generated):
        return batches()
    specs = tensor_specs(reading.specs(stream, size if endless else None))
    return tf.data.Dataset.from_generator(batches, output_signature=specs)


def _held_stream(inputs: Inputs, stream: Stream, batches: int) -> tf.data.Dataset:
    """Return (number, data, count) of so many batches of one pass; those that are none count 0."""
    size, examples = inputs.evaluation_batch, inputs.evaluation_examples

    def whole(data: Batch) -> tuple[Batch, tf.Tensor]:
        """Repeat the last example of a smaller batch."""
        rows = tf.cast(tf.shape(nest.leaves(data)[0])[0], tf.int64)
        at = tf.minimum(tf.range(size, dtype=tf.int64), rows - 1)
        return nest.mapped(lambda leaf: tf.gather(leaf, at), data), rows

    real = _batches(stream, size, endless=False)
    real = real.take(-(-examples // size)).map(lambda *data: whole(data))
    # ORDER: not of another reading: a shuffle counts how often it is read.
    none = tf.data.Dataset.from_tensors((whole(stream.first(1))[0], tf.constant(0, tf.int64)))
    numbers = tf.data.Dataset.range(batches)
    padded = real.concatenate(none.repeat())
    return tf.data.Dataset.zip(numbers, padded).map(
        lambda number, element: (
            number,
            element[0],
            tf.clip_by_value(examples - number * size, 0, element[1]),
        )
    )


def evaluation_in_parts(
    inputs: Inputs, *, replicas: int, first_replica: int, local_replicas: int
) -> tf.data.Dataset:
    """Return as :func:`evaluation`, but of each batch a part to every replica."""
    source = inputs.validation
    assert source is not None and not isinstance(source, Stream)
    chosen, size = slice(first_replica, first_replica + local_replicas), inputs.evaluation_batch
    parts = inputs.parts(replicas, chosen)
    return _held(source, size // replicas, parts)


def _mapped(
    elements: tf.data.Dataset, load: Function, at_once: int = tf.data.AUTOTUNE
) -> tf.data.Dataset:
    # AutoGraph would read source files anew, which may have changed since they were imported.
    plain = tf.autograph.experimental.do_not_convert(load)
    return elements.map(plain, num_parallel_calls=at_once, deterministic=True)


def _endless(dataset: tf.data.Dataset, waiting: int = 0) -> tf.data.Dataset:
    # Unless it is known to be endless, the tasks of a cluster ask each other at every step whether
    # all of them still have data.
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    options = tf.data.Options()
    # Sharding is done above, by position: tf.data must not shard once more.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    if waiting > 1:
        # Threads that wait for readers would be lacking to the steps that train meanwhile.
        options.threading.private_threadpool_size = waiting + (os.cpu_count() or 1)
    return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)


#: Bytes of a batch whose steps are not asked how long they wait for it: to look at a clock before
#: and after would take them 1 to 2 % longer (experiments/overheads.py --only times).
QUICK = 1 << 20


class InLoop:
    """Batches of training that are gathered by their step, in a graph; for one replica.

    Args:
        inputs: what to read, of which :func:`fits` is true.

    Attributes:
        quick: whether steps need not be asked how long they wait for a batch.
    """

    def __init__(self, inputs: Inputs):
        source: Any = inputs.train
        self._source = source
        self._order, self._batch = inputs.positions, inputs.global_batch
        self._position = inputs.start_step * self._batch
        rows = tf.function(lambda indices: take(source, indices), autograph=False)
        batch = rows.get_concrete_function(tf.TensorSpec([self._batch], tf.int64)).outputs
        # A text has no size that is known.
        sizes = [(part.dtype.size or QUICK) * part.shape.num_elements() for part in batch]
        self.quick = sum(sizes) <= QUICK

    def order(self, steps: int) -> np.ndarray:
        """Return the examples of the next so many steps, int64 ``[steps, global_batch]``."""
        begin = self._position
        self._position += steps * self._batch
        return self._order(np.arange(begin, self._position)).reshape(steps, self._batch)

    def batch(self, order: tf.Tensor, step: tf.Tensor) -> Batch:
        """Return the batch of a step of the call, as the iterator gives it.

        Args:
            order: of :meth:`order`.
            step: which of them, int64 scalar, from 0.

        Returns:
            ``(x, y)`` and the like, nests of ``[global_batch, ...]``.
        """
        return take(self._source, tf.ensure_shape(tf.gather(order, step), [self._batch]))


class FromIterator:
    """Batches of training as an iterator has them, in the place of :class:`InLoop`.

    Args:
        iterator: of ``Strategy.iterate``, or None.
    """

    quick = False

    def __init__(self, iterator: Iterator[Batch]):
        self._iterator = iterator

    def order(self, steps: int) -> np.ndarray:
        """Return nothing: the iterator knows it."""
        return np.zeros([0, 0], np.int64)

    def batch(self, order: tf.Tensor, step: tf.Tensor) -> Batch:
        """Return the next element."""
        return next(self._iterator)


def in_loop(inputs: Inputs) -> InLoop | None:
    """Return the input of a loop that reads its batches itself, where it is only rows of memory.

    What takes work of its own (files, augmentation, mixtures) is done beside the steps by
    ``tf.data``; and what goes to a GPU is copied there ahead of time.
    """
    fits = (
        type(inputs.train) in (Arrays, Windows)
        and inputs.augment is None
        and not tf.config.list_logical_devices("GPU")
    )
    return InLoop(inputs) if fits else None
