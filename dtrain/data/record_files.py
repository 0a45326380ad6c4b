"""Files of records, TFRecord and ArrayRecord: bytes that can be read in any order."""

from __future__ import annotations

import concurrent.futures
import copy
import json
import os
import pickle
import re
import subprocess
import sys
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from dtrain.data import cache
from dtrain.data.files import DataFile, check_whole, is_address, not_installed, reading
from dtrain.data.tabular.table import Pieces, Table
from dtrain.errors import DataError, UsageError

#: Bytes of records that are in memory at once where all of a feature is read.
BYTES = 32 << 20
#: Files that are open at once, at most.
_OPEN = 256
#: Files that are indexed at once, and bytes of all above which a notice says so.
_THREADS, _LARGE = 8, 10**9
#: Exit code of a process that has found a damaged file.
_DAMAGED = 3
#: Bytes of a TFRecord before the data, and around it.
_HEAD, _AROUND = 12, 16
#: First bytes of what programs write that compress: gzip, and zlib with its usual options.
_COMPRESSED = {b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda"}
#: Window bits for zlib that stand for gzip or zlib; bytes that are decompressed at once.
_ANY, _PIECE = 47, 1 << 20
#: For random reads of ArrayRecord files, as Grain's own source has them.
_OPTIONS: dict[str, Any] = {
    "options": "readahead_buffer_size:0", "file_reader_buffer_size": 32768,
}  # fmt: skip
_GROUP = re.compile(r"(?:^|,)group_size:(\d+)")


class RecordFiles(Table):
    """Rows that are records of files, one file after the other.

    Args:
        files: in order.

    Attributes:
        kind: what a record is (:mod:`dtrain.data.records`), which says what the columns are.
    """

    kind: Any

    def __init__(self, files: list[DataFile]):
        self.files = files
        self._pieces: Pieces | None = None
        self._opened: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": {}}

    def of_kind(self, kind: Any) -> Self:
        """Return the same records, read as those of a kind."""
        made = copy.copy(self)
        made.kind, made.columns = kind, kind.columns
        return made

    @abstractmethod
    def _counts(self) -> list[int]:
        """Return how many records each file has."""

    @abstractmethod
    def _open(self, owner: int) -> Any:
        """Open a file."""

    @abstractmethod
    def _read(self, owner: int, own: list[int]) -> list[bytes]:
        """Return records of a file.

        Raises:
            DataError: they cannot be read.
        """

    @property
    def pieces(self) -> Pieces:
        """Which records are of which file."""
        if self._pieces is None:
            self._pieces = Pieces(self._counts())
        return self._pieces

    def __len__(self) -> int:
        return len(self.pieces)

    def known_length(self) -> int | None:
        """Return how many records there are; None where that takes reading files."""
        return None if self._pieces is None else len(self)

    def opened(self, owner: int) -> Any:
        """Return an open file."""
        if owner not in self._opened:
            if len(self._opened) >= _OPEN:
                self._opened.pop(next(iter(self._opened)))
            self._opened[owner] = self._open(owner)
        return self._opened[owner]

    def records(self, rows: np.ndarray) -> np.ndarray:
        """Read: int64 ``[b]``, in any order, with repetitions, to objects ``[b]``, each ``bytes``.

        Raises:
            DataError: a file cannot be read, or is not the one that it was.
        """
        records = np.empty(len(rows), object)
        for owner, at, own in self.pieces.split(rows):
            records[at] = np.fromiter(self._read(owner, own.tolist()), object, len(at))
        return records

    def read(
        self, rows: np.ndarray, names: Sequence[str], with_empty: bool = False
    ) -> dict[str, np.ndarray]:
        """Read features of some records, outside of a graph; none is empty."""
        size = sum(file.size() for file in self.files)
        step = max(1, BYTES * len(self) // max(1, size))
        parts = [
            self.parsed(self.records(some), some, names)
            for some in (rows[at : at + step] for at in range(0, len(rows), step))
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def parsed(
        self, records: np.ndarray, rows: np.ndarray, names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Return features of records, objects ``[b]``, that are those of ``rows``."""
        values: dict[str, np.ndarray] = self.kind.read(
            records, names, lambda at: self.where(int(rows[at]))
        )
        return values

    def where(self, row: int) -> str:
        """Return the place of a record for messages."""
        owner, number = self.pieces.place(row)
        return f"{self.files[owner].name}, record {number:,}"


class TFRecordFiles(RecordFiles):
    """TFRecord files: mapped into memory, with an index of the records that is made once.

    TensorFlow's reader makes the index, and verifies all checksums. What is compressed is unpacked
    into the cache.

    Raises:
        UsageError: one is no TFRecord file.
    """

    def __init__(self, files: list[DataFile]):
        super().__init__(files)
        self._compressed = [_is_compressed(file) for file in files]
        #: By file: where each record begins and how long it is, int64 ``[n, 2]``.
        self._indexes: list[np.ndarray] = []
        self._stamps: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_indexes": [], "_pieces": None}

    def known_length(self) -> int | None:
        """Return how many records there are; None where there is no index yet."""
        return None if self._pieces is None and self._without_index() else len(self)

    def _without_index(self) -> list[DataFile]:
        return [file for file in self.files if not cache.path_of(*_index(file)).exists()]

    def _counts(self) -> list[int]:
        self._stamps, missing = [file.stamp() for file in self.files], self._without_index()
        size = sum(file.size() for file in missing)
        if size > _LARGE:
            name = f"{missing[0].name}{' ...' * (len(missing) > 1)}"
            cache.announce(f"{name}: {size / 1e9:,.1f} GB are read once, for an index")
        if missing and "tensorflow" not in sys.modules:
            _index_in_a_process(self)
        self._indexes = list(map(np.load, self.index()))
        counts = [len(each) for each in self._indexes]
        if not sum(counts):
            raise DataError(", ".join(file.name for file in self.files), "holds no record")
        return counts

    def index(self) -> list[Path]:
        """Return the index of each file, a ``.npy``; TensorFlow's reader makes those that lack.

        Raises:
            DataError: a file is damaged.
        """

        def made(owner: int) -> Path:
            entry = _index(self.files[owner])
            return cache.cached(*entry, lambda path: self._write_index(owner, path))

        threads = min(len(self.files), _THREADS, os.cpu_count() or 1)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            return list(pool.map(made, range(len(self.files))))

    def _local(self, owner: int) -> Path:
        """Return a file that is not compressed."""
        file = self.files[owner]
        if not self._compressed[owner]:
            return file.local()
        key = ["unpacked", file.place(), file.stamp()]
        return cache.cached("records.tfrecord", key, lambda path: _unpack(file, path))

    def _write_index(self, owner: int, path: Path) -> None:
        sizes = _sizes(self.files[owner], self._local(owner))
        begins = np.cumsum(sizes + _AROUND) - sizes - (_AROUND - _HEAD)
        with path.open("xb") as opened:
            np.save(opened, np.stack([begins, sizes], axis=1))

    def _open(self, owner: int) -> np.memmap[Any, Any]:
        file = self.files[owner]
        if file.stamp() != self._stamps[owner]:
            raise DataError(file.name, "has changed since its index was read")
        with reading(file.name):
            return np.memmap(self._local(owner), np.uint8, "r")

    def _read(self, owner: int, own: list[int]) -> list[bytes]:
        mapped = self.opened(owner)
        check_whole(self.files[owner].name, mapped)
        data, places = mapped.data, self._indexes[owner][own].tolist()
        return [bytes(data[begin : begin + n]) for begin, n in places]

    def where(self, row: int) -> str:
        """Return the place of a record."""
        owner, number = self.pieces.place(row)
        return f"{super().where(row)} (byte {self._indexes[owner][number, 0] - _HEAD:,})"


def _index(file: DataFile) -> tuple[str, list[str]]:
    """Return what the index of a file is called in the cache."""
    return "index.npy", ["tfrecord", file.place(), file.stamp()]


def _sizes(file: DataFile, path: Path) -> np.ndarray:
    """Return the bytes of each record of a TFRecord file, int64 ``[n]``.

    Raises:
        DataError: naming file, record and byte.
    """
    import tensorflow as tf

    def collected(sizes: Any) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.int64), *sizes.batch(1024).as_numpy_iterator()])

    sizes = tf.data.TFRecordDataset(str(path), buffer_size=1 << 20).map(tf.strings.length)
    problem = "the file ends early"
    try:
        lengths = collected(sizes)
    except tf.errors.OpError as error:
        lengths = collected(sizes.ignore_errors())  # of the sound ones before it
        reason = str(error.message).split("\n")[0]
        if not isinstance(error, tf.errors.DataLossError):
            problem = f"cannot be read ({reason})"
        elif "truncated" not in reason:
            problem = "a checksum is wrong"
    end = int(lengths.sum()) + _AROUND * len(lengths)
    if end != path.stat().st_size:
        raise DataError(f"{file.name}, record {len(lengths):,} (byte {end:,})", problem)
    return lengths


def _index_in_a_process(files: TFRecordFiles) -> None:
    """Make the indexes in a process of its own: that of a task does without TensorFlow.

    Raises:
        DataError: a file is damaged, or cannot be indexed.
    """
    done = subprocess.run(
        [sys.executable, "-m", __name__], input=pickle.dumps(files), capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    if done.returncode == _DAMAGED:
        raise DataError(*json.loads(done.stdout))
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        reason = last.partition(": ")[2] or last
        raise DataError(files.files[0].name, f"cannot be indexed ({reason})")


def _unpack(file: DataFile, path: Path) -> None:
    """Decompress a file of gzip or zlib, if it is not damaged."""
    with file.open() as source, path.open("xb") as target:
        unpacker, data = zlib.decompressobj(_ANY), source.read(_PIECE)
        try:
            while data:
                if unpacker.eof:  # of gzip several may follow each other
                    unpacker = zlib.decompressobj(_ANY)
                target.write(unpacker.decompress(data))
                data = unpacker.unused_data or source.read(_PIECE)
        except zlib.error as error:
            raise DataError(file.name, f"cannot be unpacked ({error})") from None
    if not unpacker.eof:
        raise DataError(file.name, "cannot be unpacked (it ends early)")


def _is_compressed(file: DataFile) -> bool:
    """Say whether a TFRecord file is compressed; refuse what is no such file."""
    with file.open() as opened:
        head = opened.read(_HEAD)
    if not head or (len(head) == _HEAD and _checksum(head[:8]).to_bytes(4, "little") == head[8:]):
        return False
    if head[:2] in _COMPRESSED:
        return True
    raise UsageError(
        "dataset.path", file.name, "is no TFRecord file: the checksum of its first length is wrong",
        "files that tf.io.TFRecordWriter has written", "dataset.path=FILE",
    )  # fmt: skip


def _checksum(data: bytes) -> int:
    """Return the masked CRC-32C of a few bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _array_record() -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise not_installed("array_record", "grain", error) from None
    return array_record_module


class ArrayRecordFiles(RecordFiles):
    """ArrayRecord files, which have indexes of their own.

    Files of this machine are opened at once, to count their records; others when they are needed.

    Raises:
        UsageError: one is no such file, or the package is not installed.
    """

    def __init__(self, files: list[DataFile]):
        super().__init__(files)
        self._groups: list[int] = []
        _array_record()
        if not any(is_address(file.name) for file in files):
            len(self)

    def _counts(self) -> list[int]:
        counts, self._groups = [], []
        for owner, file in enumerate(self.files):
            reader = self.opened(owner)
            if not reader.ok():
                raise UsageError(
                    "dataset.path", file.name, "is no ArrayRecord file, or not all of one",
                    "files that array_record has written", "dataset.path=FILE",
                )  # fmt: skip
            group = _GROUP.search(reader.writer_options_string() or "")
            self._groups.append(1 if group is None else int(group[1]))
            counts.append(int(reader.num_records()))
        return counts

    def _open(self, owner: int) -> Any:
        file = self.files[owner]
        path = file.local()
        if not path.is_file():  # which the module takes for an empty one
            raise DataError(file.name, "is not there any more")
        return _array_record().ArrayRecordReader(str(path), **_OPTIONS)

    def _read(self, owner: int, own: list[int]) -> list[bytes]:
        try:
            return list(self.opened(owner).read(own))
        except (RuntimeError, OSError) as error:
            for number in own if len(own) > 1 else ():
                self._read(owner, [number])  # which of them it is
            place = f"{self.files[owner].name}, record {own[0]:,}"
            reason = str(error).split("\n")[0]
            raise DataError(place, f"cannot be read ({reason})") from None

    def blocks(self) -> np.ndarray | None:
        """Return the sizes of the groups of records; None where each is one."""
        if len(self) and max(self._groups) == 1:
            return None
        pairs = zip(self.pieces.lengths, self._groups, strict=True)
        ends = [np.append(np.arange(0, length, group), length) for length, group in pairs]
        return np.concatenate([np.diff(each) for each in ends])


if __name__ == "__main__":
    try:
        pickle.loads(sys.stdin.buffer.read()).index()
    except DataError as damage:
        print(json.dumps([damage.place, damage.problem]))
        sys.exit(_DAMAGED)
