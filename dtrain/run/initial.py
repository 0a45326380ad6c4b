"""``init.weights``: what a path names, known without TensorFlow."""

from __future__ import annotations

from pathlib import Path

from dtrain.errors import UsageError
from dtrain.run.checkpoint.format import MANIFEST
from dtrain.run.folder import RunDir, check_format

KEY = "init.weights"
RUN, CHECKPOINT, FILE = "run", "checkpoint", "file"
ACCEPTED = (
    "a run folder, RUN_DIR/checkpoints/STEP, or a file .keras, .weights.h5, .h5, .safetensors "
    "or .pt"
)
#: Ends of the names of files.
SAFETENSORS, TORCH = ".safetensors", (".pt", ".pth")
_FILES = (".keras", ".h5", ".hdf5", SAFETENSORS, *TORCH)


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
            check_format(path.absolute().parent.parent, KEY)
            return CHECKPOINT
        if RunDir(path).config.is_file():
            check_format(path, KEY)
            return RUN
        raise refused(weights, "is neither a run folder nor one of its checkpoints")
    if path.suffix.lower() not in _FILES:
        raise refused(weights, "is a file of another kind")
    return FILE


def refused(weights: str, problem: str) -> UsageError:
    """Return the error of weights that cannot be read."""
    return UsageError(KEY, problem, weights, accepted=ACCEPTED,
                      hint="init.weights=outputs/DATE/TIME_NAME")  # fmt: skip
