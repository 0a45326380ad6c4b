"""Prediction of rows, in pieces, by any number of workers that share a folder."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import keras
import numpy as np

from dtrain import errors
from dtrain.after import inputs
from dtrain.after.columns import NAMED, PARTS, Columns, beside
from dtrain.config import tree
from dtrain.config.tree import Config
from dtrain.data.encoding import Encoding
from dtrain.data.failures import before_training
from dtrain.data.nest import Nest
from dtrain.data.prepare import renumbered
from dtrain.data.sources import Source, Splits
from dtrain.data.streams import Stream
from dtrain.errors import DtrainError, TrainingError, UsageError, refuse
from dtrain.files.fields import Json
from dtrain.run import checkpoint, identity
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.folder import RunDir
from dtrain.run.predictions import Store, size_of
from dtrain.run.samples import read_encoding
from dtrain.task.backends.base import Backend, Forward
from dtrain.task.backends.runtime import runtime
from dtrain.task.data import dataset
from dtrain.task.data.reading import naming_unreadable
from dtrain.task.model import build, checks, train_state
from dtrain.task.train.recorder import Progress
from dtrain.task.train.session import Action, Process, quietly, untrained


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
        include: what of the data becomes columns: ``inputs``, ``labels``, names of columns.
        format: of the files.
        piece_rows: rows of a piece; None: by the number of rows.
        batch: rows of a batch; None: ``trainer.validation_batch_size``, or ``trainer.batch_size``.
    """

    trains = False

    def __init__(
        self, run: str, checkpoint: str | None, weights: Literal["raw", "ema"], to: str,
        workers: int, shard: str | None, split: str | None,
        function: str | Callable[[Nest], Nest] | None, include: list[str],
        format: Literal["parquet", "npy", "jsonl", "csv"], piece_rows: int | None,
        batch: int | None,
    ):  # fmt: skip
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
        self._shard = shard or "0/1"
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
            process.event("data", **data.identity)
            process.ending.enter_context(data.pool)  # its readers start while the model is built
            model = self._model(config, strategy, process, data, source)
            encoding = read_encoding(self._rundir)
            parts, included = self._included(source, encoding)
            if "labels" in self._include:
                source = renumbered(source, self._class_names)
            digest, step = self._restore(config, model, strategy)
            data.pool.ready()
        targets = encoding.target.columns if encoding is not None and encoding.target else ()
        columns = Columns(
            model, self._function, parts, self._class_names, targets, included, self._format
        )
        batch = self._rows_of_batch(config, model)
        forward = strategy.forward(model, source, batch, columns)
        with before_training(config.dataset):
            forward.trace()
        rows, record = len(source), data.identity[name]
        specs = columns.described(forward.specs)
        width = sum(spec.bytes for spec in specs.values())
        manifest = {
            "checkpoint": {"step": step, "digest": digest, "weights": self._weights},
            "data": {
                "split": name, "structure": record["structure"], "digest": record["digest"]
            },
            "rows": rows,
            "function": tree.select(config, "action.function"),
            "include": self._include,
            "columns": [
                {"name": column, "dtype": spec.dtype, "shape": list(spec.shape)}
                for column, spec in specs.items()
            ],
            "format": self._format,
            "batch": batch,
            "piece_rows": self._piece_rows or size_of(rows, batch, width),
            "arithmetic": _arithmetic(config, strategy, process),
            "join": self._piece_rows is None,
        }  # fmt: skip
        # Shard k has every n-th piece, and each of its workers every n-th of these.
        shard, shards = map(int, self._shard.split("/"))
        number = 0 if process.task.role == "chief" else process.task.index + 1
        share = shard + shards * number, shards * self._workers
        return Prediction(
            process, model.count_params(), source, forward, columns, self._store(manifest), share,
            self._workers,
        )  # fmt: skip

    def run(self, session: Prediction) -> None:
        """Predict; the chief says in the end what there is.

        Raises:
            Interrupted: it was asked to stop; the pieces that are done stay.
        """
        session.run()

    def _included(
        self, source: Source, encoding: Encoding | None
    ) -> tuple[list[str], dict[str, np.ndarray]]:
        """Return the parts of the examples that become columns, and columns as they are."""
        features = [each.name for each in encoding.features] if encoding is not None else []
        trained_columns = [*features, *(encoding.left_out if encoding is not None else ())]
        names: list[str] = []
        for word in self._include:
            names += features if word == "inputs" and features else [word]
        columns = [name for name in names if name not in PARTS]
        return [name for name in names if name in PARTS], beside(source, columns, trained_columns)

    def _store(self, manifest: Json) -> Store:
        try:
            self._to.mkdir(parents=True, exist_ok=True)
            return Store(self._to, manifest)
        except OSError as error:
            raise UsageError("to", f"cannot be written ({error.strerror})", self._to,
                             accepted="a folder on a disk with space") from None  # fmt: skip

    def _chosen(self, data: dataset.Data) -> tuple[str, Source]:
        """Return the name of the split whose rows are predicted, and its examples."""
        splits = data.splits
        name = self._split or ("train" if splits.validation is None else "validation")
        source: Source | Stream | None = getattr(splits, name)
        if source is None:
            refuse("split", "the dataset has no validation", name, accepted="train",
                   typed="split=train")  # fmt: skip
        if isinstance(source, Stream):
            refuse("dataset", "is a stream, whose rows cannot be read by their numbers", name,
                   accepted="random access: a list, arrays, files of rows or records")  # fmt: skip
        return name, source

    def _model(
        self, config: Config, strategy: Backend, process: Process, data: dataset.Data,
        source: Source,
    ) -> keras.Model:  # fmt: skip
        """Build the model on the data of the run: its shapes and classes are what it was made of.

        Other data may lack labels, or a class.
        """
        built_on = data.splits
        if (of_run := inputs.of_run(self._rundir, config)) is not None:
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
        model = untrained(config, built_on, strategy)
        build.refuse_methods(model, "predict", "make_predict_function")
        if checks.stateful_layers(model):
            refuse("model", "has layers that keep a state from one batch to the next, and pieces "
                   "are predicted in any order", type(model).__name__,
                   accepted="one with stateful=false, and the weights of this one")  # fmt: skip
        return model

    def _restore(self, config: Config, model: keras.Model, strategy: Backend) -> tuple[str, int]:
        """Set the weights; return the digest of the checkpoint, and its step."""
        folder, mode = self._rundir.checkpoints, config.objective_mode
        restored = checkpoint.load(checkpoint.choose(folder, self._checkpoint, mode)[0])
        train_state.restore_chosen(model, strategy, restored, self._weights)
        return checkpoint.digest(restored.arrays), restored.step

    def _rows_of_batch(self, config: Config, model: keras.Model) -> int:
        fixed = checks.fixed_rows(model, config)
        if None not in (fixed, self._batch) and fixed != self._batch:
            refuse("batch", f"the model takes batches of {fixed} rows alone", self._batch,
                   accepted=str(fixed), typed=f"batch={fixed}")  # fmt: skip
        trainer = config.trainer
        return fixed or self._batch or trainer.validation_batch_size or trainer.batch_size


