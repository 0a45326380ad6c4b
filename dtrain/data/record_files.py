"""Examples that are records of files: TFRecord, ArrayRecord, and what TensorFlow Datasets prepares.

A record is a ``tf.train.Example``, parsed in Python. TFRecord files are read by an index of their
own; the others by the sources of their packages, which have ``__len__`` and ``__getitems__``.
"""

from __future__ import annotations

import concurrent.futures
import functools
import gzip
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

from dtrain.data import cache
from dtrain.data.example import Dataset
from dtrain.data.files import DataFile, check_whole, is_address, not_installed, reading
from dtrain.data.nest import Leaf, Ragged, Tensor
from dtrain.data.tabular.table import Column, Pieces, Table
from dtrain.errors import DataError, UsageError, refuse
from dtrain.files.fields import Values

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
#: Types of NumPy, by those that ``dataset.features`` declares.
_DTYPES = {"string": np.dtype(object), "int64": np.dtype(np.int64), "float32": np.dtype(np.float32)}


class Examples(Table):
    """Rows that are ``tf.train.Example``, in files one after the other.

    Args:
        files: in order.
        features: types and shapes, by name, as ``dataset.features`` declares them.
    """

    def __init__(self, files: list[DataFile], features: Mapping[str, Values]):
        self.files = files
        self.columns = {
            name: Column(_DTYPES[how["dtype"]], tuple(how.get("shape") or ()))
            for name, how in features.items()
        }

    @functools.cached_property
    def pieces(self) -> Pieces:
        """Which records are of which file."""
        return Pieces(self._counts())

    @abstractmethod
    def _counts(self) -> list[int]:
        """Open the files, and return how many records each has."""

    @abstractmethod
    def _is_counted(self) -> bool:
        """Say whether that takes no reading."""

    @abstractmethod
    def _of_file(self, owner: int, rows: np.ndarray) -> Iterable[bytes]:
        """Return records of one file.

        Raises:
            DataError: it cannot be read, or is not the one that it was.
        """

    def __len__(self) -> int:
        return len(self.pieces)

    def known_length(self) -> int | None:
        """Return how many records there are; None where files would have to be read for it."""
        return len(self) if "pieces" in self.__dict__ or self._is_counted() else None

    def records(self, rows: np.ndarray) -> list[bytes]:
        """Return the records of rows, int64 ``[b]``, in any order, with repetitions."""
        records = [b""] * len(rows)
        for owner, places, own in self.pieces.split(rows):
            for at, record in zip(places, self._of_file(owner, own), strict=True):
                records[at] = record
        return records

    def read(
        self, rows: np.ndarray, names: Sequence[str], with_empty: bool = False
    ) -> dict[str, Leaf]:
        """Read features of some rows; none is empty."""
        size = sum(file.size() for file in self.files)
        step = max(1, BYTES * len(self) // max(1, size))
        features = {name: self.columns[name] for name in names}

        def parsed(some: np.ndarray) -> dict[str, np.ndarray | Ragged]:
            return parse(self.records(some), features, lambda at: self.where(int(some[at])))

        parts = [parsed(rows[at : at + step]) for at in range(0, len(rows), step)]
        return {name: _joined([part[name] for part in parts]) for name in names}

    def where(self, row: int) -> str:
        """Return the place of a record."""
        owner, number = self.pieces.place(row)
        return f"{self.files[owner].name}, record {number:,}"


def _joined(parts: Sequence[Leaf]) -> Leaf:
    if not isinstance(parts[0], Ragged):
        return np.concatenate(parts)
    values, lengths = ([getattr(part, each) for part in parts] for each in ("values", "lengths"))
    return Ragged(np.concatenate(values), np.concatenate(lengths))


class TFRecordFiles(Examples):
    """TFRecord files: mapped into memory, with an index of the records that is made once.

    TensorFlow's reader makes the index, and verifies all checksums. What is compressed is unpacked
    into the cache.

    Raises:
        UsageError: one is no TFRecord file.
    """

    def __init__(self, files: list[DataFile], features: Mapping[str, Values]):
        super().__init__(files, features)
        self._compressed = [_is_compressed(file) for file in files]
        #: By file: where each record begins and how long it is, int64 ``[n, 2]``.
        self._indexes: list[np.ndarray] = []
        self._stamps: list[str] = []
        self._opened: dict[int, np.memmap] = {}

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__ | {"_indexes": [], "_opened": {}}
        return {name: value for name, value in state.items() if name != "pieces"}

    def _without_index(self) -> list[DataFile]:
        return [file for file in self.files if not cache.path_of(*_index(file)).exists()]

    def _is_counted(self) -> bool:
        return not self._without_index()

    def _counts(self) -> list[int]:
        self._stamps, missing = [file.stamp() for file in self.files], self._without_index()
        size = sum(file.size() for file in missing)
        if size > _LARGE:
            name = f"{missing[0].name}{' ...' * (len(missing) > 1)}"
            cache.announce(f"{name}: {size / 1e9:,.1f} GB are read once, for an index")
        if missing and "tensorflow" not in sys.modules:
            _index_in_a_process(self)
        self._indexes = list(map(np.load, self.index()))
        return list(map(len, self._indexes))

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

    def _of_file(self, owner: int, rows: np.ndarray) -> Iterator[bytes]:
        file = self.files[owner]
        if owner not in self._opened:
            if len(self._opened) >= _OPEN:
                self._opened.pop(next(iter(self._opened)))
            if file.stamp() != self._stamps[owner]:
                raise DataError(file.name, "has changed since its index was read")
            with reading(file.name):
                self._opened[owner] = np.memmap(self._local(owner), np.uint8, "r")
        data = self._opened[owner]
        check_whole(file.name, data)
        for begin, size in self._indexes[owner][rows].tolist():
            yield bytes(data.data[begin : begin + size])

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

    def collected(sizes: Tensor) -> np.ndarray:
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
    """Decompress a file of gzip, if it is not damaged."""
    with file.open() as source, path.open("xb") as target:
        try:
            with gzip.open(source) as unpacked:
                shutil.copyfileobj(unpacked, target, 1 << 20)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(file.name, f"cannot be unpacked ({error})") from None


def _is_compressed(file: DataFile) -> bool:
    """Say whether a TFRecord file is compressed by gzip; refuse what is no such file."""
    with file.open() as opened:
        head = opened.read(_HEAD)
    if head[:3] == b"\x1f\x8b\x08":
        return True
    if head and int.from_bytes(head[:8], "little") > file.size() - _AROUND:
        refuse("dataset.path", "is no TFRecord file: it is shorter than its first record",
               file.name, accepted="files that tf.io.TFRecordWriter has written")  # fmt: skip
    return False


class ArrayRecordFiles(Examples):
    """ArrayRecord files: what ``ArrayRecordDataSource`` reads, which is Grain's.

    Files of this machine are opened at once, to count their records; others when they are needed.

    Raises:
        UsageError: the package is not installed, or cannot read the files.
    """

    def __init__(self, files: list[DataFile], features: Mapping[str, Values]):
        super().__init__(files, features)
        self.known_length()

    def _is_counted(self) -> bool:
        return not any(is_address(file.name) for file in self.files)

    def _counts(self) -> list[int]:
        try:
            from array_record.python.array_record_data_source import ArrayRecordDataSource
        except ImportError as error:
            raise not_installed("array_record", "grain", error) from None
        self._sources: list[Dataset] = []
        for file in self.files:
            try:
                self._sources.append(ArrayRecordDataSource(str(file.local())))
            except (RuntimeError, ValueError, OSError) as error:
                raise UsageError("dataset.path", f"is no ArrayRecord file ({reason(error)})",
                                 file.name, accepted="ArrayRecord files") from None  # fmt: skip
        return list(map(len, self._sources))

    def _of_file(self, owner: int, rows: np.ndarray) -> Sequence[bytes]:
        source = self._sources[owner]
        try:
            return list(source.__getitems__(rows.tolist()))
        except (RuntimeError, ValueError, OSError) as error:
            for row in rows if len(rows) > 1 else ():
                self._of_file(owner, np.array([row]))  # which of them it is
            place = self.where(int(self.pieces.starts[owner] + rows[0]))
            raise DataError(place, f"cannot be read ({reason(error)})") from None


def reason(error: Exception) -> str:
    """Return the first line of what an exception of a package says."""
    return str(error).strip().split("\n")[0]


_LISTS = {"bytes_list": "string", "float_list": "float32", "int64_list": "int64"}
#: The message is that of TensorFlow's example.proto, under a name of its own: both can be there.
_EXAMPLE = """
name: "dtrain/example.proto" package: "dtrain" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES MANY } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT MANY } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 MANY } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 oneof_index: 0 OF ".dtrain.BytesList" }
  field { name: "float_list" number: 2 oneof_index: 0 OF ".dtrain.FloatList" }
  field { name: "int64_list" number: 3 oneof_index: 0 OF ".dtrain.Int64List" } }
message_type { name: "Features"
  field { name: "feature" number: 1 MANY OF ".dtrain.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 OF ".dtrain.Feature" } } }
message_type { name: "Example" field { name: "features" number: 1 OF ".dtrain.Features" } }
""".replace("MANY", "label: LABEL_REPEATED").replace("OF", "type: TYPE_MESSAGE type_name:")


@functools.cache
def message_class() -> type[message.Message]:
    """Return the class of the message."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("dtrain.Example"))


def parse(
    records: Iterable[bytes], features: Mapping[str, Column], where: Callable[[int], str]
) -> dict[str, np.ndarray | Ragged]:
    """Return features of records, each ``[b, ...]``; those of different lengths are ragged.

    Args:
        records: serialized.
        features: those wanted, as they are declared.
        where: returns the place of a record.

    Raises:
        DataError: a record is not as it is declared.
    """
    maps, of_bytes = [], message_class().FromString
    for at, record in enumerate(records):
        try:
            maps.append(of_bytes(record).features.feature)
        except message.DecodeError:
            raise DataError(where(at), "is no tf.train.Example") from None
    return {name: _values(name, feature, maps, where) for name, feature in features.items()}


def _values(
    name: str,
    feature: Column,
    maps: Sequence[Mapping[str, message.Message]],
    where: Callable[[int], str],
) -> np.ndarray | Ragged:
    dtype = "string" if feature.dtype == object else str(feature.dtype)
    kind = next(key for key, value in _LISTS.items() if value == dtype)
    lists: list[message.Message] = []
    for at, there in enumerate(maps):
        held = there[name].WhichOneof("kind") if name in there else None
        if held is None and not feature.is_ragged:
            has = ", ".join(sorted(there)) or "none"
            raise DataError(where(at), f"has no feature {name!r}; it has {has}")
        if held not in (None, kind):
            problem = f"feature {name!r} holds {_LISTS[held]}, and is declared {dtype}"
            raise DataError(where(at), problem)
        lists.append(getattr(there[name], kind))
    counts = np.array([len(each.value) for each in lists], np.int64)
    size = int(np.prod([n for n in feature.shape if n is not None]))
    bad = counts % size != 0 if feature.is_ragged else counts != size
    if bad.any():
        at = int(np.argmax(bad))
        text = ", ".join("null" if n is None else str(n) for n in feature.shape)
        raise DataError(
            where(at),
            f"feature {name!r} has {counts[at]:,} values, which are none of shape [{text}]",
        )
    if kind == "float_list":
        # Serialized, they are what is in memory of them: many times as fast as one by one.
        data = (each.SerializeToString()[-4 * n :] for each, n in zip(lists, counts, strict=True))
        values = np.frombuffer(b"".join(data), "<f4")
    else:
        each_value = itertools.chain.from_iterable(each.value for each in lists)
        values = np.fromiter(each_value, feature.dtype, int(counts.sum()))
    if feature.is_ragged:
        return Ragged(values.reshape(-1, *feature.shape[1:]), counts // size)
    return values.reshape(len(maps), *feature.shape)


if __name__ == "__main__":
    try:
        pickle.loads(sys.stdin.buffer.read()).index()
    except DataError as damage:
        print(json.dumps([damage.place, damage.problem]))
        sys.exit(_DAMAGED)
