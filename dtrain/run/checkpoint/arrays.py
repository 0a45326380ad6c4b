"""Named arrays as the bytes of a safetensors file, and back; no copy of the whole is made.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

#: Bytes that are written, read and hashed at a time; arrays of fewer bytes are joined first.
PIECE, SMALL = 16 << 20, 1 << 16
#: Bytes of the longest header of a safetensors file, by its specification.
HEADER_BYTES = 100_000_000
#: safetensors' names of NumPy's types.
_KINDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "complex64": "C64", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip
_DTYPES = {kind: name for name, kind in _KINDS.items()}


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the identity of a training state: SHA-256 over all arrays, as 64 hex digits.

    Names, types, shapes and numbers count, to the bit; the order of the arrays, their layout in
    memory and their byte order do not.
    """
    listed = [[name, arrays[name].dtype.name, arrays[name].shape] for name in sorted(arrays)]
    found = hashlib.sha256(canonical(listed) + b"\n")
    for name in sorted(arrays):
        found.update(_bytes(arrays[name]))
    return found.hexdigest()


def non_finite(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Return the name of the first array that holds a NaN or an infinity, None if none does."""
    for name, array in arrays.items():
        if (array.dtype.kind in "fc" or _foreign(array.dtype)) and not np.isfinite(array).all():
            return name
    return None


def _foreign(dtype: np.dtype) -> bool:
    """Say whether NumPy itself has no such type: bfloat16, float8, int4..."""
    return isinstance(getattr(ml_dtypes, dtype.name, None), type)


def _plain(array: np.ndarray) -> np.ndarray:
    """Return the array, one of a foreign type as integers of the same bytes."""
    return array.view(f"u{array.dtype.itemsize}") if _foreign(array.dtype) else array


def dtypes(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the types that a safetensors file cannot name, by array."""
    return {name: array.dtype.name for name, array in arrays.items() if _foreign(array.dtype)}


def encode(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file in pieces; what is large is not copied.

    Raises:
        TypeError: an array has no numbers in it.
    """
    # As safetensors itself orders them: each array begins at a multiple of its item's size.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        kind = _plain(arrays[name]).dtype
        if kind.name not in _KINDS:
            raise TypeError(f"{name} has values of type {kind}, which no checkpoint has")
        begin, end = end, end + arrays[name].nbytes
        header[name] = {
            "dtype": _KINDS[kind.name],
            "shape": arrays[name].shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    small = bytearray(len(text).to_bytes(8, "little") + text)
    for name in names:
        data = _bytes(arrays[name])
        if len(data) <= SMALL:  # thousands of small arrays are not thousands of system calls
            small += data
        if len(small) > SMALL or len(data) > SMALL:
            yield bytes(small)
            small.clear()
        if len(data) > SMALL:
            yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))
    if small:
        yield bytes(small)


def _bytes(array: np.ndarray) -> memoryview:
    """Return an array's numbers, little-endian, in order; a copy only of what lies otherwise."""
    plain = _plain(array)
    little = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data


def decode(
    fill: Callable[[memoryview], None], dtypes: dict[str, str], most: int = sys.maxsize
) -> dict[str, np.ndarray]:
    """Read a safetensors file, each array into its own memory.

    Args:
        fill: fills a buffer with the next bytes of the file.
        dtypes: of :func:`_dtypes`.
        most: bytes that the file has at most.

    Raises:
        ValueError, KeyError, TypeError, EOFError: it is none, or not one of :func:`_encode`.
    """
    head = bytearray(8)
    fill(memoryview(head))
    length = int.from_bytes(head, "little")
    if length > min(HEADER_BYTES, most):
        raise ValueError(f"a header of {length} bytes")
    text = bytearray(length)
    fill(memoryview(text))
    header = json.loads(text)
    header.pop("__metadata__", None)
    arrays: dict[str, np.ndarray] = {}
    end = 0
    for name, about in sorted(header.items(), key=lambda each: each[1]["data_offsets"]):
        dtype = np.dtype(_DTYPES[about["dtype"]]).newbyteorder("<")
        begin, last = about["data_offsets"]
        if not all(type(length) is int and length >= 0 for length in about["shape"]):
            raise ValueError(f"{name} has a shape that is none")
        size = math.prod(about["shape"]) * dtype.itemsize
        if begin != end or last - begin != size or last > most:  # ORDER: before memory is taken
            raise ValueError(f"{name} is not where its shape says")
        end = last
        array = np.empty(about["shape"], dtype)
        fill(array.reshape(-1).view(np.uint8).data)
        arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
    for name, foreign in dtypes.items():
        arrays[name] = arrays[name].view(getattr(ml_dtypes, foreign))
    return arrays


def canonical(value: Any) -> bytes:
    """Return a JSON value as bytes, always the same."""
    return json.dumps(value, sort_keys=True).encode()