def _arithmetic(config: Config, strategy: Backend, process: Process) -> Json:
    """Return what the last bits of a number may depend on, beside model, weights and row."""
    kind, hardware = process.cluster.device_kind, config.hardware
    facts = {
        "device": kind,
        "precision": hardware.precision,
        **strategy.arithmetic,
        "versions": {k: v for k, v in identity.versions(config.backend).items() if k != "dtrain"},
    }
    if kind == "cpu":
        facts |= runtime().arithmetic()
    return facts


Arrays = dict[str, np.ndarray]


@dataclasses.dataclass
class Prediction:
    """What one worker is about to do.

    Attributes:
        process: of the task.
        parameters: of the model.
        source: has the rows.
        forward: predicts batches of them; traced.
        columns: makes what is written of what it computes.
        store: of the predictions.
        share: number of this worker, and how many there are, of all commands.
        workers: of this command.
    """

    process: Process
    parameters: int
    source: Source
    forward: Forward
    columns: Columns
    store: Store
    share: tuple[int, int]
    workers: int

    def __post_init__(self) -> None:
        self._began, self._before, self._own_rows = time.monotonic(), 0, 0
        self._batches: dict[int, list[Arrays]] = {}  # by piece
        self._progress = Progress(self.process.rundir.progress)
        #: For :func:`dtrain.task.data.reading.raising_read_errors`.
        self.inputs = Splits(self.source)

    def run(self) -> None:
        """Work until all is done, or a stop was asked for.

        Raises:
            TrainingError: the folder cannot be written any more.
            DataError: an example cannot be read.
            Interrupted: a stop was asked for; the pieces that are done stay.
        """
        process, store, status = self.process, self.store, "FAILED"
        process.event("start", step=0, replicas=self.forward.replicas, parameters=self.parameters)
        process.begun()
        self._before, self._began = store.count(), time.monotonic()
        try:
            if self._before == store.division.pieces:
                process.notice(f"all rows were predicted already: {store.folder}")
            self._work()
            if process.stop() and store.count() < store.division.pieces:
                status = "KILLED"
                raise errors.Interrupted("stopped; the pieces that are done stay")
            if process.is_chief:
                store.finish()
            status = "FINISHED"
            self._report(always=True)
        except OSError as error:
            raise TrainingError(
                f"{error.filename or store.folder}: {error.strerror}; the pieces that are done "
                "stay, and the same command goes on"
            ) from error
        finally:
            quietly(lambda: self._end(status))

    def _work(self) -> None:
        division, at_once = self.store.division, self.forward.at_once
        batches = (
            (piece, *batch)
            for piece in division.order(*self.share)
            if not self.store.has(piece)
            for batch in zip(*division.batches(piece), strict=True)
        )
        pool = ThreadPoolExecutor(at_once)
        calls: collections.deque[tuple[list[int], Future[Arrays]]] = collections.deque()
        try:
            while not self.process.stop() and (
                turn := [*itertools.islice(batches, self.forward.replicas)]
            ):
                pieces, rows, numbers = zip(*turn, strict=True)
                calls.append(([*pieces], pool.submit(self._compute, [*rows], [*numbers])))
                if len(calls) > 2 * at_once:  # while a piece is written, others are computed
                    self._collect(*calls.popleft())
            while calls:
                self._collect(*calls.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def _compute(self, rows: list[np.ndarray], numbers: list[int]) -> Arrays:
        # A replica without a batch does the last one again, which is not used.
        lacking = self.forward.replicas - len(rows)
        whole = np.stack(rows + rows[-1:] * lacking)
        with naming_unreadable(self.source, whole.reshape(-1)):
            return self.forward(whole, np.asarray(numbers + numbers[-1:] * lacking, np.int64))

    def _collect(self, pieces: list[int], call: Future[Arrays]) -> None:
        """Keep what a call has computed for a batch of each piece; write a piece that is whole."""
        columns, batch, division = call.result(), self.forward.batch, self.store.division
        for at, piece in enumerate(pieces):
            part = slice(at * batch, (at + 1) * batch)
            batches = self._batches.setdefault(piece, [])
            batches.append({name: column[part] for name, column in columns.items()})
            rows = division.rows_of(piece)
            if len(batches) * batch >= len(rows):
                del self._batches[piece]
                whole = {
                    name: np.concatenate([each[name] for each in batches])[: len(rows)]
                    for name in self.forward.specs
                }
                self.store.write(piece, self.columns.written(whole, rows.start))
                self._own_rows += len(rows)
                self._report()

    def _rows_done(self) -> tuple[int, int, float]:
        """Return how many rows are done, how many of them since the beginning, and these a second.

        All workers' count, of other commands too.
        """
        division = self.store.division
        counts = self.store.count(), self._before
        rows, before = (min(division.rows, count * division.size) for count in counts)
        return rows, rows - before, (rows - before) / max(1e-6, time.monotonic() - self._began)

    def _report(self, always: bool = False) -> None:
        if self.process.is_chief and (always or self._progress.due):
            rows, _, speed = self._rows_done()
            report = {
                "units": ["workers", "row"], "step": rows, "total_steps": self.store.division.rows,
                "epoch": self.workers, "epochs": self.workers, "examples_per_second": speed,
            }  # fmt: skip
            self._progress.write(report, always=True)

    def _end(self, status: str) -> None:
        (_, new, speed), store = self._rows_done(), self.store
        self.process.event(
            "end", status=status, step=0, examples=new, own_rows=self._own_rows,
            examples_per_second=round(speed, 1), metrics={}, predictions=str(store.folder),
            file=store.joined.name if store.is_joined() else None, rows=store.division.rows,
            pieces=store.division.pieces, done=store.count(),
        )  # fmt: skip
