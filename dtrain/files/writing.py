"""Every change to a file: written aside, appended, renamed, removed. It is done here alone.

New files get names that cannot be foreseen, and no link is followed. What is removed because a
command was wrong must have been made by this very process: :func:`make_folder` notes each folder
that it makes, and :func:`discard` removes no other.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from dtrain.files.reading import open_read, open_regular

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # the last are as wide as Chinese ones
#: Folders that this process has made: path, and device and inode.
_made: dict[Path, tuple[int, int]] = {}
#: Folders that were there, and empty, before this process began to fill them.
_adopted: set[Path] = set()


# Writing


def write_bytes(path: Path, data: bytes, lasting: bool = False) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the new one, whole.

    A link at ``path`` is replaced, never followed.

    Args:
        path, data: what goes where.
        lasting: on the disk itself on return, for what a run cannot be resumed without.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    write_parts(path, [data], lasting)


def write_parts(path: Path, parts: Iterable[bytes | memoryview], lasting: bool = False) -> None:
    """Write what ``parts`` make together, one after the other, as :func:`write_bytes` does."""
    try:
        with made_aside(path) as temporary:
            write_new(temporary, parts, lasting)
            os.replace(temporary, path)
    except OSError as error:  # of a write it names no file, of the others one aside
        error.filename, error.filename2 = str(path), None
        raise
    if lasting:
        sync(path.parent)


def write_new(
    path: Path, parts: Iterable[bytes | memoryview], lasting: bool = False, mode: int = 0o666
) -> None:
    """Write what ``parts`` make together to a new file, which has its name from the beginning.

    Args:
        path: of the file; a folder or file that has its name is removed.
        parts: one after the other.
        lasting: on the disk itself on return; its name is so after :func:`sync` of its folder.
        mode: permissions, less those that the process does not give.

    Raises:
        OSError: the disk is full, a limit was reached, it may not be written.
    """
    remove(path)  # what a killed writer has left
    descriptor = open_new(path, mode)
    try:
        for part in parts:
            write_all(descriptor, part)
        if lasting:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of ``data``: Linux writes 2 GiB at once at most, and less where a disk fills up."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def csv_text(rows: Iterable[Iterable[object]], end: str = "\n") -> str:
    """Return a CSV file of which no text is a formula to a spreadsheet, or acts on a terminal.

    A text that begins as a formula has an apostrophe in front, as OWASP says ("CSV injection").
    """
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=end).writerows(map(_harmless, row) for row in rows)
    return file.getvalue()


def _harmless(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = _CONTROL.sub(lambda found: repr(found[0])[1:-1], cell)
    if text[:1] not in _FORMULA or len(text) == 1:
        return text
    with contextlib.suppress(ValueError):
        float(text)
        return text  # a number with a sign
    return f"'{text}"


def set_default_mode(path: Path) -> None:
    """Give a file that a library has made for its owner alone the mode that any new file has."""
    other = aside(path)
    descriptor = open_new(other)
    try:
        os.chmod(path, stat.S_IMODE(os.fstat(descriptor).st_mode))
    finally:
        os.close(descriptor)
        os.unlink(other)


def open_new(path: Path, mode: int = 0o666) -> int:
    """Make a file and open it to write; return the descriptor.

    Raises:
        OSError: it cannot be made, or something has its name.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, mode)


def aside(path: Path) -> Path:
    """Return a name beside ``path`` that cannot be foreseen, for what is being made or removed."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def keep_aside(path: Path) -> Path:
    """Give what is at ``path`` another name, and return it: on a full disk it can be put back."""
    kept = aside(path)
    try:
        os.link(path, kept, follow_symlinks=False)
    except OSError:  # a file system without links
        copy(path, kept)
    return kept


class KeptFiles:
    """Files as a command has met them, which it may change and take back.

    Args:
        paths: of the files; what is not there is removed when they are put back.

    Raises:
        DamagedFile, OSError: one cannot be read.
    """

    def __init__(self, paths: Iterable[Path]):
        self._kept = {path: keep_aside(path) if os.path.lexists(path) else None for path in paths}

    def put_back(self) -> None:
        """Let all be what they were.

        Raises:
            OSError: one cannot be written.
        """
        for path, kept in self._kept.items():
            if kept is None:
                remove(path)
            else:
                os.replace(kept, path)
                remove(kept)  # which stays where both are names of one file

    def forget(self) -> None:
        """Let the files of now count."""
        for kept in filter(None, self._kept.values()):
            remove(kept)


@contextlib.contextmanager
def made_aside(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path`` for what is made before it gets that one.

    What still has it at the end is removed.
    """
    temporary = aside(path)
    try:
        yield temporary
    finally:
        remove(temporary)


