"""What a run was made of: ``code/<start>/record.json``, and the changes beside it.

The first start of a run has the folder 1. A later one has a folder of its own where it has other
code or packages.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Literal, NotRequired, TypedDict

from dtrain.errors import DamagedFile
from dtrain.files import fields, reading
from dtrain.files.fields import JsonValue
from dtrain.run import schemas

FOLDER, RECORD, PATCH = "code", "record.json", "changes.patch"
#: Bytes of one changed or untracked file, and of all of them.
FILE, TOTAL = 1 << 20, 16 << 20
#: Untracked files of a record, and files that it names as left out.
FILES, NAMED = 2_000, 100
#: What the digest does not cover: the same state has the same one whenever it was recorded.
_OUTSIDE = ("time", "host", "digest", "signature")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")

_Sha = Annotated[str, fields.like(_SHA, "64 hexadecimal digits")]
_Path = Annotated[str, lambda text: None if text.startswith("/") else "is not absolute"]


class Tree(TypedDict):
    """The working tree of git that a run was started in.

    ``roots`` are folders of it, relative to it, in which Python looked for modules; ``patch`` is
    the digest of :data:`PATCH`, None without changes; ``left_out`` says of each file that the
    patch lacks why.
    """

    path: _Path
    commit: Annotated[str, fields.like(_COMMIT, "the name of a commit")]
    roots: list[str]
    patch: _Sha | None
    changed: schemas.Count
    left_out: dict[str, str]


class Record(TypedDict):
    """``record.json``."""

    format: Literal["2"]
    time: schemas.Seconds
    host: str
    folder: _Path
    tree: Tree | None
    notes: list[str]
    trust: list[str]
    environment: dict[str, str]
    packages: dict[str, str]
    digest: _Sha
    signature: NotRequired[str | None]


def digest_of(record: JsonValue) -> str:
    """Return the digest of all that a record says of a state, and of the changes beside it."""
    covered = {name: value for name, value in record.items() if name not in _OUTSIDE}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def folders(run: Path) -> list[Path]:
    """Return the folders of a run's records, that of the first start first."""
    numbered = [path for path in (run / FOLDER).glob("[1-9]*") if _NUMBER.fullmatch(path.name)]
    return sorted(numbered, key=lambda path: int(path.name))


def read(folder: Path) -> Record:
    """Return a record.

    Args:
        folder: one of :func:`folders`.

    Raises:
        DamagedFile: it is none, or was changed.
        OSError: it cannot be read.
    """
    path = folder / RECORD
    record = schemas.read(path, Record)
    if record is None:
        raise DamagedFile(path, "is not there")
    if digest_of(record) != record["digest"]:
        raise DamagedFile(path, "was changed since it was written")
    return record


def read_patch(folder: Path, tree: Tree) -> bytes:
    """Return the changes of a working tree; empty without any.

    Raises:
        DamagedFile: they were changed since they were written.
        OSError: they cannot be read.
    """
    if tree["patch"] is None:
        return b""
    patch = reading.read_bytes(folder / PATCH, 4 * TOTAL)
    if hashlib.sha256(patch).hexdigest() != tree["patch"]:
        raise DamagedFile(folder / PATCH, "was changed since it was written")
    return patch
