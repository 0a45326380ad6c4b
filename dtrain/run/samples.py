"""Examples with the outputs of Keras: what an exported model is compared on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

#: Of the examples that are kept beside an exported model: how many, and bytes, at most.
KEPT, KEPT_BYTES = 16, 1 << 22


@dataclasses.dataclass(frozen=True)
class Sample:
    """Examples, and what Keras makes of them.

    Attributes:
        inputs: arrays ``[n, ...]`` by name; texts are bytes.
        outputs: of Keras, arrays ``[n, ...]`` by name.
        rows: examples of each batch; None where any number will do.
    """

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    rows: int | None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def batch(self, rows: int) -> dict[str, np.ndarray]:
        """Return the first inputs, from the beginning again where there are too few."""
        at = np.arange(rows) % len(self)
        return {name: value[at] for name, value in self.inputs.items()}

    def shortened(self) -> Sample:
        """Return its first examples, as many as are kept beside an exported model."""
        each = sum(_bytes(value) for value in self.inputs.values()) / max(1, len(self))
        kept = self.rows or max(1, min(KEPT, int(KEPT_BYTES // max(1.0, each))))
        return Sample(
            {name: value[:kept] for name, value in self.inputs.items()},
            {name: value[:kept] for name, value in self.outputs.items()},
            self.rows,
        )

    def save(self, path: Path) -> None:
        """Write it to a file."""
        arrays: dict[str, Any] = {"rows": np.asarray(self.rows or 0)}
        for role, found in (("inputs", self.inputs), ("outputs", self.outputs)):
            for name, value in found.items():
                arrays.update(_packed(f"{role}/{name}", value))
        with path.open("xb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> Sample:
        """Read what :meth:`save` has written."""
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files}
        rows = int(arrays.pop("rows")) or None
        parts: dict[str, dict[str, np.ndarray]] = {"inputs": {}, "outputs": {}}
        for name in [name for name in arrays if not name.endswith("|lengths")]:
            role, _, own = name.partition("/")
            parts[role][own] = _unpacked(arrays[name], arrays.get(f"{name}|lengths"))
        return cls(parts["inputs"], parts["outputs"], rows)


def _packed(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    """Return arrays of numbers: of texts, all their bytes and how many each has."""
    if value.dtype.kind != "O":
        return {name: value}
    lengths = np.vectorize(len, otypes=[np.int64])(value)
    joined = np.frombuffer(b"".join(value.reshape(-1).tolist()), np.uint8)
    return {name: joined, f"{name}|lengths": lengths}


def _unpacked(value: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    if lengths is None:
        return value
    ends = np.cumsum(lengths.reshape(-1))
    data = value.tobytes()
    texts = np.empty(ends.size, object)
    texts[:] = [data[e - n : e] for e, n in zip(ends, lengths.reshape(-1), strict=True)]
    return texts.reshape(lengths.shape)


def _bytes(value: np.ndarray) -> int:
    if value.dtype.kind != "O":
        return value.nbytes
    return sum(map(len, value.reshape(-1).tolist()))
