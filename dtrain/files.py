"""Every file of a run: read without following links, written aside, and removed here alone.

A run folder may come from somebody else, or be damaged. So a file is read only if it is a regular
file of a bounded size, a name that stands in a file is one component below its folder, and new
files get names that cannot be foreseen.

What is removed because a command was wrong must have been made by this very process:
:func:`make_folder` notes each folder that it makes, and :func:`discard` removes no other.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain.errors import DamagedFile

#: Bytes of the largest JSON file and of the largest YAML file that are read.
JSON_BYTES, YAML_BYTES = 64 << 20, 1 << 20
#: How deep JSON and YAML may be nested, and how many nodes a YAML file may have.
DEPTH, NODES = 64, 50_000
#: Entries that a run folder may have, and how deep its folders may be nested.
ENTRIES, FOLDERS = 1_000_000, 16
#: Bytes of the longest file name (ext4, XFS, btrfs, NFS).
NAME_BYTES = 255

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
#: Folders that this process has made: path, and device and inode.
_made: dict[Path, tuple[int, int]] = {}


# Names


def component(name: object) -> str | None:
    """Return why ``name`` is not the name of one file, None if it is."""
    if not isinstance(name, str) or not name:
        return "is empty" if name == "" else "is no text"
    if name in (".", "..") or "/" in name:
        return "is not one file name"
    if not name.isprintable():
        return "has characters that cannot be printed"
    if len(name.encode(errors="surrogatepass")) > NAME_BYTES - 32:  # room for `.tmp` and numbers
        return f"is longer than {NAME_BYTES - 32} bytes"
    return None


def below(folder: Path, name: object, path: Path, field: str) -> Path:
    """Return ``folder / name`` for a ``name`` that ``field`` of the file ``path`` gave.

    Raises:
        DamagedFile: it is not one component.
    """
    problem = component(name)
    if problem is not None:
        raise DamagedFile(path, f"{str(name)[:80]!r} {problem}", field)
    return folder / str(name)


# Reading


def _open(path: Path, flags: int) -> int:
    """Open a regular file that exists, without following a link in its place.

    Raises:
        DamagedFile: something else is there.
        OSError: there is none, or it may not be opened.
    """
    _regular(path, os.lstat(path))  # ORDER: before opening: that of a device may have effects
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedFile(path, "is a symbolic link, not a regular file") from None
        raise
    try:
        _regular(path, os.fstat(descriptor))
    except DamagedFile:
        os.close(descriptor)
        raise
    return descriptor


def _regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise DamagedFile(path, f"is {_kind(found.st_mode)}, not a regular file")


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def open_read(path: Path) -> int:
    """Open a regular file for reading; return the descriptor.

    Raises:
        DamagedFile: it is a link, a pipe, a folder, ...
        OSError: there is none, or it may not be read.
    """
    return _open(path, os.O_RDONLY)


def read_bytes(path: Path, limit: int = JSON_BYTES) -> bytes:
    """Return the contents of a regular file.

    Raises:
        DamagedFile: it is no regular file, or longer than ``limit`` bytes.
        OSError: there is none, or it cannot be read.
    """
    with os.fdopen(open_read(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DamagedFile(path, f"is longer than {limit:,} bytes")
    return data


def read_json(path: Path, limit: int = JSON_BYTES) -> dict[str, Any] | None:
    """Return the object in a JSON file; None where there is no file.

    Raises:
        DamagedFile: it is no regular file, too long, too deep, or not a JSON object.
        OSError: it cannot be read.
    """
    try:
        data = read_bytes(path, limit)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return parse_json(data, path)


def parse_json(data: bytes, path: Path, field: str | None = None) -> dict[str, Any]:
    """Return the object that ``data`` is, from the file ``path``.

    Raises:
        DamagedFile: it is none, not UTF-8, or nested deeper than :data:`DEPTH`.
    """
    try:
        value = json.loads(data)
        if not isinstance(value, dict):
            raise DamagedFile(path, "is not a JSON object", field)
        _check_tree(value, 0)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "cannot be decoded"
        raise DamagedFile(path, f"is not valid JSON ({reason})", field) from None
    return value


def _check_tree(value: Any, depth: int) -> None:
    """Refuse what cannot be walked, printed or written again."""
    if depth > DEPTH:
        raise RecursionError
    if isinstance(value, str):
        value.encode()  # a lone surrogate is no character
    elif isinstance(value, dict):
        for name, item in value.items():
            name.encode()
            _check_tree(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_tree(item, depth + 1)


def read_yaml(path: Path, limit: int = YAML_BYTES) -> DictConfig:
    """Return the mapping in a YAML file that dtrain wrote: plain scalars, lists and mappings.

    Raises:
        DamagedFile: it is no regular file, too long, too deep, has anchors or tags, or is not a
            mapping that OmegaConf takes.
        OSError: there is none, or it cannot be read.
    """
    data = read_bytes(path, limit)
    try:
        text = data.decode()
        _check_events(text, path)
        config = OmegaConf.create(text)
    except (ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark is not None else ""
        reason = getattr(error, "problem", None) or str(error).strip().split("\n")[0]
        raise DamagedFile(path, f"is not valid YAML ({place}{reason})") from None
    if not isinstance(config, DictConfig):
        raise DamagedFile(path, "is not a mapping")
    return config


def _check_events(text: str, path: Path) -> None:
    """Refuse YAML whose tree may be far larger than its text, before a tree is made."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        if count > NODES:
            raise DamagedFile(path, f"has more than {NODES:,} nodes")
        if isinstance(event, yaml.AliasEvent):
            raise DamagedFile(path, f"has an alias (*{event.anchor}), which dtrain never writes")
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise DamagedFile(path, f"has a tag ({tag}), which dtrain never writes")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH:
                raise DamagedFile(path, f"is nested deeper than {DEPTH}")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def check_tree(folder: Path) -> None:
    """Refuse a folder of a run, or of a sweep, that holds anything but files and folders.

    Raises:
        DamagedFile: a link, pipe, socket or device is in it, or too much.
        OSError: it cannot be read.
    """
    left = ENTRIES
    todo = [(folder, 0)]
    while todo:
        here, depth = todo.pop()
        if depth > FOLDERS:
            raise DamagedFile(here, f"is nested deeper than {FOLDERS} folders")
        with os.scandir(here) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    raise DamagedFile(folder, f"has more than {ENTRIES:,} files")
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    todo.append((Path(entry.path), depth + 1))
                elif not stat.S_ISREG(mode):
                    raise DamagedFile(Path(entry.path), f"is {_kind(mode)}, not a regular file")


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
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if lasting:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # its name, too
        finally:
            os.close(folder)


def open_append(path: Path) -> int:
    """Open a file to append to it, made where it is not there; return the descriptor.

    Raises:
        DamagedFile: it is no regular file, or has a second name (a hard link), which may be a file
            of somebody else.
        OSError: it may not be written.
    """
    flags = os.O_WRONLY | os.O_APPEND
    with contextlib.suppress(FileExistsError):
        return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    descriptor = _open(path, flags)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise DamagedFile(path, "has a second name (a hard link)")
    return descriptor


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


# Removing


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


def discard(path: Path) -> None:
    """Remove a folder that this process has made, and those above it that it made, where empty.

    Raises:
        ValueError: this process has not made it.
    """
    path = path.absolute()
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
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers have left in ``folder``, which is this command's (locked)."""
    for name in os.listdir(folder):
        if _TEMPORARY.fullmatch(name):
            remove(folder / name)
