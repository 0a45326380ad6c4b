"""Files of a dataset: found by name, pattern, address or list, and ordered by name.

Those at addresses, such as ``s3://bucket/x-*.parquet``, are found and copied by fsspec: each once,
into the cache (:mod:`dtrain.data.cache`), when it is first read. Credentials are those that fsspec
finds in the environment; retries are those of its file systems.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from dtrain import secrets
from dtrain.data import cache, servers
from dtrain.errors import DataError, UsageError, refuse
from dtrain.files.fields import Values

if TYPE_CHECKING:  # the controller knows addresses without NumPy
    import numpy as np

#: A path, a pattern, an address, or a list of such.
Paths = str | Sequence[str]
#: Servers that are asked at once.
_THREADS = 16
#: Bytes of a file above which a notice says that it is copied.
_LARGE = 10**9


class DataFile:
    """One file of a dataset, on this machine. A subclass has one that is elsewhere.

    Args:
        name: its path, as messages show it.
    """

    def __init__(self, name: str):
        self.name = name

    def place(self) -> str:
        """Return what names it from any current folder: its absolute path, or its address."""
        return self.name if is_address(self.name) else os.path.abspath(self.name)

    def size(self) -> int:
        """Return its bytes.

        Raises:
            DataError: it is not there any more.
        """
        return self._stat().st_size

    def stamp(self) -> str:
        """Return what changes when the file does: its size and the time of its last change.

        Raises:
            DataError: it is not there any more.
        """
        status = self._stat()
        return f"{status.st_size}-{status.st_mtime_ns}"

    def _stat(self) -> os.stat_result:
        with reading(self.name):
            return self.local().stat()

    def open(self) -> IO[bytes]:
        """Open it to read from any place of it.

        Raises:
            DataError: it cannot be read.
        """
        with reading(self.name):
            return self.local().open("rb")

    def local(self) -> Path:
        """Return where the whole of it is on this machine.

        Raises:
            DataError: it cannot be brought here.
        """
        return Path(self.name)

    def __repr__(self) -> str:
        return self.name


class RemoteFile(DataFile):
    """A file at an address.

    Args:
        address: of it.
        info: what its server says of it, of fsspec.
        key: that names it, for messages.

    Attributes:
        name: its address without passwords.
    """

    def __init__(self, address: str, info: Values, key: str):
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
            size = f"{self._size / 1e9:,.1f} GB"
            cache.announce(f"{self.name}: {size} are copied once, into {cache.folder()}")
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


def files(path: Paths, key: str = "dataset.path") -> list[DataFile]:
    """Return the files that a path, a pattern (``shards/*.parquet``), or a list of them names.

    Each may be an address as well. They are ordered by name, whatever order they were given in:
    that of a folder is the order of the machine.

    Args:
        path: value of the key.
        key: for messages.

    Raises:
        UsageError: one is not there, is no regular file, or is named twice; a server cannot be
            asked, or a package is not installed.
    """
    paths = [path] if isinstance(path, str) else list(path)
    if not paths:
        refuse(key, "names no file", "[]", accepted="a file, a pattern, or a list of them")
    addresses = [each for each in paths if is_address(each)]
    matches = [file for each in paths if each not in addresses for file in _on_disk(each, key)]
    for address in addresses:
        servers.filesystem(address, key)  # what is missing is reported before anything is asked
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        each = pool.map(lambda address: _at_address(address, key), addresses)
        matches += itertools.chain.from_iterable(each)
    places = sorted(map(DataFile.place, matches))
    for one, other in itertools.pairwise(places):
        if one == other:
            refuse(key, f"names {one} twice", path, accepted="each file once")
    return sorted(matches, key=lambda file: file.name)


def _on_disk(path: str, key: str) -> list[DataFile]:
    place = Path(path)
    if place.is_file():
        return [DataFile(path)]
    if place.is_dir():
        refuse(key, "is a folder", path, accepted="a file, a pattern, or a list of them",
               typed=f"'{key}={path}/*'")  # fmt: skip
    is_pattern = bool(set("*?[") & set(path))
    names = [name for name in glob.glob(path, recursive=True) if Path(name).is_file()]
    if names:
        return [DataFile(name) for name in names]
    problem = "no file has such a name" if is_pattern else "there is no such file"
    refuse(key, f"{problem} (looked in {Path.cwd()})", path,
           accepted="a pattern that files match" if is_pattern else "a file that exists",
           hint=f"'{key}=FOLDER/*'" if is_pattern else f"{key}=FILE")  # fmt: skip


def _at_address(address: str, key: str) -> list[RemoteFile]:
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
        raise UsageError(key, f"cannot be found ({servers.reason(error)})", address, accepted="one "
                         "that the environment's credentials can read") from None  # fmt: skip
    if not files:
        problem = "is a folder" if address in infos else "no file has such an address"
        refuse(key, problem, address, accepted="a file, or a pattern that files match",
               typed=f"'{key}={address.rstrip('/')}/*'" if address in infos else None)  # fmt: skip
    return [RemoteFile(at, info, key) for at, info in files.items()]


def divided(path: str) -> list[str]:
    """Return the folders to train and to evaluate on, of one that has such; else none."""
    train, *others = (Path(path, name) for name in ("train", "val", "valid", "validation"))
    held = [str(folder) for folder in others if folder.is_dir()]
    return [str(train), *held[:1]] if train.is_dir() else []


def is_address(path: str) -> bool:
    """Say whether a path is an address, such as ``s3://bucket/x``, and no file of this machine."""
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", path) is not None


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Raise an error of the machine as one of the data of that name."""
    try:
        yield
    except OSError as error:
        raise DataError(name, f"cannot be read ({error.strerror})") from None


def is_full(error: BaseException) -> bool:
    """Say whether an error means that what is written has no room, and not what is read."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_whole(name: str, mapped: np.memmap) -> None:
    """Refuse a mapped file that was cut off: to touch its pages would end the process by SIGBUS.

    Raises:
        DataError: it has fewer bytes than are mapped.
    """
    size = mapped.offset + mapped.nbytes
    with contextlib.suppress(FileNotFoundError):  # what is mapped stays
        if (now := os.stat(str(mapped.filename)).st_size) < size:
            raise DataError(name, f"was cut off: it has {now:,} bytes, not {size:,}")


def not_installed(dataset: str, extra: str, error: ImportError) -> UsageError:
    """Return the error of a dataset whose package is not installed."""
    return UsageError("dataset", f"needs a package that is not installed ({error})", dataset,
                      accepted="its packages", typed=f'pip install "dtrain[{extra}]"')  # fmt: skip
