"""Named arrays as one message between two processes: a head of JSON, then the raw numbers.

Nothing of it is code, as a pickle would be: what is on the other end may run a model of anybody's.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

#: Bytes of the head, and of the arrays behind it.
SIZES = struct.Struct("<IQ")
#: What arrays of texts, objects that are ``bytes``, are called.
TEXT = "string"
_LENGTH = np.dtype("<u4")


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the type of arrays that is called ``name``; of texts that of objects.

    Raises:
        TypeError: NumPy has none.
    """
    if name == TEXT:
        return np.dtype(object)
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def packed(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> bytes:
    """Return a message.

    Args:
        head: JSON values.
        arrays: of numbers, or of ``bytes``, of any shape.
    """
    listed, parts = [], []
    for name, value in (arrays or {}).items():
        data = _joined(value) if value.dtype.kind == "O" else np.ascontiguousarray(value).tobytes()
        kind = TEXT if value.dtype.kind == "O" else value.dtype.name
        listed.append([name, kind, value.shape, len(data)])
        parts.append(data)
    text = json.dumps({**head, "arrays": listed}).encode()
    return b"".join([SIZES.pack(len(text), sum(map(len, parts))), text, *parts])


def unpacked(
    head: bytes | bytearray, body: bytes | bytearray
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the head of a message and its arrays.

    Args:
        head, body: the two parts of it, as long as :data:`SIZES` before them says.
    """
    found: dict[str, Any] = json.loads(head)
    arrays, at, data = {}, 0, memoryview(body)
    for name, kind, shape, size in found.pop("arrays"):
        part, at = data[at : at + size], at + size
        if kind == TEXT:
            arrays[name] = _parted(part, tuple(shape))
        else:
            arrays[name] = np.frombuffer(part, dtype_of(kind)).reshape(shape)
    return found, arrays


def _joined(value: np.ndarray) -> bytes:
    texts = value.reshape(-1).tolist()
    return b"".join([np.asarray([len(text) for text in texts], _LENGTH).tobytes(), *texts])


def _parted(data: memoryview, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape, dtype=np.int64))
    begin = count * _LENGTH.itemsize
    found, at = np.empty(count, object), begin
    for place, length in enumerate(np.frombuffer(data[:begin], _LENGTH).tolist()):
        found[place], at = bytes(data[at : at + length]), at + length
    return found.reshape(shape)
