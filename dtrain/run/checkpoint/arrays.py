"""Named arrays as the bytes of a safetensors file, and back; no copy of the whole is made.

The library reads. Its ``serialize_file`` does not write here: the file must be hashed while it is
written, go through :mod:`os` as every other save, and be readable by others (its own is 0600).
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np
import safetensors

from dtrain.files.fields import Json, JsonValue

#: Bytes that are written, read and hashed at a time; arrays of fewer bytes are joined first.
PIECE, SMALL = 16 << 20, 1 << 16
#: safetensors' names of NumPy's types.
_KINDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "complex64": "C64", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip
#: And NumPy's names of safetensors' types.
_TYPES = {kind: name for name, kind in _KINDS.items()}


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
    header: Json = {}
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


def decode(path: str, dtypes: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file, which are read from it as they are used.

    Args:
        path: of a file that does not change, though it may be removed.
        dtypes: of :func:`dtypes`.

    Raises:
        ValueError, KeyError, TypeError: it is none, or not one of :func:`encode`.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            ordered = file.offset_keys()
            slices = [file.get_slice(name) for name in ordered]
            about = [(each.get_dtype(), each.get_shape()) for each in slices]
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from None
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    arrays, at = {}, 8 + int.from_bytes(mapped[:8], "little")
    for name, (kind, shape) in zip(ordered, about, strict=True):
        dtype = np.dtype(_TYPES[kind])
        count = math.prod(shape)
        arrays[name] = np.frombuffer(mapped, dtype, count, at).reshape(shape)
        at += count * dtype.itemsize
    return {**arrays, **{name: arrays[name].view(_type(each)) for name, each in dtypes.items()}}


def names(path: str) -> list[str]:
    """Return the names of the arrays of a safetensors file, which are not read.

    Raises:
        ValueError: it is none.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return list(file.keys())
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from None


def packed(
    arrays: Mapping[str, np.ndarray], without: Collection[str] = ()
) -> tuple[list[JsonValue], Iterator[memoryview]]:
    """Return arrays for another process: JSON values that describe them, and their bytes.

    Args:
        arrays: by name.
        without: names of those that are described alone.
    """
    about = [
        [name, array.dtype.name, array.shape, name not in without] for name, array in arrays.items()
    ]
    return about, (_bytes(array) for name, array in arrays.items() if name not in without)


def unpacked(
    about: Sequence[JsonValue], fill: Callable[[memoryview], None]
) -> dict[str, np.ndarray]:
    """Return what was given to :func:`packed`; an array that came without bytes is of zeros.

    Args:
        about: its first result.
        fill: fills a buffer with the next bytes of its second.
    """
    arrays = {}
    for name, dtype, shape, has_bytes in about:
        if has_bytes:
            arrays[name] = np.empty(shape, _type(dtype))
            fill(arrays[name].reshape(-1).view(np.uint8).data)
        else:  # one number, which takes no more memory
            arrays[name] = np.broadcast_to(np.zeros((), _type(dtype)), shape)
    return arrays


def _type(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def canonical(value: object) -> bytes:
    """Return a JSON value as bytes, always the same."""
    return json.dumps(value, sort_keys=True).encode()
