"""Predictions as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dtrain.errors import TrainingError
from dtrain.run.predictions import read
from dtrain.run.predictions.formats import CLASS, INDEX


def load(folder: Path) -> Any:
    """Return the predictions in a folder, in the order of the rows.

    Args:
        folder: of a ``predict`` that is done, of the format ``npy``.

    Returns:
        An array ``[n, ...]``; of several columns a dict of them.

    Raises:
        TrainingError: they are not all there.
    """
    found = read(folder)
    if found is None or "files" not in found:
        raise TrainingError(f"{folder}: the predictions are not all done")
    names = [column["name"] for column in found["columns"] if column["name"] != INDEX]
    parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for file in found["files"]:
        name = Path(file["name"]).name.split(".", 1)[1].removesuffix(".npy")
        if name in parts:
            parts[name].append(np.load(folder / file["name"], allow_pickle=False))
    arrays = {name: np.concatenate(each) for name, each in parts.items()}
    only = list(set(arrays) - {CLASS})
    return arrays[only[0]] if len(only) == 1 else arrays
