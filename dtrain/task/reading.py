"""From a source to tensors: read in Python or in the graph, and finished in the graph."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.data import nest, padding
from dtrain.data.mixture import Concatenated, place
from dtrain.data.nest import parts_of
from dtrain.data.ragged import Ragged
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import DataError, DtrainError, UsageError

#: Held while a source in Python is read: what is trained on and what is evaluated on are read side
#: by side, and may come from one open file.
_reading = threading.Lock()
#: Examples that are read at once where all are tried.
CHUNK = 256
#: What reading has raised, the first. TensorFlow turns it into an error of its own, with a
#: traceback in the place of a sentence.
_failed: list[Exception] = []


def is_alone(source: Source) -> bool:
    """Whether one thread at a time may read: so it is in Python, unless the source says it can."""
    if isinstance(source, Concatenated):
        return any(map(is_alone, source.members))
    return not (getattr(source, "in_graph", False) or getattr(source, "thread_safe", False))


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


def failure() -> Exception | None:
    """Return what reading has raised since the last such call, where that ended the reading."""
    found = _failed[0] if _failed else None
    _failed.clear()
    return found


def take(source: Source, indices: tf.Tensor, batch: tf.Tensor | None = None) -> tuple[Any, ...]:
    """Return the examples at ``indices``, int64 ``[b]``, whichever kind the source is.

    In a graph, or at once outside of one.

    Args:
        source: has them.
        indices: which.
        batch: those of the whole batch that they are a part of, where that decides how long rows
            are padded to; None: the same.

    Returns:
        ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``: nests of tensors ``[b, ...]``.

    Raises:
        UsageError: the source gives what is no array.
        DataError: an example cannot be read; in a graph it is :func:`failure`.
    """
    if isinstance(source, Concatenated):
        return _joined(source, indices)
    if getattr(source, "in_graph", False):
        found = parts_of(source.take(indices))
    else:
        found = _read(source, indices, indices if batch is None else batch)
    finish = getattr(source, "finish", None)
    return found if finish is None else parts_of(finish(found))


def _read(source: Source, indices: tf.Tensor, batch: tf.Tensor) -> tuple[Any, ...]:
    spec = _spec(source)
    arrays = nest.leaves(spec)
    inside = getattr(source, "take_inside", None)  # of one that is padded by batches

    def read(rows: np.ndarray, whole: np.ndarray) -> list[np.ndarray]:
        try:
            with _reading if is_alone(source) else contextlib.nullcontext():
                found = source.take(rows) if inside is None else inside(rows, whole)
            values = nest.leaves(parts_of(found))
            return [
                _array(value, like.dtype)
                for value, like in zip(values, arrays, strict=True)
                if like is not None
            ]
        except Exception as error:
            _failed.append(error)
            raise

    present = [like for like in arrays if like is not None]
    if tf.executing_eagerly():
        try:
            made = [tf.convert_to_tensor(v) for v in read(np.asarray(indices), np.asarray(batch))]
        except Exception:
            _failed.clear()
            raise
    else:
        made = tf.numpy_function(read, [indices, batch], [tf.as_dtype(a.dtype) for a in present])
        names = [padding.place(name) for name, like in nest.named(spec) if like is not None]
        for value, like, name in zip(made, present, names, strict=True):
            sizes = list(like.shape[1:])
            if name in getattr(source, "open", ()):  # each batch is padded to a length of its own
                sizes[0] = None
            value.set_shape([indices.shape[0], *sizes])
    left = iter(made)
    return parts_of(nest.packed(spec, [None if a is None else next(left) for a in arrays]))


def _spec(source: Source) -> Any:
    """Return the first example, a batch of one, as arrays."""
    with _reading if is_alone(source) else contextlib.nullcontext():
        found = parts_of(source.take(np.zeros(1, np.int64)))
    for name, value in nest.named(found):
        if isinstance(value, Ragged):
            raise _ragged(label(name), padding.place(name))
    return nest.mapped(lambda value: _array(value, None), found)


def _ragged(what: str, name: str) -> UsageError:
    return UsageError(
        "dataset.pad", "null", f"{what} has rows of different lengths",
        "a length for each such input or target: {NAME: {length: 128}}",
        f"dataset.pad={{{name}:{{length:128}}}}",
    )  # fmt: skip


def label(name: str) -> str:
    """Return the place of a leaf among the parts of an example, in words."""
    part, _, inside = name.partition(".")
    role = ("the input", "the target", "the weight")[int(part)]
    return f"{role} {inside}".strip()


def _array(value: Any, dtype: Any) -> Any:
    if value is None:  # no target beside a weight
        return None
    if isinstance(value, Ragged):
        raise _ragged("an input or target", "x")
    found = np.asarray(value, dtype if dtype is None or dtype.kind not in "SU" else None)
    if found.dtype.kind in "US":  # of one length in NumPy, of any in TensorFlow
        found = found.astype(object)
    return found


def _joined(source: Concatenated, indices: tf.Tensor) -> tuple[Any, ...]:
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
        # A member that has none in a batch is asked for its first example, which is left out.
        asked = tf.cond(tf.size(mine) > 0, lambda m=mine: m, lambda: tf.zeros([1], tf.int64))
        found = take(member, asked)
        count = tf.size(mine)
        parts.append(nest.mapped(lambda leaf, n=count: leaf[:n], found))
        at.append(tf.boolean_mask(places, chosen))

    def stitched(*leaves: tf.Tensor) -> tf.Tensor:
        whole = tf.dynamic_stitch(at, list(leaves))
        return tf.ensure_shape(whole, [indices.shape[0], *leaves[0].shape[1:]])

    return parts_of(nest.mapped(stitched, parts[0], *parts[1:]))


def first(source: Source | Stream, count: int, begin: int = 0) -> tuple[Any, ...]:
    """Return some of the first examples, at once and on the CPU: for shapes, and for trials.

    Args:
        source: a source or a stream.
        count: how many.
        begin: the first of them.

    Raises:
        DataError: one cannot be read.
    """
    with tf.device("CPU:0"):
        if isinstance(source, Stream):
            found = source.first(begin + count)
            return nest.mapped(lambda leaf: leaf[begin:], found)
        return take(source, tf.range(begin, begin + count, dtype=tf.int64))


def specs(source: Source | Stream, rows: int | None) -> tuple[Any, ...]:
    """Return what a batch of so many examples is: nests of ``tf.TensorSpec``."""
    found = first(source, 1)
    return parts_of(
        nest.mapped(lambda leaf: tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype), found)
    )


def available(source: Source | Stream, most: int) -> int:
    """Return how many examples there are to try something on, ``most`` at most."""
    if not isinstance(source, Stream):
        return min(most, len(source))
    return int(nest.leaves(source.first(most))[0].shape[0])


@contextlib.contextmanager
def failing(inputs: Any) -> Iterator[None]:
    """Let what reading has raised be raised, in the place of what TensorFlow makes of it.

    What fails in the graph, where records are parsed and images decoded, fails as a batch: the
    examples of the batches that were being prepared are then tried one by one, to name the one.

    Args:
        inputs: of the run (:class:`dtrain.task.input_pipeline.Inputs`).
    """
    try:
        yield
    except tf.errors.OpError as error:
        found = failure() or _undecodable(inputs, str(error))
        if found is None and isinstance(error, tf.errors.DataLossError):  # of a stream's files
            found = DataError("dataset", str(error.message).split("\n")[0])
        if found is None:
            raise
        if isinstance(found, DtrainError):
            raise found from None
        where = "dataset: reading the examples"
        raise DataError(where, f"{type(found).__name__}: {found}") from error


def _undecodable(inputs: Any, message: str) -> DataError | None:
    """Return what is wrong with an example that cannot be finished in the graph, if one is."""
    if "transformation with iterator" not in message:  # as tf.data says of its functions
        return None
    for source in (inputs.train, inputs.validation):
        if source is not None and not isinstance(source, Stream) and hasattr(source, "finish"):
            for _, problem in unreadable(source):
                return problem
    return None


def unreadable(source: Source) -> Iterator[tuple[int, DataError]]:
    """Yield the examples of a source that cannot be read, with what is wrong with each.

    All of it is read: some examples at once, and of those that fail each half.
    """
    left = [(begin, min(CHUNK, len(source) - begin)) for begin in range(0, len(source), CHUNK)]
    left.reverse()
    while left:
        begin, count = left.pop()
        problem = _problem(source, begin, count)
        if problem is None:
            continue
        if count == 1:
            yield begin, problem
            continue
        half = count // 2
        left += [(begin + half, count - half), (begin, half)]


def _problem(source: Source, begin: int, count: int) -> DataError | None:
    """Return why some examples cannot be read; None where they can."""
    try:
        first(source, count, begin)
    except DataError as error:
        return error
    except (tf.errors.OpError, ValueError) as error:
        reason = str(getattr(error, "message", error)).split("\n")[0]
        reason = reason.partition("} ")[2] or reason
        return DataError(place(source, begin), reason.strip())
    return None
