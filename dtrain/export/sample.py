"""Examples with the outputs of Keras: how far other outputs are, and a version that serves them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.data.encoding import Encoding
from dtrain.data.nest import Leaf
from dtrain.data.sources import Splits
from dtrain.errors import TrainingError, refuse
from dtrain.export.names import MATRIX, TableInputs
from dtrain.files.fields import Json
from dtrain.run.exports import EXAMPLES, LIMIT, RECORD, SAMPLE
from dtrain.run.folder import read_json
from dtrain.run.samples import Sample
from dtrain.task import backends
from dtrain.task.data import reading

#: A model as a function of arrays by name.
Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


def sample_of(named: Any, splits: Splits) -> Sample:
    """Return the first examples of a run's validation data, or of its training data.

    Args:
        named: a ``Named`` of :mod:`dtrain.export.formats` or :mod:`dtrain.export.modules`.
        splits: of the run.

    Raises:
        UsageError: Keras itself gives other outputs each time, or no number.
        DataError: an example cannot be read.
    """
    source = splits.train if splits.validation is None else splits.validation
    rows, run = named.rows, named.run
    count = reading.available(source, EXAMPLES)
    inputs = named.first(source, count)
    if rows is not None:  # of a model whose batches have one size
        at = np.arange(-(-count // rows) * rows) % count
        inputs = {name: value[at] for name, value in inputs.items()}

    outputs = _joined(run, inputs, rows)
    batch = {name: value[: rows or 8] for name, value in inputs.items()}
    worst, name = deviation(run(batch), run(batch))
    empty = [n for n, v in outputs.items() if v.dtype.kind == "f" and not np.isfinite(v).any()]
    if worst > LIMIT or empty:
        problem = f"its output {name!r} differs each time that it is called on the same examples"
        problem = f"its output {empty[0]!r} is a number on no example" if empty else problem
        refuse("model", f"{problem}: an export cannot be compared with it",
               type(named.model).__name__,
               accepted="a model that computes the same numbers each time where training=False",
               hint="another checkpoint" if empty else None)  # fmt: skip
    return Sample(inputs, outputs, rows)


def _joined(run: Run, inputs: dict[str, np.ndarray], rows: int | None) -> dict[str, np.ndarray]:
    """Run batches of several sizes, for what is exported must take any: of 1, 2 and then 64."""
    count = len(next(iter(inputs.values())))
    begins = range(0, count, rows) if rows else (0, 1, 3, *range(67, count, 64))
    ends = [*(at for at in begins if at < count), count]
    cuts = [slice(*pair) for pair in itertools.pairwise(ends)]
    parts = [run({name: value[cut] for name, value in inputs.items()}) for cut in cuts]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def compared(run: Run, sample: Sample, limit: float = LIMIT) -> float:
    """Run an exported model on all examples, and return how far it is from Keras.

    Args:
        run: the model.
        sample: the examples.
        limit: how far it may be.

    Raises:
        TrainingError: it is too far, or has other outputs.
    """
    outputs = _joined(run, sample.inputs, sample.rows)
    missing = sorted(sample.outputs.keys() ^ outputs.keys())
    if missing:
        raise TrainingError(
            f"its outputs are {', '.join(outputs)}, not {', '.join(sample.outputs)}"
        )
    worst, name = deviation(outputs, sample.outputs)
    if not worst <= limit:
        how = f"by {worst:.3g}" if worst < float("inf") else "in shape, type or altogether"
        problem = f"output {name!r} differs from that of the trained model {how}"
        raise TrainingError(f"{problem}; at most {limit:g} may be")
    return worst


def deviation(outputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> tuple[float, str]:
    """Return the largest difference and the output that has it.

    Of numbers beyond 1 it is relative. What is not of floats has to be the same.
    """
    worst = {name: _difference(outputs[name], each) for name, each in expected.items()}
    name = max(worst, key=lambda name: worst[name])
    return worst[name], name


def _difference(a: Leaf, b: np.ndarray) -> float:
    a = np.asarray(a)
    if a.shape != b.shape or (a.dtype.kind in "fV") != (b.dtype.kind == "f"):
        return float("inf")
    if b.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else float("inf")
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        distance = np.abs(a - b) / np.maximum(1.0, np.abs(b))
    distance = np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
    return float(distance.max(initial=0.0))


#: How far from the stored outputs those of this machine may be.
_SERVED = 1e-4
#: How far a row's outputs may be from those that it has alone; beyond that its neighbours count.
_ALONE = 1e-3


class Served:
    """A loaded model, which computes what was stored with it.

    Args:
        path: its folder.
        max_batch: rows of a batch.

    Attributes:
        about: ``inputs`` and ``outputs``; the ``platform`` that runs it; the ``encoding`` of a
            table; whether requests may share a batch: ``batched``; names of ``classes``; the
            largest ``deviation`` from the stored outputs of so many ``examples``.

    Raises:
        TrainingError: it cannot be loaded or served, or computes other outputs than are stored.
    """

    def __init__(self, path: str, max_batch: int):
        # Of a model of MLflow's the record stands beside the folder of the SavedModel.
        places = (Path(path), Path(path).parent)
        record = next(filter(None, (read_json(place / RECORD) for place in places)), {})
        files = [place / SAMPLE for place in places if (place / SAMPLE).is_file()]
        kind, signature = backends.module("exported").Program, record.get("signature", {})
        self._table: TableInputs | None = None
        inputs = None
        if kind.takes_matrix and record.get("encoding"):
            self._table = TableInputs(Encoding.from_json(record["encoding"]))
            inputs = self._table.tensors()
            signature = {**signature, "inputs": [{"name": MATRIX}]}
        program = self._program = kind(path, signature)
        inputs = inputs or program.inputs
        shapes = [each["shape"] for each in (*inputs, *program.outputs)]
        self.about: Json = {
            "inputs": inputs, "outputs": program.outputs, "platform": program.platform,
            "batched": all(shape and shape[0] is None for shape in shapes),
            "classes": record.get("classes", []), "encoding": record.get("encoding"),
            "deviation": None, "examples": 0,
        }  # fmt: skip
        if files:
            stored = Sample.load(files[0])
            self.about["deviation"] = compared(self, stored, _SERVED)
            self.about["examples"] = len(stored)
            self.about["batched"] = self.about["batched"] and self._independent(stored)
            if self.about["batched"]:
                self(stored.batch(max_batch))  # the largest, before a request waits for it

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a batch.

        Raises:
            ValueError: the model refuses the inputs.
            MemoryError: there is not enough memory.
        """
        if self._table is not None:
            arrays = {MATRIX: self._table.matrix(arrays)}
        return self._program(arrays)

    def _independent(self, stored: Sample) -> bool:
        """Say whether a row has the outputs that it has alone, whatever stands beside it."""
        batch = stored.batch(2)
        together = self(batch)
        alone = self({name: value[1:] for name, value in batch.items()})
        second = {name: value[1:] for name, value in together.items()}
        return deviation(alone, second)[0] <= _ALONE
