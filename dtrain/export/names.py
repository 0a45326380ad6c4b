"""What inputs and outputs of an exported model are called; the columns of a table as inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data.encoding import Encoding
from dtrain.data.nest import Leaf
from dtrain.data.tabular.encoded import ArraysOfTable
from dtrain.run.exports import Tensor

#: Names that Keras gives to inputs that have none.
_UNNAMED = re.compile(r"(input_layer|keras_tensor|input)(_\d+)?")

#: What the matrix of a table is called, of a program that takes no texts.
MATRIX = "inputs"


def leaf_names(role: str, leaves: Sequence[tuple[str, Leaf]]) -> list[str]:
    """Return a name for each leaf: its key, else that which the user has given, else a number.

    Args:
        role: ``input`` or ``output``.
        leaves: the place of each in its nest; the input or layer that it is of, None for none.
    """
    names: list[str] = []
    for at, (place, layer) in enumerate(leaves):
        name = "" if layer is None else str(layer.name)
        kind = re.sub(
            r"(.)([A-Z][a-z]+)|([a-z])([A-Z])", r"\1\3_\2\4", type(layer).__name__
        ).lower()
        if not re.fullmatch(r"(\d+\.?)*", place):
            name = place
        elif layer is None or _UNNAMED.fullmatch(name) or re.fullmatch(rf"{kind}(_\d+)?", name):
            name = f"{role}s" if len(leaves) == 1 else f"{role}_{at}"
        name = other = re.sub(r"\W", "_", name)
        while other in names:
            other = f"{name}_{names.count(name) + sum(o.startswith(name) for o in names)}"
        names.append(other)
    return names


class TableInputs:
    """Inputs whose names are those of columns, in their order.

    Numbers, booleans (0 and 1) and dates (days since 1970-01-01) are float32 ``[b, 1]``, of which
    an empty one is NaN, and float64 where they are large and differ little; categories and texts
    are strings ``[b, 1]``.

    Args:
        encoding: of the table.

    Attributes:
        encoding: of the table.
        names: of the inputs, by the columns.
    """

    def __init__(self, encoding: Encoding):
        self.encoding = encoding
        self._features = sorted(encoding.features, key=lambda feature: feature.name)
        names = leaf_names("input", [(feature.name, None) for feature in self._features])
        self.names = dict(zip([f.name for f in self._features], names, strict=True))

    def tensors(self) -> list[Tensor]:
        """Return what goes in."""
        return [
            {
                "name": self.names[feature.name], "shape": [None, 1], "columns": [feature.name],
                "dtype": "string" if feature.is_text
                else "float64" if feature.offset else "float32",
            }
            for feature in self._features
        ]  # fmt: skip

    def first(self, source: Any, count: int) -> dict[str, np.ndarray]:
        """Return the inputs of the first ``count`` examples of a source, by name."""
        table = source.source if isinstance(source, ArraysOfTable) else source
        columns = self.encoding.plain(table.cells(np.arange(count), list(self.names)))
        return {
            self.names[name]: np.array([each.encode() for each in value], object)[:, None]
            if value.dtype == object else value[:, None]
            for name, value in columns.items()
        }  # fmt: skip

    def matrix(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the matrix of inputs, as the encoding makes it of a table."""
        return self.encoding.matrix({c: inputs[name][:, 0] for c, name in self.names.items()})
