"""Prediction of rows, in pieces, by any number of workers that share a folder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import keras

from dtrain.after import inputs
from dtrain.after.columns import Columns
from dtrain.after.functions import NAMED
from dtrain.after.prediction import Prediction
from dtrain.config import load
from dtrain.config.schema import Config
from dtrain.data import class_names
from dtrain.data.checked import before_training
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import DtrainError, UsageError
from dtrain.run import checkpoint, identity
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.columns import read_encoding
from dtrain.run.folder import RunDir
from dtrain.run.predictions import Manifest, size_of
from dtrain.task.backends.base import Backend
from dtrain.task.backends.runtime import runtime
from dtrain.task.data import dataset
from dtrain.task.model import build, checks, train_state
from dtrain.task.train.session import Action, Process
from dtrain.task.train.step_schedule import make_schedule


class Predict(Action):
    """Predicts all rows of a split of the data with a checkpoint of a run.

    Args:
        run: the run folder.
        checkpoint: ``best``, ``latest`` or a step; None: the best, or else the latest.
        weights: ``raw``: as they were trained; ``ema``: the moving averages of the optimizer.
        to: the folder of the predictions.
        workers: of this command; the controller starts them.
        shard: ``K/N``: which of how many commands that share the folder this is; None: the only.
        split: ``train`` or ``validation``; None: the validation where there is one.
        function: of the outputs, or a word of :data:`NAMED`; None: as they are.
        include: parts of the data that become columns: ``inputs``, ``labels``.
        format: of the files.
        piece_rows: rows of a piece; None: by the number of rows.
        batch: rows of a batch; None: ``trainer.validation_batch_size``, or ``trainer.batch_size``.
    """

    trains = False

    def __init__(
        self,
        run: str,
        checkpoint: str | None,
        weights: Literal["raw", "ema"],
        to: str,
        workers: int,
        shard: str | None,
        split: str | None,
        function: str | Callable[[Any], Any] | None,
        include: list[str],
        format: Literal["parquet", "npy", "jsonl", "csv"],
        piece_rows: int | None,
        batch: int | None,
    ):
        self._rundir = RunDir(run)
        self._checkpoint = checkpoint
        self._weights = weights
        self._to = Path(to)
        self._split = split
        self._function = NAMED[function] if isinstance(function, str) else function
        self._include = list(include)
        self._format = format
        self._piece_rows = piece_rows
        self._batch = batch
        self._workers = workers
        self._shard = [int(number) for number in (shard or "0/1").split("/")]
        self._class_names: list[str] = []  # of the run

    def assemble(
        self, config: Config, strategy: Backend, process: Process, past: Checkpoint | None
    ) -> Prediction:
        """Build the model as in the run, with the weights of the checkpoint, and find the rows.

        Raises:
            UsageError: model, data and checkpoint do not go together.
        """
        data = dataset.load(config, self.trains, read_encoding(self._rundir))
        with before_training(config.dataset):
            name, source = self._chosen(data)
            for message in data.notices:
                process.notice(message)
            if process.journal is not None:
                process.journal.write("data", **data.identity)
            process.ending.enter_context(data.pool)  # its readers start while the model is built
            model = self._model(config, strategy, process, data, source)
            if "labels" in self._include:
                source = class_names.renumbered(source, self._class_names)
            digest, step = self._restore(config, model, strategy)
            data.pool.ready()
        columns = Columns(model, self._function, self._include, self._class_names)
        batch = self._rows_of_batch(config, model)
        forward = strategy.forward(model, source, batch, columns)
        with before_training(config.dataset):
            forward.trace()
        rows, found = len(source), data.identity[name]
        specs = columns.described(forward.specs)
        width = sum(spec.bytes for spec in specs.values())
        manifest: Manifest = {
            "checkpoint": {"step": step, "digest": digest, "weights": self._weights},
            "data": {"split": name, "structure": found["structure"], "digest": found["digest"]},
            "rows": rows,
            "function": load.select(config, "action.function"),
            "include": self._include,
            "columns": [
                {"name": column, "dtype": spec.dtype, "shape": list(spec.shape)}
                for column, spec in specs.items()
            ],
            "format": self._format,
            "batch": batch,
            "piece_rows": self._piece_rows or size_of(rows, batch, width),
            "arithmetic": _arithmetic(config, strategy, process),
            "may_join": self._piece_rows is None,
        }
        # Shard k has every n-th piece, and each of its workers every n-th of these.
        shard, shards = self._shard
        number = 0 if process.task.role == "chief" else process.task.index + 1
        share = shard + shards * number, shards * self._workers
        return Prediction(
            process, model.count_params(), source, forward, columns, manifest, self._to, share,
            self._workers,
        )  # fmt: skip

    def run(self, session: Prediction) -> None:
        """Predict; the chief says in the end what there is.

        Raises:
            Interrupted: it was asked to stop; the pieces that are done stay.
        """
        session.run()

    def _chosen(self, data: dataset.Data) -> tuple[str, Source]:
        """Return the name of the split whose rows are predicted, and its examples."""
        splits = data.splits
        name = self._split or ("train" if splits.validation is None else "validation")
        source: Any = getattr(splits, name)
        if source is None:
            raise UsageError(
                "predict.split", name, "the dataset has no validation", "train",
                "predict.split=train",
            )  # fmt: skip
        if isinstance(source, Stream):
            raise UsageError(
                "dataset", name, "is a stream, whose rows cannot be read by their numbers",
                "a dataset with random access", "a list, arrays, files of rows or of records",
            )  # fmt: skip
        return name, source

    def _model(
        self,
        config: Config,
        strategy: Backend,
        process: Process,
        data: dataset.Data,
        source: Source,
    ) -> keras.Model:
        """Build the model on the data of the run: its shapes and classes are what it was made of.

        Other data may lack labels, or a class.
        """
        built_on = data.splits
        own = load.read(self._rundir.config).dataset
        if inputs.differ(own, config.dataset):
            of_run = copy.copy(config)
            of_run.dataset = own
            try:
                encoding = read_encoding(self._rundir)
                built_on = dataset.load(of_run, self.trains, encoding).splits
            except (DtrainError, OSError) as error:
                process.notice(
                    f"the data of the run cannot be read ({error}): its model is built for the "
                    "data that is predicted"
                )
            else:
                config = of_run
                inputs.check(source, built_on.train)
        self._class_names = list(built_on.train.info.class_names())
        schedule = make_schedule(config, *dataset.lengths(built_on))
        model = build.model(
            config, built_on, strategy, schedule.total_steps, schedule.steps_per_epoch, trains=False
        )
        build.refuse_methods(model, "predict", "make_predict_function")
        if checks.stateful_layers(model):
            raise UsageError(
                "model", type(model).__name__, "has layers that keep a state from one batch to the "
                "next, and pieces are predicted in any order", "a model without stateful=true",
                "the model with stateful=false, and the weights of this one",
            )  # fmt: skip
        return model

    def _restore(self, config: Config, model: keras.Model, strategy: Backend) -> tuple[str, int]:
        """Set the weights; return the digest of the checkpoint, and its step."""
        folder, mode = self._rundir.checkpoints, config.objective_mode.name
        found = checkpoint.load(checkpoint.choose(folder, self._checkpoint, mode)[0])
        train_state.restore_chosen(model, strategy, found, self._weights)
        return checkpoint.digest(found.arrays), found.step

    def _rows_of_batch(self, config: Config, model: keras.Model) -> int:
        fixed = checks.fixed_rows(model, config)
        if None not in (fixed, self._batch) and fixed != self._batch:
            raise UsageError(
                "predict.batch", self._batch, f"the model takes batches of {fixed} rows alone",
                str(fixed), f"predict.batch={fixed}",
            )  # fmt: skip
        trainer = config.trainer
        return fixed or self._batch or trainer.validation_batch_size or trainer.batch_size


def _arithmetic(config: Config, strategy: Backend, process: Process) -> dict[str, Any]:
    """Return what the last bits of a number may depend on, beside model, weights and row."""
    kind, hardware = process.cluster.device_kind, config.hardware
    found = {
        "device": kind,
        "precision": hardware.precision.name,
        **strategy.arithmetic,
        "versions": {k: v for k, v in identity.versions().items() if k != "dtrain"},
    }
    if kind == "cpu":
        found |= runtime().arithmetic()
    return found
