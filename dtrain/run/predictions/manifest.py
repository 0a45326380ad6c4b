"""``predictions.json``: what the pieces of a folder are predictions of, and what they are."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from dtrain.errors import UsageError
from dtrain.files import fields, reading, writing
from dtrain.run import schemas

NAME = "predictions.json"
#: A file below the folder.
_FILE = re.compile(r"(pieces/part-|predictions\.)[^/]+")
#: What later commands must have in common with the first; in the order of the messages.
_IDENTITY = ("checkpoint", "data", "rows", "function", "include", "columns", "format", "batch",
             "piece_rows", "arithmetic")  # fmt: skip


class Checkpoint(TypedDict):
    """Whose predictions they are."""

    step: schemas.Count
    digest: str
    weights: Literal["raw", "ema"]


class Data(TypedDict):
    """Of which data."""

    split: str
    structure: str
    digest: str


class Column(TypedDict):
    """One column of the output."""

    name: str
    dtype: str
    shape: list[schemas.Count]


class File(TypedDict):
    """One file: of a piece, or of all rows."""

    name: Annotated[str, fields.like(_FILE, "a file of predictions")]
    first: schemas.Count
    rows: schemas.Count
    bytes: schemas.Count
    sha256: str


class Manifest(TypedDict):
    """``predictions.json``; ``files`` is there when all are done, in the order of the rows."""

    version: schemas.Count
    checkpoint: Checkpoint
    data: Data
    rows: schemas.Count
    function: Any
    include: list[str]
    columns: list[Column]
    format: Literal["parquet", "npy", "jsonl", "csv"]
    batch: schemas.Count
    piece_rows: schemas.Count
    arithmetic: dict[str, Any]
    #: Whether pieces of few bytes become one file: where `predict.piece_rows` is null.
    may_join: bool
    files: NotRequired[list[File]]


def read(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None where there is none.

    Raises:
        DamagedFile: it cannot be used.
        OSError: it cannot be read.
    """
    path = folder / NAME
    found = reading.read_json(path)
    return None if found is None else schemas.check(found, Manifest, path)


def begin(folder: Path, given: Manifest) -> Manifest:
    """Write the manifest of a folder, or find that there is one of the same predictions.

    Args:
        folder: it exists.
        given: without ``files``.

    Returns:
        What the folder has: with ``files`` where all is done already.

    Raises:
        UsageError: it has other predictions.
        DamagedFile: its manifest cannot be used.
        OSError: it cannot be written.
    """
    if writing.write_first(folder / NAME, _text(given)):
        writing.sync(folder)
    found = read(folder)
    if found is None:
        raise FileNotFoundError(f"{folder / NAME} was removed while this command began")
    # As it would be read: a tuple is a list there.
    now, before = json.loads(_text(given)), dict(found)
    for name in _IDENTITY:
        if before[name] != now[name]:
            raise _other(folder, name, found, now)
    return found


def finish(folder: Path, manifest: Manifest, files: list[File]) -> Manifest:
    """Record that all is done, and return the manifest.

    Raises:
        OSError: it cannot be written.
    """
    done: Manifest = {**manifest, "files": files}
    writing.write_bytes(folder / NAME, _text(done), lasting=True)
    return done


def _text(manifest: Manifest) -> bytes:
    return (json.dumps(manifest, indent=1, ensure_ascii=False, default=str) + "\n").encode()


def _other(folder: Path, name: str, found: Any, now: Any) -> UsageError:
    """Return the refusal of a folder whose ``name`` is not that of this command."""
    there, here = found[name], now[name]
    if isinstance(there, dict) and isinstance(here, dict):
        part = next(key for key in (*there, *here) if there.get(key) != here.get(key))
        name, there, here = f"{name}.{part}", there.get(part), here.get(part)
    return UsageError(
        "to", folder, f"has predictions of another command: their {name} is {_shown(there)}, and "
        f"here it is {_shown(here)}",
        "the folder of predictions of the same checkpoint, data and options, or a new one",
        "to=FOLDER with another folder",
    )  # fmt: skip


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 100 else f"{text[:99]}…"
