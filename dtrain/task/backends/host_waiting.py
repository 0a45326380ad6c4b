"""How long the host waits for its input, where it reads it between the steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from dtrain.run.times import INPUT


class Waiting:
    """Adds up the seconds that the host waits for its input."""

    def __init__(self) -> None:
        self.measured = True
        self.traced: Callable[[], None] = lambda: None
        self._seconds = 0.0

    def on(self, read: Callable[[], Any]) -> Any:
        """Return what ``read`` returns, and add how long that took."""
        begin = time.perf_counter()
        value = read()
        self._seconds += time.perf_counter() - begin
        return value

    def pop(self) -> Mapping[str, float]:
        """Return the seconds since the last such call; nothing where they are not measured."""
        seconds, self._seconds = self._seconds, 0.0
        return {INPUT: seconds} if self.measured else {}
