"""What a backend promises the rest of a task; no framework is imported here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from dtrain.files.fields import Json
from dtrain.task.aliases import Batch, Nest, Variable
from dtrain.task.backends.metric_sums import Sums

if TYPE_CHECKING:
    import keras
    import numpy as np

    from dtrain.data.sources import Source, Splits
    from dtrain.task.backends.host import Waiting
    from dtrain.task.data.inputs import Inputs
    from dtrain.task.model.optimizers import Update

#: Of what a model returned and of a whole batch, the columns by name: tensors ``[b, ...]``.
Finish = Callable[[Any, tuple[Any, ...]], dict[str, Any]]
#: Bytes that one collective of :meth:`Tasks.broadcast` sends: it cannot send any number at once.
BLOCK = 4 << 20


@dataclasses.dataclass(frozen=True)
class Abilities:
    """What a strategy can do.

    Attributes:
        several_optimizers: optimizers beside that of ``compile`` get the right gradients and state.
        plain_variables: a model may have variables of the framework's own beside those of Keras.
        retraces: steps can be traced anew in the middle of a run, when other weights are trained.
        sequential: a step begins when the one before has ended: a state may go from one to the
            next.
        exchanges: replicas reduce and gather in the middle of a step; else workers compute alone.
        reads_in_loop: a loop of steps may read examples that are in memory itself: there is one
            replica, on the CPU.
        short_updates: a weight and its slots are plain variables where an optimizer updates them.
        reads_together: variables are in parts over tasks, which read and write all at the same
            points; what they are set to is the chief's.
        predicts_alone: one of several tasks can predict while the others wait.
    """

    several_optimizers: bool = False
    plain_variables: bool = True
    retraces: bool = True
    sequential: bool = True
    exchanges: bool = True
    reads_in_loop: bool = False
    short_updates: bool = False
    reads_together: bool = False
    predicts_alone: bool = False


class Tasks:
    """The tasks that train together, as they agree on the host; this one is alone.

    Each task calls the same method at the same point. A backend of several tasks overrides
    :meth:`sum` and :meth:`_sum_bytes`.

    Attributes:
        rank: the number of this task; that of the chief is 0.
        size: how many there are.
    """

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size

    def give_up_after(self, seconds: float) -> None:
        """Count a task as lost where a collective has waited for it for so long."""

    def all_reduce(self, numbers: np.ndarray) -> np.ndarray:
        """Add an array up over the tasks; for a backend whose tasks are replicas."""
        return numbers

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Add numbers up over the tasks, in float64."""
        return list(numbers)

    def _sum_bytes(self, data: bytes) -> bytes:
        """Add bytes up over the tasks: each is zero in all tasks but one."""
        return data

    def gather(self, value: object) -> list[Any]:
        """Return the JSON values of all tasks, by rank."""
        if self.size == 1:
            return [value]
        own = json.dumps(value).encode()
        sizes = self.sum([float(len(own) * (rank == self.rank)) for rank in range(self.size)])
        ends = [sum(map(int, sizes[: rank + 1])) for rank in range(self.size)]
        end = ends[self.rank]
        data = self._sum_bytes(own.rjust(end, b"\0").ljust(ends[-1], b"\0"))
        return [json.loads(data[a:b]) for a, b in zip([0, *ends], ends, strict=False)]

    def broadcast(self, pieces: Iterable[bytes | memoryview], source: int = 0) -> Iterator[bytes]:
        """Send one task's bytes to the other tasks.

        Args:
            pieces: of that task; other tasks may pass anything.
            source: its rank.

        Returns:
            The bytes, in other pieces; nothing in that task, which has them.
        """
        if self.size == 1:
            return iter(())
        if self.rank != source:
            return self._receive()
        block = bytearray()
        for piece in pieces:
            for begin in range(0, len(piece), BLOCK):
                block += piece[begin : begin + BLOCK]
                if len(block) > BLOCK:
                    self._send(block[:BLOCK], more=True)
                    del block[:BLOCK]
        self._send(block, more=False)
        return iter(())

    def _send(self, block: bytearray, more: bool) -> None:
        self.sum([len(block), more])
        if block:
            self._sum_bytes(bytes(block))

    def _receive(self) -> Iterator[bytes]:
        more = 1.0
        while more:
            size, more = self.sum([0, 0])
            if size:
                yield self._sum_bytes(bytes(int(size)))

    def barrier(self) -> None:
        """Wait for all tasks; the last that a task does, when everything is saved."""


