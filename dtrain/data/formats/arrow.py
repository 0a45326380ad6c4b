"""``dataset=arrow``: Arrow files and streams (``.arrow``, ``.feather``), mapped into memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data.files import DataFile
from dtrain.data.formats import columns, messages, values
from dtrain.data.formats.arrow_file import OpenFile
from dtrain.data.formats.columns import Form
from dtrain.data.formats.kept import Kept, share
from dtrain.data.formats.mapped import unchanged
from dtrain.data.formats.shown import UNREADABLE, Shown, sentence
from dtrain.data.tables import Column, Pieces, Table
from dtrain.errors import UsageError
from dtrain.host import memory

#: Bytes of files that may come into memory before they are released: to the page cache, where they
#: stay as long as there is room.
RELEASE = 32 << 20
#: Files that are open at once.
OPEN = 128


class Arrow(Table):
    """Columns of Arrow files or streams.

    Args:
        files: in order.
        given: forms of columns, by name, that the files themselves do not say.
        shown: what messages call each file and its rows; None for what they are.

    Raises:
        UsageError: one is no Arrow file.
    """

    def __init__(
        self,
        files: list[DataFile],
        given: Mapping[str, Form] | None = None,
        shown: Sequence[Shown] | None = None,
    ):
        self.files = self._files = files
        self._shown = shown or [Shown(file.name) for file in files]
        self._stamps = [file.stamp() for file in files]
        found = [_index(file) for file in files]
        self._indexes = [index for index, _ in found]
        names = [file.name for file in files]
        self._forms, self.refused = columns.agreed(names, [each for _, each in found])
        for name, form in (given or {}).items():
            self._forms[name] = form
            self.refused.pop(name, None)
        self.columns: dict[str, Column] = {n: form.column for n, form in self._forms.items()}
        self._pieces = Pieces([int(index.rows.sum()) for index in self._indexes])
        self._most = share(files)  # of columns of batches: of compressed ones, unpacked
        self._begin()

    def _begin(self) -> None:
        self._opened: OrderedDict[int, OpenFile] = OrderedDict()
        self._kept = Kept(self._most)
        self._before = memory.mapped()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_opened", "_kept", "_before")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __len__(self) -> int:
        return len(self._pieces)

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read columns at some rows.

        Raises:
            DataError: naming file, row and column.
        """
        parts: dict[str, list[tuple[np.ndarray, Any]]] = {name: [] for name in names}
        for file, at, inside in self._pieces.split(rows):
            found = self._open(file).read(inside, names)
            for name in names:
                parts[name].append((at, found[name]))
        return {name: values.joined(parts[name], len(rows)) for name in names}

    def _open(self, number: int) -> OpenFile:
        found = self._opened.get(number)
        if found is None:
            file = self._files[number]
            unchanged(file, self._stamps[number])
            found = self._opened[number] = OpenFile(
                file, self._indexes[number], self._forms, self._shown[number], self._kept,
                self._looked,
            )  # fmt: skip
            if len(self._opened) > OPEN:
                closed, _ = self._opened.popitem(last=False)
                self._kept.forget(self._files[closed].name)
        self._opened.move_to_end(number)
        return found

    def _looked(self) -> None:
        """Release what is in memory once it has become much."""
        if memory.mapped() - self._before >= RELEASE:
            for each in self._opened.values():
                each.release()
            self._before = memory.mapped()

    def where(self, row: int) -> str:
        """Return the place of a row: ``FILE, row 17``."""
        file, inside = self._pieces.place(row)
        return self._shown[file].place(inside)

    def blocks(self) -> np.ndarray | None:
        """Return the rows of each batch where one is compressed; None where none is."""
        if not any(index.compressed for index in self._indexes):
            return None
        found = np.concatenate([index.rows for index in self._indexes])
        return found[found > 0]


def _index(file: DataFile) -> tuple[messages.Index, columns.Found]:
    try:
        with file.open() as opened:
            index = messages.index(opened, file.size())
        return index, columns.forms(index.schema, file.name)
    except UNREADABLE as error:
        raise UsageError(
            "dataset.path", file.name, f"cannot be read as Arrow ({sentence(error)})",
            "an Arrow file (.arrow, .feather) or stream", "dataset.path=FILE.arrow",
        ) from None  # fmt: skip
