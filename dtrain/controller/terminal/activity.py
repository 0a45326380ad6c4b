"""What a command is doing now: one line of standard error, for as long as it takes."""

from __future__ import annotations

import sys
import time

from dtrain.errors import printable

#: Seconds after which a line says what is being done, where the output is no terminal.
_LONG = 3.0


class Activity:
    """Shows what is being done: at once on a terminal, elsewhere once it takes long."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._text: str | None = None
        self._began = 0.0

    def begin(self, text: str) -> None:
        """Show that something is begun.

        Args:
            text: a clause, such as ``reading the targets``.
        """
        self._text, self._began = text, time.monotonic()
        if self._live:
            self._draw(f"{text} ...")

    def continues(self) -> None:
        """Show how long it takes; to be called every second or so."""
        if self._text is None:
            return
        seconds = time.monotonic() - self._began
        if self._live:
            self._draw(f"{self._text} ... {seconds:.0f} s")
        elif seconds >= _LONG:
            print(printable(f"{self._text} ..."), file=sys.stderr, flush=True)
            self._text = None

    def end(self) -> None:
        """Take the line away, before something else is printed."""
        if self._live and self._text is not None:
            self._draw("")
        self._text = None

    def _draw(self, text: str) -> None:
        # To the beginning of the line, and what stands behind it away.
        print(f"\r{printable(text)}\x1b[K", end="", file=sys.stderr, flush=True)
