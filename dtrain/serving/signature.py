"""What a model takes and gives: names, types and shapes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np

from dtrain.host import frames
from dtrain.serving.problems import wrong

#: KServe's names of types, by TensorFlow's.
V2 = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16",
    "float32": "FP32", "float64": "FP64", "bfloat16": "BF16", frames.TEXT: "BYTES",
}  # fmt: skip
#: TensorFlow's own numbers of types.
DT = {
    "bool": "DT_BOOL", "uint8": "DT_UINT8", "uint16": "DT_UINT16", "uint32": "DT_UINT32",
    "uint64": "DT_UINT64", "int8": "DT_INT8", "int16": "DT_INT16", "int32": "DT_INT32",
    "int64": "DT_INT64", "float16": "DT_HALF", "float32": "DT_FLOAT", "float64": "DT_DOUBLE",
    "bfloat16": "DT_BFLOAT16", frames.TEXT: "DT_STRING",
}  # fmt: skip


class Values(TypedDict):
    """A tensor, as a message has it; ``shape`` is None where not even its rank is known."""

    name: str
    dtype: str
    shape: list[int | None] | None


@dataclasses.dataclass(frozen=True)
class Spec:
    """One input or output.

    Attributes:
        name: of it.
        dtype: TensorFlow's name of its type, a key of :data:`V2`.
        shape: with None for lengths that are open; None where the rank is.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def text(self) -> str:
        """What is shown: ``float32 [?, 8]``."""
        shown = "..." if self.shape is None else ", ".join(str(n or "?") for n in self.shape)
        return f"{self.dtype} [{shown}]"

    @property
    def kind(self) -> np.dtype[Any]:
        """The type of its arrays."""
        return frames.dtype_of(self.dtype)

    @property
    def sizes(self) -> list[int]:
        """The shape with -1 for open lengths, as protocols have it."""
        return [] if self.shape is None else [-1 if n is None else n for n in self.shape]

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Say whether an array of ``shape`` can be given."""
        if self.shape is None:
            return True
        same = len(shape) == len(self.shape)
        return same and all(n in (None, m) for n, m in zip(self.shape, shape, strict=True))

    def row_size(self) -> int | None:
        """Return how many numbers a row has, None where that is open."""
        lengths = (None,) if self.shape is None else self.shape[1:]
        found = [n for n in lengths if n is not None]
        return math.prod(found) if len(found) == len(lengths) else None


@dataclasses.dataclass(frozen=True)
class Signature:
    """What goes in and what comes out.

    Attributes:
        inputs, outputs: in order.
        batched: whether the first length is that of a batch, in which rows of several requests
            may stand.
        rows: examples of each batch that is computed; None where any number will do.
    """

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    batched: bool
    rows: int | None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Signature:
        """Return that of a message of the process that runs the model.

        Where batches are made of any requests, a request has any number of rows.
        """
        free = values["batched"]
        inputs, outputs = (
            tuple(
                Spec(each["name"], each["dtype"], _shape(each["shape"], free))
                for each in values[role]
            )
            for role in ("inputs", "outputs")
        )
        return cls(inputs, outputs, free, values["rows"])

    def input(self, name: str) -> Spec:
        """Return an input by its name.

        Raises:
            Refused: there is none.
        """
        for spec in self.inputs:
            if spec.name == name:
                return spec
        raise wrong(f"the model has no input {name!r}: it takes {self.listed()}")

    def listed(self) -> str:
        """Return the inputs as a sentence has them."""
        return ", ".join(f"{spec.name!r} ({spec.text})" for spec in self.inputs)

    def check(self, inputs: Mapping[str, np.ndarray]) -> int:
        """Return how many rows the arrays of a request have.

        Args:
            inputs: by name, of the right types and shapes.

        Raises:
            Refused: one is missing, or they have not all the same number of rows.
        """
        for spec in self.inputs:
            if spec.name not in inputs:
                raise wrong(f"input {spec.name!r} ({spec.text}) is missing")
        if not self.batched:
            return 1
        rows = {name: value.shape[0] for name, value in inputs.items()}
        first = next(iter(rows.values()))
        if any(count != first for count in rows.values()):
            shown = ", ".join(f"{name!r} has {count}" for name, count in rows.items())
            raise wrong(f"the inputs have not the same number of rows: {shown}")
        if first == 0:
            raise wrong(f"input {self.inputs[0].name!r} ({self.inputs[0].text}) has no row")
        return first

    def differs(self, other: Signature) -> str | None:
        """Return in what another signature differs from this one, as a clause; None in nothing."""
        for role in ("inputs", "outputs"):
            ours, theirs = ({s.name: s for s in getattr(each, role)} for each in (self, other))
            for name in ours.keys() | theirs.keys():
                a, b = ours.get(name), theirs.get(name)
                if a != b:
                    before, after = (s.text if s is not None else "nothing" for s in (a, b))
                    return f"{role[:-1]} {name!r} is {after}, and {before} in the one that serves"
        return None


def _shape(shape: list[int | None] | None, free: bool) -> tuple[int | None, ...] | None:
    if shape is None:
        return None
    return (None, *shape[1:]) if free else tuple(shape)
