"""What a plain module gets of a table: the matrix of its encoding, made ready for a network.

It is to a module what the first layers of the shipped models (:func:`dtrain.models.encoded`) are to
these, without weights: numbers are normalised, no cell is NaN, and every category has a column.
"""

from __future__ import annotations

import math

import keras
import torch

from dtrain.data.dates import CYCLES
from dtrain.data.encoding import Encoding
from dtrain.task.aliases import Foreign


class Prepared(torch.nn.Module):
    """Maps the matrix of a table, float32 ``[b, encoding.width]``, to ``[b, width]``.

    Its columns: numbers, booleans and dates, each less its mean and divided by its deviation, 0
    where a cell is empty; for each of these in turn, of a date sine and cosine of the year and of
    the week, and of one with empty cells 1 where it is; words of texts; and of each category a
    column for each of its values, before them one of unknown ones where the training has such.

    Args:
        encoding: of the training.

    Attributes:
        width: columns that a module gets.
    """

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, encoding: Encoding):
        super().__init__()
        self._numbers = encoding.of("number", "boolean", "date")
        self._words = sum(feature.width for feature in encoding.of("text"))
        self._categories = encoding.of("category")
        scales = [1 / math.sqrt(feature.variance or 1.0) for feature in self._numbers]
        means = [feature.mean for feature in self._numbers]
        self.register_buffer("mean", torch.tensor(means), persistent=False)
        self.register_buffer("scale", torch.tensor(scales), persistent=False)
        self.width = self(torch.zeros(1, encoding.width, device=self.mean.device)).shape[1]

    def forward(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return what the module gets of some rows."""
        count, parts = len(self._numbers), []
        if count:
            # In two steps: of a large mean and a small variance one would leave rounding errors.
            parts.append(((matrix[:, :count] - self.mean) * self.scale).nan_to_num(nan=0.0))
        for at, feature in enumerate(self._numbers):
            cells = matrix[:, at : at + 1]
            for cycle in CYCLES if feature.kind == "date" else ():
                turn = 2 * math.pi / cycle
                angle = cells * turn + feature.offset % cycle * turn
                parts += [wave(angle).nan_to_num(nan=0.0) for wave in (torch.sin, torch.cos)]
            if feature.missing:
                parts.append(cells.isnan().to(matrix.dtype))
        at = count + self._words
        parts.append(matrix[:, count:at])
        for column, feature in enumerate(self._categories, at):
            known = torch.arange(0 if feature.missing else 1, len(feature.values) + 1)
            parts.append(
                (matrix[:, column : column + 1] == known.to(matrix.device)).to(matrix.dtype)
            )
        return torch.cat(parts, dim=1)


def prepared(built: Foreign, encoding: Encoding | None) -> Prepared | None:
    """Return what prepares the matrix of a table for a module; None of all else.

    Args:
        built: what the user's function has returned.
        encoding: of the table; None where there is none.
    """
    if encoding is None or isinstance(built, keras.Model) or not isinstance(built, torch.nn.Module):
        return None
    return Prepared(encoding).to(keras.ops.zeros([]).device)
