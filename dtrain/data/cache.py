"""The cache: files that are made once from a dataset, and used by every later run.

One process makes an entry beside its final name, under a lock, and renames it; others wait. Nothing
is evicted: whoever wants the disk space back removes the folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from dtrain.errors import UsageError, printable
from dtrain.files import writing

FOLDER = "DTRAIN_CACHE"


def folder() -> Path:
    """Return the folder of the cache, which need not be there yet.

    ``$DTRAIN_CACHE``, else ``$XDG_CACHE_HOME/dtrain``, else ``~/.cache/dtrain``.
    """
    if configured := os.environ.get(FOLDER):
        return Path(configured).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Without a home `~` stays; and XDG_CACHE_HOME counts only if it is absolute.
    return Path(home, "dtrain") if os.path.isabs(home) else _temporary()


def _temporary() -> Path:
    return Path(tempfile.gettempdir(), f"dtrain-cache-{os.getuid()}")


def path_of(name: str, key: object) -> Path:
    """Return where an entry is, or would be (arguments of :func:`cached`)."""
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
    return folder() / f"{digest}-{re.sub(r'[^A-Za-z0-9.-]+', '_', name)[-60:]}"


def cached(name: str, key: object, make: Callable[[Path], None]) -> Path:
    """Return a complete file or folder that ``make`` has written once for all processes.

    Args:
        name: the end of its file name, for people and for its suffix.
        key: all that the content depends on: strings, numbers, tuples and lists of such. For a
            file: its ``place()`` and its ``stamp()``; options; the version of what ``make`` writes.
        make: writes a new file or folder at the path that it gets. Its ``OSError`` means that the
            cache cannot be written; what it cannot read it reports as another error.

    Raises:
        UsageError: the cache cannot be written.
    """
    path = path_of(name, key)
    if path.exists():
        return path
    import filelock  # not above: with NumPy alone datasets can be imported

    unfinished = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.parent == _temporary() and path.parent.lstat().st_uid != os.getuid():
            raise OSError(errno.EACCES, "it belongs to another user")
        with filelock.FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                try:
                    writing.remove(unfinished)  # of a process that was killed
                    make(unfinished)
                    _sync(unfinished)
                    writing.rename(unfinished, path)
                finally:
                    writing.remove(unfinished)
    except OSError as error:
        raise UsageError(FOLDER, f"cannot be written ({error.strerror or error})", path.parent,
                         accepted="a folder with room for copies of data") from None  # fmt: skip
    return path


def announce(text: str) -> None:
    """Print a notice of what is made once and takes long."""
    print(printable(f"notice: {text}"), file=sys.stderr, flush=True)


def _sync(path: Path) -> None:
    """Flush to the disk, so that no power failure leaves a complete name with half a content."""
    for file in [path] if path.is_file() else filter(Path.is_file, path.rglob("*")):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
