"""The variables of this process's environment, which a process that is started takes over."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

#: Held while variables are those of a process that is being started. Other threads look meanwhile:
#: they would take these for the user's own, or fail over one that is taken away again.
_LOCK = threading.RLock()


@contextlib.contextmanager
def changed(changes: dict[str, str]) -> Iterator[None]:
    """Change variables for what is started within, and put them back."""
    with _LOCK:
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def copied() -> dict[str, str]:
    """Return all variables, without what another thread changes for a moment."""
    with _LOCK:
        return dict(os.environ)
