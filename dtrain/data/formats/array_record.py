"""ArrayRecord files, as Grain and TensorFlow Datasets write them: records in any order."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data.data_file import is_address
from dtrain.data.files import DataFile
from dtrain.data.formats.examples import ExampleTable
from dtrain.data.formats.tfrecord_features import Feature
from dtrain.data.tables import Column, Pieces, Table
from dtrain.errors import DataError, UsageError

#: Files that are open at once, at most.
_OPEN = 64
#: For random reads, as Grain's own source has them.
_OPTIONS: dict[str, Any] = {
    "options": "readahead_buffer_size:0", "file_reader_buffer_size": 32768,
}  # fmt: skip
_GROUP = re.compile(r"(?:^|,)group_size:(\d+)")
#: The column of records that are not taken apart.
RECORD = "record"
#: What NumPy raises of bytes that are no array.
_NO_ARRAY = (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile)


def module() -> Any:
    """Return the module that reads the files.

    Raises:
        UsageError: it is not installed.
    """
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise UsageError(
            "dataset", "array_record", f"needs a package that is not installed ({error})",
            "what dtrain[grain] installs", 'pip install "dtrain[grain]"',
        ) from None  # fmt: skip
    return array_record_module


class Records:
    """Records of ArrayRecord files, one file after the other, found by the files' own indexes.

    Files of this machine are opened at once, to count their records; others when they are needed.

    Args:
        files: in order.

    Raises:
        UsageError: one is no such file, or the package is not installed.
    """

    def __init__(self, files: list[DataFile]):
        self.files = files
        self._readers: dict[int, Any] = {}
        self._pieces: Pieces | None = None
        self._groups: list[int] = []
        module()
        if not any(is_address(file.name) for file in files):
            self._count()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_readers": {}}

    def _count(self) -> Pieces:
        if self._pieces is None:
            lengths = []
            for owner, file in enumerate(self.files):
                reader = self._reader(owner)
                if not reader.ok():
                    raise UsageError(
                        "dataset.path", file.name, "is no ArrayRecord file, or not all of one",
                        "files that array_record has written", "dataset.path=FILE",
                    )  # fmt: skip
                group = _GROUP.search(reader.writer_options_string() or "")
                lengths.append(int(reader.num_records()))
                self._groups.append(1 if group is None else int(group[1]))
            self._pieces = Pieces(lengths)
        return self._pieces

    def _reader(self, owner: int) -> Any:
        reader = self._readers.get(owner)
        if reader is None:
            if len(self._readers) >= _OPEN:
                self._readers.pop(next(iter(self._readers))).close()
            file = self.files[owner]
            path = file.local()
            if not path.is_file():  # which the module takes for an empty one
                raise DataError(file.name, "is not there any more")
            reader = self._readers[owner] = module().ArrayRecordReader(str(path), **_OPTIONS)
        return reader

    def known_length(self) -> int | None:
        """Return how many records there are; None where that needs files from elsewhere."""
        return None if self._pieces is None else len(self._pieces)

    def __len__(self) -> int:
        return len(self._count())

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Read records: int64 ``[b]`` to objects ``[b]``, each ``bytes``.

        Raises:
            DataError: a file is damaged, naming it and a record.
        """
        made = np.empty(len(rows), object)
        for owner, at, own in self._count().split(rows):
            try:
                found = self._reader(owner).read(own.tolist())
            except (RuntimeError, OSError) as error:
                raise self._damaged(owner, own, error) from None
            for position, record in zip(at, found, strict=True):
                made[position] = record
        return made

    def _damaged(self, owner: int, own: np.ndarray, error: Exception) -> DataError:
        """Return what to raise where some of a file's records cannot be read: the first of them."""
        for number in own.tolist():
            try:
                self._reader(owner).read([number])
            except (RuntimeError, OSError) as found:
                place = f"{self.files[owner].name}, record {number:,}"
                return DataError(place, f"cannot be read ({_line(found)})")
        return DataError(self.files[owner].name, f"cannot be read ({_line(error)})")

    def where(self, row: int) -> str:
        """Return the place of a record."""
        owner, number = self._count().place(row)
        return f"{self.files[owner].name}, record {number:,}"

    def blocks(self) -> np.ndarray | None:
        """Return how many records, one after the other, are read at once; None for one."""
        pieces = self._count()
        if max(self._groups) == 1:
            return None
        found = []
        for length, group in zip(pieces.ends - pieces.starts, self._groups, strict=True):
            found += [group] * (length // group) + [length % group] * bool(length % group)
        return np.array(found, np.int64)


def _line(error: Exception) -> str:
    return str(error).split("\n")[0]


class RecordTable(Table):
    """Rows that are records of ArrayRecord files.

    Args:
        files: in order.
    """

    def __init__(self, files: list[DataFile]):
        self.files = files
        self.source = Records(files)

    def known_length(self) -> int | None:
        """Return how many rows there are; None where that needs files from elsewhere."""
        return self.source.known_length()

    def __len__(self) -> int:
        return len(self.source)

    def where(self, row: int) -> str:
        """Return the place of a row."""
        return self.source.where(row)

    def blocks(self) -> np.ndarray | None:
        """Return how many rows, one after the other, are read at once."""
        return self.source.blocks()


class Bytes(RecordTable):
    """Records as they are: a column of bytes, ``record``."""

    def __init__(self, files: list[DataFile]):
        super().__init__(files)
        self.columns = {RECORD: Column(np.dtype(object))}

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read records."""
        return dict.fromkeys(names, self.source.read(rows))


class Arrays(RecordTable):
    """Records that are what ``numpy.save`` or ``numpy.savez`` writes.

    Those of ``save`` are a column, ``record``; of ``savez`` each array is one. Their types and
    shapes are those of the first record.
    """

    def __init__(self, files: list[DataFile]):
        super().__init__(files)
        first = self._arrays(0)
        self._kinds = {name: (value.dtype, value.shape) for name, value in first.items()}
        self.columns = {name: Column(value.dtype, value.shape) for name, value in first.items()}

    def _arrays(self, row: int, record: bytes | None = None) -> dict[str, np.ndarray]:
        if record is None:
            record = self.source.read(np.array([row]))[0]
        try:
            found = np.load(io.BytesIO(record), allow_pickle=False)
            return {RECORD: found} if isinstance(found, np.ndarray) else dict(found)
        except _NO_ARRAY as error:
            problem = f"is no array of NumPy ({_line(error)})"
            raise DataError(self.where(row), problem) from None

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read arrays."""
        kinds = {name: self._kinds[name] for name in names}
        made = {name: np.empty((len(rows), *shape), kind) for name, (kind, shape) in kinds.items()}
        for at, (row, record) in enumerate(zip(rows, self.source.read(rows), strict=True)):
            found = self._arrays(int(row), record)
            for name, (kind, shape) in kinds.items():
                array = found.get(name)
                if array is None or (array.dtype, array.shape) != (kind, shape):
                    has = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
                    raise DataError(
                        f"{self.where(int(row))}, column {name!r}",
                        f"holds {has}, and the first record {kind} {list(shape)}",
                    )
                made[name][at] = array
        return made


class ArrayRecordExamples(RecordTable, ExampleTable):
    """Records that are ``tf.train.Example``.

    Args:
        files: in order.
        features: by name.
    """

    def __init__(self, files: list[DataFile], features: Mapping[str, Feature]):
        super().__init__(files)
        self.declare(features)
        self._size = sum(file.size() for file in files)

    def records(self, rows: np.ndarray) -> np.ndarray:
        """Read records as they are."""
        return self.source.read(rows)

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """Return the bytes of records, as they are on average."""
        return np.full(len(rows), self._size / max(1, len(self)))
