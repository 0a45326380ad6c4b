"""From a source to tensors: read in Python or in the graph, and finished in the graph."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.data import failures, nest, padding, plain, seeding
from dtrain.data.mixture import Concatenated, place
from dtrain.data.nest import parts_of
from dtrain.data.ragged import Ragged
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import DataError, UsageError
from dtrain.task import alike

#: Held while a source in Python is read: what is trained on and what is evaluated on are read side
#: by side, and may come from one open file.
_reading = threading.Lock()


def is_alone(source: Source) -> bool:
    """Whether one thread at a time may read: so it is in Python, unless the source says it can."""
    if isinstance(source, Concatenated):
        return any(map(is_alone, source.members))
    return not (getattr(source, "in_graph", False) or getattr(source, "thread_safe", False))


def in_python(source: Source) -> bool:
    """Whether some of a source is read in Python."""
    if isinstance(source, Concatenated):
        return any(map(in_python, source.members))
    return not getattr(source, "in_graph", False)


def threads(source: Source) -> int:
    """Return how many reads of a source may be under way: ``tf.data.AUTOTUNE`` for any number.

    Readers have as many again to come: none waits while what it has read is being taken.
    """
    if is_alone(source):
        return 1
    readers = _readers(source)
    return 2 * readers if readers else tf.data.AUTOTUNE


def _readers(source: Source) -> int:
    if isinstance(source, Concatenated):
        return max(map(_readers, source.members))
    return int(getattr(source, "readers", 0))


def by_batch(source: Any) -> Collection[str]:
    """Return the places of the leaves of which each batch has a length of its own."""
    found: Collection[str] = getattr(source, "by_batch", ())
    return found


def take(source: Source, indices: tf.Tensor, key: tf.Tensor | None = None) -> tuple[Any, ...]:
    """Return the examples at ``indices``, int64 ``[b]``, whichever kind the source is.

    In a graph, or at once outside of one.

    Args:
        source: has them.
        indices: which.
        key: int64 ``[k]``, by which a source in Python draws random numbers; None: by its rows.

    Returns:
        ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``: nests of tensors ``[b, ...]``.

    Raises:
        UsageError: the source gives what is no array.
        DataError: an example cannot be read; in a graph :func:`failing` raises it.
    """
    if isinstance(source, Concatenated):
        return _joined(source, indices, key)
    if getattr(source, "in_graph", False):
        parts = parts_of(source.take(indices))
    elif tf.executing_eagerly():
        parts = _at_once(source, np.asarray(indices))
    else:
        parts = _in_graph(source, indices, key)
    finish = getattr(source, "finish", None)
    return parts if finish is None else parts_of(finish(parts))


def _taken(source: Source, rows: np.ndarray, key: tuple[int, ...] | None) -> tuple[Any, ...]:
    """Return what a source in Python gives, rows of different lengths too."""
    alone = is_alone(source)
    with (
        _reading if alone else contextlib.nullcontext(),
        seeding.seeded(key if alone else None),
        seeding.reading_by(key),
    ):
        return parts_of(source.take(rows))


def _read(source: Source, rows: np.ndarray, key: tuple[int, ...] | None) -> tuple[Any, ...]:
    """Return what a source in Python gives: nests of arrays and None."""
    parts = _taken(source, rows, key)
    for name, value in nest.named(parts):
        if isinstance(value, Ragged):
            raise alike.ragged(name)
    return tuple(nest.mapped(_array, part) for part in parts)


def _at_once(source: Source, rows: np.ndarray) -> tuple[Any, ...]:
    parts = _read(source, rows, _by_rows(rows))
    return parts_of(nest.mapped(tf.convert_to_tensor, parts))


def _by_rows(rows: np.ndarray) -> tuple[int, ...]:
    return tuple(map(int, rows[:1]))


def _in_graph(source: Source, indices: tf.Tensor, key: tf.Tensor | None) -> tuple[Any, ...]:
    first = np.zeros(1, np.int64)
    spec = _read(source, first, _by_rows(first))
    likes = dict(nest.named(spec))
    # Of some the length is that of the longest row of a batch.
    free = by_batch(source)
    shapes = {
        name: [None, *like.shape[2:]] if padding.place(name) in free else [*like.shape[1:]]
        for name, like in likes.items()
        if like is not None
    }

    def read(rows: np.ndarray, *key: np.ndarray) -> list[np.ndarray]:
        draws_by = tuple(map(int, key[0])) if key else _by_rows(rows)
        with failures.kept():
            leaves = dict(nest.named(_read(source, rows, draws_by if seeding.observed() else None)))
            alike.check(leaves, likes, shapes, source, int(rows[0]))
            return [
                plain.as_type(leaves[name], likes[name].dtype, "dataset", alike.label(name))
                for name in shapes
            ]

    types = [tf.as_dtype(likes[name].dtype) for name in shapes]
    arguments = [indices, *([] if key is None else [key])]
    made = dict(zip(shapes, tf.numpy_function(read, arguments, types), strict=True))
    for name, value in made.items():
        value.set_shape([indices.shape[0], *shapes[name]])
    names = [name for name, _ in nest.named(spec)]
    return parts_of(nest.packed(spec, [made.get(name) for name in names]))


def _array(value: Any) -> Any:
    if value is None:  # no target beside a weight
        return None
    found = np.asarray(value)
    if found.dtype.kind in "US":  # of one length in NumPy, of any in TensorFlow
        found = found.astype(object)
    return plain.checked(found, "dataset", "an example")


def _joined(source: Concatenated, indices: tf.Tensor, key: tf.Tensor | None) -> tuple[Any, ...]:
    """Read each member's examples, and put them where they belong."""
    owners = tf.searchsorted(
        tf.constant(source.starts), tf.cast(indices, tf.int64), side="right", out_type=tf.int32
    )
    owners -= 1
    places = tf.range(tf.size(indices))
    parts: list[Any] = []
    at: list[tf.Tensor] = []
    for number, member in enumerate(source.members):
        chosen = tf.equal(owners, number)
        mine = tf.boolean_mask(tf.cast(indices, tf.int64), chosen) - int(source.starts[number])
        examples = _some(member, mine, None if key is None else tf.concat([key, [number]], 0))
        if parts and (problem := alike.difference(parts[0], examples)) is not None:
            raise UsageError(
                "dataset.members", f"member {number + 1}", f"{problem}, which the first has",
                "members whose examples have one structure, shape and type",
                "datasets with the same inputs and targets",
            )  # fmt: skip
        parts.append(examples)
        at.append(tf.boolean_mask(places, chosen))

    def stitched(*leaves: tf.Tensor | None) -> tf.Tensor | None:
        if leaves[0] is None:
            return None
        whole = tf.dynamic_stitch(at, list(leaves))
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
    left = iter(tf.cond(tf.size(indices) > 0, some, none))
    leaves = [None if leaf is None else next(left) for leaf in nest.leaves(structure[0])]
    return parts_of(nest.packed(structure[0], leaves))


