"""One checkpoint: every variable by path in a safetensors file, and a manifest with checksums.

The manifest guards itself and the state: a changed bit or a missing end of either is found when
it is read. Its ``digest`` is the identity of the arrays, whatever file they are in.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from dtrain import files, schemas
from dtrain.checkpoint import disk
from dtrain.errors import CheckpointError, DamagedFile

STATE = "state.safetensors"
MANIFEST = "manifest.json"


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
        plain = _plain(arrays[name])
        little = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
        found.update(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
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


def _encode(arrays: Mapping[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
    """Return the safetensors file, and the types that it cannot tell."""
    dtypes = {name: a.dtype.name for name, a in arrays.items() if _foreign(a.dtype)}
    # safetensors writes memory as it lies there; ascontiguousarray alone makes 0-d arrays 1-d.
    contiguous = {n: np.ascontiguousarray(_plain(a)).reshape(a.shape) for n, a in arrays.items()}
    return safetensors.numpy.save(contiguous), dtypes


def _decode(state: bytes, dtypes: dict[str, str]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = safetensors.numpy.load(state)
    for name, dtype in dtypes.items():
        kind = np.dtype(getattr(ml_dtypes, dtype))
        if not _foreign(kind) or arrays[name].dtype != np.dtype(f"u{kind.itemsize}"):
            raise ValueError(f"{name} cannot be of {dtype}")  # or its shape would be another
        arrays[name] = arrays[name].view(kind)
    return arrays


def pack(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as bytes, for another process."""
    state, dtypes = _encode(checkpoint.arrays)
    about = {"step": checkpoint.step, "path": str(checkpoint.path), "meta": checkpoint.meta}
    return _canonical({**about, "dtypes": dtypes}) + b"\n" + state


def unpack(data: bytes) -> Checkpoint:
    """Return what was given to :func:`pack`."""
    head, _, state = data.partition(b"\n")
    about = json.loads(head)
    arrays = _decode(state, about["dtypes"])
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
        TypeError, ValueError: of a value that JSON has not.
        safetensors.SafetensorError: of an array of texts or objects.
    """
    os.mkdir(path)
    state, dtypes = _encode(arrays)
    disk.write(path / STATE, state)
    manifest = {
        "step": step,
        "files": {STATE: {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}},
        "dtypes": dtypes,
        "digest": digest(arrays),
        "meta": json.loads(json.dumps(meta)),  # as it will be read: keys become text
        "sha256": None,
    }
    manifest["sha256"] = _checksum(manifest)
    disk.write(path / MANIFEST, _text(manifest))
    disk.sync(path)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and verify the manifest of the checkpoint at ``path``; its arrays are not looked at.

    Returns:
        ``step``, ``meta``, ``files``, ``dtypes`` and, but for older ones, ``digest``.

    Raises:
        CheckpointError: it is missing, truncated or altered.
    """
    file = path / MANIFEST
    try:
        data = files.read_bytes(file)
        manifest = files.parse_json(data, file)
        sound = manifest["sha256"] == _checksum(manifest)
        if not sound or data != _text(manifest):  # JSON has several spellings: \u00e9, \u00E9
            raise CheckpointError(f"{file} does not match its checksum")
        schemas.check(manifest, schemas.Manifest, file)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except DamagedFile as error:
        raise CheckpointError(str(error)) from error
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{file} is not a manifest: {error!r}") from error
    name = path.name.removeprefix(".old-")
    if name.isdecimal() and name != str(manifest["step"]):
        raise CheckpointError(f"{file}: step {manifest['step']} is not that of its folder")
    return manifest


def _read_state(path: Path, expected: int) -> bytes:
    """Return the contents of a file that has as many bytes as ``expected``."""
    with os.fdopen(files.open_read(path), "rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != expected:  # ORDER: before it is read: it may be larger than the memory
            raise CheckpointError(f"{path} has {found} bytes and should have {expected}")
        return file.read(expected)


def load(path: Path) -> Checkpoint:
    """Read and verify one checkpoint.

    Raises:
        CheckpointError: a file is missing, truncated or altered (named).
    """
    manifest = read_manifest(path)
    try:
        expected = manifest["files"][STATE]
        state = _read_state(path / STATE, expected["bytes"])
        if hashlib.sha256(state).hexdigest() != expected["sha256"]:
            raise CheckpointError(f"{path / STATE} does not match its checksum")
        arrays = _decode(state, manifest["dtypes"])
        # Older ones have no digest. This finds no damage, but another reading of whole files.
        if "digest" in manifest and digest(arrays) != manifest["digest"]:
            raise CheckpointError(f"{path} does not match its digest: it is read otherwise")
        return Checkpoint(manifest["step"], path, arrays, manifest["meta"])
    except OSError as error:
        raise CheckpointError(f"{path / STATE} cannot be read: {error.strerror}") from error
    except DamagedFile as error:
        raise CheckpointError(str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, safetensors.SafetensorError) as error:
        # Checksums fit: another version of dtrain wrote it.
        raise CheckpointError(f"{path} is of another version: {error!r}") from error
