"""One checkpoint: every variable by path in a safetensors file, and a manifest with checksums.

The manifest guards itself and the state: a changed bit or a missing end of either is found when
it is read. Its ``digest`` is the identity of the arrays, whatever file they are in.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from dtrain.checkpoint import disk
from dtrain.errors import CheckpointError

STATE = "state.safetensors"
MANIFEST = "manifest.json"

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


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read back and found sound.

    Attributes:
        step: global step at which it was taken.
        path: its folder.
        arrays: by name, full arrays.
        meta: everything else that was saved with them.
    """

    step: int
    path: Path
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the identity of a training state: SHA-256 over all arrays, as 64 hex digits.

    Names, types, shapes and numbers count, to the bit; the order of the arrays, their layout in
    memory and their byte order do not.
    """
    listed = [[name, arrays[name].dtype.name, arrays[name].shape] for name in sorted(arrays)]
    found = hashlib.sha256(_canonical(listed) + b"\n")
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


def _dtypes(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the types that a safetensors file cannot name, by array."""
    return {name: array.dtype.name for name, array in arrays.items() if _foreign(array.dtype)}


def _encode(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
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


def _decode(
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


def pack(checkpoint: Checkpoint) -> Iterator[bytes | memoryview]:
    """Yield a checkpoint as bytes, for another process, in pieces; what is large is not copied."""
    about = {"step": checkpoint.step, "path": str(checkpoint.path), "meta": checkpoint.meta}
    head = _canonical({**about, "dtypes": _dtypes(checkpoint.arrays)})
    yield len(head).to_bytes(8, "little") + head
    yield from _encode(checkpoint.arrays)


def unpack(fill: Callable[[memoryview], None]) -> Checkpoint:
    """Return what was given to :func:`pack`.

    Args:
        fill: fills a buffer with the next bytes of all the pieces.
    """
    size = bytearray(8)
    fill(memoryview(size))
    head = bytearray(int.from_bytes(size, "little"))
    fill(memoryview(head))
    about = json.loads(head)
    arrays = _decode(fill, about["dtypes"])
    return Checkpoint(about["step"], Path(about["path"]), arrays, about["meta"])


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical({**manifest, "sha256": None})).hexdigest()


def _text(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1).encode()


def write(path: Path, step: int, arrays: Mapping[str, np.ndarray], meta: dict[str, Any]) -> None:
    """Write one checkpoint as the new folder ``path``, and flush it to the disk.

    Args:
        path: the folder; its parent exists, and it does not.
        step: global step.
        arrays: full arrays by name, of any shape and layout.
        meta: JSON values; keys that are numbers are read back as text.

    Raises:
        OSError: a file cannot be written.
        TypeError, ValueError: of a value that JSON has not, or an array of texts or objects.
    """
    os.mkdir(path)
    size, found = 0, hashlib.sha256()

    def pieces() -> Iterator[bytes | memoryview]:
        nonlocal size
        for piece in _encode(arrays):
            size += len(piece)
            found.update(piece)
            yield piece

    disk.write(path / STATE, pieces())
    manifest = {
        "step": step,
        "files": {STATE: {"bytes": size, "sha256": found.hexdigest()}},
        "dtypes": _dtypes(arrays),
        "digest": digest(arrays),
    }
    disk.write(path / MANIFEST, [_manifest(manifest, meta)])
    disk.sync(path)


def _manifest(manifest: dict[str, Any], meta: dict[str, Any]) -> bytes:
    plain = json.loads(json.dumps(meta))  # as it will be read: keys become text
    whole = {**manifest, "meta": plain, "sha256": None}
    whole["sha256"] = _checksum(whole)
    return _text(whole)


def rewrite(path: Path, meta: dict[str, Any], temporary: str) -> None:
    """Give the checkpoint at ``path`` another ``meta``; at any moment it has the old or the new.

    Args:
        path: its folder; its arrays stay as they are, and are not read.
        meta: JSON values.
        temporary: begins the name of a file that is half written.

    Raises:
        OSError, TypeError, ValueError: as of :func:`write`.
        CheckpointError: its manifest is damaged.
    """
    aside = path / f"{temporary}{MANIFEST}"
    try:
        disk.write(aside, [_manifest(read_manifest(path), meta)])
        os.replace(aside, path / MANIFEST)
    except BaseException:
        disk.remove(aside)
        raise
    disk.sync(path)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and verify the manifest of the checkpoint at ``path``; its arrays are not looked at.

    Returns:
        ``step``, ``meta``, ``files``, ``dtypes`` and, but for older ones, ``digest``.

    Raises:
        CheckpointError: it is missing, truncated or altered.
    """
    try:
        data = (path / MANIFEST).read_bytes()
        manifest = json.loads(data)
        sound = manifest["sha256"] == _checksum(manifest)
        if not sound or data != _text(manifest):  # JSON has several spellings: \u00e9, \u00E9
            raise CheckpointError(f"{path / MANIFEST} does not match its checksum")
        if not all(isinstance(manifest[key], dict) for key in ("files", "dtypes", "meta")):
            raise TypeError("a table is none")
    except OSError as error:
        raise CheckpointError(f"{path / MANIFEST} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / MANIFEST} is not a manifest: {error!r}") from error
    return manifest


def load(path: Path) -> Checkpoint:
    """Read and verify one checkpoint.

    Raises:
        CheckpointError: a file is missing, truncated or altered (named).
    """
    manifest = read_manifest(path)
    try:
        arrays = _read(path / STATE, manifest["files"][STATE], manifest["dtypes"])
        # Older ones have no digest. This finds no damage, but another reading of whole files.
        if "digest" in manifest and digest(arrays) != manifest["digest"]:
            raise CheckpointError(f"{path} does not match its digest: it is read otherwise")
        return Checkpoint(manifest["step"], path, arrays, manifest["meta"])
    except OSError as error:
        raise CheckpointError(f"{path / STATE} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError) as error:
        # Checksums fit: another version of dtrain wrote it.
        raise CheckpointError(f"{path} is of another version: {error!r}") from error


def _read(path: Path, expected: dict[str, Any], dtypes: dict[str, str]) -> dict[str, np.ndarray]:
    """Read the arrays of a file, once, and verify it; nothing is believed of it before.

    Raises:
        CheckpointError: it is not the file that ``expected`` has size and checksum of.
        OSError: it cannot be read.
        ValueError, KeyError, TypeError, EOFError: as of :func:`_decode`, of a file that is.
    """
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected["bytes"]:
            raise CheckpointError(f"{path} has {size} bytes and should have {expected['bytes']}")
        left = size

        def fill(buffer: memoryview) -> None:
            nonlocal left
            if len(buffer) > left:
                raise EOFError(f"{path} ends within an array")
            for at in range(0, len(buffer), PIECE):
                piece = buffer[at : at + PIECE]
                rest = piece
                while rest:
                    count = file.readinto(rest)
                    if not count:
                        raise EOFError(f"{path} is being changed")
                    rest = rest[count:]
                found.update(piece)
            left -= len(buffer)

        problem: Exception | None = None
        arrays: dict[str, np.ndarray] = {}
        try:
            arrays = _decode(fill, dtypes, size)
        except Exception as error:  # of a damaged file; the checksum decides
            problem = error
        if left and problem is None:
            problem = ValueError(f"{left} bytes after the last array")
        while left:
            fill(memoryview(bytearray(min(left, PIECE))))
    if found.hexdigest() != expected["sha256"]:
        raise CheckpointError(f"{path} does not match its checksum")
    if problem is not None:
        raise problem
    return arrays
