"""The input pipeline: the order of examples is a pure function of (seed, pass, position).

Training reads an endless sequence of examples: pass after pass over the source, each pass in an
order of its own. Global batch ``s`` is positions ``s*B .. s*B+B-1`` of that sequence; replica ``r``
of ``R`` gets the ``r``-th of its ``R`` equal parts. Nothing else describes the data: a run resumes
from a step number, on any number of replicas, and sees every example of every pass exactly once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.data.sources import Source

Augment = Callable[..., tf.Tensor]
#: Held while a source in Python is read: what is trained on and what is evaluated on are read side
#: by side, and may come from one open file.
_reading = threading.Lock()


def example_order(positions: tf.Tensor, examples: int, seed: int) -> tf.Tensor:
    """Map positions in the endless sequence to indices into the source.

    A stateless permutation for each pass (``RandomIndexShuffle``), keyed by (seed, pass).

    Args:
        positions: int64 ``[b]``.
        examples: length of the source.
        seed: of the experiment.

    Returns:
        int64 ``[b]``.
    """
    passes, offsets = positions // examples, positions % examples
    # Of each word of a key the op uses the low bits alone: 8, as was measured for 24 to 5,000
    # examples. Without the rest in the third one pass 256 had the order of pass 0, and seed 256
    # those of seed 0.
    rest = passes // 256 * 167 + (seed // 256 * 0x9E3779B1 >> 24) % 256
    first = tf.fill(tf.shape(passes), tf.constant(seed, tf.int64))
    keys = tf.stack([first, passes, passes + rest], 1)
    # The raw op takes one key a row; the public wrapper pads a matrix along the wrong axis.
    return tf.raw_ops.RandomIndexShuffle(
        index=offsets,
        seed=keys,
        max_index=tf.fill(tf.shape(offsets), tf.constant(examples - 1, tf.int64)),
        # With the usual 4, orders of neighbouring seeds and passes are correlated (0.14 at 5,000
        # examples, where chance gives 0.04); more rounds cost nothing that can be measured.
        rounds=16,
    )


def _alone(source: Source) -> bool:
    """Whether one thread at a time may read: so it is in Python, unless the source says it can."""
    return not (getattr(source, "in_graph", False) or getattr(source, "thread_safe", False))


def take(source: Source, indices: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Read examples inside the input graph, whichever kind the source is."""
    if getattr(source, "in_graph", False):
        return tuple(source.take(indices))

    def read(rows: np.ndarray) -> tuple[Any, ...]:
        with _reading if _alone(source) else contextlib.nullcontext():
            return source.take(rows)

    arrays = [np.asarray(part) for part in read(np.zeros(1, np.int64))]
    values = tf.numpy_function(
        lambda rows: [np.asarray(p, a.dtype) for p, a in zip(read(rows), arrays, strict=True)],
        [indices],
        [tf.as_dtype(a.dtype) for a in arrays],
    )
    for value, array in zip(values, arrays, strict=True):
        value.set_shape([indices.shape[0], *array.shape[1:]])
    return tuple(values)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Everything that decides which examples a step sees.

    Attributes:
        train: what to train on.
        validation: what to evaluate on, or None.
        global_batch: examples a step, over all replicas; a multiple of their number.
        seed: of the experiment.
        start_step: the global step to begin with.
        augment: see :mod:`dtrain.augment`.
        validation_batch: examples of a batch of a validation; None: ``global_batch``.
        validation_steps: how many such batches are evaluated; None: all.
    """

    train: Source
    validation: Source | None
    global_batch: int
    seed: int
    start_step: int = 0
    augment: Augment | None = None
    validation_batch: int | None = None
    validation_steps: int | None = None

    @property
    def evaluation_batch(self) -> int:
        """Examples of a batch of a validation."""
        if self.validation_batch is None or self.validation is None:
            return self.global_batch
        return min(self.validation_batch, len(self.validation))  # more would only be padding

    @property
    def evaluation_examples(self) -> int:
        """How many examples a validation evaluates, the first of them."""
        examples = 0 if self.validation is None else len(self.validation)
        if self.validation_steps is None:
            return examples
        return min(examples, self.validation_steps * self.evaluation_batch)

    @property
    def evaluation_steps(self) -> int:
        """How many batches these are, the last of them perhaps smaller."""
        return -(-self.evaluation_examples // self.evaluation_batch)


def training_part(
    inputs: Inputs, source: Source, step: tf.Tensor, replica: tf.Tensor | int, replicas: int
) -> tuple[tf.Tensor, ...]:
    """Return what one of ``replicas`` trains on in global step ``step``, an int64 scalar.

    A pure function of its arguments. ``source`` is ``inputs.train``, or the same bound elsewhere.

    Returns:
        ``(x [b, ...], y [b, ...])`` with ``b = global_batch / replicas``.
    """
    return _augmented(inputs, *_training_rows(inputs, source, step, replica, replicas))


def _training_rows(
    inputs: Inputs, source: Source, step: tf.Tensor, replica: tf.Tensor | int, replicas: int
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
    """Return the positions of a part of a step in the endless sequence, and what is there."""
    batch = inputs.global_batch // replicas
    first = step * inputs.global_batch + replica * batch
    positions = first + tf.range(batch, dtype=tf.int64)
    return positions, take(source, example_order(positions, len(source), inputs.seed))


def _augmented(
    inputs: Inputs, positions: tf.Tensor, data: tuple[tf.Tensor, ...]
) -> tuple[tf.Tensor, ...]:
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
    changed = tf.vectorized_map(
        lambda pair: augment(pair[0], seed=pair[1]),
        (data[0], keys),
        warn=False,  # random draws have no vectorized form and run one after the other
    )
    return tf.ensure_shape(changed, data[0].shape), *data[1:]


def evaluation_part(
    inputs: Inputs, source: Source, step: tf.Tensor, replica: tf.Tensor | int, replicas: int
) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
    """Return what one of ``replicas`` evaluates in step ``step`` of a pass, in the source's order.

    Returns:
        ``(data, count)``: the first ``count`` of the ``b`` rows of ``data`` are real, the others
        repeat the last example and must not be looked at.
    """
    batch, examples = inputs.evaluation_batch // replicas, inputs.evaluation_examples
    first = step * inputs.evaluation_batch + replica * batch
    count = tf.clip_by_value(examples - first, 0, batch)
    rows = tf.minimum(first + tf.range(batch, dtype=tf.int64), examples - 1)
    return take(source, rows), count


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

    def load(element: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        step, replica = element // local_replicas, first_replica + element % local_replicas
        return _training_rows(inputs, inputs.train, step, replica, replicas)

    def augment(positions: tf.Tensor, data: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        return _augmented(inputs, positions, data)

    elements = tf.data.Dataset.range(inputs.start_step * local_replicas, tf.int64.max)
    if _alone(inputs.train):  # what comes after the reading has all threads
        return _endless(_mapped(_mapped(elements, load, 1), augment))
    return _endless(_mapped(elements, lambda element: augment(*load(element))))


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
    turns = -(-inputs.evaluation_steps // replicas)

    def load(element: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
        turn, replica = element // local_replicas % turns, first_replica + element % local_replicas
        return evaluation_part(inputs, source, turn * replicas + replica, 0, 1)

    threads = 1 if _alone(source) else tf.data.AUTOTUNE
    return _endless(_mapped(tf.data.Dataset.range(tf.int64.max), load, threads))


def evaluation_in_parts(
    inputs: Inputs, *, replicas: int, first_replica: int, local_replicas: int
) -> tf.data.Dataset:
    """Return as :func:`evaluation`, but of each batch a part to every replica."""
    source = inputs.validation
    assert source is not None
    steps = inputs.evaluation_steps

    def load(element: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
        step, replica = element // local_replicas, first_replica + element % local_replicas
        return evaluation_part(inputs, source, step % steps, replica, replicas)

    threads = 1 if _alone(source) else tf.data.AUTOTUNE
    return _endless(_mapped(tf.data.Dataset.range(tf.int64.max), load, threads))


def _mapped(
    elements: tf.data.Dataset, load: Callable[..., Any], threads: int = tf.data.AUTOTUNE
) -> tf.data.Dataset:
    # AutoGraph would read source files anew, which may have changed since they were imported.
    plain = tf.autograph.experimental.do_not_convert(load)
    return elements.map(plain, num_parallel_calls=threads, deterministic=True)


def _endless(dataset: tf.data.Dataset) -> tf.data.Dataset:
    # Unless it is known to be endless, the tasks of a cluster ask each other at every step whether
    # all of them still have data.
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    options = tf.data.Options()
    # Sharding is done above, by position: tf.data must not shard once more.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)
