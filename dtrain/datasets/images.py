"""Images in files of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np

from dtrain.data.files import divided
from dtrain.data.holdout import Holdout, HoldoutKeys
from dtrain.data.image_files import ImageFiles
from dtrain.data.image_listing import Listing, as_png, listed
from dtrain.data.sources import Splits
from dtrain.errors import UsageError

#: Height and width where none are given, in pixels.
_SIZE = (64, 64)


def image_folder(
    path: str,
    size: Sequence[int] | None = _SIZE,
    channels: int = 3,
    validation: str | None = None,
    cache: str = "none",
    **holdout: Unpack[HoldoutKeys],
) -> Splits:
    """Images in one sub-folder a class: ``path/cat/1.png``, ``path/dog/more/2.jpg``.

    Where ``path`` has a sub-folder ``train``, its class folders are there, and those of ``val``,
    ``valid`` or ``validation`` are evaluated on.

    Args:
        path: the folder; its sub-folders in alphabetical order are classes 0, 1, ...; or a CSV with
            a column of paths and a column of classes.
        size: height and width to resize to, in pixels; None: the default.
        channels: 1 (grey) or 3 (RGB).
        validation: a folder or CSV to evaluate on; None: a part is held out.
        cache: ``memory`` or ``disk``: each image is decoded once, before the first step, and kept;
            ``none``: whenever it is taken.
        **holdout: how a part is held out (:class:`dtrain.data.holdout.Holdout`).

    Raises:
        UsageError: there are no such images.
    """
    size = list(_SIZE if size is None else size)
    _check(size, channels, cache)
    if folders := divided(path):
        path, *parts = folders
        validation = validation or next(iter(parts), None)
    every = listed(path)
    if validation is None:
        rows = Holdout(**holdout).rows(len(every.paths), lambda: every.labels)
    else:
        held, count = listed(validation, "dataset.validation", every.names), len(every.paths)
        rows = np.arange(count), np.arange(count, count + len(held.paths))
        every = Listing(
            every.paths + held.paths, np.concatenate([every.labels, held.labels]), every.names,
            every.notices + held.notices,
        )  # fmt: skip
    paths = as_png(every.paths, channels)

    def files(some: np.ndarray) -> ImageFiles:
        return ImageFiles(
            [paths[i] for i in some], every.labels[some], (size[0], size[1]), channels,
            every.names, [every.paths[i] for i in some],
        )  # fmt: skip

    part: Callable[[np.ndarray], Any] = files
    if cache != "none":
        # Not above: with NumPy alone the other datasets can be imported.
        from dtrain.data.image_cache import Decoded, DecodedImages

        part = functools.partial(DecodedImages, Decoded(files(np.arange(len(paths))), cache))
    train, evaluated = rows
    validated = part(evaluated) if len(evaluated) else None
    return Splits(part(train), validated, len(every.names), notices=every.notices)


def _check(size: Sequence[int], channels: int, cache: str) -> None:
    if len(size) != 2 or min(size) < 1:
        raise UsageError(
            "dataset.size", size, "is not height and width", "two numbers, 1 or more",
            "'dataset.size=[64,64]'",
        )  # fmt: skip
    if channels not in (1, 3):
        raise UsageError(
            "dataset.channels", channels, "is no image format", "1 or 3", "dataset.channels=3"
        )
    if cache not in ("none", "memory", "disk"):
        raise UsageError(
            "dataset.cache", cache, "is no place for decoded images", "none, memory or disk",
            "dataset.cache=none",
        )  # fmt: skip
