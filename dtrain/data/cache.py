"""The cache: files that are made once of a dataset's, and used by every later run.

An entry is made aside, flushed and renamed, by one process at a time; another that needs it waits.
A process notes the entries that it uses in a file of its own, which it keeps locked. For want of
room those are removed that no process uses, first what was used longest ago.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dtrain.errors import UsageError, printable
from dtrain.files import writing
from dtrain.files.reading import open_read

FOLDER, BYTES = "DTRAIN_CACHE", "DTRAIN_CACHE_BYTES"
#: Bytes of all entries together where the variable says nothing.
LIMIT = 20 * 10**9
_ENTRY = re.compile(r"[0-9a-f]{64}(\.[a-z0-9]+)*")
_LEFTOVER = re.compile(r"\.([0-9a-f]{64}(?:\.[a-z0-9]+)*)\.[0-9a-f]{16}\.tmp")
_LEASE = re.compile(r"\.[0-9a-f]{16}\.lease")
#: Entries that this process uses, with what they are: device and inode.
_held: dict[Path, tuple[int, int]] = {}
#: Of each folder the file in which they are noted, open and locked; of the processes that this one
#: forks, too.
_leases: dict[Path, int] = {}
#: Folders that a notice was printed of.
_noticed: set[Path] = set()


def folder() -> Path:
    """Return the folder of the cache, which need not be there yet.

    ``$DTRAIN_CACHE``, else ``$XDG_CACHE_HOME/dtrain``, else ``~/.cache/dtrain``.
    """
    if given := os.environ.get(FOLDER):
        return Path(given).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Without a home `~` stays; and XDG_CACHE_HOME counts only if it is absolute.
    return Path(home, "dtrain") if os.path.isabs(home) else _temporary()


def limit() -> int:
    """Return the bytes that all entries may have together.

    Raises:
        UsageError: ``$DTRAIN_CACHE_BYTES`` is no whole number.
    """
    given = os.environ.get(BYTES)
    if not given:
        return LIMIT
    if not (given.isascii() and given.isdigit()):
        raise UsageError(
            BYTES, given, "is no number of bytes", "a whole number, 0 or more", f"{BYTES}={LIMIT}"
        )
    return int(given)


def room() -> int:
    """Return the bytes that one dataset may have: all that the disk has, where no limit is set.

    Entries that are used stay, above the limit too.

    Raises:
        UsageError: as of :func:`limit`.
    """
    if os.environ.get(BYTES):
        return limit()
    place = folder()
    there = next(each for each in (place, *place.parents) if each.exists())
    own = 0
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        own = sum(each.stat().st_size for each in entries if _ENTRY.fullmatch(each.name))
    return max(LIMIT, shutil.disk_usage(there).free + own)


def entry(key: str, suffix: str, make: Callable[[Path], None]) -> Path:
    """Return the file that ``make`` makes, which is there already if it was made before.

    It stays there as long as this process or one forked from it is alive. Where the folder of the
    cache cannot be written (read-only, or full), it is in a temporary folder, and one notice of
    that is printed.

    Args:
        key: what the contents depend on, all of it: the absolute path and the stamp of each file
            that they are made of, options, and the version of their format.
        suffix: of the file's name, such as ``.arrow``.
        make: writes a new file at the path that it is given. An ``OSError`` of it is one of that
            file; what it cannot read it reports as another error.

    Raises:
        UsageError: no folder can be written.
    """
    name = _name(key, suffix)
    limit()  # a wrong one is reported before the work, and not after it
    if (found := present(key, suffix)) is not None:
        return found
    places = _places()
    problems: list[str] = []
    for place in places:
        try:
            _made(place / name, make)
        except OSError as error:
            problems.append(f"{place} ({error.strerror or error})")
            continue
        if problems and places[0] not in _noticed:
            _noticed.add(places[0])
            text = f"notice: the cache cannot be written: {problems[0]}; {place} is used instead"
            print(printable(text), file=sys.stderr, flush=True)
        return place / name
    raise UsageError(
        FOLDER, places[0], f"what is made of the dataset can be written nowhere: {problems[0]}"
        + "".join(f", {each}" for each in problems[1:]),
        "a folder with room for it", f"{FOLDER}=FOLDER",
    )  # fmt: skip


def present(key: str, suffix: str) -> Path | None:
    """Return the entry if it is there already, else None: what needs it to be quick does without.

    Args:
        key, suffix: as of :func:`entry`.
    """
    name = _name(key, suffix)
    for place in _places():
        if _is_own(place) and _hold(place / name):
            return place / name
    return None


def _name(key: str, suffix: str) -> str:
    name = hashlib.sha256(key.encode()).hexdigest() + suffix
    assert _ENTRY.fullmatch(name), suffix
    return name


def _places() -> list[Path]:
    return list(dict.fromkeys((folder(), _temporary())))


def _temporary() -> Path:
    return Path(tempfile.gettempdir(), f"dtrain-cache-{os.getuid()}")


def _is_own(place: Path) -> bool:
    """Say whether a folder may be used: one that all may make is the user's only if it is."""
    try:
        return place != _temporary() or os.lstat(place).st_uid == os.getuid()
    except OSError:
        return False


