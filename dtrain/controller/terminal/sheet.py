"""A sheet of images as PNG, each with a caption.

Importing matplotlib takes a second: this module is imported where a sheet is made.
"""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of fonts
#: Least and most pixels along a side of an image; between images; below one, for its caption.
_LEAST, _GAP, _CAPTION = 96, 8, 18
#: Pixels of a figure's inch, and of a character of a caption.
_DPI, _CHARACTER = 100, 6
_STYLE: dict[Any, Any] = {"text.parse_math": False, "font.size": 7.5}  # a dollar is a dollar


def png(images: np.ndarray, captions: Sequence[str], changed: np.ndarray | None = None) -> bytes:
    """Draw images in rows.

    Args:
        images: uint8 ``[n, h, w, 1 or 3]``.
        captions: of each.
        changed: the same after augmentation, which are drawn to the right of the others.

    Returns:
        The contents of a PNG file.
    """
    scale = max(1, -(-_LEAST // max(images.shape[1:3])))
    across = math.ceil(math.sqrt(len(images)))
    down = -(-len(images) // across)
    height, width = (size * scale for size in images.shape[1:3])
    parts = [images] if changed is None else [images, changed]
    row, column = height + _CAPTION + _GAP, width + _GAP
    board = across * column + _GAP  # of those that are drawn together
    title = 0 if changed is None else _CAPTION
    canvas = np.full((down * row + title, len(parts) * board, 3), 255, np.uint8)
    for part, drawn in enumerate(parts):
        for index, image in enumerate(drawn):
            top = title + index // across * row
            left = part * board + _GAP + index % across * column
            large = image.repeat(scale, axis=0).repeat(scale, axis=1)
            canvas[top : top + height, left : left + width] = large
    texts = [
        (
            _GAP + index % across * column,
            title + index // across * row + height + 2,
            _cut(text, width),
        )
        for index, text in enumerate(captions)
    ]
    texts += [(part * board + x, y, text) for part in range(1, len(parts)) for x, y, text in texts]
    if changed is not None:
        texts += [(_GAP, 2, "as they are"), (board + _GAP, 2, "augmented")]
    return _drawn(canvas, texts)


def _cut(text: str, width: int) -> str:
    most = max(4, width // _CHARACTER)
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _drawn(canvas: np.ndarray, texts: Sequence[tuple[int, int, str]]) -> bytes:
    with warnings.catch_warnings(), matplotlib.rc_context():
        warnings.simplefilter("ignore")  # of a letter that its font has not
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        height, width = canvas.shape[:2]
        figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
        FigureCanvasAgg(figure)
        figure.figimage(canvas)
        for x, y, text in texts:
            figure.text(x / width, 1 - y / height, text, va="top")
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()
