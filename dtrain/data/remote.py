"""Files at addresses, such as ``s3://bucket/x-*.parquet``: found, and copied once, by fsspec.

Heads are read where the files are; what needs all of one reads the copy in the cache
(:mod:`dtrain.data.cache`). Credentials are those that fsspec finds in the environment.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

from dtrain import secrets
from dtrain.data import cache, servers
from dtrain.data.data_file import DataFile, is_address
from dtrain.errors import DataError, UsageError

#: Bytes that are fetched at once: of a head, and of a copy.
_BLOCK, _PIECE = 1 << 18, 8 << 20
#: How often a piece is asked for.
_TRIES = 3
#: Servers that are asked at once.
_THREADS = 16
_SUFFIX = re.compile(r"(\.[a-z0-9]+){1,2}$")


class RemoteFile(DataFile):
    """A file at an address.

    Args:
        address: of it.
        info: what its server says of it, of fsspec.
        key: that names it, for messages.

    Attributes:
        name: its address without passwords.
    """

    def __init__(self, address: str, info: Mapping[str, Any], key: str):
        super().__init__(secrets.mask(address))
        self._address, self._key = address, key
        self._size, self._stamp = servers.facts(info)
        self._parts: bool | None = None

    def size(self) -> int:
        """Return its bytes."""
        return self._size

    def stamp(self) -> str:
        """Return what changes when the file does: its size, and what its server says."""
        return self._stamp

    def open(self) -> IO[bytes]:
        """Open it to read a head of it: the copy, where there is one, or its server sends no parts.

        Raises:
            DataError: it cannot be read.
        """
        if (copy := cache.present(*self._entry())) is not None:
            return copy.open("rb")
        server = servers.filesystem(self._address, self._key)
        with self._blamed():
            if self._is_sent_in_parts(server):
                opened = server.open(self._address, "rb", block_size=_BLOCK, cache_type="readahead")
                return io.BufferedReader(_Head(opened, self._blamed))
        return self.local().open("rb")

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        """Raise what is raised as a :class:`DataError`."""
        try:
            yield
        except Exception as error:  # of each kind of server another
            raise DataError(self.name, f"cannot be read ({servers.reason(error)})") from None

    def _is_sent_in_parts(self, server: Any) -> bool:
        """Whether its server sends parts of it: one of HTTP need not."""
        if self._parts is None and servers.is_http(self._address) and self._size > 1:
            with server.open(self._address, "rb", block_size=1, cache_type="none") as opened:
                opened.seek(self._size - 1)
                try:
                    opened.read(1)
                    self._parts = True
                except ValueError:
                    self._parts = False
        return self._parts is not False

    def local(self) -> Path:
        """Return the copy in the cache, which is fetched where it is not there.

        Raises:
            DataError: it cannot be fetched.
            UsageError: it is larger than the cache.
        """
        check_room([self], self._key)
        return cache.entry(*self._entry(), self._fetch)

    def _entry(self) -> tuple[str, str]:
        """Return the key and the suffix of the copy in the cache."""
        suffix = _SUFFIX.search(PurePosixPath(urlsplit(self._address).path).name.lower())
        return f"copy 1\n{self.name}\n{self._stamp}", suffix[0] if suffix else ".data"

    def _fetch(self, target: Path) -> None:
        with target.open("xb") as file:
            for piece in self._pieces():
                file.write(piece)

    def _pieces(self) -> Iterator[bytes]:
        """Yield all bytes.

        Raises:
            DataError: they cannot be fetched, or are others than it had.
        """
        server = servers.filesystem(self._address, self._key)
        at, left = 0, _TRIES
        while at < self._size:
            try:
                in_parts = self._is_sent_in_parts(server)
                block = _PIECE if in_parts else 0  # which is all of it, in one answer
                opening = server.open(self._address, "rb", block_size=block, cache_type="none")
                with opening as opened:
                    if in_parts:
                        opened.seek(at)
                    else:
                        left = 1
                    while piece := opened.read(_PIECE):
                        at += len(piece)
                        left = _TRIES if in_parts else 1
                        yield piece
                if at < self._size:
                    raise EOFError("its server ended too early")
            except Exception as error:  # of each kind of server another
                left -= 1
                if not left:
                    raise DataError(
                        self.name, f"cannot be fetched: after {at:,} of {self._size:,} bytes: "
                        f"{servers.reason(error)}",
                    ) from None  # fmt: skip
        with self._blamed():
            found = servers.facts(servers.asked(server, self._address))
        if (at, found) != (self._size, (self._size, self._stamp)):
            raise DataError(self.name, "has changed while it was fetched")


class _Head(io.RawIOBase):
    """An open file whose errors are those of its :class:`RemoteFile`.

    Args:
        file: of fsspec.
        blamed: returns a context that raises them.
    """

    def __init__(self, file: Any, blamed: Callable[[], AbstractContextManager[None]]):
        super().__init__()
        self._file, self._blamed = file, blamed

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def seekable(self) -> bool:
        """Return that it is."""
        return True

    def seek(self, place: int, whence: int = 0) -> int:
        """Go to a place; return it."""
        return int(self._file.seek(place, whence))

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as there are bytes; return how many."""
        with self._blamed():
            piece = self._file.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Close it."""
        self._file.close()
        super().close()


def matching(addresses: Sequence[str], key: str) -> list[DataFile]:
    """Return the files that addresses, or patterns of such, name.

    Args:
        addresses: of the key's value.
        key: for messages.

    Raises:
        UsageError: there is none, its server cannot be asked, or a package is not installed.
    """
    for address in addresses:
        servers.filesystem(address, key)  # what is missing is reported before anything is asked
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        places = pool.map(lambda address: _places(address, key), addresses)
        each = [pair for found in places for pair in found.items()]
        return list(pool.map(lambda pair: _file(pair[0], pair[1], key), each))


def _places(address: str, key: str) -> dict[str, Mapping[str, Any]]:
    """Return the addresses that an address or a pattern names, each with what its server says."""
    server = servers.filesystem(address, key)
    try:
        try:
            found = {address: servers.asked(server, address)}
        except FileNotFoundError:
            if not servers.is_pattern(address):
                raise
            found = server.glob(address, detail=True)
    except Exception as error:  # of each kind of server another
        raise servers.refused(address, key, error) from None
    if found.get(address, {}).get("type") == "directory":
        raise UsageError(
            key, address, "is a folder", "a file, a pattern, or a list of them",
            f"'{key}={address.rstrip('/')}/*'",
        )  # fmt: skip
    files = {place: info for place, info in found.items() if info.get("type") != "directory"}
    if not files:
        raise UsageError(
            key, address, "no file has such an address", "a pattern that files match",
            f"{key}=ADDRESS",
        )  # fmt: skip
    return {
        place if is_address(place) else server.unstrip_protocol(place): info
        for place, info in files.items()
    }


def _file(address: str, info: Mapping[str, Any], key: str) -> DataFile:
    try:
        if info.get("size") is None:  # of the list of a folder that HTTP shows
            info = servers.asked(servers.filesystem(address, key), address)
        if info.get("size") is None:
            raise OSError("its server does not say how large it is")
    except Exception as error:  # of each kind of server another
        raise servers.refused(address, key, error) from None
    return RemoteFile(address, info, key)


def check_room(files: Sequence[DataFile], key: str) -> None:
    """Refuse files that the cache cannot hold together.

    Args:
        files: of one dataset.
        key: that names them.

    Raises:
        UsageError: they are larger than the limit of the cache.
    """
    size = sum(file.size() for file in files if isinstance(file, RemoteFile))
    if size > cache.room():
        names = files[0].name if len(files) == 1 else f"[{files[0].name}, ...]"
        raise UsageError(
            key, names, f"has {size:,} bytes, and the cache has room for {cache.room():,}",
            f"files that go into the cache, whose limit is {cache.BYTES}",
            f"{cache.BYTES}={size} in front of the command, and {cache.FOLDER}=FOLDER where there "
            "is more room",
        )  # fmt: skip
