"""The state of the step that a thread traces: one frozen record, in a thread-local.

Functions of Keras and of the framework that dtrain wraps look here for what to do; outside of
:func:`tracing` they do what they always do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

from dtrain.task.aliases import Foreign, Function, Tensor, Tensors


@dataclasses.dataclass(frozen=True)
class Tracing:
    """What is traced now.

    Attributes:
        step: the training step of one of several replicas, whose tapes average gradients.
        targets: filled in with what tapes are asked for; they give zeros.
        note: called with what tapes are asked for, and what they give.
        inside: whether a gradient is being computed.
        draws: the part of the global batch whose random numbers are drawn.
        record: filled in with what is drawn.
        evaluation: the batch of an evaluation, which has random seeds of its own.
        outside: state of the generators of Python and NumPy outside of the step.
        rows: how many examples the batch has, where trackers of losses weigh it.
        results: filled in with the results that metrics give.
        norms: called with the gradients that optimizers get, and their loss scale.
        divisors: filled in with losses, and what each was divided by.
        applied: filled in with the gradients that optimizers get which apply nothing.
        layers: names of the layers that are being called, the outermost first.
    """

    step: Any = None
    targets: Tensors | None = None
    note: Function | None = None
    inside: bool = False
    draws: Any = None
    record: Any = None
    evaluation: Any = None
    outside: Any = None
    rows: Any = None
    results: Any = None
    norms: Any = None
    divisors: list[tuple[Tensor, Tensor]] | None = None
    applied: Tensors | None = None
    layers: list[str] | None = None

    @property
    def parts(self) -> int:
        """Of how many parts a loss of the step is the sum; 1 where it is a mean."""
        return self.step.replicas if self.step is not None and self.step.summed else 1


class _Local(threading.local):
    """MirroredStrategy traces each replica in a thread of its own, and they take turns."""

    now = Tracing()


_local = _Local()


def now() -> Tracing:
    """Return what is traced in this thread."""
    return _local.now


@contextlib.contextmanager
def tracing(**changed: Foreign) -> Iterator[None]:
    """Let what is traced inside, in this thread, find other values; the rest stays as it is."""
    before = _local.now
    _local.now = dataclasses.replace(before, **changed)
    try:
        yield
    finally:
        _local.now = before
