"""Predictions as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dtrain.errors import TrainingError
from dtrain.run.predictions import read
from dtrain.run.predictions.formats import INDEX


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
    if found is None or "pieces" not in found:
        raise TrainingError(f"{folder}: the predictions are not all done")
    names = [column["name"] for column in found["columns"] if column["name"] != INDEX]
    parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for piece in found["pieces"]:
        for file in piece["files"]:
            name = file["name"].split(".", 1)[1].removesuffix(".npy")
            if name in parts:
                parts[name].append(np.load(folder / "pieces" / file["name"], allow_pickle=False))
    arrays = {name: np.concatenate(each) for name, each in parts.items()}
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays
