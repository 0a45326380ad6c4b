"""Errors of reading examples, and the sentences that are made of them.

An exception inside of tf.data becomes one of TensorFlow's, with a traceback in the place of a
sentence: it is kept here. Data that cannot be read before training is a mistake of the
configuration.
"""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Iterator

from dtrain import secrets
from dtrain.errors import DataError, DtrainError, UsageError
from dtrain.files.fields import Values

_found: list[Exception] = []


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Keep what is raised inside, and let it pass."""
    try:
        yield
    except Exception as error:
        _found.append(error)
        raise


def first() -> Exception | None:
    """Return the first that was kept since the last such call; None if there was none."""
    found = _found[0] if _found else None
    _found.clear()
    return found


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Raise what was kept, in the place of what TensorFlow makes of it."""
    first()
    try:
        yield
    except Exception as error:
        found = first()
        if found is None and not _of_tensorflow(error):
            raise
        raise found or DataError("dataset: the stream", reason(error)) from None


def of_reading(error: Exception) -> DtrainError:
    """Return what is raised where reading examples has raised ``error``, with it as its cause.

    Of the user's own code the traceback is printed: where that was is in the log.
    """
    if isinstance(error, DtrainError):
        return error
    print(secrets.mask("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)
    raised = DataError("dataset: reading the examples", f"{type(error).__name__}: {error}")
    raised.__cause__ = error
    return raised


@contextlib.contextmanager
def before_training(node: Values) -> Iterator[None]:
    """Refuse data that cannot be read as what is wrong with the configuration: nothing has begun.

    Args:
        node: the ``dataset`` group.

    Raises:
        UsageError: in the place of a :class:`DataError`.
    """
    try:
        yield
    except DataError as error:
        raise UsageError("dataset", str(error), node["_target_"], accepted="data that can be read",
                         hint="dataset.on_error=skip leaves the rest out") from None  # fmt: skip


def reason(error: Exception) -> str:
    """Return what an exception says: of TensorFlow's, without where in the graph that was."""
    if not _of_tensorflow(error):
        return f"{type(error).__name__}: {error}"
    lines = str(getattr(error, "message", error)).strip().split("\n")
    # AutoGraph puts its own traceback before it.
    said = lines[-1] if lines[0].startswith("in user code:") else lines[0]
    said = re.sub(r"^\s*\w+Error: ", "", said).rpartition("}} ")[2]
    return re.sub(r" \[Op:\w+\].*| name: .*$", "", said).strip()


def _of_tensorflow(error: Exception) -> bool:
    """Whether an operation has failed."""
    return type(error).__module__.startswith("tensorflow.")
