"""From a source to tensors: read in Python or in the graph, and finished in the graph.

And which example cannot be read, where that ends a run, or is looked for before it.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain import secrets
from dtrain.data import failures, nest, transforms
from dtrain.data.example import Example, parts_of, spec_of
from dtrain.data.mixture import Concatenated
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import DataError, DtrainError, UsageError
from dtrain.task.backends.runtime import framework_errors
from dtrain.task.data.host_pipeline import (
    Reader,
    by_rows,
    is_alone,
    read,
    readers,
    refuse_unlike,
    taken,
)

#: Examples that are read at once where all are tried.
CHUNK = 256


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
        DataError: an example cannot be read; in a graph :func:`raising_read_errors` raises it.
    """
    if isinstance(source, Concatenated):
        return _joined(source, indices, key)
    if source.in_graph:
        example = Example.of(source.gather(indices))
    elif tf.executing_eagerly():
        rows = np.asarray(indices)
        example = read(source, rows, by_rows(rows)).map(tf.convert_to_tensor)
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
            parts = source.first(begin + count)
            return nest.mapped(lambda leaf: leaf[begin:], parts)
    return chosen(source, np.arange(begin, begin + count))


def chosen(source: Source, rows: np.ndarray) -> tuple[Any, ...]:
    """Return some examples, at once and on the CPU.

    Args:
        source: has them.
        rows: int64 ``[b]``, which.

    Raises:
        DataError: one cannot be read, or made an example of in the graph.
    """
    with naming_unreadable(source, rows):
        return _tried(source, rows)


@contextlib.contextmanager
def naming_unreadable(source: Source, rows: np.ndarray) -> Iterator[None]:
    """Name the example that cannot be read, where the framework's error of a batch names none.

    Args:
        source: has them.
        rows: int64 ``[b]``, those of the batch.

    Raises:
        DataError: in the place of the framework's error.
    """
    try:
        yield
    except framework_errors(UnicodeDecodeError):  # a message may have any bytes
        problem = first_bad(source, rows)
        if problem is None:
            raise  # of the user's own code, which is named where the task ends
        raise problem from None


def arrays(source: Source, rows: np.ndarray) -> tuple[Any, ...]:
    """Return some examples as arrays, at once; rows of different lengths as :class:`Ragged`.

    Raises:
        DataError: one cannot be read, or made an example of in the graph.
    """
    in_graph = isinstance(source, Concatenated) or source.in_graph
    if not in_graph and all(each.of_arrays for each in source.transforms):
        return taken(source, rows, by_rows(rows)).parts
    return parts_of(nest.mapped(lambda leaf: leaf.numpy(), chosen(source, rows)))


def _tried(source: Source, rows: np.ndarray) -> tuple[Any, ...]:
    with tf.device("CPU:0"):
        return take(source, tf.constant(rows, tf.int64))


def specs(source: Source | Stream, rows: int | None) -> tuple[Any, ...]:
    """Return what a batch of so many examples is: nests of ``tf.TensorSpec``.

    None stands in the place of a length that differs by batch.
    """
    parts = source.batches(1).element_spec if isinstance(source, Stream) else first(source, 1)
    example = Example.of(parts)
    shapes = spec_of(parts, transforms.by_batch(source))
    return example.with_leaves(
        {
            name: tf.TensorSpec([rows, *shapes[name][1]], leaf.dtype)
            for name, leaf in example.leaves.items()
        }
    ).parts


def available(source: Source | Stream, most: int) -> int:
    """Return how many examples there are to try something on, ``most`` at most."""
    if not isinstance(source, Stream):
        return min(most, len(source))
    return int(nest.leaves(source.first(most))[0].shape[0])


def bad_examples(source: Source, rows: np.ndarray) -> Iterator[tuple[int, DataError]]:
    """Yield which examples cannot be read, with what is wrong with each.

    All are read: some at once, and of those that fail each half.

    Args:
        source: has them.
        rows: int64 ``[b]``, which are read.
    """
    chunks = [rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK)][::-1]
    while chunks:
        chunk = chunks.pop()
        problem = _problem_of(source, chunk)
        if problem is None:
            continue
        if len(chunk) == 1:
            yield int(chunk[0]), problem
        else:
            chunks += [*np.array_split(chunk, 2)][::-1]


def first_bad(source: Source, rows: np.ndarray) -> DataError | None:
    """Return what is wrong with the first of some examples that cannot be read; None if all can."""
    return next((problem for _, problem in bad_examples(source, rows)), None)


def _problem_of(source: Source, rows: np.ndarray) -> DataError | None:
    try:
        _tried(source, rows)
    except UsageError:  # of all examples
        raise
    except DataError as error:
        return error
    except Exception as error:  # of TensorFlow, or whatever a source of the user's raises
        return DataError(source.info.place(int(rows[0])), failures.reason(error))
    return None


@contextlib.contextmanager
def raising_read_errors(inputs: Any) -> Iterator[None]:
    """Let what reading has raised be raised, in the place of what the framework makes of it.

    What fails in the graph, where records are parsed and images decoded, fails as a batch: the
    examples are then tried, to name the one.

    Args:
        inputs: of the run (:class:`dtrain.task.backends.tensorflow.input_pipeline.Inputs`).
    """
    failures.first()
    try:
        yield
    except framework_errors(UnicodeDecodeError) as error:  # a message may have any bytes
        cause = failures.first() or _undecodable(inputs, error)
        if cause is None:
            raise
        if isinstance(cause, DtrainError):
            raise cause from None
        # Of the user's own code: where it was is in the log.
        print(secrets.mask("".join(traceback.format_exception(cause))), file=sys.stderr, flush=True)
        where = "dataset: reading the examples"
        raise DataError(where, f"{type(cause).__name__}: {cause}") from cause


def _undecodable(inputs: Any, error: Exception) -> DataError | None:
    """Return what is wrong with an example that cannot be finished in the graph, if one is."""
    message = str(getattr(error, "message", error))
    # As tf.data says of its functions.
    if not isinstance(error, UnicodeDecodeError) and "transformation with iterator" not in message:
        return None
    splits = [split for split in (inputs.train, inputs.validation) if split is not None]
    for source in splits:
        if not isinstance(source, Stream) and _finishes(source):
            problem = first_bad(source, np.arange(len(source)))
            if problem is not None:
                return problem
    streamed = any(isinstance(source, Stream) for source in splits)
    return DataError("dataset: the stream", failures.reason(error)) if streamed else None


def _finishes(source: Source) -> bool:
    """Whether something of the reading is in the graph."""
    if isinstance(source, Concatenated):
        return any(map(_finishes, source.members))
    return source.in_graph or not all(each.of_arrays for each in source.transforms)
