"""Images in files of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.data.image_files import ImageFiles
from dtrain.data.sources import Splits
from dtrain.data.splits import split_indices
from dtrain.errors import UsageError

#: Height and width where none are given, in pixels.
_SIZE = (64, 64)


def image_folder(
    path: str,
    size: Sequence[int] | None = _SIZE,
    channels: int = 3,
    validation_split: float = 0.2,
    split_seed: int = 0,
    cache: str = "none",
) -> Splits:
    """Images in one sub-folder a class: ``path/cat/1.png``, ``path/dog/2.jpg``.

    Args:
        path: the folder; its sub-folders in alphabetical order are classes 0, 1, ...
        size: height and width to resize to, in pixels; None: the default.
        channels: 1 (grey) or 3 (RGB).
        validation_split: fraction to split off.
        split_seed: of the shuffle before the split.
        cache: ``memory`` or ``disk``: each image is decoded once, before the first step, and kept;
            ``none``: whenever it is taken.
    """
    size = list(_SIZE if size is None else size)
    if len(size) != 2 or min(size) < 1:
        raise UsageError(
            "dataset.size", size, "is not height and width", "two numbers, 1 or more",
            "'dataset.size=[64,64]'",
        )  # fmt: skip
    height, width = size
    if channels not in (1, 3):
        raise UsageError(
            "dataset.channels", channels, "is no image format", "1 or 3", "dataset.channels=3"
        )
    if cache not in ("none", "memory", "disk"):
        raise UsageError(
            "dataset.cache", cache, "is no place for decoded images", "none, memory or disk",
            "dataset.cache=none",
        )  # fmt: skip
    root = Path(path)
    if not root.is_dir():
        raise UsageError(
            "dataset.path", path, "there is no such folder",
            "a folder with one sub-folder a class", "dataset.path=FOLDER",
        )  # fmt: skip
    kinds = {".png", ".jpg", ".jpeg", ".bmp", ".gif"}
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    found = [
        (str(file), label)
        for label, folder in enumerate(folders)
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in kinds
    ]
    if not found:
        raise UsageError(
            "dataset.path", path, "holds no images in sub-folders",
            f"CLASS/NAME with {', '.join(sorted(kinds))}", "dataset.path=FOLDER",
        )  # fmt: skip
    grey = {".png", ".jpg", ".jpeg"}  # TensorFlow decodes the others in colour only
    colour = next((name for name, _ in found if Path(name).suffix.lower() not in grey), None)
    if channels == 1 and colour is not None:
        raise UsageError(
            "dataset.channels", channels, f"{colour} can be read in colour only",
            "1 for PNG and JPEG, 3 for all", "dataset.channels=3",
        )  # fmt: skip
    labels = np.array([label for _, label in found], np.int64)
    train, held = split_indices(len(found), validation_split, split_seed)

    paths = [name for name, _ in found]
    names = [folder.name for folder in folders]

    def files(rows: np.ndarray) -> ImageFiles:
        some = [paths[i] for i in rows]
        return ImageFiles(some, labels[rows], (height, width), channels, names)

    part: Callable[[np.ndarray], Any] = files
    if cache != "none":
        # Not above: with NumPy alone the other datasets can be imported.
        from dtrain.data.image_cache import Decoded, DecodedImages

        part = functools.partial(DecodedImages, Decoded(files(np.arange(len(found))), cache))
    return Splits(part(train), part(held) if len(held) else None, len(folders))
