"""TFRecord files: their framing, and the pass that checks all of it.

A record is its length (uint64), the checksum of that, the data, and the checksum of the data. The
checksums are masked CRC-32C.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from dtrain.data.files import DataFile
from dtrain.errors import DataError, UsageError

#: Bytes before the data of a record, and around it.
HEAD, AROUND = 12, 16
#: Records that are checked at once, at most, and the bytes of them.
_RECORDS, _BYTES = 256, 16 << 20
#: First bytes of what programs write that compress: gzip, and zlib with its usual options.
_COMPRESSED = {b"\x1f\x8b": "GZIP", b"\x78\x01": "ZLIB", b"\x78\x9c": "ZLIB", b"\x78\xda": "ZLIB"}


def check_head(file: DataFile) -> None:
    """Refuse, by its first bytes, what is no TFRecord file.

    Raises:
        UsageError: it is none.
        DataError: it cannot be read.
    """
    with file.open() as opened:
        head = opened.read(HEAD)
    if not head or _length(head) is not None:
        return
    raise UsageError(
        "dataset.path", file.name, "is no TFRecord file: the checksum of its first length is wrong",
        "files that tf.io.TFRecordWriter has written", "dataset.path=FILE",
    )  # fmt: skip


def compression(file: DataFile) -> str | None:
    """Return how a file is compressed, as ``tf.data.TFRecordDataset`` names it; None if it is not.

    Raises:
        DataError: it cannot be read.
    """
    with file.open() as opened:
        head = opened.read(HEAD)
    return None if not head or _length(head) is not None else _COMPRESSED.get(head[:2])


def records(file: DataFile) -> np.ndarray:
    """Pass a file, and check both checksums of each record.

    TensorFlow's own reader does it, at more than 1 GB/s.

    Returns:
        int64 ``[n, 2]``: where the data of each record begins, and its bytes.

    Raises:
        DataError: naming file, record and byte.
    """
    import tensorflow as tf

    sizes = [np.zeros(0, np.int64)]
    error: Any = None
    try:
        passed = tf.data.TFRecordDataset(str(file.local()), buffer_size=1 << 20)
        passed = passed.batch(_at_once(file)).map(tf.strings.length)
        sizes.extend(passed.as_numpy_iterator())
    except tf.errors.OpError as raised:
        error = raised
    found = np.concatenate(sizes, dtype=np.int64)
    ends = np.cumsum(found + AROUND)
    if error is not None or int(found.sum()) + AROUND * len(found) != file.size():
        reason = str(error.message).split("\n")[0] if error else "it changes while it is read"
        raise _damaged(file, len(found), int(ends[-1]) if len(ends) else 0, reason)
    return np.stack([ends - found - AROUND + HEAD, found], axis=1)


def _at_once(file: DataFile) -> int:
    """Return how many records to check at once: they are in memory together."""
    sizes, at = [1], 0
    with file.open() as opened:
        while len(sizes) < 64:
            opened.seek(at)
            size = _length(opened.read(HEAD))
            if size is None:
                break
            sizes.append(size)
            at += size + AROUND
    return max(1, min(_RECORDS, _BYTES // max(sizes)))


def _length(head: bytes) -> int | None:
    """Return the length at the beginning of a record; None where its checksum is another."""
    if len(head) < HEAD:
        return None
    size, checksum = struct.unpack("<QI", head)
    return int(size) if checksum == masked_crc32c(head[:8]) else None


def _damaged(file: DataFile, number: int, at: int, reason: str) -> DataError:
    """Find the first record that is damaged.

    Args:
        file: of the record.
        number, at: of a record that all before are sound, and the byte where it begins.
        reason: what to say where no record is.
    """
    size = file.size()
    with file.open() as opened:
        while at < size:
            opened.seek(at)
            head = opened.read(HEAD)
            length = _length(head)
            place = f"{file.name}, record {number:,} (byte {at:,})"
            if len(head) < HEAD:
                return DataError(place, f"the file ends early, {len(head)} bytes further on")
            if length is None:
                return DataError(place, "the checksum of its length is wrong")
            if at + length + AROUND > size:
                return DataError(
                    place, f"the file ends early: it has {length:,} bytes, and "
                    f"{max(0, size - at - HEAD):,} are there",
                )  # fmt: skip
            data, checksum = opened.read(length), opened.read(AROUND - HEAD)
            if masked_crc32c(data) != int.from_bytes(checksum, "little"):
                return DataError(place, "the checksum of its data is wrong")
            number, at = number + 1, at + length + AROUND
    return DataError(file.name, f"cannot be read ({reason})")


def _table() -> list[int]:
    made = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        made.append(byte)
    return made


_TABLE = _table()


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of TFRecord files; for a few bytes: it takes 100 ns for each."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF
