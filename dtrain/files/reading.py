"""Files that this process did not write: read without following links, and within bounds.

A run folder may come from another user, or be damaged. So a file is read only if it is a regular
file of a bounded size, and a name that stands in a file is one component below its folder.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from dtrain.errors import DamagedFile
from dtrain.files.fields import Json

#: Bytes of the largest JSON file and of the largest YAML file that are read: a configuration may
#: list some 30,000 files.
JSON_BYTES, YAML_BYTES = 64 << 20, 1 << 22
#: How deep a YAML file may be nested: libyaml recurses.
DEPTH = 64
#: Most values that a YAML file stands for.
VALUES = 100_000
_NOT = "not a regular file"
#: Bytes of the longest file name (ext4, XFS, btrfs, NFS).
NAME_BYTES = 255
#: Bytes by which a reader knows the line again that it has read last.
_KNOWN_BYTES = 4096


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


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file that exists, without following a link in its place.

    Raises:
        DamagedFile: something else is there.
        OSError: there is none, or it may not be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise DamagedFile(path, f"is {_kind(os.lstat(path).st_mode)}, {_NOT}") from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise DamagedFile(path, f"is {_kind(mode)}, {_NOT}")
    return descriptor


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
    return open_regular(path, os.O_RDONLY)


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


def read_json(path: Path, limit: int = JSON_BYTES) -> Json | None:
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


def parse_json(data: bytes, path: Path) -> Json:
    """Return the object that ``data`` is, from the file ``path``.

    Raises:
        DamagedFile: it is none, not UTF-8, or nested too deep for Python.
    """
    try:
        value = json.loads(data.decode("utf-8"))  # of bytes it would take UTF-16, too
        if not isinstance(value, dict):
            raise DamagedFile(path, "is not a JSON object")
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "cannot be decoded"
        raise DamagedFile(path, f"is not valid JSON ({reason})") from None
    return value


# YAML as dtrain writes it. What a scalar is, a number or a text, is decided as OmegaConf does,
# whose reader takes ten times as long and has no bounds.

_FLOAT = re.compile(
    r"""^(?:
     [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.X,
)
_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Fast):
    """A loader that refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Json:
        """Return the mapping of a node."""
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {key.value}", problem_mark=key.start_mark
                )
            keys.add(key.value)
        return super().construct_mapping(node, deep=deep)


# A time is a text, and 1e-3 a number.
_Loader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def read_plain(path: Path, aliases: bool = False) -> Json:
    """Return the mapping in a YAML file: plain scalars, lists and mappings.

    References stay what they are.

    Args:
        path: of the file.
        aliases: a user wrote it, and may have used them; dtrain writes none.

    Raises:
        DamagedFile: it is no regular file, too long, too deep, has an alias or tags, or is not a
            mapping.
        OSError: there is none, or it may not be read.
    """
    data = read_bytes(path, YAML_BYTES)
    try:
        text = data.decode()
        _check_nesting(text, path, aliases)
        document = yaml.load(text, Loader=_Loader)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise not_yaml(path, error) from None
    if not isinstance(document, dict):
        raise DamagedFile(path, "is not a mapping")
    return document


def not_yaml(path: Path, error: Exception) -> DamagedFile:
    """Return an error of a YAML parser, or of OmegaConf, in a sentence."""
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}: " if mark is not None else ""
    reason = getattr(error, "problem", None) or str(error).strip().split("\n")[0]
    return DamagedFile(path, f"is not valid YAML ({place}{reason[:200]})")


def _check_nesting(document: str, path: Path, aliases: bool) -> None:
    """Refuse YAML whose tree may be far larger or deeper than its text, before a tree is made."""
    sizes: dict[str | None, int] = {}  # of what has an anchor, an alias counting as all of it
    nodes: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(document, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            nodes.append((event.anchor, 1))
            if len(nodes) > DEPTH + 1:
                raise DamagedFile(path, f"is nested deeper than {DEPTH}")
            continue
        size = int(isinstance(event, yaml.ScalarEvent))
        if isinstance(event, yaml.AliasEvent):
            alias = f"has an alias (*{event.anchor})"
            if not aliases:
                raise DamagedFile(path, f"{alias}, which dtrain never writes")
            if event.anchor not in sizes:
                raise DamagedFile(path, f"{alias} inside of what it names")
            size = sizes[event.anchor]
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = nodes.pop()
            sizes[anchor] = size
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = size
        nodes[-1] = (nodes[-1][0], nodes[-1][1] + size)
        if nodes[-1][1] > VALUES:
            raise DamagedFile(path, f"stands for more than {VALUES:,} values")


# Folders


def csv_rows(path: Path) -> list[Json]:
    """Return the rows of a file of :func:`dtrain.files.writing.csv_text`; of none no rows."""
    with contextlib.suppress(FileNotFoundError):
        file = io.StringIO(read_bytes(path).decode(), newline="")
        return [{name: _cell(text) for name, text in row.items()} for row in csv.DictReader(file)]
    return []


def _cell(text: str | None) -> float | str | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        return text[1:] if text[0] == "'" and text[1:2] in ("=", "+", "-", "@") else text
    return int(number) if math.isfinite(number) and text.lstrip("-").isdigit() else number


def check_tree(folder: Path) -> None:
    """Refuse a folder of a run, or of a sweep, that holds anything but files and folders.

    A command may be at work there: what it removes meanwhile is passed over.

    Raises:
        DamagedFile: a link, pipe, socket or device is in it.
        OSError: it cannot be read.
    """
    os.lstat(folder)
    for here, folders, names in os.walk(folder, onerror=unless_gone):
        for name in folders + names:
            path = Path(here, name)
            with contextlib.suppress(FileNotFoundError):
                mode = os.lstat(path).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise DamagedFile(path, f"is {_kind(mode)}, {_NOT}")


def unless_gone(error: OSError) -> None:
    """Raise an error of :func:`os.walk`, unless the folder was removed meanwhile."""
    if not isinstance(error, FileNotFoundError):
        raise error


# Files that grow


class Tail:
    """Reads the lines that are added to a file; one that was cut, from its beginning again.

    Args:
        path: the file; it need not exist yet.
        most: bytes of the longest piece.
        begins: called when the file is read from its beginning again.
    """

    def __init__(self, path: Path, most: int, begins: Callable[[], None] = lambda: None):
        self._path = path
        self._most = most
        self._begins = begins
        self._offset = 0
        self._last = b""  # end of the piece that was read last

    def pieces(self) -> Iterator[bytes]:
        """Yield the lines completed since the last call; one longer than ``most`` in pieces.

        Raises:
            DamagedFile: it is no regular file.
            OSError: it cannot be read.
        """
        try:
            descriptor = open_read(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return
        with os.fdopen(descriptor, "rb") as file:
            self._find(file)
            while piece := file.readline(self._most):
                if not piece.endswith(b"\n") and len(piece) < self._most:
                    return  # it is being written
                self._offset += len(piece)
                self._last = piece[-_KNOWN_BYTES:]
                yield piece

    def begin_again(self) -> None:
        """Read the file from its beginning."""
        self._offset, self._last = 0, b""
        self._begins()

    def skip(self) -> None:
        """Go to the end of the file without reading it."""
        with contextlib.suppress(FileNotFoundError):
            self._offset, self._last = self._path.stat().st_size, b""

    def _find(self, file: IO[bytes]) -> None:
        """Go to where the last call ended, or to the beginning if that is not there any more."""
        file.seek(self._offset - len(self._last))
        if file.read(len(self._last)) != self._last:
            self.begin_again()
        file.seek(self._offset)
