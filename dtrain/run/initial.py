"""``init.weights``: what a path names, known without TensorFlow."""

from __future__ import annotations

from pathlib import Path

from dtrain.errors import UsageError
from dtrain.run.checkpoint.format import MANIFEST
from dtrain.run.folder import RunDir

KEY = "init.weights"
RUN, CHECKPOINT, KERAS, H5 = "run", "checkpoint", "keras", "h5"
ACCEPTED = "a run folder, RUN_DIR/checkpoints/STEP, or a file .keras, .weights.h5 or .h5"


def kind(weights: str) -> str:
    """Return what ``weights`` names: one of the words above.

    Raises:
        UsageError: it is none of them, or not there.
    """
    path = Path(weights)
    if "://" in weights or weights.startswith("models:"):
        raise refused(weights, "is an address, and no path of this machine")
    if not path.exists():
        raise refused(weights, "is not there")
    if path.is_dir():
        if (path / MANIFEST).is_file():
            return CHECKPOINT
        if RunDir(path).config.is_file():
            return RUN
        raise refused(weights, "is neither a run folder nor one of its checkpoints")
    suffix = path.suffix.lower()
    if suffix not in (".keras", ".h5", ".hdf5"):
        raise refused(weights, "is a file of another kind")
    return KERAS if suffix == ".keras" else H5


def refused(weights: str, problem: str) -> UsageError:
    """Return the error of weights that cannot be read."""
    return UsageError(KEY, weights, problem, ACCEPTED, "init.weights=outputs/DATE/TIME_NAME")
