"""Runs a command of dtrain in a process of its own, and shows what it reports.

The command line itself does the work: its signals, its locks and Hydra's state are those of a
process, and a notebook's process keeps its own. It ends, saved, with the process that called it.

Progress is one line that is redrawn: in a notebook an output of its own, which is updated. Where a
notebook runs without a front end, a line that is drawn again by a carriage return would stay in its
file as often as it is drawn.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from dtrain import errors
from dtrain.api.objects import PLACES
from dtrain.api.source import placed
from dtrain.errors import DtrainError, Interrupted, TrainingError, UsageError, printable
from dtrain.files.fields import Json, Values
from dtrain.host import python_path
from dtrain.host.python_path import RESERVED
from dtrain.run import schemas
from dtrain.run.folder import RunDir

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

    def update(self, report: Json | None) -> None:
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


def _line(report: Json) -> str:
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


_ROOT = Path(__file__).resolve().parents[2]
#: Seconds between two looks at the progress, and for what is printed last to come.
_TURN, _LAST = 0.25, 5.0
#: Variables of a notebook that say its output is a terminal, which the command's is not.
_OF_TERMINALS = ("FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@dataclasses.dataclass(frozen=True)
class Done:
    """How a command ended.

    Attributes:
        code: its exit code.
        lines: that it printed.
        stopped: it was asked to stop from here (Ctrl-C, "Interrupt kernel").
    """

    code: int
    lines: list[str]
    stopped: bool

    def after(self, head: str) -> str | None:
        """Return what stands behind ``head`` in the last line that begins with it."""
        found = [line[len(head) :] for line in self.lines if line.startswith(head)]
        return found[-1].strip() if found else None

    def raised(self) -> DtrainError:
        """Return the exception of a command that did not end well, with its own sentence."""
        text = self._error()
        if self.code == errors.USAGE:
            return _made(UsageError, text, key=re.split(r"[=:]", text)[0])
        if self.code == errors.INTERRUPTED or self.stopped:
            return _made(Interrupted, text or "stopped")
        text = text or f"the command ended with exit code {self.code}, and said nothing"
        return _made(TrainingError, text)

    def _error(self) -> str:
        at = [index for index, line in enumerate(self.lines) if line.startswith("error: ")]
        if not at:
            return "\n".join(self.lines[-5:])
        # Of several the first is the cause, of usage; notes stand in lines of their own behind it.
        found = self.lines[at[0] :] if self.code == errors.USAGE else self.lines[at[-1] :]
        return "\n".join(found).removeprefix("error: ")


def _made(kind: type[DtrainError], text: str, **attributes: object) -> DtrainError:
    """Return an exception with the sentence that another process has printed."""
    made = kind.__new__(kind, text)
    vars(made).update(attributes)
    return made


def call(
    arguments: Sequence[str], line: Line, *, trusted: Iterable[str] = (), paths: Iterable[str] = (),
    given: Path | None = None, reserved: Path | None = None, follow: Path | None = None,
) -> Done:  # fmt: skip
    """Run ``python -m dtrain ARGUMENTS`` until it ends.

    A KeyboardInterrupt in the meantime asks it to save and end, a second one to end at once.

    Args:
        arguments: a command line.
        line: shows what it reports.
        trusted: names that it may call, beside those that the user trusts.
        paths: folders in which it finds modules of the user's.
        given: folder of modules that were given.
        reserved: folder that was made for its run or sweep.
        follow: run folder whose progress is shown.
    """
    environment = _environment(trusted, paths, given, reserved)
    child = subprocess.Popen(
        [sys.executable, "-m", "dtrain.api.child", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
        # "Interrupt kernel" reaches the whole group: a second request would end it unsaved.
        start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stdin is not None
    printed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(child.stdout, printed.put), daemon=True)
    reader.start()
    rundir = None if follow is None else RunDir(follow)
    before = None if rundir is None else _progress(rundir)  # of an earlier command
    lines: list[str] = []
    stops, ended = 0, None
    try:
        while True:
            try:
                try:
                    text = printed.get(timeout=_TURN)
                except queue.Empty:
                    text = ""
                if text is None:
                    break
                if text:
                    text = placed(text, PLACES)
                    lines.append(text)
                    if not _is_refused(lines):
                        line.message(text)
                elif rundir is not None and (report := _progress(rundir)) != before:
                    line.update(report)
                if child.poll() is not None:
                    ended = ended or time.monotonic()
                    if time.monotonic() - ended > _LAST:
                        break  # a process that it left behind holds its output
            except KeyboardInterrupt:
                stops += 1
                child.send_signal(signal.SIGINT)
        code = _waited(child)
        for text in lines if _is_refused(lines) and code != errors.USAGE else ():
            line.message(text)
    finally:
        line.close()
        child.stdin.close()  # and with it the command, if it is still at work
    return Done(code, lines, stops > 0)


def _is_refused(lines: Sequence[str]) -> bool:
    """Whether a command began by an error, which is raised with the sentence that it printed."""
    return lines[:1] != [] and lines[0].startswith("error: ")


def _progress(rundir: RunDir) -> Json | None:
    found: Any = schemas.glance(rundir.progress, schemas.Progress)
    return found


def _waited(child: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)


def _read(stream: IO[bytes], put: Callable[[str | None], None]) -> None:
    try:
        with stream:
            for raw in stream:
                put(raw.decode(errors="replace").rstrip("\n"))
    finally:
        put(None)


def _environment(
    trusted: Iterable[str], paths: Iterable[str], given: Path | None, reserved: Path | None
) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name not in _OF_TERMINALS}
    if found.get("MPLBACKEND", "").startswith("module://"):
        del found["MPLBACKEND"]  # of the notebook
    found.pop(RESERVED, None)
    if reserved is not None:
        found[RESERVED] = str(reserved)
    _extend(found, python_path.TRUST, ",", trusted)
    _extend(found, python_path.GIVEN, os.pathsep, [] if given is None else [str(given)])
    checkout = [str(_ROOT)] if (_ROOT / "conf").is_dir() else []
    _extend(found, "PYTHONPATH", os.pathsep, [*paths, *checkout])
    return found


def _extend(found: dict[str, str], name: str, between: str, values: Iterable[str]) -> None:
    whole = [*found.get(name, "").split(between), *values]
    if kept := list(dict.fromkeys(filter(None, whole))):
        found[name] = between.join(kept)


def words(given: Values) -> list[str]:
    """Return words of a command, of keywords that are not None."""
    return [f"{name}={value}" for name, value in given.items() if value is not None]
