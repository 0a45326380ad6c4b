"""Pictures as PNG: a sheet of images, a confusion matrix.

Importing matplotlib takes a second: this module is imported where a picture is made.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of fonts
#: Least pixels along the longer side of an image; between images; below one, for its caption.
_LEAST, _GAP, _CAPTION = 96, 8, 18
#: Pixels of a caption's letters, and of one of them along the line.
_LETTERS, _CHARACTER = 11, 6
_FONT = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")


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
    height, width = (size * scale for size in images.shape[1:3])
    across = math.ceil(math.sqrt(len(images)))
    row, column = height + _CAPTION + _GAP, width + _GAP
    parts = [("", images)] if changed is None else [("as they are", images), ("augmented", changed)]
    title = 0 if changed is None else _CAPTION
    board = across * column + _GAP  # of those that are drawn together
    size = len(parts) * board, -(-len(images) // across) * row + title
    whole = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(whole), ImageFont.truetype(str(_FONT), _LETTERS)
    for part, (name, drawn) in enumerate(parts):
        pen.text((part * board + _GAP, 2), name, "black", font)
        for index, (image, caption) in enumerate(zip(drawn, captions, strict=True)):
            left = part * board + _GAP + index % across * column
            top = title + index // across * row
            picture = Image.fromarray(np.broadcast_to(image, (*image.shape[:2], 3)))
            whole.paste(picture.resize((width, height), Image.Resampling.NEAREST), (left, top))
            pen.text((left, top + height + 2), _cut(caption, width), "black", font)
    file = io.BytesIO()
    whole.save(file, "png")
    return file.getvalue()


def _cut(text: str, width: int) -> str:
    most = max(4, width // _CHARACTER)
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


#: Classes of which each cell has its number.
_NUMBERED = 20
_CHARACTERS = 30  # of the name of a class


def confusion_matrix(counts: Sequence[Sequence[int]], classes: Sequence[str], title: str) -> bytes:
    """Draw a confusion matrix.

    Args:
        counts: ``[c, c]``: rows are true classes, columns what they were taken for.
        classes: their names.
        title: above it.

    Returns:
        A PNG file. Colours are shares of a row.
    """
    names = [name[:_CHARACTERS] for name in classes]
    with matplotlib.rc_context({"text.parse_math": False}):  # a dollar is a dollar
        return _draw_matrix(np.asarray(counts, np.float64), names, title)


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
