"""Examples for shapes, trials and digests; which cannot be read, and what a batch is."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np

from dtrain.data import failures, nest, transforms
from dtrain.data.example import Example, spec_of
from dtrain.data.mixture import Concatenated, members_of
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import DataError, UsageError
from dtrain.task.aliases import Batch, Foreign
from dtrain.task.backends.runtime import framework_errors, runtime
from dtrain.task.data.batch_reader import by_rows, taken

#: Examples that are read at once where all are tried.
CHUNK = 256


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape and type of an array, such as a part of a batch.

    Attributes:
        shape: None stands in the place of a length that differs by batch.
        dtype: its name, as Keras has it; ``string`` of texts.
    """

    shape: tuple[int | None, ...]
    dtype: str


def first(source: Source | Stream, count: int, begin: int = 0) -> Batch:
    """Return some of the first examples as arrays, at once: for shapes, and for trials.

    Args:
        source: a source or a stream.
        count: how many, or as many as there are.
        begin: the first of them.

    Raises:
        DataError: one cannot be read.
    """
    if isinstance(source, Stream):
        with runtime().on_cpu():
            parts = source.first(begin + count)
            return tuple(nest.mapped(lambda leaf: np.asarray(leaf)[begin:], parts))
    return chosen(source, np.arange(begin, min(begin + count, len(source))))


def chosen(source: Source, rows: np.ndarray) -> Batch:
    """Return some examples as arrays, at once.

    Args:
        source: has them.
        rows: int64 ``[b]``, which.

    Raises:
        DataError: one cannot be read, or made an example of in the graph.
    """
    with naming_unreadable(source, rows):
        return runtime().read(source, rows)


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


def arrays(source: Source, rows: np.ndarray) -> Batch:
    """Return as :func:`chosen`; rows of different lengths as :class:`Ragged`.

    Raises:
        DataError: one cannot be read, or made an example of in the graph.
    """
    if isinstance(source, Concatenated) or _finishes(source):
        return chosen(source, rows)
    return taken(source, rows, by_rows(rows)).parts


def specs(source: Source | Stream, rows: int | None) -> Batch:
    """Return what a batch of so many examples is: nests of :class:`ArraySpec`."""
    parts = source.spec if isinstance(source, Stream) else first(source, 1)
    leaves = {
        name: ArraySpec((rows, *shape), "string" if kind == "text" else kind)
        for name, (kind, shape) in spec_of(parts, transforms.by_batch(source)).items()
    }
    return Example.of(parts).with_leaves(leaves).parts


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
        runtime().read(source, rows)
    except UsageError:  # of all examples
        raise
    except DataError as error:
        return error
    except Exception as error:  # of TensorFlow, or whatever a source of the user's raises
        return DataError(source.info.place(int(rows[0])), failures.reason(error))
    return None


@contextlib.contextmanager
def raising_read_errors(inputs: Foreign) -> Iterator[None]:
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
        raised = failures.of_reading(cause)
        raise raised from raised.__cause__


def _undecodable(inputs: Foreign, error: Exception) -> DataError | None:
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
    return any(
        each.in_graph or not all(change.of_arrays for change in each.transforms)
        for each in members_of(source)
    )
