"""A version that is to serve, tried on what is stored with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.export import sample
from dtrain.run.exports import SAMPLE
from dtrain.run.samples import Sample

#: How far from the stored outputs those of this machine may be.
_LIMIT = 1e-4
#: How far a row's outputs may be from those that it has alone; beyond that its neighbours count.
_ALONE = 1e-3


class Tried(ABC):
    """A loaded model, which computes what was stored with it.

    Attributes:
        about: ``inputs`` and ``outputs``; the ``encoding`` of a table; whether requests may share a
            batch: ``batched``; names of ``classes``; the largest ``deviation`` from the stored
            outputs of so many ``examples``.
    """

    about: dict[str, Any]

    @abstractmethod
    def __call__(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a batch.

        Raises:
            ValueError: the model refuses the inputs.
            MemoryError: there is not enough memory.
        """

    def _try(self, places: Sequence[Path], max_batch: int) -> None:
        """Compare it with the outputs that are stored in one of some folders, if they are.

        Raises:
            TrainingError: it computes others.
        """
        files = [place / SAMPLE for place in places if (place / SAMPLE).is_file()]
        self.about |= {"deviation": None, "examples": 0}
        if not files:
            return
        stored = Sample.load(files[0])
        self.about["deviation"] = sample.compared(self, stored, _LIMIT)
        self.about["examples"] = len(stored)
        self.about["batched"] = self.about["batched"] and self._independent(stored)
        if self.about["batched"]:
            self(stored.batch(max_batch))  # the largest, before a request waits for it

    def _independent(self, stored: Sample) -> bool:
        """Say whether a row has the outputs that it has alone, whatever stands beside it."""
        batch = stored.batch(2)
        together = self(batch)
        alone = self({name: value[1:] for name, value in batch.items()})
        second = {name: value[1:] for name, value in together.items()}
        return sample.deviation(alone, second)[0] <= _ALONE
