"""The input pipeline: which examples a step has is a pure function of (seed, pass, position).

Training reads an endless sequence of examples, pass after pass over the source, in an order
(:mod:`dtrain.task.orders`). Global batch ``s`` is positions ``s*B .. s*B+B-1`` of that sequence;
replica ``r`` of ``R`` gets the ``r``-th of its ``R`` equal parts. Nothing else describes the data:
a run resumes from a step number, on any number of replicas, and sees every example of every pass
exactly once. A stream has its own order, and the same positions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dtrain.data import nest
from dtrain.data.nest import parts_of
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.task.inputs import Augment, Inputs
from dtrain.task.reading import by_batch, in_python, take, threads


def training_part(
    inputs: Inputs, source: Source, step: tf.Tensor, replica: tf.Tensor | int, replicas: int
) -> tuple[Any, ...]:
    """Return what one of ``replicas`` trains on in global step ``step``, an int64 scalar.

    A pure function of its arguments. ``source`` is ``inputs.train``, or the same bound elsewhere.

    Returns:
        ``(x, y)`` and the like, nests of ``[b, ...]`` with ``b = global_batch / replicas``.
    """
    return _augmented(inputs, *_training_rows(inputs, source, step, replica, replicas))


def _training_rows(
    inputs: Inputs, source: Source, step: tf.Tensor, replica: tf.Tensor | int, replicas: int
) -> tuple[tf.Tensor, tuple[Any, ...]]:
    """Return the positions of a part of a step in the endless sequence, and what is there."""
    batch = inputs.global_batch // replicas
    positions = _positions(inputs, step, replica, batch)
    whole = None
    if replicas > 1 and by_batch(source):
        everything = step * inputs.global_batch + tf.range(inputs.global_batch, dtype=tf.int64)
        whole = inputs.positions(everything)
    key = tf.stack([inputs.seed, positions[0]]) if in_python(source) else None
    return positions, take(source, inputs.positions(positions), whole, key)


def _positions(inputs: Inputs, step: tf.Tensor, replica: tf.Tensor | int, batch: int) -> tf.Tensor:
    first = step * inputs.global_batch + replica * batch
    return first + tf.range(batch, dtype=tf.int64)


def _augmented(inputs: Inputs, positions: tf.Tensor, data: tuple[Any, ...]) -> tuple[Any, ...]:
    if inputs.augment is None:
        return data
    augment = inputs.augment
    # 31 bits of the position are enough to keep 2^31 draws of one experiment apart.
    keys = tf.stack(
        [
            tf.fill(tf.shape(positions), tf.constant(inputs.seed, tf.int32)),
            tf.cast(positions % 2**31, tf.int32),
        ],
        1,
    )
    return changed(augment, data[0], keys), *data[1:]


def changed(augment: Augment, x: Any, keys: tf.Tensor) -> Any:
    """Return inputs, each changed by its key.

    Args:
        augment: a function of one example, and its seed.
        x: a nest of ``[b, ...]``.
        keys: int32 ``[b, 2]``.

    Raises:
        ValueError: an example has another structure or shape afterwards.
    """

    def one(pair: Any) -> Any:
        made = augment(pair[0], seed=pair[1])
        tf.nest.assert_same_structure(pair[0], made)
        return made

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
    inputs: Inputs,
    source: Source,
    step: tf.Tensor,
    replica: tf.Tensor | int,
    replicas: int,
    batches: int = 1,
) -> tuple[tuple[Any, ...], tf.Tensor]:
    """Return what one of ``replicas`` evaluates in step ``step`` of a pass, in the source's order.

    Args:
        inputs: say which examples.
        source: ``inputs.validation``, or the same bound elsewhere.
        step: which batch, int64 scalar.
        replica: which part of it.
        replicas: how many parts a batch has.
        batches: as of :meth:`Inputs.evaluation_batches`.

    Returns:
        ``(data, count)``: the first ``count`` of the ``b`` rows of ``data`` are real, the others
        repeat the last example and must not be looked at.
    """
    batch, examples = inputs.evaluation_batch // replicas, inputs.evaluation_examples
    begin, held = step * inputs.evaluation_batch, examples - step * inputs.evaluation_batch
    if inputs.stretches is not None:
        table = tf.constant(inputs.evaluation_batches(batches))
        begin, held = table[step][0], table[step][1]
    first = begin + replica * batch
    count = tf.clip_by_value(held - replica * batch, 0, batch)

    def rows(start: tf.Tensor, number: int) -> tf.Tensor:
        last = tf.maximum(begin + held - 1, 0)
        return tf.minimum(start + tf.range(number, dtype=tf.int64), last)

    whole = None
    if replicas > 1 and by_batch(source):
        whole = rows(begin, inputs.evaluation_batch)
    return take(source, rows(first, batch), whole), count


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
    source = inputs.train
    assert source is not None
    if isinstance(source, Stream):
        return _endless(_streamed(inputs, source, replicas, first_replica, local_replicas))

    def load(element: tf.Tensor) -> tuple[tf.Tensor, tuple[Any, ...]]:
        step, replica = element // local_replicas, first_replica + element % local_replicas
        return _training_rows(inputs, source, step, replica, replicas)

    def augment(positions: tf.Tensor, data: tuple[Any, ...]) -> tuple[Any, ...]:
        return _augmented(inputs, positions, data)

    elements = tf.data.Dataset.range(inputs.start_step * local_replicas, tf.int64.max)
    at_once = threads(source)
    if at_once == tf.data.AUTOTUNE:
        return _endless(_mapped(elements, lambda element: augment(*load(element))))
    # What comes after the reading has all threads.
    return _endless(_mapped(_mapped(elements, load, at_once), augment), at_once)


def _streamed(
    inputs: Inputs, stream: Stream, replicas: int, first: int, local: int
) -> tf.data.Dataset:
    """Return as :func:`training`, of a stream: read from its beginning, and skipped to the step."""
    batch = inputs.global_batch // replicas
    batches = stream.endless(inputs.global_batch).skip(inputs.start_step)
    steps = tf.data.Dataset.range(inputs.start_step, tf.int64.max)

    def load(step: tf.Tensor, data: tuple[Any, ...]) -> tuple[Any, ...]:
        whole = _augmented(inputs, _positions(inputs, step, 0, inputs.global_batch), data)
        if replicas == 1:
            return whole

        def mine(leaf: tf.Tensor) -> tf.Tensor:
            own = leaf[first * batch : (first + local) * batch]
            parts = tf.reshape(own, tf.concat([[local, batch], tf.shape(leaf)[1:]], 0))
            return tf.ensure_shape(parts, [local, batch, *leaf.shape[1:]])

        return parts_of(nest.mapped(mine, whole))

    found = _mapped(tf.data.Dataset.zip(steps, batches), load)
    return found if replicas == 1 else found.unbatch()


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
    turns = len(inputs.evaluation_batches(replicas)) // replicas
    if isinstance(source, Stream):
        held = _held_stream(inputs, source, turns * replicas)
        mine = held.filter(
            lambda number, *_: tf.logical_and(
                number % replicas >= first_replica,
                number % replicas < first_replica + local_replicas,
            )
        )
        passes = mine.map(lambda _, data, count: (data, count)).repeat()
        if source.reshuffles:
            passes = passes.skip(inputs.validations * turns * local_replicas)
        return _endless(passes)

    def load(element: tf.Tensor) -> tuple[tuple[Any, ...], tf.Tensor]:
        turn, replica = element // local_replicas % turns, first_replica + element % local_replicas
        return evaluation_part(inputs, source, turn * replicas + replica, 0, 1, replicas)

    at_once = threads(source)
    return _endless(_mapped(tf.data.Dataset.range(tf.int64.max), load, at_once), at_once)


def _held_stream(inputs: Inputs, stream: Stream, batches: int) -> tf.data.Dataset:
    """Return (number, data, count) of so many batches of one pass; those that are none count 0."""
    size, examples = inputs.evaluation_batch, inputs.evaluation_examples

    def whole(data: tuple[Any, ...]) -> tuple[tuple[Any, ...], tf.Tensor]:
        """Repeat the last example of a smaller batch."""
        rows = tf.cast(tf.shape(nest.leaves(data)[0])[0], tf.int64)
        at = tf.minimum(tf.range(size, dtype=tf.int64), rows - 1)
        return parts_of(nest.mapped(lambda leaf: tf.gather(leaf, at), data)), rows

    real = stream.batches(size, remainder=True)
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
    steps = inputs.evaluation_steps

    def load(element: tf.Tensor) -> tuple[tuple[Any, ...], tf.Tensor]:
        step, replica = element // local_replicas, first_replica + element % local_replicas
        return evaluation_part(inputs, source, step % steps, replica, replicas)

    at_once = threads(source)
    return _endless(_mapped(tf.data.Dataset.range(tf.int64.max), load, at_once), at_once)


def _mapped(
    elements: tf.data.Dataset, load: Callable[..., Any], at_once: int = tf.data.AUTOTUNE
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
