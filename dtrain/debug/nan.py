"""``debug=nan``: the training as it is; the step after which something is not finite is repeated,
on one device, with a check of every operation.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from dtrain.config.schema import Config
from dtrain.data import nest
from dtrain.data.streams import Stream
from dtrain.debug import findings
from dtrain.errors import CheckFailed
from dtrain.run.checkpoint import Checkpoint
from dtrain.task.backends.base import Backend
from dtrain.task.backends.runtime import NotFinite, runtime
from dtrain.task.model import train_state
from dtrain.task.train import restore
from dtrain.task.train.session import Process, Session
from dtrain.task.train.train import Train

#: Examples of a step that are tried one by one, at most, and named in a sentence.
TRIED, NAMED = 256, 8

_FORWARD = (
    "look at this line: a division, a logarithm, a root or an exponential, or inputs that are too "
    "large"
)
_BACKWARD = (
    "look at the derivative: that of a root or a norm at 0 is infinite, and so is one of a value "
    "that a where leaves out"
)
_MASK = (
    "; where minus infinity is meant, as in a mask, a large finite number (-1e9) lets the check "
    "look past it"
)


class Nan(Train):
    """Trains until a loss or a weight is not finite, and names where in the step that began.

    Args:
        steps: after which it ends; None: those of the training.
    """

    def __init__(self, steps: int | None = None):
        self._steps = steps

    def assemble(
        self, config: Config, strategy: Backend, process: Process, past: Checkpoint | None
    ) -> Session:
        """Return the session of a training, whose loss may be what it is."""
        session: Session = super().assemble(config, strategy, process, past)
        # What is not finite is found here, and named.
        schedule = dataclasses.replace(session.schedule, terminate_on_nan=False)
        return dataclasses.replace(session, schedule=schedule)

    def run(self, session: Session) -> None:
        """Train, with a look at the loss and the weights after each step.

        Raises:
            CheckFailed: a value is not finite, naming it.
            Interrupted: it was asked to stop.
        """
        watch = Watch(session, self._steps)
        super().run(dataclasses.replace(session, callbacks=(*session.callbacks, watch)))
        summary = f"all losses and weights are finite in {watch.steps:,} steps"
        findings.write(session.process, summary, steps=watch.steps)


class Watch(keras.callbacks.Callback):
    """Looks at the loss and the weights after each step, together with the other tasks.

    Args:
        session: of the training.
        steps: after which the training ends.
    """

    def __init__(self, session: Session, steps: int | None):
        super().__init__()
        self._session, self._steps = session, steps
        past = session.past  # of a run that is forked: its training continues
        self._begun = self._done = past.step if past and restore.has_position(past) else 0
        self._before: dict[str, np.ndarray] = {}

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return self._done - self._begun

    def get_state(self) -> None:
        """Return nothing: a check is not resumed."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Look at the weights that the training begins with."""
        self._judge(lost=False)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Look at what the step has left."""
        self._done += 1
        loss = (logs or {}).get("loss")
        self._judge(lost=loss is not None and not math.isfinite(loss))
        if self._steps is not None and self.steps >= self._steps:
            self.model.stop_training = True

    def _judge(self, lost: bool) -> None:
        """Keep the state for the next step, or say what is wrong with it.

        Raises:
            CheckFailed: something is not finite in it.
        """
        strategy = self._session.strategy
        state = train_state.snapshot(self.model, strategy)
        bad = [name for name, value in state.items() if not _is_finite(value)]
        if strategy.tasks.sum([lost or bool(bad)])[0]:
            self._fail(bad[0] if bad else None)
        self._before = state

    def _fail(self, weight: str | None) -> None:
        """Repeat the step from where it began, and name what is not finite in it.

        Args:
            weight: name of a variable that is not finite after it.

        Raises:
            CheckFailed: always.
        """
        finding: dict[str, Any] = {"step": self._done, "kind": "weight", "path": weight}
        message, hint = f"{weight} is not finite before the first step", "begin with other weights"
        if self._before:
            train_state.restore(self.model, self._session.strategy, self._before)
            message, hint, more = _Repeated(self._session, self._done).finding(weight)
            finding |= more
        findings.write(self._session.process, None, **finding)
        self._session.strategy.tasks.barrier()  # ORDER: none leaves before all know it
        raise CheckFailed(message, hint)


class _Repeated:
    """A step of the training, repeated on one device with its state of before.

    Args:
        session: of the training.
        number: of the step, from 1.
    """

    def __init__(self, session: Session, number: int):
        inputs = dataclasses.replace(session.inputs, start_step=number - 1)
        self._data, self._number = next(runtime().batches(inputs)), number
        self._parts = session.strategy.parts
        self._checked = runtime().checked(session.model)
        self._rows = inputs.global_batch
        self._indices: list[int] | None = None
        if not isinstance(inputs.train, Stream):
            steps = np.array([number - 1])
            self._indices = inputs.rows(steps, 1, slice(0, 1))[1][0].tolist()
        self._all = range(self._rows)

    def finding(self, weight: str | None) -> tuple[str, str, dict[str, Any]]:
        """Return what is not finite: as a clause, what to look at, and as JSON values."""
        for name, part in zip(("inputs", "targets", "sample weights"), self._data, strict=False):
            leaves = [np.asarray(leaf) for leaf in nest.leaves(part) if leaf is not None]
            if bad := [
                row for row in self._all if not all(_is_finite(leaf[row]) for leaf in leaves)
            ]:
                message = f"the {name} of the batch are not finite"
                hint = "python -m dtrain data shows the data, and which examples are not finite"
                return self._described(message, bad, hint, kind="data", path=name)
        finding, rows = self._operation()
        if finding is None:
            message = f"{weight or 'the loss'} is not finite, and what the step computes is"
            hint = (
                "look at the optimizer (a smaller optimizer.learning_rate), or at what assigns it"
                if weight
                else "look at what the step returns as its loss"
            )
            return self._described(message, self._all, hint, kind="weight", path=weight)
        where = f"layer {finding.layer}" if finding.layer else "the step, outside of layers,"
        what = "passes on a gradient" if finding.backward else "computes a value"
        values = f", {finding.values}" if finding.values else ""
        line = f" in {finding.line}" if finding.line else ""
        message = f"{where} {what} that is not finite ({finding.operation}{values}){line}"
        hint = _BACKWARD if finding.backward else _FORWARD
        if not finding.backward and finding.values in ("-Inf", ""):
            hint += _MASK
        kind = "gradient" if finding.backward else "value"
        path = finding.layer.partition(" (")[0] or None
        return self._described(message, rows, hint, kind=kind, path=path, line=finding.line or None)

    def _operation(self) -> tuple[NotFinite | None, Any]:
        """Return what the checks find, and in which rows of the batch.

        Where the whole batch is finite, each replica's part is tried alone.
        """
        size = self._rows // self._parts
        for first, end in [(0, self._rows), *((r, r + size) for r in range(0, self._rows, size))]:
            if (finding := self._checked.first(self._cut(first, end))) is not None:
                return finding, self._guilty(range(first, end))
        return None, self._all

    def _guilty(self, rows: range) -> Any:
        """Return the rows that fail alone, where some do and some do not."""
        if len(rows) > TRIED:
            return rows
        try:
            bad = [row for row in rows if self._checked.first(self._cut(row, row + 1))]
        except Exception:  # of a model for whole batches alone
            return rows
        return bad or rows

    def _cut(self, first: int, end: int) -> Any:
        with runtime().on_cpu():
            return tuple(nest.mapped(lambda leaf: leaf[first:end], part) for part in self._data)

    def _described(
        self, message: str, rows: Any, hint: str, **facts: Any
    ) -> tuple[str, str, dict[str, Any]]:
        if self._indices is None:
            examples, numbers = "", None
        else:
            numbers = [self._indices[row] for row in rows]
            shown = ", ".join(map(str, numbers[:NAMED]))
            more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
            examples = f", of {'example' if len(numbers) == 1 else 'examples'} {shown}{more}"
        return f"{message} at step {self._number}{examples}", hint, {**facts, "indices": numbers}


def _is_finite(value: np.ndarray) -> bool:
    # NumPy knows no bfloat16; a float64 beyond float32 is finite.
    value = np.asarray(value)
    if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(value.dtype)):
        return True
    return bool(np.isfinite(value.astype(np.float64)).all())
