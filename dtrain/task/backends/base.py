"""What a backend promises the rest of a task; no framework is imported here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica.gradients import Part

#: Bytes that one collective of :meth:`Tasks.broadcast` sends: it cannot send any number at once.
BLOCK = 4 << 20


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

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Add numbers up over the tasks, in float64."""
        return list(numbers)

    def _sum_bytes(self, data: bytes) -> bytes:
        """Add bytes up over the tasks: each is zero in all tasks but one."""
        return data

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all tasks, by rank."""
        if self.size == 1:
            return [value]
        own = json.dumps(value).encode()
        sizes = self.sum([float(len(own) * (rank == self.rank)) for rank in range(self.size)])
        ends = [sum(map(int, sizes[: rank + 1])) for rank in range(self.size)]
        end = ends[self.rank]
        data = self._sum_bytes(own.rjust(end, b"\0").ljust(ends[-1], b"\0"))
        return [json.loads(data[a:b]) for a, b in zip([0, *ends], ends, strict=False)]

    def broadcast(self, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
        """Send the chief's bytes to the other tasks.

        Args:
            pieces: of the chief; other tasks may pass anything.

        Returns:
            The bytes, in other pieces; nothing in the chief, which has them.
        """
        if self.size == 1:
            return iter(())
        if self.rank > 0:
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
    tasks: Tasks

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

    def optimizer_scope(self) -> AbstractContextManager[Any]:
        """Create the optimizer and its slots inside it."""

    def read(self, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Copy variables to the host."""

    def write(self, variables: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Set each variable to the array of its name."""

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Let ``optimizer`` take replicas for one."""

    def run(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Run ``step`` once on every replica, each with its part of ``data``."""

    def reduce_local(self, value: Any) -> tf.Tensor:
        """Add a value of each replica up over the replicas of this task."""

    def all_reduce(self, vector: tf.Tensor) -> tf.Tensor:
        """Add a vector up over the tasks; each of them must call it at the same point."""

    def reset(self, metrics: list[keras.metrics.Metric]) -> None:
        """Let metrics begin again, on every replica of this task."""
