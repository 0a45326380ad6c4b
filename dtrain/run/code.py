"""What a run was made of: ``code/<start>/record.json``, and the files beside it.

The first start of a run has the folder 1. A later one has a folder of its own where it found other
code, packages or hardware.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from dtrain.errors import DamagedFile
from dtrain.files import fields, reading
from dtrain.run import schemas

FOLDER, RECORD = "code", "record.json"
#: Bytes of one changed or untracked file, of all untracked files of a working tree, and of the
#: changes of the tracked ones.
FILE, UNTRACKED, PATCH = 1 << 20, 16 << 20, 16 << 20
#: Untracked files of a working tree, and files that a record names as left out.
FILES, NAMED = 2_000, 100
#: Working trees of a record, and records of a run.
TREES, STARTS = 8, 1_000
#: What the digest does not cover: the same state has the same one whenever it was recorded.
_OUTSIDE = ("time", "host", "digest", "signature")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")

_Sha = Annotated[str, fields.like(_SHA, "64 hexadecimal digits")]
_Path = Annotated[str, lambda text: None if text.startswith("/") else "is not absolute"]


class LeftOut(TypedDict):
    """A file, or several of one kind, that the record does not hold."""

    path: str
    why: str


class Blob(TypedDict):
    """A file beside the record."""

    name: Annotated[str, reading.component]
    sha256: _Sha


class Tree(TypedDict):
    """One working tree of git that code of the run may be from.

    ``roots`` are folders of it, relative to it, that Python looked for modules in.
    """

    path: _Path
    commit: Annotated[str, fields.like(_COMMIT, "the name of a commit")]
    roots: list[str]
    patch: Blob | None
    untracked: Blob | None
    changed: schemas.Count
    added: schemas.Count
    left_out: list[LeftOut]


class Record(TypedDict):
    """``record.json``."""

    format: Literal["1"]
    time: schemas.Seconds
    host: str
    folder: _Path
    trees: list[Tree]
    notes: list[str]
    trust: list[str]
    outside: list[str]
    environment: dict[str, str]
    machine: dict[str, str]
    packages: dict[str, str]
    digest: _Sha
    signature: NotRequired[str | None]


def digest_of(record: Any) -> str:
    """Return the digest of all that a record says of a state, and of the files beside it."""
    found = {name: value for name, value in record.items() if name not in _OUTSIDE}
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def folders(run: Path) -> list[Path]:
    """Return the folders of a run's records, that of the first start first."""
    found = [path for path in (run / FOLDER).glob("[1-9]*") if _NUMBER.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name))


def read(folder: Path) -> Record:
    """Return a record.

    Args:
        folder: one of :func:`folders`.

    Raises:
        DamagedFile: it is none, or was changed.
        OSError: it cannot be read.
    """
    path = folder / RECORD
    found = schemas.read(path, Record)
    if found is None:
        raise DamagedFile(path, "is not there")
    if digest_of(found) != found["digest"]:
        raise DamagedFile(path, "was changed since it was written")
    return found


def blob(folder: Path, of: Blob) -> bytes:
    """Return the contents of a file beside a record.

    Raises:
        DamagedFile: it was changed since it was written.
        OSError: it cannot be read.
    """
    path = reading.below(folder, of["name"], folder / RECORD, "name")
    data = reading.read_bytes(path, 2 * (PATCH + UNTRACKED))
    if hashlib.sha256(data).hexdigest() != of["sha256"]:
        raise DamagedFile(path, "was changed since it was written")
    return data
