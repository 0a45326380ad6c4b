"""One version of a served plain module: a program of ``torch.export``, tried before it serves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dtrain.data import nest
from dtrain.errors import TrainingError
from dtrain.export.tried import Tried
from dtrain.run.exports import FORMATS, RECORD
from dtrain.run.folder import read_json
from dtrain.task.backends import module

_LONGEST = 300  # characters of PyTorch's messages


def configure(threads: int) -> None:
    """Choose the threads of a batch; 0: one on each core."""
    module("exported").configure(threads)


class Served(Tried):
    """A loaded program.

    Args:
        path: of the version.
        max_batch: rows of a batch.

    Raises:
        TrainingError: it cannot be loaded, or computes other outputs than are stored.
    """

    def __init__(self, path: str, max_batch: int):
        folder = Path(path)
        record: Any = read_json(folder / RECORD) or {}
        try:
            self._run = module("exported").load(None, "pt2", folder / FORMATS["pt2"].files[-1])
        except (OSError, ValueError, RuntimeError) as error:
            raise TrainingError(f"it cannot be loaded: {str(error)[:_LONGEST]}") from None
        signature = record["signature"]
        self.about: dict[str, Any] = {
            **{role: [{"columns": [], **each} for each in signature[role]] for role in signature},
            "batched": True, "classes": record.get("classes", []),
            "encoding": record.get("encoding"),
        }  # fmt: skip
        self._types = {each["name"]: np.dtype(each["dtype"]) for each in signature["inputs"]}
        self._outputs = [each["name"] for each in signature["outputs"]]
        self._try([folder], max_batch)

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a batch."""
        batch = {name: np.asarray(arrays[name], dtype) for name, dtype in self._types.items()}
        x: Any = batch
        if all(re.fullmatch(r"inputs|input_\d+", name) for name in batch):  # and not by keyword
            x = tuple(batch.values())
        try:
            leaves = [each for each in nest.leaves(self._run(x)) if each is not None]
        except (RuntimeError, AssertionError) as error:  # of its guards
            raise ValueError(str(error).splitlines()[0][:_LONGEST]) from None
        values = [np.array(keras.ops.convert_to_numpy(each)) for each in leaves]
        return dict(zip(self._outputs, values, strict=True))
