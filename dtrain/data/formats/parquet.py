"""``dataset=parquet``: a row group is decoded at a time, and the last few are kept."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dtrain.data.files import DataFile
from dtrain.data.formats import columns, values
from dtrain.data.formats.arrow import Arrow
from dtrain.data.formats.kept import Kept, share
from dtrain.data.formats.parquet_file import RowGroups
from dtrain.data.tables import Column, Pieces, Table

#: Bytes that the columns of a row group may have to be decoded into memory.
LARGE = 512 << 20
#: Files that are open at once, of those that are decoded in the cache.
OPEN = 64


class Parquet(Table):
    """Columns of Parquet files.

    A file is decoded into the cache, once for all runs, where a row group of it is too large for
    the memory, or is decoded again and again because its rows are read one here and one there.

    Args:
        files: in order.

    Raises:
        UsageError: one is no Parquet file.
    """

    def __init__(self, files: list[DataFile]):
        self.files = files
        self._groups = [RowGroups(file) for file in files]
        names = [file.name for file in files]
        self._forms, self.refused = columns.agreed(names, [each.found for each in self._groups])
        self.columns: dict[str, Column] = {n: form.column for n, form in self._forms.items()}
        self._pieces = Pieces([len(each.pieces) for each in self._groups])
        self._most = share(files)  # of decoded columns; of one row group all, however many
        #: By file the columns that are in the cache.
        self._moved: dict[int, list[str]] = {}
        self._begin()

    def _begin(self) -> None:
        self._kept, self._converted = Kept(self._most), Kept(OPEN)
        #: By file and row group the rows that were taken since it was decoded.
        self._taken: dict[tuple[int, int], int] = {}
        self._in_vain = 0

    def __getstate__(self) -> dict[str, Any]:
        own = ("_kept", "_converted", "_taken", "_in_vain")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __len__(self) -> int:
        return len(self._pieces)

    def where(self, row: int) -> str:
        """Return the place of a row: ``FILE, row 17``."""
        file, inside = self._pieces.place(row)
        return f"{self.files[file].name}, row {inside}"

    def blocks(self) -> np.ndarray:
        """Return the rows of each row group, file by file."""
        found = np.concatenate([each.pieces.ends - each.pieces.starts for each in self._groups])
        return found[found > 0]

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read columns at some rows, and each row group that has some of these once.

        Raises:
            DataError: naming file, row and column.
        """
        parts: dict[str, list[tuple[np.ndarray, Any]]] = {name: [] for name in names}

        def add(at: np.ndarray, found: dict[str, Any]) -> None:
            for name in names:
                parts[name].append((at, found[name]))

        groups = []
        for file, at, of_file in self._pieces.split(rows):
            if file in self._moved:
                add(at, self._elsewhere(file, names).read(of_file, names))
                continue
            for group, each, inside in self._groups[file].pieces.split(of_file):
                groups.append((file, group, at[each], inside))
        # Those that are kept come first: others take their place.
        groups.sort(key=lambda each: self._kept.get(each[:2]) is None)
        for file, group, at, inside in groups:
            add(at, self._read_group(file, group, inside, names))
        return {name: values.joined(parts[name], len(rows)) for name in names}

    def _read_group(
        self, file: int, group: int, rows: np.ndarray, names: Sequence[str]
    ) -> dict[str, Any]:
        """Return columns at some rows of a row group."""
        held: dict[str, Any] = self._kept.get((file, group)) or {}
        first = int(self._groups[file].pieces.starts[group])
        missing = [name for name in names if name not in held]
        if missing:
            if file in self._moved or self._is_to_move(file, group, missing):
                return self._elsewhere(file, names).read(first + rows, names)
            held = self._decoded(file, group, missing, held)
        self._taken[file, group] += len(rows)
        return {
            name: values.take(
                held[name], rows, self._forms[name],
                functools.partial(self._place, file, first + rows, name),
            )
            for name in names
        }  # fmt: skip

    def _place(self, file: int, rows: np.ndarray, name: str, at: int) -> str:
        return f"{self.files[file].name}, row {rows[at]}, column {name!r}"

    def _decoded(
        self, file: int, group: int, names: list[str], held: dict[str, Any]
    ) -> dict[str, Any]:
        """Decode columns of a row group into memory, beside those that are there."""
        self._kept.make_room(self._groups[file].size(group, names))
        chunks: dict[str, list[pa.Array]] = {name: [] for name in names}
        for batch in self._groups[file].decode(group, names):
            for name in names:
                chunks[name].append(batch[name])
        held = {**held, **{n: values.hold(chunks.pop(n), self._forms[n]) for n in names}}
        # Its allocator keeps what is freed: as much as three row groups.
        pa.default_memory_pool().release_unused()
        self._kept.put((file, group), held, sum(map(values.size, held.values())))
        self._taken[file, group] = 0
        return held

    # What is decoded into the cache

    def _is_to_move(self, file: int, group: int, names: Sequence[str]) -> bool:
        """Say whether a file is to be decoded into the cache.

        Rows are read in no order if row groups have been decoded again of which less than half was
        taken, as many times as there are row groups.
        """
        each = self._groups[file]
        in_vain = self._taken.get((file, group), each.rows(group)) < each.rows(group) // 2
        self._in_vain += in_vain
        unordered = in_vain and self._in_vain > sum(len(g.pieces.ends) for g in self._groups)
        if not unordered and each.size(group, names) <= LARGE:
            return False
        self._moved[file] = []
        return True

    def _elsewhere(self, file: int, names: Sequence[str]) -> Arrow:
        """Return columns of a file that is decoded in the cache."""
        found: Arrow | None = self._converted.get(file)
        if found is None or not set(names) <= set(found.columns):
            self._moved[file] = sorted({*self._moved[file], *names})
            found = self._groups[file].converted(self._moved[file])
            self._converted.put(file, found, 1)
            self._kept.forget(file)
        return found
