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
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from dtrain.errors import CheckpointError, DamagedFile
from dtrain.files import reading, writing
from dtrain.files.fields import Json, JsonValue
from dtrain.host.packages import version
from dtrain.run import schemas
from dtrain.run.checkpoint.arrays import canonical, decode, digest, dtypes, encode, packed, unpacked

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
    meta: Json


def pack(checkpoint: Checkpoint, without: Collection[str] = ()) -> Iterator[bytes | memoryview]:
    """Yield a checkpoint as bytes, for another process, in pieces; what is large is not copied.

    Args:
        checkpoint: the whole of it.
        without: names of arrays that are zeros there, in no memory.
    """
    about = {"step": checkpoint.step, "path": str(checkpoint.path), "meta": checkpoint.meta}
    described, parts = packed(checkpoint.arrays, without)
    head = canonical({**about, "arrays": described})
    yield len(head).to_bytes(8, "little") + head
    yield from parts


def unpack(pieces: Iterable[bytes]) -> Checkpoint | None:
    """Return what was given to :func:`pack`; None of no bytes.

    Args:
        pieces: of the same bytes, of any sizes.
    """
    rest, piece = iter(pieces), memoryview(b"")

    def fill(buffer: memoryview) -> None:
        nonlocal piece
        while buffer:
            piece = piece or memoryview(next(rest))
            count = min(len(buffer), len(piece))
            buffer[:count] = piece[:count]
            buffer, piece = buffer[count:], piece[count:]

    size = bytearray(8)
    try:
        fill(memoryview(size))
    except StopIteration:
        return None
    head = bytearray(int.from_bytes(size, "little"))
    fill(memoryview(head))
    about = json.loads(head)
    arrays = unpacked(about["arrays"], fill)
    return Checkpoint(about["step"], Path(about["path"]), arrays, about["meta"])


def _checksum(manifest: Json) -> str:
    return hashlib.sha256(canonical({**manifest, "sha256": None})).hexdigest()


def _text(manifest: Json) -> bytes:
    return json.dumps(manifest, indent=1).encode()


def write(path: Path, step: int, arrays: Mapping[str, np.ndarray], meta: Json) -> None:
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
        for piece in encode(arrays):
            size += len(piece)
            found.update(piece)
            yield piece

    writing.write_new(path / STATE, pieces(), lasting=True)
    manifest = {
        "step": step,
        "files": {STATE: {"bytes": size, "sha256": found.hexdigest()}},
        "dtypes": dtypes(arrays),
        "digest": digest(arrays),
    }
    writing.write_new(path / MANIFEST, [_manifest(manifest, meta)], lasting=True)
    writing.sync(path)


def _manifest(manifest: Json, meta: Json) -> bytes:
    plain = json.loads(json.dumps(meta))  # as it will be read: keys become text
    whole = {**manifest, "meta": plain, "sha256": None}
    whole["sha256"] = _checksum(whole)
    return _text(whole)


def rewrite(path: Path, meta: Json, temporary: str) -> None:
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
        writing.write_new(aside, [_manifest(read_manifest(path), meta)], lasting=True)
        writing.replace(aside, path / MANIFEST)
    except BaseException:
        writing.remove(aside)
        raise
    writing.sync(path)


def read_manifest(path: Path) -> Json:
    """Read and verify the manifest of the checkpoint at ``path``; its arrays are not looked at.

    Returns:
        ``step``, ``meta``, ``files``, ``dtypes`` and ``digest``.

    Raises:
        CheckpointError: it is missing, truncated or altered, or of another version of dtrain.
    """
    file = path / MANIFEST
    try:
        data = reading.read_bytes(file)
        manifest = reading.parse_json(data, file)
        sound = manifest["sha256"] == _checksum(manifest)
        if not sound or data != _text(manifest):  # JSON has several spellings: \u00e9, \u00E9
            raise CheckpointError(f"{file} does not match its checksum")
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except DamagedFile as error:
        raise CheckpointError(str(error)) from error
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{file} is not a manifest: {error!r}") from error
    try:
        schemas.check(manifest, schemas.Manifest, file)
    except DamagedFile as error:
        raise CheckpointError(f"{error} {versions(manifest.get('meta'))}") from error
    name = path.name.removeprefix(".old-")
    if name.isdecimal() and name != str(manifest["step"]):
        raise CheckpointError(f"{file}: step {manifest['step']} is not that of its folder")
    return manifest


def versions(meta: JsonValue) -> str:
    """Say which dtrain wrote a checkpoint, and which this is.

    Args:
        meta: of the checkpoint.
    """
    try:
        then = meta["versions"]["dtrain"]
    except (KeyError, TypeError):
        then = "of another version"
    return f"(written by dtrain {then}; this is dtrain {version('dtrain')})"


def load(path: Path) -> Checkpoint:
    """Read and verify one checkpoint.

    Raises:
        CheckpointError: a file is missing, truncated or altered (named).
    """
    manifest = read_manifest(path)
    try:
        arrays = _read(path / STATE, manifest["files"][STATE], manifest["dtypes"])
        # This finds no damage, but another reading of whole files.
        if digest(arrays) != manifest["digest"]:
            raise CheckpointError(f"{path} does not match its digest: it is read otherwise")
        return Checkpoint(manifest["step"], path, arrays, manifest["meta"])
    except OSError as error:
        raise CheckpointError(f"{path / STATE} cannot be read: {error.strerror}") from error
    except DamagedFile as error:
        raise CheckpointError(str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError) as error:
        # Checksums fit, or were not compared: another version of dtrain wrote it.
        raise CheckpointError(f"{path}: {error!r} {versions(manifest['meta'])}") from error


def _read(path: Path, expected: Json, dtypes: dict[str, str]) -> dict[str, np.ndarray]:
    """Verify a file and read its arrays; nothing is believed of it before.

    Raises:
        CheckpointError: it is not the file that ``expected`` has size and checksum of.
        OSError: it cannot be read.
        ValueError, KeyError, TypeError: as of :func:`decode`, of a file that is.
    """
    with os.fdopen(reading.open_read(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected["bytes"]:
            raise CheckpointError(f"{path} has {size} bytes and should have {expected['bytes']}")
        start = os.pread(file.fileno(), 9, 0)  # the length of a header in JSON, and its brace
        if start[8:] != b"{" or int.from_bytes(start[:8], "little") > size - 8:
            raise ValueError(f"{STATE} does not begin with the header of a safetensors file")
        if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
            raise CheckpointError(f"{path} does not match its checksum")
        return decode(f"/dev/fd/{file.fileno()}", dtypes)  # of this file, whatever its name
