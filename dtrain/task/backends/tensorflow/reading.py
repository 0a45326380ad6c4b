"""Examples as tensors: read in Python or in the graph, and finished in the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.data import failures, nest, transforms
from dtrain.data.example import Example, parts_of
from dtrain.data.mixture import Concatenated
from dtrain.data.sources import Source
from dtrain.task.data import batch_reader
from dtrain.task.data.batch_reader import Reader, by_rows, is_alone, readers, refuse_unlike


def in_python(source: Source) -> bool:
    """Whether some of a source is read in Python."""
    if isinstance(source, Concatenated):
        return any(map(in_python, source.members))
    return not source.in_graph


def threads(source: Source) -> int:
    """Return how many reads of a source may be under way: ``tf.data.AUTOTUNE`` for any number.

    Readers have as many again to come: none waits while what it has read is being taken.
    """
    if is_alone(source):
        return 1
    return 2 * readers(source) or tf.data.AUTOTUNE


def read(source: Source, rows: np.ndarray) -> tuple[Any, ...]:
    """Return some examples as arrays, at once and on the CPU."""
    with tf.device("CPU:0"):
        examples = take(source, tf.constant(rows, tf.int64))
        return parts_of(nest.mapped(np.asarray, examples))


def tensor_specs(specs: Any) -> Any:
    """Return ``tf.TensorSpec`` for each of :func:`dtrain.task.data.reading.specs`."""
    return nest.mapped(lambda spec: tf.TensorSpec(spec.shape, spec.dtype), specs)


def take(source: Source, indices: tf.Tensor, key: tf.Tensor | None = None) -> tuple[Any, ...]:
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


def _taken(source: Source, indices: tf.Tensor, key: tf.Tensor | None) -> tuple[Any, ...]:
    if source.in_graph:
        example = Example.of(source.gather(indices))
    elif tf.executing_eagerly():
        rows = np.asarray(indices)
        example = batch_reader.read(source, rows, by_rows(rows)).map(tf.convert_to_tensor)
    else:
        example = _in_graph(source, indices, key)
    return transforms.applied(source, example, of_arrays=False).parts


def _in_graph(source: Source, indices: tf.Tensor, key: tf.Tensor | None) -> Example:
    reader = Reader(source)
    leaves = reader.like.leaves

    def read_rows(rows: np.ndarray, *key: np.ndarray) -> list[np.ndarray]:
        with failures.kept():
            example = reader(rows, tuple(map(int, key[0])) if key else None)
            return list(example.leaves.values())

    types = [tf.as_dtype(leaf.dtype) for leaf in leaves.values()]
    values = tf.numpy_function(read_rows, [indices, *([] if key is None else [key])], types)
    for name, value in zip(leaves, values, strict=True):
        value.set_shape([indices.shape[0], *reader.spec[name][1]])
    return reader.like.with_leaves(dict(zip(leaves, values, strict=True)))


def _joined(source: Concatenated, indices: tf.Tensor, key: tf.Tensor | None) -> tuple[Any, ...]:
    """Read each member's examples, and put them where they belong."""
    owners = tf.searchsorted(
        tf.constant(source.starts), tf.cast(indices, tf.int64), side="right", out_type=tf.int32
    )
    owners -= 1
    places = tf.range(tf.size(indices))
    parts: list[Any] = []
    places_of: list[tf.Tensor] = []
    for number, member in enumerate(source.members):
        chosen = tf.equal(owners, number)
        mine = tf.boolean_mask(tf.cast(indices, tf.int64), chosen) - int(source.starts[number])
        examples = _some(member, mine, None if key is None else tf.concat([key, [number]], 0))
        refuse_unlike(number, (parts or [examples])[0], examples)
        parts.append(examples)
        places_of.append(tf.boolean_mask(places, chosen))

    def stitched(*leaves: tf.Tensor | None) -> tf.Tensor | None:
        if leaves[0] is None:
            return None
        whole = tf.dynamic_stitch(places_of, list(leaves))
        return tf.ensure_shape(whole, [indices.shape[0], *leaves[0].shape[1:]])

    return parts_of(nest.mapped(stitched, parts[0], *parts[1:]))


def _some(source: Source, indices: tf.Tensor, key: tf.Tensor | None) -> tuple[Any, ...]:
    """Return as :func:`take`; of no indices nothing is read."""
    structure: list[Any] = []

    def some() -> list[tf.Tensor]:
        examples = take(source, indices, key=key)
        structure[:] = [examples]
        return [leaf for leaf in nest.leaves(examples) if leaf is not None]

    def none() -> list[tf.Tensor]:
        leaves = [leaf for leaf in nest.leaves(structure[0]) if leaf is not None]
        return [tf.zeros([0, *leaf.shape[1:]], leaf.dtype) for leaf in leaves]

    if tf.executing_eagerly():
        # The structure is that of an example.
        examples = take(source, indices if tf.size(indices) else tf.zeros([1], tf.int64))
        rows = tf.size(indices)
        return parts_of(nest.mapped(lambda leaf: leaf[:rows], examples))
    # ORDER: tf.cond traces the first branch first; the second has its structure.
    tensors = iter(tf.cond(tf.size(indices) > 0, some, none))
    leaves = [None if leaf is None else next(tensors) for leaf in nest.leaves(structure[0])]
    return parts_of(nest.packed(structure[0], leaves))
