"""Keys of the actions that commands on a run have."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from dtrain.config.forms import CHECKPOINT, PARTS, PATH, PREDICTED, SHARD, SPLIT, target
from dtrain.config.ranges import MANY, formed, within
from dtrain.config.schema import Action, Weights

#: The formats of predictions (:mod:`dtrain.run.predictions`).
Format = enum.Enum("Format", ["parquet", "npy", "jsonl", "csv"])


@dataclasses.dataclass
class Predict(Action):
    """Predicts rows with a checkpoint of a run.

    Attributes:
        run: the run folder; the command sets it.
        checkpoint: best, latest or a step; null: the best, or the latest if none is known.
        weights: raw: the trained weights; ema: the optimizer's moving averages.
        to: folder of the predictions; null: one inside the run folder.
        workers: processes of this command, each with a strategy of its own.
        shard: K/N: which of N commands that share the folder this is; null: the only one.
        split: train or validation; null: the validation if there is one.
        function: of the outputs: argmax, top_k, or a node with _target_; null: as they are.
        include: parts of the data that become columns: inputs, labels.
        format: of the files.
        piece_rows: rows of a file; null: one file of a small result, else by how many there are.
        batch: rows of a batch; null: that of the validation.
    """

    _target_: str = target("dtrain.after.predict.Predict")
    run: str | None = formed(None, PATH)
    checkpoint: str | None = formed(None, CHECKPOINT)
    weights: Weights = Weights.raw
    to: str | None = formed(None, PATH)
    workers: int = within(1, 1, 10_000)
    shard: str | None = formed(None, SHARD)
    split: str | None = formed(None, SPLIT)
    function: Any | None = formed(None, PREDICTED)
    include: list[str] = formed([], PARTS)
    format: Format = Format.parquet
    piece_rows: int | None = within(None, 1, MANY)
    batch: int | None = within(None, 1, MANY)
