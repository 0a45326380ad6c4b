"""Examples that cannot be read: named where they end a run, or found before it."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np

from dtrain import secrets
from dtrain.data import failures
from dtrain.data.mixture import Concatenated
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import DataError, DtrainError
from dtrain.task.backends.runtime import framework_errors
from dtrain.task.data.reading import first_bad


@contextlib.contextmanager
def failing(inputs: Any) -> Iterator[None]:
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
