"""A confusion matrix as a picture. Importing matplotlib takes a second."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

#: Classes of which each cell has its number.
_NUMBERED = 20
_CHARACTERS = 30  # of the name of a class
_STYLE: dict[Any, Any] = {"text.parse_math": False}  # a dollar is a dollar


def png(counts: Sequence[Sequence[int]], classes: Sequence[str], title: str) -> bytes:
    """Draw a confusion matrix.

    Args:
        counts: ``[c, c]``: rows are true classes, columns what they were taken for.
        classes: their names.
        title: above it.

    Returns:
        A PNG file. Colours are shares of a row.
    """
    with matplotlib.rc_context(_STYLE):
        return _drawn(np.asarray(counts, np.float64), [n[:_CHARACTERS] for n in classes], title)


def _drawn(table: np.ndarray, names: list[str], title: str) -> bytes:
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