class Steps(Protocol):
    """Training and evaluation of one model: many steps in one call.

    Attributes:
        waiting: how long training steps wait for their input.
        evaluation_batch: how many examples a batch of an evaluation has.
    """

    waiting: Waiting
    evaluation_batch: int

    def unsaved(self) -> list[str]:
        """Return the names of variables that a step assigns and that no checkpoint has."""
        return []

    def log(self, names: Sequence[str]) -> None:
        """Let training steps compute norms (``trainer.log``); before the first of them."""

    @property
    def max_steps(self) -> int:
        """How many steps one call may have."""

    @property
    def spans_points(self) -> bool:
        """Whether a call may reach across steps of which the journal has points."""

    @property
    def evaluation_examples(self) -> int:
        """How many examples one evaluation step takes."""

    def train(self, steps: int, ahead: int = 0) -> Sums:
        """Run ``steps`` training steps in one call.

        Args:
            steps: how many.
            ahead: how many more may be begun before it returns; of use where steps overlap.

        Returns:
            The metric sums over exactly these steps and all replicas.
        """

    def drain(self) -> Sums:
        """Wait for steps that were begun and not returned; by default there are none."""
        return Sums()

    def evaluate(self, steps: int, rest: int) -> Sums:
        """Run ``steps`` full evaluation steps, and one more of ``rest`` examples if any."""

    def results(self, sums: Sums, training: bool = True) -> dict[str, float]:
        """Turn sums of training steps into values by name; or of evaluation steps."""

    def states(self, sums: Sums, metric: keras.metrics.Metric) -> list[np.ndarray]:
        """Return the states of a metric; none of one that the model does not have."""

    def enter(self, epoch: int) -> list[str]:
        """Train what is trained in an epoch, from 1.

        Returns:
            The paths of the weights that are frozen in it, where they are others than before.
        """

    def interval(self) -> dict[str, float]:
        """Return what else there is to report of the steps since the last such call."""
        return {}

    def summary(self) -> Json:
        """Return what else there is to report of the whole run, as JSON values."""
        return {}

    def restore(self, summary: Json) -> None:
        """Go on counting from a :meth:`summary`; of a run on another strategy it may be empty."""
        return


class Forward(Protocol):
    """The compiled function that predicts.

    Attributes:
        replicas: how many batches a call takes.
        batch: rows of a batch.
        specs: ``shape`` and ``dtype`` of a row of each column, once traced.
    """

    replicas: int
    batch: int
    specs: dict[str, Nest]

    @property
    def at_once(self) -> int:
        """How many calls may be under way."""

    def trace(self) -> None:
        """Trace the function; it can be called then.

        Raises:
            UsageError: model, rows and columns do not go together.
        """

    def __call__(self, rows: np.ndarray, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Predict rows of a batch for each replica.

        Args:
            rows: int64 ``[replicas, batch]``.
            numbers: of these batches, int64 ``[replicas]``: what is drawn depends on it.

        Returns:
            The columns, ``[replicas * batch, ...]``.
        """


class Backend(Protocol):
    """A model's variables, and what computes with them, under one strategy.

    A strategy that is a subclass has what is the same for most.

    Attributes:
        abilities: what the strategy can do.
        tasks: that train together.
        gradient_reduction: ``mean``, or ``sum`` where the losses of replicas are parts of that of
            the global batch.
    """

    abilities: Abilities = Abilities()
    tasks: Tasks
    gradient_reduction: str = "mean"

    @property
    def replicas(self) -> int:
        """How many replicas share each global batch."""

    @property
    def parts(self) -> int:
        """In how many parts the training step sees a global batch."""
        return self.replicas

    @property
    def arithmetic(self) -> Json:
        """What of the strategy the last bits of a prediction may depend on; JSON values."""
        return {}

    def scope(self) -> AbstractContextManager[object]:
        """Create model and metrics inside it."""
        return nullcontext()

    def optimizer_scope(self) -> AbstractContextManager[object]:
        """Create the optimizer and its slots inside it."""
        return nullcontext()

    def place(self, model: keras.Model) -> None:
        """Lay the model's variables out, where :meth:`scope` did not know enough to do it."""

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Let ``optimizer`` take replicas for one; called in :meth:`optimizer_scope`."""

    def trace_step(
        self, model: keras.Model, examples: Batch, creates: bool = False
    ) -> list[Update]:
        """Trace ``train_step`` and run nothing; return what optimizers would update.

        Args:
            model: compiled; inside a scope of this strategy.
            examples: as the input gives them.
            creates: the trace creates the variables of the model.
        """

    def read(self, variables: Mapping[str, Variable]) -> dict[str, np.ndarray]:
        """Copy variables to the host."""

    def write(self, variables: Mapping[str, Variable], arrays: Mapping[str, np.ndarray]) -> None:
        """Set each variable to the array of its name."""

    def whole(self, model: keras.Model) -> AbstractContextManager[object]:
        """Let the chief read inside, by itself, all variables; every task enters."""
        return nullcontext()

    def check_copies(self, model: keras.Model) -> None:
        """Refuse a model whose step has left the replicas with weights of their own.

        Raises:
            UsageError: naming the weight.
        """

    def notices(
        self, model: keras.Model, splits: Splits, fixed: int | None, batch: int | None, seed: int
    ) -> list[str | None]:
        """Try the model on some examples; say which of its numbers are not those of one device.

        Args:
            model: built and compiled.
            splits: have examples.
            fixed: how many examples a batch must have; None where any number will do.
            batch: examples of a training step; None where it is not trained.
            seed: of the experiment.
        """

    def steps(self, model: keras.Model, inputs: Inputs, jit_compile: bool) -> Steps:
        """Return the compiled functions that train and evaluate ``model`` on ``inputs``.

        Args:
            model: built under this strategy.
            inputs: what to read.
            jit_compile: compile each step by XLA.
        """

    def forward(self, model: keras.Model, source: Source, batch: int, finish: Finish) -> Forward:
        """Return the function that predicts.

        Args:
            model: built under this strategy, with the weights to use.
            source: has the rows.
            batch: rows of a batch.
            finish: makes columns.
        """

    def answer_locally(self, model: keras.Model) -> None:
        """Let ``predict`` and ``evaluate`` of a callback compute in this task alone."""
