"""A strategy whose tasks come to no end, without TensorFlow: one waits, the other computes."""

from __future__ import annotations

import signal
from typing import Any


class Endless:
    """Waits in the midst of its start, as a task that looks for the others does."""

    def __init__(self, **_: Any) -> None:
        self.serve()

    @staticmethod
    def serve(*_: Any) -> None:
        while True:
            signal.pause()


class Busy(Endless):
    """Computes."""

    @staticmethod
    def serve(*_: Any) -> None:
        while True:
            sum(range(100_000))


class Fails(Endless):
    """Waits; the task of another host than the chief's fails."""

    def __init__(self, task: Any, **_: Any) -> None:
        if task.name == "worker-0":
            raise RuntimeError("no memory on this host")
        self.serve()


def load(files: list[str]) -> None:
    """A dataset that is never read."""
