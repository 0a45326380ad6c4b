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