def first(source: Source | Stream, count: int, begin: int = 0) -> tuple[Any, ...]:
    """Return some of the first examples, at once and on the CPU: for shapes, and for trials.

    Args:
        source: a source or a stream.
        count: how many.
        begin: the first of them.

    Raises:
        DataError: one cannot be read.
    """
    if isinstance(source, Stream):
        with tf.device("CPU:0"):
            found = source.first(begin + count)
            return nest.mapped(lambda leaf: leaf[begin:], found)
    return chosen(source, np.arange(begin, begin + count))


def chosen(source: Source, rows: np.ndarray) -> tuple[Any, ...]:
    """Return some examples, at once and on the CPU.

    Args:
        source: has them.
        rows: int64 ``[b]``, which.

    Raises:
        DataError: one cannot be read, or made an example of in the graph.
    """
    try:
        return _tried(source, rows)
    except (tf.errors.OpError, UnicodeDecodeError):  # of the graph, which names no example
        for row in rows.tolist():
            problem = problem_of(source, row, 1)
            if problem is not None:
                raise problem from None
        raise


def arrays(source: Source, rows: np.ndarray) -> tuple[Any, ...]:
    """Return some examples as arrays, at once; rows of different lengths as :class:`Ragged`.

    Raises:
        DataError: one cannot be read, or made an example of in the graph.
    """
    in_graph = isinstance(source, Concatenated) or getattr(source, "in_graph", False)
    if not in_graph and not hasattr(source, "finish"):
        return _taken(source, rows, _by_rows(rows))
    found = chosen(source, rows)
    return parts_of(nest.mapped(lambda leaf: leaf.numpy(), found))


def _tried(source: Source, rows: np.ndarray) -> tuple[Any, ...]:
    with tf.device("CPU:0"):
        return take(source, tf.constant(rows, tf.int64))


def specs(source: Source | Stream, rows: int | None) -> tuple[Any, ...]:
    """Return what a batch of so many examples is: nests of ``tf.TensorSpec``.

    None stands in the place of a length that differs by batch.
    """
    found = source.batches(1).element_spec if isinstance(source, Stream) else first(source, 1)
    free = by_batch(source)

    def spec(name: str, leaf: Any) -> tf.TensorSpec | None:
        if leaf is None:  # no target beside a weight
            return None
        shape = list(leaf.shape[1:])
        if padding.place(name) in free:
            shape[0] = None
        return tf.TensorSpec([rows, *shape], leaf.dtype)

    return tuple(nest.packed(found, [spec(name, leaf) for name, leaf in nest.named(found)]))


def available(source: Source | Stream, most: int) -> int:
    """Return how many examples there are to try something on, ``most`` at most."""
    if not isinstance(source, Stream):
        return min(most, len(source))
    return int(nest.leaves(source.first(most))[0].shape[0])


def problem_of(source: Source, begin: int, count: int) -> DataError | None:
    """Return why some examples cannot be read; None where they can."""
    try:
        _tried(source, np.arange(begin, begin + count))
    except UsageError:  # of all examples
        raise
    except DataError as error:
        return error
    except Exception as error:  # of TensorFlow, or whatever a source of the user's raises
        return DataError(place(source, begin), failures.reason(error))
    return None
