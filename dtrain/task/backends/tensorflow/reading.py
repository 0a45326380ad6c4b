"""Examples as tensors: read in Python or in the graph, and finished in the graph."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from dtrain.data import failures, nest, transforms
from dtrain.data.example import Example
from dtrain.data.mixture import Concatenated
from dtrain.data.sources import Source
from dtrain.task.aliases import Batch, Nest, Tensors
from dtrain.task.data import batch_reader
from dtrain.task.data.batch_reader import Reader, by_rows, refuse_unlike


def read(source: Source, rows: np.ndarray) -> Batch:
    """Return some examples as arrays, at once and on the CPU."""
    with tf.device("CPU:0"):
        return nest.mapped(np.asarray, take(source, tf.constant(rows, tf.int64)))


def tensor_specs(specs: Nest) -> Nest:
    """Return ``tf.TensorSpec`` for each of :func:`dtrain.task.data.reading.specs`."""
    return nest.mapped(lambda spec: tf.TensorSpec(spec.shape, spec.dtype), specs)


def take(source: Source, indices: tf.Tensor, key: tf.Tensor | None = None) -> Batch:
    """Return the examples at ``indices``, int64 ``[b]``, whichever kind the source is.

    In a graph, or at once outside of one.

    Args:
        source: has them.
        indices: which; a whole batch, where rows are padded to the longest of one.
        key: int64 ``[k]``, by which a source in Python draws random numbers; None: by its rows.

    Returns:
        ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``: nests of tensors ``[b, ...]``.

    Raises:
        UsageError: the source gives what is no array.
        DataError: an example cannot be read; in a graph
            :func:`dtrain.task.data.reading.raising_read_errors` raises it.
    """
    if isinstance(source, Concatenated):
        return _joined(source, indices, key)
    try:
        return _taken(source, indices, key)
    except (tf.errors.OpError, UnicodeDecodeError):  # a message may have any bytes
        if tf.executing_eagerly():
            source.reread(np.asarray(indices))
        raise


def _taken(source: Source, indices: tf.Tensor, key: tf.Tensor | None) -> Batch:
    if source.in_graph:
        example = Example.of(source.gather(indices))
    elif tf.executing_eagerly():
        rows = np.asarray(indices)
        some = rows if len(rows) else np.zeros(1, np.int64)  # of none it need not know the shape
        read = batch_reader.read(source, some, by_rows(some))
        example = read.map(lambda leaf: tf.convert_to_tensor(leaf[: len(rows)]))
    else:
        example = _in_graph(source, indices, key)
    return transforms.applied(source, example, of_arrays=False).parts


def _in_graph(source: Source, indices: tf.Tensor, key: tf.Tensor | None) -> Example:
    with ThreadPoolExecutor(1) as outside:  # of the graph: the user's code may use TensorFlow
        reader = outside.submit(Reader, source).result()
    leaves = reader.like.leaves

    def read_rows(rows: np.ndarray, *key: np.ndarray) -> list[np.ndarray]:
        with failures.kept():
            if not len(rows):  # of a member of a mixture
                return [leaf[:0] for leaf in leaves.values()]
            example = reader(rows, tuple(map(int, key[0])) if key else None)
            return list(example.leaves.values())

    types = [tf.as_dtype(leaf.dtype) for leaf in leaves.values()]
    values = tf.numpy_function(read_rows, [indices, *([] if key is None else [key])], types)
    for name, value in zip(leaves, values, strict=True):
        value.set_shape([indices.shape[0], *reader.spec[name][1]])
    return reader.like.with_leaves(dict(zip(leaves, values, strict=True)))


def _joined(source: Concatenated, indices: tf.Tensor, key: tf.Tensor | None) -> Batch:
    """Read each member's examples, and put them where they belong."""
    indices = tf.cast(indices, tf.int64)
    owners = tf.searchsorted(tf.constant(source.starts), indices, side="right") - 1
    parts: list[Batch] = []
    places: Tensors = []
    for number, member in enumerate(source.members):
        at = tf.reshape(tf.where(tf.equal(owners, number)), [-1])
        mine = tf.gather(indices, at) - int(source.starts[number])
        parts.append(take(member, mine, None if key is None else tf.concat([key, [number]], 0)))
        refuse_unlike(number, parts[0], parts[-1])
        places.append(tf.cast(at, tf.int32))

    def stitched(*leaves: tf.Tensor) -> tf.Tensor:
        whole = tf.dynamic_stitch(places, list(leaves))
        return tf.ensure_shape(whole, [indices.shape[0], *leaves[0].shape[1:]])

    return nest.mapped(stitched, *parts)
