"""Files at addresses, such as ``s3://bucket/x-*.parquet``: found and copied by fsspec.

Each is copied once, into the cache (:mod:`dtrain.data.cache`), when it is first read. Credentials
are those that fsspec finds in the environment; retries are those of its file systems.
"""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from dtrain import secrets
from dtrain.data import cache, servers
from dtrain.data.data_file import DataFile, is_full
from dtrain.errors import DataError, UsageError, printable

#: Servers that are asked at once.
_THREADS = 16
#: Bytes of a file above which a notice says that it is copied.
_LARGE = 10**9


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

    def size(self) -> int:
        """Return its bytes."""
        return self._size

    def stamp(self) -> str:
        """Return what changes when the file does: its size, and what its server says."""
        return self._stamp

    def local(self) -> Path:
        """Return the copy in the cache, which is fetched where it is not there.

        Raises:
            DataError: it cannot be fetched.
            UsageError: the cache cannot be written.
        """
        name = PurePosixPath(urlsplit(self._address).path).name or "data"
        return cache.cached(name, ["copy", self.name, self._stamp], self._fetch)

    def _fetch(self, target: Path) -> None:
        if self._size > _LARGE:
            text = f"{self.name}: {self._size / 1e9:,.1f} GB are copied once, into {cache.folder()}"
            print(printable(f"notice: {text}"), file=sys.stderr, flush=True)
        server = servers.filesystem(self._address, self._key)
        try:
            server.get_file(self._address, str(target))
            server.invalidate_cache()
            facts = servers.facts(server.info(self._address))
        except Exception as error:  # of each kind of server another
            if is_full(error):
                raise
            problem = f"cannot be fetched ({servers.reason(error)})"
            raise DataError(self.name, problem) from None
        if {facts, (target.stat().st_size, self._stamp)} != {(self._size, self._stamp)}:
            raise DataError(self.name, "has changed while it was fetched")


def matching(addresses: Sequence[str], key: str) -> list[RemoteFile]:
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
        each = pool.map(lambda address: _matching(address, key), addresses)
        return [file for matches in each for file in matches]


def _matching(address: str, key: str) -> list[RemoteFile]:
    server = servers.filesystem(address, key)
    try:
        server.invalidate_cache()
        try:
            infos = {address: server.info(address)}
        except FileNotFoundError:
            if not servers.is_pattern(address):
                raise
            places = server.glob(address)
            infos = {server.unstrip_protocol(place): server.info(place) for place in places}
        files = {at: info for at, info in infos.items() if info["type"] != "directory"}
        if any(info.get("size") is None for info in files.values()):
            raise OSError("its server does not say how large it is")
    except Exception as error:  # of each kind of server another
        raise UsageError(
            key, address, f"cannot be found ({servers.reason(error)})",
            "an address that can be read with the credentials of the environment",
            f"{key}=ADDRESS",
        ) from None  # fmt: skip
    if not files:
        problem = "is a folder" if address in infos else "no file has such an address"
        pattern = f"'{key}={address.rstrip('/')}/*'" if address in infos else f"{key}=ADDRESS"
        raise UsageError(key, address, problem, "a file, or a pattern that files match", pattern)
    return [RemoteFile(at, info, key) for at, info in files.items()]
