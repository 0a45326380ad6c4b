"""What a caller of the Python API gives to a run: a folder ``given/`` in its run folder.

It holds arrays, and the functions and classes that only the caller's process has, pickled
(:mod:`dtrain.host.pickles`). The name of such a file is its digest: where the overrides that name
it are the user's own (:mod:`dtrain.config.private`), the file is, too, and may be loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from dtrain.errors import DamagedFile
from dtrain.files import reading, writing
from dtrain.host import pickles

FOLDER = "given"
#: The folder of the run, or of the sweep, that a caller has made for this command.
RESERVED = "DTRAIN_RESERVED"
_NAME = re.compile(r"\bgiven_[0-9a-f]{32}\b")


def reserved() -> Path | None:
    """Return the folder that a caller has made for the run, or the sweep, of this command."""
    found = os.environ.get(RESERVED)
    return Path(found).absolute() if found else None


def is_reserved(path: Path) -> bool:
    """Say whether nothing is in the folder at ``path`` but what a caller has given."""
    return reserved() == path.absolute() and set(os.listdir(path)) <= {FOLDER}


def names(overrides: Iterable[str]) -> list[str]:
    """Return the modules that overrides name, each once."""
    return list(dict.fromkeys(name for text in overrides for name in _NAME.findall(text)))


def file(folder: Path, name: str) -> Path:
    """Return the file of a module in a folder ``given/``."""
    return folder / f"{name}{pickles.SUFFIX}"


def offer(run: Path, overrides: Iterable[str], own: bool) -> None:
    """Let the modules that overrides name be loaded from a run folder, if it is the user's own.

    Args:
        run: the folder of a run or a sweep, or a checkpoint of a run.
        overrides: of the command that began it.
        own: its signature is the user's. Nothing of another one is loaded, whoever trusts it.

    Raises:
        DamagedFile: a file was changed since it was given.
        OSError: one cannot be read.
    """
    if run.parent.name == "checkpoints":
        run = run.parent.parent
    if not own:
        return
    for name in names(overrides):
        path = file(run.absolute() / FOLDER, name)
        data = reading.read_bytes(path, pickles.LARGEST) if path.exists() else None
        if data is not None and pickles.name_of(data) != name:
            raise DamagedFile(path, "was changed since it was given")
        pickles.offer([str(path)])


def keep(run: Path, overrides: Iterable[str]) -> None:
    """Copy the modules that overrides name into the folder of a run, where they are not there yet.

    Raises:
        OSError: one cannot be written.
    """
    for name in names(overrides):
        target = file(run / FOLDER, name)
        source = pickles.find(name)
        if source is None or target.exists():
            continue
        target.parent.mkdir(exist_ok=True)
        data = reading.read_bytes(Path(source), pickles.LARGEST)
        writing.write_bytes(target, data, lasting=True)
