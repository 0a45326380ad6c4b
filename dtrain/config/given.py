"""What a caller of the Python API gives to a run: a folder ``given/`` in its run folder.

It holds arrays, and modules with the functions and classes that only the caller's process has. The
name of such a module is the digest of its text: where the overrides that name it are the user's own
(:mod:`dtrain.config.private`), its text is, too, and it is trusted for this run alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from dtrain.errors import DamagedFile
from dtrain.files import reading, writing
from dtrain.host import python_path

FOLDER = "given"
#: The folder of the run, or of the sweep, that a caller has made for this command.
RESERVED = "DTRAIN_RESERVED"
#: Bytes of a module.
LARGEST = 32_000_000
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


def offer(run: Path, overrides: Iterable[str], own: bool) -> None:
    """Find the modules that overrides name in a run folder, and trust them where they may be.

    Args:
        run: the folder of a run or a sweep, or a checkpoint of a run.
        overrides: of the command that began it.
        own: its signature is the user's. The modules of another are trusted by ``DTRAIN_TRUST``.

    Raises:
        DamagedFile: a module was changed since it was given.
        OSError: one cannot be read.
    """
    if run.parent.name == "checkpoints":
        run = run.parent.parent
    folder = run.absolute() / FOLDER
    found = [name for name in names(overrides) if (folder / f"{name}.py").exists()]
    for name in found:
        path = folder / f"{name}.py"
        if python_path.given_name(reading.read_bytes(path, LARGEST)) != name:
            raise DamagedFile(path, "was changed since it was given")
    if found:
        python_path.offer_given(str(folder), found if own else ())


def keep(run: Path, overrides: Iterable[str]) -> None:
    """Copy the modules that overrides name into the folder of a run, where they are not there yet.

    Raises:
        OSError: one cannot be written.
    """
    for name in names(overrides):
        target = run / FOLDER / f"{name}.py"
        source = python_path.find_given(name)
        if source is None or target.exists():
            continue
        target.parent.mkdir(exist_ok=True)
        writing.write_bytes(target, reading.read_bytes(Path(source), LARGEST), lasting=True)
