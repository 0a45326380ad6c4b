"""Columns of webdataset: what the data of a member holds, by its extension."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dtrain.data.tables import Column

#: Extensions by what they hold; the last part of one such as ``mask.npy`` counts.
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_TEXTS = ("txt", "text", "transcript")


class Field:
    """What one column is made of: the data of a member, or a part of it.

    Args:
        extension: of the member.
        dtype, shape: of the value of a row; ``object`` for text and bytes.
    """

    def __init__(self, extension: str, dtype: Any = object, shape: tuple[int, ...] = ()):
        self.extension = extension
        self.dtype = np.dtype(dtype)
        self.shape = shape

    def column(self) -> Column:
        """Return what it has in a row."""
        return Column(self.dtype, self.shape)

    def value(self, data: bytes) -> Any:
        """Return the value of a row.

        Raises:
            ValueError: the data has none.
        """
        return data

    def values(self, found: np.ndarray, problem: Any) -> np.ndarray:
        """Return the values of rows: objects ``[b]``, each ``bytes``, to an array ``[b, ...]``.

        Args:
            found: the data.
            problem: called with a position and a ``ValueError``; returns what is raised.
        """
        made = np.empty((len(found), *self.shape), self.dtype)
        for at, data in enumerate(found):
            try:
                made[at] = self.value(data)
            except ValueError as error:
                raise problem(at, error) from None
        return made


class Bytes(Field):
    """Data as it is: of images, say."""

    def values(self, found: np.ndarray, problem: Any) -> np.ndarray:
        """Return the data itself."""
        return found


class Number(Field):
    """A whole number, written out."""

    def value(self, data: bytes) -> int:
        """Return the number."""
        try:
            return int(data)
        except ValueError:
            raise ValueError(f"{data[:40]!r} is no whole number") from None


class Text(Field):
    """Text in UTF-8."""

    def value(self, data: bytes) -> str:
        """Return the text."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"is no UTF-8 (byte {error.start:,} of it)") from None


class Array(Field):
    """An array of NumPy's, of one type and shape in all rows.

    Args:
        extension: of the member.
        data: of the first example.

    Raises:
        ValueError: it is no array.
    """

    def __init__(self, extension: str, data: bytes):
        found = self._read(data)
        super().__init__(extension, found.dtype, found.shape)
        if found.dtype.kind not in "biuf":
            raise ValueError(f"is an array of {found.dtype}, and no numbers")
        # Of an array that has the same header no more than the numbers is looked at.
        self._header = data[: len(data) - found.nbytes] if found.flags.c_contiguous else None

    @staticmethod
    def _read(data: bytes) -> np.ndarray:
        try:
            with io.BytesIO(data) as opened:
                return np.asarray(np.lib.format.read_array(opened, allow_pickle=False))
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"is no array of NumPy's ({error})") from None

    def value(self, data: bytes) -> np.ndarray:
        """Return the array."""
        size = self.dtype.itemsize * int(np.prod(self.shape))
        if self._header and len(data) == len(self._header) + size and data.startswith(self._header):
            numbers = np.frombuffer(data, self.dtype, offset=len(self._header))
            return numbers.reshape(self.shape)
        found = self._read(data)
        if found.shape != self.shape or found.dtype != self.dtype:
            raise ValueError(
                f"is {found.dtype} {list(found.shape)}, and was {self.dtype} "
                f"{list(self.shape)} in the first example"
            )
        return found


class Json(Field):
    """A number or text of a JSON document, or a list of numbers of one length.

    Args:
        extension: of the member.
        path: keys that lead to it.
        value: of the first example.
    """

    def __init__(self, extension: str, path: tuple[str, ...], value: Any):
        self.path = path
        if isinstance(value, str):
            super().__init__(extension)
        else:
            found = np.asarray(value)
            super().__init__(extension, found.dtype, found.shape)

    def value(self, data: bytes) -> Any:
        """Return the value."""
        found = _document(data)
        for at, key in enumerate(self.path):
            if not isinstance(found, Mapping) or key not in found:
                raise ValueError(f"has no key {'.'.join(self.path[: at + 1])!r}")
            found = found[key]
        if self.dtype == object:
            if not isinstance(found, str):
                raise ValueError(f"is {found!r:.40}, and was a text in the first example")
            return found
        made = _numbers(found)
        if made is None or made.shape != self.shape:
            raise ValueError(
                f"is {found!r:.40}, and was {self.dtype} {list(self.shape)} in the first example"
            )
        if not np.can_cast(made.dtype, self.dtype, "same_kind"):
            raise ValueError(f"is {found!r:.40}, and was a whole number in the first example")
        return made


def _document(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON ({error})") from None


def _numbers(value: Any) -> np.ndarray | None:
    """Return a number, or a list of numbers, as an array; None of anything else."""
    try:
        found = np.asarray(value)
    except (ValueError, OverflowError):  # lists of different lengths
        return None
    return found if found.dtype.kind in "bif" and found.size else None


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what of a JSON document can be a column, with the keys that lead there."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, (*path, key))
    elif isinstance(value, str) or _numbers(value) is not None:
        yield path, value


def fields(extension: str, data: bytes) -> dict[str, Field]:
    """Return the columns that a member of the first example makes, by name.

    Raises:
        ValueError: its data is not what its extension says.
    """
    kind = extension.rpartition(".")[2]
    if kind == "json":
        leaves = _leaves(_document(data))
        return {".".join((extension, *path)): Json(extension, path, v) for path, v in leaves}
    made: Field
    if kind in _NUMBERS:
        made = Number(extension, np.int64)
    elif kind in _TEXTS:
        made = Text(extension)
    elif kind == "npy":
        made = Array(extension, data)
    else:
        made = Bytes(extension)
    made.value(data)
    return {extension: made}
