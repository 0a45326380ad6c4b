"""The first images of a dataset, small and as bytes, for a sheet of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.errors import UsageError
from dtrain.inspection.structure import Leaf

#: Images of a sheet, and pixels along a side of one, at most.
MOST, SIDE = 64, 128


def index_of(leaves: Sequence[Leaf], path: Path) -> int:
    """Return which input is drawn: the first image, or the first that can be one.

    Args:
        leaves: of the examples, the inputs first.
        path: value of ``--images``, for the message.

    Raises:
        UsageError: no input can be drawn.
    """
    found = [at for at, leaf in enumerate(leaves) if leaf.role == "input" and leaf.is_picture]
    if not found:
        raise UsageError(
            "--images", path, "no input of this dataset is an image",
            "an input of height x width x 1 or 3, floating or uint8",
            "the command without --images",
        )  # fmt: skip
    return max(found, key=lambda at: leaves[at].is_image)


def small(images: np.ndarray) -> np.ndarray:
    """Return every so many pixels of images, so that no side is longer than :data:`SIDE`."""
    step = -(-max(images.shape[1:3]) // SIDE)
    return images[:, ::step, ::step]


def drawable(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return images as uint8 ``[b, h, w, 1 or 3]``.

    Floating numbers of 0 to 1 and of 0 to 255 are what they look like. Of others the lowest becomes
    black and the highest white, by the same scale in all parts.

    Args:
        parts: ``[b, h, w]`` or ``[b, h, w, c]``, floating or uint8.
    """
    floats = [part[np.isfinite(part)] for part in parts if part.dtype != np.uint8]
    sound = np.concatenate([np.zeros(0), *floats])
    low, high = (float(sound.min()), float(sound.max())) if len(sound) else (0.0, 1.0)
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    scale = 255 / (high - low) if high > low else 0.0
    drawn = []
    for part in parts:
        if part.dtype != np.uint8:
            part = np.clip(np.nan_to_num((part - low) * scale), 0, 255).astype(np.uint8)
        drawn.append(part[..., np.newaxis] if part.ndim == 3 else part)
    return drawn


def captions(targets: Sequence[Any], names: Sequence[str], count: int) -> list[str]:
    """Return the class of each of the first examples, or its number where there is none.

    Args:
        targets: arrays ``[b, ...]`` of the targets, of which the first that is one number, or
            one-hot, is taken.
        names: of the classes, where they have any.
        count: examples.
    """
    for target in targets:
        values = target.reshape(len(target), -1)
        is_matrix = target.ndim == 2 and target.shape[1] > 1 and target.dtype.kind in "biuf"
        if is_matrix and np.isin(target, (0, 1)).all() and (target.sum(axis=1) == 1).all():
            values = np.argmax(target, axis=1)[:, np.newaxis]  # one-hot
        if values.shape[1] == 1:
            return [_caption(value, names) for value in values[:count, 0]]
    return [str(index) for index in range(count)]


def _caption(value: Any, names: Sequence[str]) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if np.asarray(value).dtype.kind in "iu" and 0 <= value < len(names):
        return names[int(value)]
    return f"{value:.4g}" if np.asarray(value).dtype.kind == "f" else str(value)
