"""What reading examples has raised, kept where TensorFlow makes an error of its own of it.

An exception inside of tf.data becomes one of TensorFlow's, with a traceback in the place of a
sentence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
    except Exception:
        found = first()
        if found is None:
            raise
        raise found from None
