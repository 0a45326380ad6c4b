"""Predictions as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dtrain.run.predictions import CLASS, INDEX, Store, read


def load(folder: Path) -> Any:
    """Return the predictions in a folder, in the order of the rows.

    Args:
        folder: of a ``predict`` that is done, of the format ``npy``.

    Returns:
        An array ``[n, ...]``; of several columns a dict of them.

    Raises:
        TrainingError: they are not all there.
    """
    parts: dict[str, list[np.ndarray]] = {}
    for file in Store(folder, read(folder)).files():
        name = file.name.split(".", 1)[1].removesuffix(".npy")
        if name != INDEX:
            parts.setdefault(name, []).append(np.load(file, allow_pickle=False))
    arrays = {name: np.concatenate(each) for name, each in parts.items()}
    only = list(set(arrays) - {CLASS})
    return arrays[only[0]] if len(only) == 1 else arrays
