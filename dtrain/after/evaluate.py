"""Evaluation of checkpoints that a run has saved, on any strategy; nothing is trained."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dtrain import errors
from dtrain.after import inputs
from dtrain.after.evaluation_record import Evaluation, EvaluationRecorder
from dtrain.after.inputs import Slices, arranged, class_names, find_slices
from dtrain.config.tree import Config
from dtrain.data.nest import Nest, Tensor
from dtrain.data.options import Task
from dtrain.data.prepare import renumbered
from dtrain.data.sources import Splits
from dtrain.errors import CheckpointError, DtrainError, refuse
from dtrain.run import checkpoint
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.checkpoint.format import read_manifest
from dtrain.run.folder import RunDir
from dtrain.run.follow import LOOK, Followed
from dtrain.run.samples import read_encoding
from dtrain.task.backends.base import Backend
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.data import dataset
from dtrain.task.data.dataset import Data
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import checks, losses, train_state
from dtrain.task.model.named_metrics import LossInputs, inputs_of, with_classes
from dtrain.task.train import restore
from dtrain.task.train.held_out import describe
from dtrain.task.train.session import Action, Process, Session, quietly
from dtrain.task.train.step_schedule import Schedule
from dtrain.task.train.validation import check_validation, evaluate

#: Ends the checkpoints that are to be evaluated.
_END = object()
#: How often another checkpoint is looked for where the run has removed the one that was chosen.
TRIES = 10
#: The metrics of the slices, put together, may differ by so much from those of the whole.
TOLERANCE = 1e-5


class Evaluate(Action):
    """Evaluates checkpoints of a run on every validation example, once each.

    Args:
        run: the run folder.
        checkpoint: ``best``, ``latest``, ``all`` or a step; None: the best, or else the latest.
        weights: ``raw``: as they were trained; ``ema``: the moving averages of the optimizer.
        prefix: of the names of the points; None: ``test``, of averages ``test_ema``.
        by: what slices of the examples are made by; None for no slices.
        follow: checkpoints are evaluated as the run saves them, until it ends.
    """

    trains = False

    def __init__(
        self, run: str, checkpoint: str | None, weights: str, prefix: str | None, by: str | None,
        follow: bool,
    ):  # fmt: skip
        self._rundir = self.of_run = RunDir(run)
        self._checkpoint = checkpoint
        self._weights = weights
        self._prefix = prefix or ("test_ema" if weights == "ema" else "test")
        self._by = by
        self._follow = follow
        self._single = False  # one checkpoint is meant by a word: a newer one may take its place
        self._compares = False  # with a baseline: of several checkpoints it takes too long
        self._slices: Slices | None = None
        self._confusion: Confusion | None = None
        self._classes: list[str] = []
        # The run's, and the others that are evaluated.
        self._both: tuple[Splits, Splits] | None = None

    def check(self, config: Config, model: keras.Model, schedule: Schedule) -> None:
        """Refuse data and models that cannot be evaluated.

        Raises:
            UsageError: there is nothing to evaluate.
        """
        check_validation(schedule, config.dataset["_target_"])

    def loaded(self, config: Config, data: Data) -> Data:
        """Return the examples with targets that mean what those of the run's data mean.

        Other data may lack a class, or have one more; and whole numbers, where the run's are none.
        Of other files of which no part is held out, all examples are evaluated.

        Raises:
            UsageError: it has no labels, or a class that the run's data has not.
        """
        if (of_run := inputs.of_run(self._rundir, config)) is None:
            return data
        path, of_other = of_run.dataset.get("path"), config.dataset.get("path")
        if data.splits.validation is None and of_other != path:
            data = dataclasses.replace(
                data,
                splits=dataclasses.replace(data.splits, validation=data.splits.train),
                identity={**data.identity, "validation": data.identity["train"]},
            )
        try:
            encoding = read_encoding(self._rundir)
            splits = dataset.load(of_run, self.trains, encoding).splits
        except (DtrainError, OSError):  # it is not there any more: the other has to do
            return data
        others = data.splits
        self._both = splits, others
        if losses.is_regression(of_run, splits):
            others = dataclasses.replace(others, task=Task.regression)
        elif (classes := splits.count_classes()) is not None:
            if others.validation is not None and others.count_classes() is None:
                inputs.check(others.validation, splits.train, "targets", sizes=False)
            classes_of_run = list(splits.train.info.class_names())
            named = renumbered(others.validation, classes_of_run)
            others = dataclasses.replace(others, classes=classes, validation=named)
        return dataclasses.replace(data, splits=others)

    def assemble(
        self, config: Config, strategy: Backend, process: Process, past: Checkpoint | None
    ) -> Session:
        """Return a session; what the data has otherwise than the run's explains that there is none.

        Raises:
            UsageError: model, data, strategy and checkpoint do not go together.
        """
        with self._explained():
            return super().assemble(config, strategy, process, past)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (errors.Interrupted, errors.DataError):
            raise
        except Exception:
            if self._both is not None and self._both[1].validation is not None:
                inputs.explain(self._both[1].validation, self._both[0].train)
            raise

    def _check_labels(self, config: Config, predicted: Nest) -> None:
        """Refuse labels that the model has no output for.

        Raises:
            UsageError: naming the largest.
        """
        if self._both is None or losses.is_regression(config, self._both[0]):
            return
        classes, others = (splits.count_classes() for splits in self._both)
        width = checks.last_size(predicted)
        if others is None or width is None or others <= width:
            return
        if config.trainer.loss == "sparse_categorical_crossentropy" or width == classes != 1:
            refuse("dataset", f"is none of the {width} classes of the model", f"label {others - 1}",
                   accepted=f"labels from 0 to {width - 1}, numbered as in the run's data",
                   hint="the examples of these classes, or a new run on this data")  # fmt: skip

    def metrics(self, config: Config, predicted: Nest) -> list[keras.metrics.Metric]:
        """Return the confusion matrix, where there are slices and the model has classes.

        Raises:
            UsageError: the data has labels that the model has no output for.
        """
        self._check_labels(config, predicted)
        if self._by is not None:
            self._confusion = confusion_of(config.trainer.loss, predicted)
        return [] if self._confusion is None else [self._confusion]

    def arranged(self, inputs: Inputs, data: Data) -> Inputs:
        """Return the input of a pass over all examples, and over those of each slice."""
        if self._by is None or inputs.validation is None:
            return inputs
        if self._confusion is not None:
            self._classes = class_names(inputs.validation, self._confusion.classes)
        self._slices = find_slices(inputs.validation, inputs.evaluation_examples, self._by)
        return arranged(inputs, self._slices)

    def run(self, session: Session) -> None:
        """Evaluate; the chief writes what was found to the run that it is of.

        Raises:
            Interrupted: it was asked to stop; what was evaluated before is recorded.
            CheckpointError: one of the checkpoints is damaged.
        """
        process, strategy = session.process, session.strategy
        record = EvaluationRecorder(session, self._rundir, self._prefix, self._weights, self._by)
        paths: Iterator[Any] = itertools.repeat(None)
        if process.is_chief:
            paths = self._pending(session.config, record)
        process.begun()
        status, index = "FAILED", 0
        try:
            while True:
                path = next(paths, _END)
                here, over, stop = strategy.tasks.sum(
                    [isinstance(path, Path), path is _END, process.stop()]
                )
                if over:
                    break
                if stop:
                    raise errors.Interrupted("stopped; what was evaluated before is recorded")
                if not here:
                    time.sleep(LOOK)
                    continue
                restored = self._load(record, session, path) if isinstance(path, Path) else None
                restored = restore.of_chief(strategy, restored)
                if restored is not None:
                    session.steps.enter(restored.meta.get("trained_epoch", 1))
                    with self._explained():
                        model, chosen = session.model, self._weights
                        train_state.restore_chosen(model, strategy, restored, chosen)
                    record.start()
                    record.add(restored, self._evaluated(session, record, restored, index))
                index += 1
            strategy.tasks.barrier()  # ORDER: none leaves before the chief is done
            status = "FINISHED"
        except errors.Interrupted:
            status = "KILLED"
            raise
        finally:
            quietly(lambda: record.end(status))
        if record.damaged:
            raise CheckpointError("; ".join(record.damaged))

    def _pending(self, config: Config, record: EvaluationRecorder) -> Iterator[Path | None]:
        """Return the checkpoints to evaluate, with None where another one is waited for."""
        if self._follow:
            mode = config.objective_mode
            record.begin(0)
            return Followed(self._rundir, self._checkpoint or "all", mode).pending()
        paths = self._chosen(config)
        record.begin(len(paths))
        self._single = len(paths) == 1 and not str(self._checkpoint).isdecimal()
        self._compares = len(paths) == 1
        return iter(paths)

    def _chosen(self, config: Config) -> list[Path]:
        mode = config.objective_mode
        return checkpoint.choose(self._rundir.checkpoints, self._checkpoint, mode)

    def _load(self, record: EvaluationRecorder, session: Session, path: Path) -> Checkpoint | None:
        """Return the checkpoint to evaluate; None where that is done, or it is not there."""
        for _ in range(TRIES):
            try:
                is_recorded = record.is_known(read_manifest(path), quiet=self._follow)
                return None if is_recorded else checkpoint.load(path)
            except CheckpointError as error:
                if path.exists():
                    record.pass_over(str(error))
                    return None
            if not self._single:
                break
            path = self._chosen(session.config)[0]  # a newer one
        session.process.notice(f"checkpoint {path.name}: the run has removed it")
        return None

    def _evaluated(
        self, session: Session, record: EvaluationRecorder, restored: Checkpoint, index: int
    ) -> Evaluation:
        """Evaluate the weights that the model has, on all examples and then on each slice.

        Raises:
            Interrupted: any task was asked to stop.
        """
        cut, steps = self._slices, session.steps
        sizes = [session.schedule.validation_examples, *(cut.sizes if cut is not None else ())]
        parts: list[Sums] = []
        begin, before = time.perf_counter(), 0

        def report(done: Sums) -> None:
            record.progress(restored, index, before + done.examples, sum(sizes), begin)

        for size in sizes:
            sums = evaluate(
                session.strategy, steps,
                dataclasses.replace(session.schedule, validation_examples=size),
                session.process.is_chief, session.process.stop, report,
            )  # fmt: skip
            if sums is None:
                raise errors.Interrupted("stopped; what was evaluated before is recorded")
            parts.append(sums)
            before += size
        record.progress(restored, index, before, sum(sizes), begin, always=True)
        whole, *each = parts
        metrics = self._results(session, whole)
        made = Evaluation(metrics, whole.examples, time.perf_counter() - begin, before)
        if self._compares:
            splits = session.data.splits
            if self._both is not None:  # the baseline is of the run's own training
                splits = dataclasses.replace(splits, train=self._both[0].train)
            data = dataclasses.replace(session.data, splits=splits)
            compared = describe(dataclasses.replace(session, data=data), made.seconds)
            made.scores = compared.get("scores", {})
            made.baseline = compared.get("baseline", "")
        if cut is not None:
            made.slices = [
                {"value": name, "examples": size, "metrics": self._results(session, sums)}
                for name, size, sums in zip(cut.names, cut.sizes, each, strict=True)
            ]
            self._check(session, metrics, each)
        if self._confusion is not None:
            [*states] = steps.states(whole, self._confusion)
            if states and np.any(states[0]):
                made.confusion, made.classes = states[0].astype(np.int64), self._classes
        return made

    def _results(self, session: Session, sums: Sums) -> dict[str, float]:
        results = session.steps.results(sums, training=False)
        return {name: value for name, value in results.items() if name != CONFUSION}

    def _check(self, session: Session, whole: dict[str, float], each: list[Sums]) -> None:
        """Report metrics of which those of the slices are not together those of the whole."""
        total = Sums()
        for sums in each:
            total.add(sums)
        other = self._results(session, total)
        names = [
            name
            for name, value in whole.items()
            if not np.isclose(value, other.get(name, np.nan), TOLERANCE, TOLERANCE, equal_nan=True)
        ]
        if names:
            session.process.notice(
                f"{', '.join(names)}: that of the slices together is not that of all examples: it "
                "looks across the examples of a batch"
            )


#: Most classes that one is made of.
_MOST_CLASSES = 100
CONFUSION = "confusion_matrix"


class Confusion(keras.metrics.Metric):
    """How many examples of each class were taken for each other one.

    Its result, a number as that of any metric, is how many were counted.

    Args:
        classes: how many; the targets are numbers of classes, or one-hot.
        logits: whether the outputs are no probabilities, but what a sigmoid would make them of.
    """

    #: Known to be a sum over the examples.
    adds_up = True

    def __init__(self, classes: int, logits: bool = False):
        super().__init__(name=CONFUSION)
        self.classes = classes
        self._threshold = 0.0 if logits else 0.5
        self.matrix = self.add_weight(shape=(classes, classes), initializer="zeros", name="matrix")

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> None:
        """Count a batch: true classes are rows, predicted ones columns."""
        ops, columns = keras.ops, y_pred.shape[-1]
        if columns == 1:  # of the second class
            predicted = ops.cast(y_pred > self._threshold, "int32")
        else:
            predicted = ops.argmax(y_pred, axis=-1)
        one_hot = columns > 1 and len(y_true.shape) == len(y_pred.shape)
        if one_hot and y_true.shape[-1] == columns:
            true = ops.argmax(y_true, axis=-1)
        else:
            true = ops.cast(y_true, "int32")
        true, predicted = (
            ops.one_hot(ops.cast(ops.reshape(each, [-1]), "int32"), self.classes, dtype="float32")
            for each in (true, predicted)
        )
        self.matrix.assign(self.matrix + ops.matmul(ops.transpose(true), predicted))

    def result(self) -> Tensor:
        """Return how many examples were counted."""
        return keras.ops.sum(self.matrix)


def confusion_of(loss: object, predicted: Nest) -> Confusion | None:
    """Return the metric for a model that tells classes apart; None for any other.

    Args:
        loss: ``trainer.loss``: a crossentropy.
        predicted: what the model returns: one array, of a number for each class, or of one.
    """
    node = loss if isinstance(loss, dict) else {"_target_": loss}
    name, shape = node.get("_target_"), tuple(getattr(predicted, "shape", ()))
    of_classes = ("crossentropy", "bcewithlogits", "nllloss")
    if not isinstance(name, str) or not any(k in name.lower().replace("_", "") for k in of_classes):
        return None
    takes = inputs_of(losses.loss_of(loss))
    classes = shape[takes.axis if len(shape) > 2 else -1] if len(shape) > 1 else 0
    if not 0 < classes <= _MOST_CLASSES:
        return None
    made = Confusion(max(2, int(classes)), bool(takes.logits))
    return with_classes(made, LossInputs(axis=takes.axis))
