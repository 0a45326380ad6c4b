"""What is going on: redrawn on a terminal, plain lines in a log file."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

import dtrain
from dtrain.errors import printable
from dtrain.files.fields import Json
from dtrain.files.reading import Tail
from dtrain.host import answer
from dtrain.run.outcome import without_chatter
from dtrain.run.progress import EpochLines, clock, counted, measured, moving_line, time_left

#: Seconds between two lines where the output is no terminal.
LINE_SECONDS = 10.0
#: Bytes of a log's line that are shown as one.
PIECE = 1 << 20


class View(Protocol):
    """What a job reports while it runs."""

    def message(self, text: str) -> None:
        """Show one line that the user must see, whatever else happens."""

    def detail(self, text: str) -> None:
        """Show one line that is of interest where there is this one job."""

    def event(self, event: Json) -> None:
        """Take in a new event of the journal."""

    def update(self, report: Json | None) -> None:
        """Show what the task last wrote to ``progress.json``."""

    def close(self) -> None:
        """No task runs any more, and none will; what is left is bookkeeping."""


def plain_console() -> Console:
    """Return a console at standard error that breaks no lines and colours no numbers."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


class Display:
    """Shows a line for each epoch, and below them where the training is and the time left.

    Args:
        console: where to; standard error if None.
        shows: ``bar``: both, the latter on a terminal as one line that moves; ``epochs``: the
            former alone; ``none``.
    """

    def __init__(self, console: Console | None = None, shows: str = "bar"):
        self._console = console or plain_console()
        self._shows = shows
        self._quiet = answer.is_quiet()  # as long as tasks run
        self._live: Live | None = None
        self._opened = self._line_at = time.monotonic()  # and when a line was printed last
        self._first: Json | None = None  # report
        self._line_epoch = 0
        self._shown: Json = {}
        self._epochs = EpochLines()
        if self._console.is_terminal and shows == "bar" and not self._quiet:
            self._live = Live(
                console=self._console, get_renderable=self._moving, refresh_per_second=4,
                transient=True,
            )  # fmt: skip
            self._live.start()

    def message(self, text: str) -> None:
        """Print one line that stays."""
        self._console.print(printable(text), markup=False, emoji=False)  # ``:ok:`` is no emoji

    def detail(self, text: str) -> None:
        """Print one line: of a single job everything is of interest."""
        if not self._quiet:
            self.message(text)

    def event(self, event: Json) -> None:
        """Print a notice, and the line of an epoch."""
        if event["event"] == "notice":
            self.detail(event.get("message", ""))
        elif event["event"] in ("start", "objective"):
            self._epochs.objective = event.get("objective")
        elif event["event"] == "epoch" and self._shows != "none":
            width = self._console.width if self._console.is_terminal else None
            self.detail(self._epochs.line(event, width))
            self._line_at = time.monotonic()

    def update(self, report: Json | None) -> None:
        """Show what the task last wrote to ``progress.json``."""
        if not report or report == self._shown:
            return
        if self._first is None or report.get("units") != self._shown.get("units"):
            self._first = report  # of what it counts now
            self._line_at = time.monotonic()
        self._shown = report
        if self._live is None and self._shows == "bar" and not answer.is_drawn():
            self._print_progress(report, time_left(self._first, report))

    def _print_progress(self, report: Json, left: str) -> None:
        """Print a line where an epoch takes long; of what has no lines of epochs, for each."""
        now = time.monotonic()
        due = now - self._line_at >= LINE_SECONDS
        if "units" in report:
            last = report["step"] == report["total_steps"]
            due = due or last or report["epoch"] != self._line_epoch
        if due:
            self._line_at, self._line_epoch = now, report["epoch"]
            self.detail(f"{counted(report)}  {measured(report)}  {left} left")

    def _moving(self) -> Text:
        text = f"starting  {clock(time.monotonic() - self._opened)}"
        if self._first is not None and self._shown:
            left = time_left(self._first, self._shown)
            text = moving_line(self._shown, left, self._console.width)
        return Text(printable(text), no_wrap=True, overflow="crop")

    def close(self) -> None:
        """Take the moving line away; what is printed from now on is the end."""
        self._quiet = False
        if self._live is not None:
            self._live.stop()


class Log:
    """Reads the lines that are added to a log, without TensorFlow's own chatter.

    Of a traceback the frames of the user's own code are left.

    Args:
        path: the file; it need not exist yet.
    """

    def __init__(self, path: Path):
        self._tail, self._frames = Tail(path, PIECE), Frames()

    def skip(self) -> None:
        """Go to the end: what is there already is not reported."""
        self._tail.skip()

    def new(self, reported: str | None = None) -> Iterator[str]:
        """Yield the lines completed since the last call; one of megabytes comes in pieces.

        Args:
            reported: the sentence of an error that is reported elsewhere; its line is left out.

        Raises:
            DamagedFile: it is no regular file.
            OSError: it cannot be read.
        """
        for piece in self._tail.pieces():
            for line in self._frames.kept(without_chatter(piece.decode(errors="replace"))):
                if reported is None or line.partition(": ")[2] != reported:
                    yield line


_TRACEBACK = "Traceback (most recent call last):"
#: Files of dtrain's, of what it calls the user's code through, and of Python itself.
_OTHERS = re.compile(
    rf'  File "({re.escape(os.path.dirname(dtrain.__file__))}/'
    r"|.*/(site|dist)-packages/(dtrain|keras|tensorflow|numpy|hydra|omegaconf)/"
    r"|.*/lib/python3\.\d+/(?!(site|dist)-packages/)|<frozen )"
)


class Frames:
    """Leaves frames out of tracebacks that come line by line."""

    def __init__(self) -> None:
        self._inside = self._headed = self._leaves = False

    def kept(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines without those of other frames; a traceback of none is its last line."""
        for line in lines:
            if line == _TRACEBACK:
                self._inside, self._headed, self._leaves = True, False, False
                continue
            if self._inside:
                if line.startswith('  File "'):
                    self._leaves = _OTHERS.match(line) is not None
                elif not line.startswith("  "):
                    self._inside = False
                if self._inside and self._leaves:
                    continue
                if self._inside and not self._headed:
                    self._headed = True
                    yield _TRACEBACK
            yield line


#: Seconds after which a line says what is being done, where the output is no terminal.
_LONG = 3.0


class Activity:
    """Shows what is being done: at once on a terminal, elsewhere once it takes long."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._text: str | None = None
        self._began = 0.0

    def __enter__(self) -> Activity:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

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
