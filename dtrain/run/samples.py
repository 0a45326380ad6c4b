"""Samples of examples beside an exported model, and what the columns of a table became.

Examples with the outputs of Keras: what an exported model is compared on.

``columns.json``: how the columns of a table became the inputs of a run's model.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from dtrain.data.encoding import Encoding
from dtrain.errors import DamagedFile
from dtrain.files.fields import Json
from dtrain.run.folder import RunDir, read_json, write_json

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
        arrays: Json = {"rows": np.asarray(self.rows or 0)}
        for role, found in (("inputs", self.inputs), ("outputs", self.outputs)):
            arrays |= {f"{role}/{name}": _packed(value) for name, value in found.items()}
        with path.open("xb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> Sample:
        """Read what :meth:`save` has written."""
        parts: dict[str, dict[str, np.ndarray]] = {"inputs": {}, "outputs": {}}
        with np.load(path) as found:
            rows = int(found["rows"]) or None
            for name in set(found.files) - {"rows"}:
                role, _, own = name.partition("/")
                parts[role][own] = _unpacked(found[name])
        return cls(parts["inputs"], parts["outputs"], rows)


def _packed(value: np.ndarray) -> np.ndarray:
    """Return texts as NumPy's bytes, with one byte more: it takes zeros at the end away."""
    if value.dtype.kind != "O":
        return value
    texts = [each + b"." for each in value.reshape(-1).tolist()]
    return np.asarray(texts, np.bytes_).reshape(value.shape)


def _unpacked(value: np.ndarray) -> np.ndarray:
    if value.dtype.kind != "S":
        return value
    return np.vectorize(lambda each: each[:-1], otypes=[object])(value)


def _bytes(value: np.ndarray) -> int:
    return value.nbytes if value.dtype.kind != "O" else sum(map(len, value.reshape(-1).tolist()))


def write_encoding(rundir: RunDir, encoding: Encoding | None) -> None:
    """Write the encoding of a run; of one without a table nothing.

    Raises:
        OSError: it cannot be written.
    """
    if encoding is not None:
        write_json(rundir.columns, encoding.to_json(), lasting=True)


def read_encoding(rundir: RunDir) -> Encoding | None:
    """Return the encoding of a run; None of one that has none.

    Raises:
        DamagedFile: the file is not one that :func:`write_encoding` has written.
    """
    value = read_json(rundir.columns)
    if value is None:
        return None
    try:
        return Encoding.from_json(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(rundir.columns, f"is no encoding of columns ({error})") from None
