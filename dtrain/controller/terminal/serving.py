"""What a server does now: one line of a terminal, and sentences about what has changed."""

from __future__ import annotations

import sys
import time

from dtrain.controller.terminal.activity import Activity
from dtrain.errors import printable
from dtrain.serving.server import Serving


class Status:
    """Shows how many requests there are, where standard error is a terminal."""

    def __init__(self) -> None:
        self.activity = Activity()
        self._live = sys.stderr.isatty()
        self._last = (0.0, 0, 0.0)  # when, requests until then, and their seconds

    def show(self, serving: Serving) -> None:
        """Show the last second."""
        metrics, model = serving.metrics, serving.versions.current
        if not self._live or model is None:
            return
        now = (time.monotonic(), metrics.requests, metrics.seconds)
        passed, count, seconds = (b - a for a, b in zip(self._last, now, strict=True))
        speed = f"{count / passed:,.0f} requests/s" if self._last[0] else "no request yet"
        mean = f", {1000 * seconds / count:.1f} ms" if count and self._last[0] else ""
        self._last = now
        self.activity.begin(f"version {model.version}: {speed}{mean}, {model.waiting} rows wait")

    def say(self, text: str) -> None:
        """Print a sentence, with the time; by any thread."""
        self.activity.end()
        line = printable(f"{time.strftime('%H:%M:%S')} {text}")
        print(line, file=sys.stderr, flush=True)
