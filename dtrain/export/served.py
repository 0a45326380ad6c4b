"""One version of a served model, tried before it serves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.export import sample
from dtrain.run.exports import RECORD, SAMPLE
from dtrain.run.folder import read_json
from dtrain.run.samples import Sample
from dtrain.task import backends

#: How far from the stored outputs those of this machine may be.
_LIMIT = 1e-4
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
        record: Any = next(filter(None, (read_json(place / RECORD) for place in places)), {})
        files = [place / SAMPLE for place in places if (place / SAMPLE).is_file()]
        program = backends.module("exported").Program(path, record.get("signature", {}))
        self._program = program
        shapes = [each["shape"] for each in (*program.inputs, *program.outputs)]
        self.about: dict[str, Any] = {
            "inputs": program.inputs, "outputs": program.outputs, "platform": program.platform,
            "batched": all(shape and shape[0] is None for shape in shapes),
            "classes": record.get("classes", []), "encoding": record.get("encoding"),
            "deviation": None, "examples": 0,
        }  # fmt: skip
        if files:
            stored = Sample.load(files[0])
            self.about["deviation"] = sample.compared(self, stored, _LIMIT)
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
        outputs: dict[str, np.ndarray] = self._program(arrays)
        return outputs

    def _independent(self, stored: Sample) -> bool:
        """Say whether a row has the outputs that it has alone, whatever stands beside it."""
        batch = stored.batch(2)
        together = self(batch)
        alone = self({name: value[1:] for name, value in batch.items()})
        second = {name: value[1:] for name, value in together.items()}
        return sample.deviation(alone, second)[0] <= _ALONE
