"""What is nobody's attack and has to work: else a dtrain that refuses everything would pass."""

from __future__ import annotations

import shutil

from tests.hostile.harness import Case, Place


def _nothing(place: Place) -> None:
    """Leave it as it is."""


def _outputs_elsewhere(place: Place) -> None:
    """The folder of all outputs is on another disk."""
    shutil.move(place.outputs, place.root / "disk")
    place.outputs.symlink_to(place.root / "disk")


ALL = (
    "resume", "resume finished", "resume dry", "fork", "fork dry", "auto", "sweep resume",
    "sweep resume dry", "compare", "compare finished", "compare sweep", "compare all", "sync",
    "sync finished", "sync sweep", "checkpoint", "checkpoint folder", "checkpoint one", "new",
    "dry",
)  # fmt: skip

CASES = [
    Case("sound", _nothing, ALL, (0,)),
]
