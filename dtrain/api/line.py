"""Progress where the caller sees it: one line that is redrawn, in a notebook and on a terminal.

In a notebook that is an output of its own, which is updated. Where a notebook runs without a front
end, a line that is drawn again by a carriage return would stay in its file as often as it is drawn.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from dtrain.errors import printable

#: Lines by which the command reports progress where it has no terminal.
_REPORT = re.compile(r"\w+ \d+/\d+  \w+ \d+/\d+  ")


class Line:
    """Prints messages, and redraws a line: below them on a terminal, in its place in a notebook.

    Args:
        show: without, nothing is printed.
    """

    def __init__(self, show: bool = True):
        self._show, self._shown = show, ""
        stream = sys.stdout
        self._notebook = type(stream).__module__.startswith("ipykernel")
        self._live = stream is not None and (self._notebook or stream.isatty())
        self._output: Any = None  # of the notebook

    def message(self, text: str) -> None:
        """Print a line that stays; progress of the command's own is left out where ours is."""
        if not self._live or not _REPORT.match(text):
            if not self._notebook:
                self._clear()
            self._print(f"{printable(text)}\n")

    def update(self, report: dict[str, Any] | None) -> None:
        """Draw what the task last wrote to ``progress.json``."""
        text = printable(_line(report)) if report and self._live else ""
        if text and text != self._shown:
            self._draw(text)
            self._shown = text

    def close(self) -> None:
        """Leave the next line free."""
        self._clear()

    def _clear(self) -> None:
        if self._shown:
            self._draw("")
            self._shown = ""

    def _draw(self, text: str) -> None:
        if not self._notebook:
            self._print("\r" + text.ljust(len(self._shown)) + ("" if text else "\r"))
        elif self._show:
            self._output = _displayed(text, self._output)

    def _print(self, text: str) -> None:
        if self._show and sys.stdout is not None:
            print(text, end="", flush=True)


def _displayed(text: str, output: Any) -> Any:
    """Show a text in an output of the notebook; return it, to be shown another one."""
    from IPython.display import display  # which is there, since its kernel is

    data = {"text/plain": text}
    if output is None:
        return display(data, raw=True, display_id=True)
    output.update(data, raw=True)
    return output


def _line(report: dict[str, Any]) -> str:
    try:
        first, second = report.get("units", ("epoch", "step"))
        parts = [
            f"{first} {report['epoch']}/{report['epochs']}",
            f"{second} {report['step']}/{report['total_steps']}",
            *([f"loss {report['loss']:.4g}"] if report.get("loss") is not None else []),
            f"{report['examples_per_second']:,.0f} examples/s",
            *(f"{n} {v:.4g}" for n, v in report["metrics"].items() if n.startswith("val_") and v),
        ]
    except (KeyError, TypeError, ValueError):  # of another kind of task, or half of one
        return ""
    return "  ".join(parts)
