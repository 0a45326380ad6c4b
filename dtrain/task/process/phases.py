"""What a task does before its first step, and how long each of it takes."""

from __future__ import annotations

import time


class Phases:
    """Seconds by phase, from when this was made; each phase begins where the one before ended.

    ``cluster``     devices are set up, and every task has joined
    ``data``        the dataset is loaded
    ``build``       the model is built, and a checkpoint restored
    ``steps``       the training step is tried, and the input pipeline made
    ``trace``       the call of many steps is traced, where that is apart from the first step
    ``first_step``  the first step has run

    Attributes:
        seconds: by name, in order.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.perf_counter()

    def end(self, phase: str) -> None:
        """End a phase; of one that ends twice the first time counts."""
        if phase not in self.seconds:
            now = time.perf_counter()
            self.seconds[phase] = round(now - self._at, 3)
            self._at = now