def sync(path: Path) -> None:
    """Flush a file to the disk, or the names in a folder: what was made, renamed or removed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy(source: Path, target: Path) -> None:
    """Copy a regular file to a new one, on the disk itself on return.

    Raises:
        DamagedFile: ``source`` is no regular file.
        OSError: it cannot be read, or ``target`` cannot be written, or is there.
    """
    with os.fdopen(open_read(source), "rb") as old, target.open("xb") as new:
        try:
            shutil.copyfileobj(old, new)
            new.flush()
            os.fsync(new.fileno())
        except OSError as error:
            error.filename = error.filename or str(target)
            raise


def unwritable(folder: Path) -> str | None:
    """Return why nothing more can be written to ``folder``; None if something can."""
    probe = folder / f".probe.{secrets.token_hex(8)}.tmp"
    try:
        with probe.open("xb") as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return str(error.strerror)
    finally:
        remove(probe)
    return None


def open_lock(path: Path) -> int:
    """Open a file to lock it, made where it is not there; return the descriptor.

    Raises:
        DamagedFile: it is no regular file.
        OSError: it cannot be made or opened.
    """
    return _open_or_make(path, os.O_RDWR, 0o644)


def open_append(path: Path) -> int:
    """Open a file to append to it, made where it is not there; return the descriptor.

    Raises:
        DamagedFile: it is no regular file.
        OSError: it may not be written.
    """
    return _open_or_make(path, os.O_WRONLY | os.O_APPEND, 0o666)


def _open_or_make(path: Path, flags: int, mode: int) -> int:
    with contextlib.suppress(FileExistsError):
        return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    return open_regular(path, flags)


def truncate(path: Path, size: int) -> None:
    """Cut a file off after ``size`` bytes.

    Raises:
        DamagedFile, OSError: as of :func:`open_append`.
    """
    descriptor = open_append(path)
    try:
        os.truncate(descriptor, size)
    finally:
        os.close(descriptor)


def write_key(path: Path, key: bytes) -> None:
    """Make a file that its user alone may read; where there is one, that one stays.

    Raises:
        OSError: it cannot be made.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_first(path, key, 0o600)


def write_first(path: Path, data: bytes, mode: int = 0o666) -> bool:
    """Write ``data`` to ``path``, whole, unless something is there, which stays.

    Args:
        path, data: what goes where.
        mode: permissions, less those that the process does not give.

    Returns:
        Whether this call made it: of several at once exactly one has.

    Raises:
        OSError: it cannot be made.
    """
    with made_aside(path) as temporary:
        write_new(temporary, [data], mode=mode)
        try:
            # ORDER: it appears as a whole, and the first of several commands makes it for all.
            os.link(temporary, path)
        except FileExistsError:
            return False
    return True


# Replacing and removing


def replace(source: Path, target: Path) -> None:
    """Give ``source`` the name ``target``, of which the file that is there, if any, is gone.

    Raises:
        OSError: it cannot be done; both are as they were.
    """
    os.replace(source, target)


def rename(source: Path, target: Path) -> None:
    """Give ``source`` the name ``target``, which is free.

    Raises:
        OSError: it cannot be done; ``source`` is as it was.
    """
    os.rename(source, target)


def make_lasting_folder(path: Path) -> None:
    """Make a folder, and those above it, where there is none, on the disk itself on return.

    Raises:
        OSError: it cannot be made; a file is there.
    """
    if not path.is_dir():
        make_lasting_folder(path.parent)
        os.mkdir(path)
        sync(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are not there, and note each as this process's own.

    Raises:
        FileExistsError: there is one.
        OSError: it cannot be made.
    """
    path = path.absolute()
    if not path.parent.is_dir():
        with contextlib.suppress(FileExistsError):  # of another command at the same moment
            make_folder(path.parent)
    os.mkdir(path)
    found = os.lstat(path)
    _made[path] = found.st_dev, found.st_ino


def adopt(path: Path) -> None:
    """Note a folder that was found empty: :func:`discard` empties it again."""
    if not _is_own(path):
        _adopted.add(path.absolute())


def discard(path: Path) -> None:
    """Remove a folder that this process has made, and those above it that it made, where empty.

    Raises:
        ValueError: this process has not made it.
    """
    path = path.absolute()
    if path in _adopted:
        _adopted.remove(path)
        for name in os.listdir(path):
            remove(path / name)
        return
    if not _is_own(path):
        raise ValueError(f"{path} was not made by this command: it stays")
    remove(path)
    del _made[path]
    for parent in path.parents:
        if not _is_own(parent):
            return
        try:
            os.rmdir(parent)
        except OSError:  # a later command uses it
            return
        del _made[parent]


def _is_own(path: Path) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return _made.get(path) == (found.st_dev, found.st_ino)


def remove(path: Path) -> None:
    """Remove a file or a folder as far as that can be done; a link is removed, never followed."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(RecursionError):  # folders nested without end
            shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        with contextlib.suppress(OSError):
            unlink(path)


def remove_empty(path: Path) -> bool:
    """Remove a folder, if nothing is in it; say whether it was there, and is gone."""
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def unlink(path: Path) -> None:
    """Remove a file.

    Raises:
        OSError: it is not there, is a folder, or cannot be removed.
    """
    os.unlink(path)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers have left in ``folder``, which is this command's (locked)."""
    for name in os.listdir(folder):
        if _TEMPORARY.fullmatch(name):
            remove(folder / name)
