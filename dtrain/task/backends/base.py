"""What steps, optimizers and rehearsals ask of a strategy: no more than this.

A strategy (:class:`dtrain.task.backends.tensorflow.base.Strategy`) has it; a test may have a
smaller one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import keras
import tensorflow as tf

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replica.gradients import Part
    from dtrain.task.model.optimizers import Update


class Replicas(Protocol):
    """The replicas that share each global batch, and what they add up."""

    several_optimizers: bool
    gradient_reduction: str
    in_turn: bool
    dense_lookups: bool
    retraces: bool
    has_float64: bool
    sync_every: int
    engine: Any

    @property
    def replicas(self) -> int:
        """How many replicas share each global batch."""

    @property
    def batches(self) -> int:
        """How many batches of their own a global batch is divided into."""

    @property
    def replica(self) -> Any:
        """The number of the replica that is traced, among those of the job."""

    def averaged(self, part: Part, summed: bool) -> AbstractContextManager[Any]:
        """Let what is traced inside, in a replica, get gradients of the global batch."""

    def average(self, model: keras.Model, done: tf.Tensor, steps: tf.Tensor) -> None:
        """Average the variables of ``model`` over the tasks where that is due."""

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Let ``optimizer`` take replicas for one."""

    def run(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Run ``step`` once on every replica, each with its part of ``data``."""

    def trace_step(
        self, model: keras.Model, examples: tuple[Any, ...], creates: bool = False
    ) -> list[Update]:
        """Trace ``train_step`` and run nothing; return what optimizers would update."""

    def reduce_local(self, value: Any) -> tf.Tensor:
        """Add a value of each replica up over the replicas of this task."""

    def all_reduce(self, vector: tf.Tensor) -> tf.Tensor:
        """Add a vector up over the tasks; each of them must call it at the same point."""

    def all_reduce_numbers(self, numbers: list[float]) -> list[float]:
        """Add numbers up over the tasks, on the host; each must call it at the same point."""

    def reset(self, metrics: list[keras.metrics.Metric]) -> None:
        """Let metrics begin again, on every replica of this task."""
