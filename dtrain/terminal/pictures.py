"""Pictures as PNG: a sheet of images, a confusion matrix.

Importing matplotlib takes a second: this module is imported where a picture is made.
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


def sheet(images: np.ndarray, captions: Sequence[str], changed: np.ndarray | None = None) -> bytes:
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
    return _draw_sheet(canvas, texts)


def _cut(text: str, width: int) -> str:
    most = max(4, width // _CHARACTER)
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _draw_sheet(canvas: np.ndarray, texts: Sequence[tuple[int, int, str]]) -> bytes:
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


#: Classes of which each cell has its number.
_NUMBERED = 20
_CHARACTERS = 30  # of the name of a class
_MATRIX_STYLE: dict[Any, Any] = {"text.parse_math": False}  # a dollar is a dollar


def confusion_matrix(counts: Sequence[Sequence[int]], classes: Sequence[str], title: str) -> bytes:
    """Draw a confusion matrix.

    Args:
        counts: ``[c, c]``: rows are true classes, columns what they were taken for.
        classes: their names.
        title: above it.

    Returns:
        A PNG file. Colours are shares of a row.
    """
    with matplotlib.rc_context(_MATRIX_STYLE):
        return _draw_matrix(
            np.asarray(counts, np.float64), [n[:_CHARACTERS] for n in classes], title
        )


def _draw_matrix(table: np.ndarray, names: list[str], title: str) -> bytes:
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    size = min(4 + 0.3 * len(names), 16)
    figure = Figure(figsize=(size + 1, size), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, label="share of the true class", shrink=0.8)
    every = range(len(names))
    axes.set_xticks(every, names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set_yticks(every, names)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    axes.set_title(title)
    for row, column in np.ndindex(table.shape) if len(names) <= _NUMBERED else ():
        if table[row, column]:
            axes.text(
                column, row, f"{int(table[row, column])}", ha="center", va="center",
                color="white" if shares[row, column] > 0.5 else "black", fontsize=8,
            )  # fmt: skip
    file = io.BytesIO()
    canvas.print_png(file)
    return file.getvalue()
