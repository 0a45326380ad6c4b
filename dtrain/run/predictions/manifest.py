"""``predictions.json``: what the pieces of a folder are predictions of, and what they are.

It has the keys of :data:`_IDENTITY`, ``may_join``, and ``files`` when all are done, in the order of
the rows: ``name``, ``first``, ``rows``, ``bytes`` and ``sha256`` of each.
"""

import json
from pathlib import Path
from typing import Any

from dtrain.errors import UsageError
from dtrain.files import reading, writing

NAME = "predictions.json"
#: What later commands must have in common with the first; in the order of the messages.
_IDENTITY = ("checkpoint", "data", "rows", "function", "include", "columns", "format", "batch",
             "piece_rows", "arithmetic")  # fmt: skip
Manifest = dict[str, Any]


def read(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None where there is none.

    Raises:
        DamagedFile: it is no JSON.
        OSError: it cannot be read.
    """
    return reading.read_json(folder / NAME)


def begin(folder: Path, given: Manifest) -> Manifest:
    """Write the manifest of a folder, or find that there is one of the same predictions.

    Args:
        folder: it exists.
        given: without ``files``.

    Returns:
        What the folder has: with ``files`` where all is done already.

    Raises:
        UsageError: it has other predictions.
        DamagedFile: its manifest is no JSON.
        OSError: it cannot be written.
    """
    if writing.write_first(folder / NAME, _text(given)):
        writing.sync(folder)
    found = read(folder)
    if found is None:
        raise FileNotFoundError(f"{folder / NAME} was removed while this command began")
    # As it would be read: a tuple is a list there.
    now = json.loads(_text(given))
    for name in _IDENTITY:
        if found.get(name) != now[name]:
            raise _other(folder, name, found, now)
    return found


def finish(folder: Path, manifest: Manifest, files: list[dict[str, Any]]) -> Manifest:
    """Record that all is done, and return the manifest.

    Raises:
        OSError: it cannot be written.
    """
    done = {**manifest, "files": files}
    writing.write_bytes(folder / NAME, _text(done), lasting=True)
    return done


def _text(manifest: Manifest) -> bytes:
    return (json.dumps(manifest, indent=1, ensure_ascii=False, default=str) + "\n").encode()


def _other(folder: Path, name: str, found: Any, now: Any) -> UsageError:
    """Return the refusal of a folder whose ``name`` is not that of this command."""
    there, here = found.get(name), now[name]
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