def _hold(path: Path) -> bool:
    """Note that an entry is used, so that it stays; say whether it is there."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if _held.get(path) == (found.st_dev, found.st_ino):
            return True
    if not path.parent.is_dir():
        return False
    with contextlib.ExitStack() as stack:
        # ORDER: noted before it is looked for; meanwhile nothing is removed.
        with contextlib.suppress(OSError):  # of a cache that may only be read nothing is removed
            stack.enter_context(_gate(path.parent, fcntl.LOCK_SH))
            os.write(_lease(path.parent), f"{path.name}\n".encode())
        try:
            descriptor = open_read(path)
        except OSError:  # none, or one that may not be read
            return False
        found = os.fstat(descriptor)
        with contextlib.suppress(OSError):
            # That of its last change stays: who has it open knows the file by it.
            os.utime(descriptor, ns=(time.time_ns(), found.st_mtime_ns))
        os.close(descriptor)
        _held[path] = found.st_dev, found.st_ino
        return True


@contextlib.contextmanager
def _gate(place: Path, operation: int) -> Iterator[None]:
    """Let entries be noted together, or be removed by one process alone."""
    descriptor = writing.open_lock(place / ".gate.lock")
    try:
        with contextlib.suppress(OSError):  # of a file system without locks
            fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


def _lease(place: Path) -> int:
    """Return the file in which this process notes what it uses."""
    while place not in _leases:
        _used(place)
        descriptor = writing.open_append(place / f".{secrets.token_hex(8)}.lease")
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink > 0:
            _leases[place] = descriptor
        else:  # removed before it was locked, as that of an ended process
            os.close(descriptor)
    return _leases[place]


def _made(path: Path, make: Callable[[Path], None]) -> None:
    """Make an entry where no other process has done so meanwhile, and hold it.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_own(path.parent):
        raise OSError(errno.EACCES, "belongs to another user", str(path.parent))
    with _alone(path):
        if _hold(path):
            return
        temporary = writing.aside(path)
        try:
            make(temporary)
            _flush(temporary)
            writing.replace(temporary, path)
        except BaseException:
            writing.remove(temporary)
            raise
        writing.sync(path.parent)
        if not _hold(path):
            raise OSError(errno.ENOENT, "what was written there is gone", str(path))
    _make_room(path.parent)


def _flush(path: Path) -> None:
    descriptor = open_read(path)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def _alone(path: Path, wait: bool = True) -> Iterator[None]:
    """Let no other process make the entry.

    Raises:
        OSError: the lock cannot be made; or another process has it, and ``wait`` is false.
    """
    while True:
        descriptor = writing.open_lock(_lock_of(path))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            # On a file system without locks two may make the same, each aside.
            if not wait:
                os.close(descriptor)
                raise
        if os.fstat(descriptor).st_nlink > 0:
            break
        os.close(descriptor)  # who held it has removed it: a lock on nothing
    try:
        yield
    finally:
        os.close(descriptor)


def _make_room(place: Path) -> None:
    """Remove what killed processes have left, and the entries that are too much."""
    with contextlib.suppress(OSError), _gate(place, fcntl.LOCK_EX):
        found = []
        with os.scandir(place) as entries:
            for each in entries:
                with contextlib.suppress(FileNotFoundError):
                    if _ENTRY.fullmatch(each.name) and each.is_file(follow_symlinks=False):
                        seen = each.stat(follow_symlinks=False)
                        last = max(seen.st_atime_ns, seen.st_mtime_ns)
                        found.append((last, seen.st_size, Path(each.path)))
                    elif left := _LEFTOVER.fullmatch(each.name):
                        _remove(place / left[1], Path(each.path))
        total = sum(size for _, size, _ in found)
        if total <= limit():
            return
        used = _used(place)
        for _, size, path in sorted(found):
            if total > limit() and path.name not in used and _remove(path, path):
                total -= size


def _used(place: Path) -> set[str]:
    """Return the names of the entries that processes use, and remove the notes of ended ones."""
    names: set[str] = set()
    for path in [path for path in place.iterdir() if _LEASE.fullmatch(path.name)]:
        with os.fdopen(writing.open_append(path), "ab") as lease:
            try:
                fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                names.update(path.read_text(encoding="ascii", errors="replace").split())
            else:
                writing.remove(path)
    return names


def _remove(path: Path, file: Path) -> bool:
    """Remove ``file`` of the entry ``path`` if no process is making that; say whether it is gone.

    A process that was killed while it made one leaves a file aside, and no lock.
    """
    try:
        with _alone(path, wait=False):
            writing.remove(file)
            if not path.exists():
                writing.remove(_lock_of(path))
    except OSError:
        return False
    return not file.exists()
