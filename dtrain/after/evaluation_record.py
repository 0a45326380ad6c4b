"""What is recorded of an evaluation, in its own folder and in that of the run that it is of."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.files.writing import csv_text
from dtrain.run import checkpoint, evaluations
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.folder import RunDir, write_text
from dtrain.task.data import data_identity
from dtrain.task.train import tensorboard
from dtrain.task.train.recorder import Progress
from dtrain.task.train.session import Session


@dataclasses.dataclass
class Evaluation:
    """What an evaluation has found.

    Attributes:
        metrics: by name, of all examples.
        examples: how many these are.
        seconds: that it took.
        computed: examples that were computed, those of the slices counted again.
        slices: of each its ``value``, ``examples`` and ``metrics``.
        confusion: int64 ``[c, c]``: how many of each class were taken for each other one.
        classes: their names.
        scores: with intervals and those of a baseline, as a report has them.
        baseline: what that predicts.
    """

    metrics: dict[str, float]
    examples: int
    seconds: float
    computed: int
    slices: list[Json] = dataclasses.field(default_factory=list)
    confusion: np.ndarray | None = None
    classes: list[str] = dataclasses.field(default_factory=list)
    scores: Json = dataclasses.field(default_factory=dict)
    baseline: str = ""


class EvaluationRecorder:
    """What is recorded of one command; of a task that is not the chief, nothing.

    Args:
        session: of the task.
        rundir: the run whose checkpoints are evaluated.
        prefix, weights, by: as of :class:`dtrain.after.evaluate.Evaluate`.

    Attributes:
        damaged: what is wrong with checkpoints that were passed over.
    """

    def __init__(self, session: Session, rundir: RunDir, prefix: str, weights: str, by: str | None):
        self._session = session
        self._rundir = rundir
        self._prefix = prefix
        self._by = by
        self._journal = session.process.journal
        self._folder = session.process.rundir
        self._count = 0
        self._key: Json = {
            "weights": weights,
            "data": data_identity.evaluated(session.config, session.data.identity),
            "examples": session.schedule.validation_examples,
            "declared": data_identity.declared(session.config),
        }
        self._known: list[Json] = []
        self._computed, self._seconds = 0, 0.0
        self._metrics: dict[str, float] = {}
        self._progress = Progress(self._folder.progress)
        self._started = False
        self.damaged: list[str] = []

    def begin(self, count: int) -> None:
        """Write down what is about to be done.

        Args:
            count: of the checkpoints.

        Raises:
            UsageError: the prefix stands for other data in this run.
        """
        if self._journal is None:
            return
        self._count = count
        self._known = evaluations.read(self._rundir)
        used = [each for each in self._known if each["prefix"] == self._prefix]
        stands_for = ("data", "weights", "examples")
        if any(each[name] != self._key[name] for each in used for name in stands_for):
            refuse("prefix", "stands for other examples, or weights, in the run's "
                   f"{self._rundir.evaluated.name}", self._prefix, accepted="another name",
                   typed=f"prefix={self._prefix}_2")  # fmt: skip

    def start(self) -> None:
        """Write down that the first evaluation is about to begin."""
        if self._journal is None or self._started:
            return
        self._started = True
        session = self._session
        self._journal.write(
            "start", step=0, replicas=session.strategy.replicas,
            validation_batch_size=session.inputs.evaluation_batch,
            validation_examples=session.schedule.validation_examples,
            parameters=session.model.count_params(),
        )  # fmt: skip

    def is_known(self, manifest: Json, quiet: bool) -> bool:
        """Say whether the checkpoint of a manifest was evaluated already, and report it.

        Args:
            manifest: of the checkpoint.
            quiet: nothing is reported of a point that has the same prefix.
        """
        candidates = [
            each for each in self._known if self._by is None or each.get("by") == self._by
        ]
        candidates.sort(key=lambda each: each["prefix"] == self._prefix)  # the last one counts
        past = evaluations.find(candidates, {**self._key, "digest": manifest.get("digest")})
        if past is None or self._journal is None:
            return False
        if quiet and past["prefix"] == self._prefix:
            return True
        fields = {name: value for name, value in past.items() if name not in ("event", "time")}
        if past["prefix"] != self._prefix:
            fields["prefix"] = self._prefix
            self._keep(fields)
        self._journal.write(evaluations.EVENT, **fields, already=True)
        self._session.process.notice(
            f"checkpoint {past['step']} was evaluated already on this data "
            f"({past['prefix']} in {self._rundir.evaluated.name}): it is not done again"
        )
        self._metrics = past["metrics"]
        return True

    def pass_over(self, problem: str) -> None:
        """Take note of a damaged checkpoint."""
        self.damaged.append(problem)
        self._session.process.notice(f"passed over a checkpoint: {problem}"[:4000])

    def add(self, restored: Checkpoint, made: Evaluation) -> None:
        """Record what was found of a checkpoint, in the run first."""
        if self._journal is None:
            return
        session, step = self._session, restored.step
        self._computed += made.computed
        self._seconds += made.seconds
        self._metrics = made.metrics
        fields: Json = {
            "step": step,
            "digest": checkpoint.digest(restored.arrays),
            **self._key,
            "prefix": self._prefix,
            "metrics": made.metrics,
            "strategy": session.config.strategy.name,
            "replicas": session.strategy.replicas,
            "folder": self._folder.path.name,
        }
        if made.scores:
            fields |= {"scores": made.scores, "baseline": made.baseline}
        if self._by is not None:
            fields |= {"by": self._by, "slices": made.slices}
            head = ["value", "examples", *made.metrics]
            rows = [
                [each["value"], each["examples"], *each["metrics"].values()] for each in made.slices
            ]
            _write(self._folder.path / f"slices_{step}.csv", [head, *rows])
        if made.confusion is not None:
            fields["confusion"] = f"confusion_{step}.csv"
            rows = [[n, *row] for n, row in zip(made.classes, made.confusion.tolist(), strict=True)]
            _write(self._folder.path / fields["confusion"], [["", *made.classes], *rows])
        self._keep(fields)
        self._journal.write(evaluations.EVENT, **fields)

    def _keep(self, fields: Json) -> None:
        """Record an evaluation with the run."""
        evaluations.append(self._rundir, **fields)
        tensorboard.write_evaluations(self._rundir.tensorboard, [fields])

    def progress(
        self, restored: Checkpoint, index: int, done: int, examples: int, begin: float,
        always: bool = False,
    ) -> None:  # fmt: skip
        """Say how far the command is, unless that was said just now.

        Args:
            restored: what is evaluated.
            index: of it among all.
            done: examples that were computed.
            examples: of how many.
            begin: when this one was begun (``time.perf_counter``).
            always: also if it was said just now.
        """
        if self._journal is not None:
            batch, count = self._session.steps.evaluation_batch, max(self._count, index + 1)
            batches = -(-examples // batch)
            report = {
                "units": ["checkpoint", "batch"], "checkpoint": restored.step,
                "step": index * batches - (-done // batch), "total_steps": count * batches,
                "epoch": index + 1, "epochs": count,
                "examples_per_second": done / max(1e-6, time.perf_counter() - begin),
            }  # fmt: skip
            self._progress.write(report, always)

    def end(self, status: str) -> None:
        """Write the last event."""
        if self._journal is not None:
            speed = round(self._computed / self._seconds, 1) if self._seconds else None
            self._journal.write(
                "end", status=status, evaluated_examples=self._computed,
                examples_per_second=speed, metrics=self._metrics,
            )  # fmt: skip


def _write(path: Path, rows: Iterable[Iterable[object]]) -> None:
    write_text(path, csv_text(rows, "\r\n"))
