"""Where the record batches of an Arrow file or stream are: its messages, read without their bodies.

pyarrow knows how many rows a batch has only once it has read it, unpacked where it is compressed.
The number is in the header of each message, a FlatBuffer
(https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format).
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import IO

import numpy as np
import pyarrow as pa

MAGIC = b"ARROW1"
_CONTINUES = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3  # kinds of messages


@dataclasses.dataclass(frozen=True)
class Index:
    """The record batches of one file.

    Attributes:
        schema: of all of them.
        rows: int64 ``[k]``, of each batch.
        starts, sizes: int64 ``[k]``, bytes of the message of each batch, its body included.
        head: start and size of the first message, that of the schema.
        dictionaries: start and size of each message with a dictionary, in order.
        compressed: whether a batch is.
    """

    schema: pa.Schema
    rows: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    head: tuple[int, int]
    dictionaries: list[tuple[int, int]]
    compressed: bool


def index(file: IO[bytes], size: int) -> Index:
    """Read where the record batches are.

    Args:
        file: open, at its beginning.
        size: its bytes.

    Raises:
        ValueError, OSError, pa.ArrowException: it is no Arrow file or stream, or is cut off.
    """
    start = file.read(8)
    begin, end = 0, size
    if start[:6] == MAGIC:
        file.seek(max(0, size - 10))
        footer, magic = struct.unpack("<i6s", file.read(10).ljust(10))
        if magic != MAGIC or not 0 < footer < size - 18:
            raise ValueError("it is cut off: its end is missing")
        begin, end = 8, size - 10 - footer
    elif start[:4] == b"FEA1":
        raise ValueError("it is of version 1 of Feather, which was before Arrow files")
    file.seek(begin)
    schema = pa.ipc.open_stream(file).schema
    found: list[tuple[int, int, int]] = []
    dictionaries: list[tuple[int, int]] = []
    head, compressed = (begin, 0), False
    for at, length, kind, rows, packed in _messages(file, begin, end):
        if not head[1]:
            head = (at, length)
        elif kind == _DICTIONARY:
            dictionaries.append((at, length))
        elif kind == _BATCH:
            found.append((rows, at, length))
            compressed |= packed
    table = np.array(found, np.int64).reshape(-1, 3).T
    return Index(schema, table[0], table[1], table[2], head, dictionaries, compressed)


def _messages(file: IO[bytes], at: int, end: int) -> Iterator[tuple[int, int, int, int, bool]]:
    """Yield of each message: start, size, kind, rows, and whether it is compressed."""
    while at < end:
        file.seek(at)
        before = file.read(8)
        if before == struct.pack("<Ii", _CONTINUES, 0) or before[:4] == bytes(4):
            return  # the mark of the end
        if len(before) < 8:
            raise ValueError(f"it is cut off at byte {at:,}")
        first, second = struct.unpack("<Ii", before)
        # Before Arrow 0.15 the length of the header came first.
        skip, length = (8, second) if first == _CONTINUES else (4, first)
        if not 0 < length <= end - at - skip:
            raise ValueError(f"it is cut off or damaged at byte {at:,}")
        file.seek(at + skip)
        try:
            kind, body, rows, packed = _header(file.read(length))
        except (struct.error, IndexError):
            raise ValueError(f"it is damaged at byte {at:,}") from None
        size = skip + length + body
        if body < 0 or rows < 0 or size > end - at:
            raise ValueError(f"it is cut off or damaged at byte {at:,}")
        yield at, size, kind, rows, packed
        at += size


def _header(data: bytes) -> tuple[int, int, int, bool]:
    """Return kind, bytes of the body, rows, and whether it is compressed, of a message's header."""
    root = struct.unpack_from("<I", data)[0]
    kind_at, header_at, body_at = (_place(data, root, field) for field in (1, 2, 3))
    kind = data[kind_at] if kind_at else 0
    body = struct.unpack_from("<q", data, body_at)[0] if body_at else 0
    if kind != _BATCH or not header_at:
        return kind, body, 0, False
    header = header_at + struct.unpack_from("<I", data, header_at)[0]
    rows_at = _place(data, header, 0)
    rows = struct.unpack_from("<q", data, rows_at)[0] if rows_at else 0
    return kind, body, rows, _place(data, header, 3) > 0


def _place(data: bytes, table: int, field: int) -> int:
    """Return where a field of a FlatBuffer's table is; 0 where it has none."""
    offsets = table - struct.unpack_from("<i", data, table)[0]
    if offsets < 0:
        raise IndexError(offsets)
    if 4 + 2 * field >= struct.unpack_from("<H", data, offsets)[0]:
        return 0
    offset = struct.unpack_from("<H", data, offsets + 4 + 2 * field)[0]
    return table + offset if offset else 0
