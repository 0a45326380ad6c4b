"""Checkpoints that are kept for a reader while a training removes its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from dtrain.errors import CheckpointError
from dtrain.files import writing
from dtrain.run.checkpoint import disk
from dtrain.run.checkpoint.format import MANIFEST, STATE
from dtrain.run.checkpoint.store import ASIDE

#: Times that a training may be faster in removing what was chosen.
_TRIALS = 20


def hold(choose: Callable[[], Iterable[Path]], folder: Path) -> list[Path]:
    """Give checkpoints a second name each, which no training knows of.

    Args:
        choose: returns the folders of checkpoints; it is called again where one of them is gone.
        folder: that they are held in, as ``<step>/``; on another disk as copies. Who calls this
            removes it.

    Returns:
        Their folders there.

    Raises:
        CheckpointError: one is gone, however often others are chosen.
        OSError: it cannot be read, or ``folder`` not be written.
    """
    for _ in range(_TRIALS):
        held: list[Path] = []
        try:
            for path in choose():
                held.append(folder / path.name.removeprefix(ASIDE))
                writing.remove(held[-1])
                disk.make_folder(held[-1])
                for name in (STATE, MANIFEST):
                    _link(path / name, held[-1] / name)
        except FileNotFoundError as error:
            gone = error
            continue
        return held
    raise CheckpointError(f"{gone.filename} was removed before it could be read") from gone


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # on another disk, or one without hard links
        writing.copy(source, target)
