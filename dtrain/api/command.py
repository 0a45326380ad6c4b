"""Runs a command of dtrain in a process of its own, and shows what it reports.

The command line itself does the work: its signals, its locks and Hydra's state are those of a
process, and a notebook's process keeps its own. It ends, saved, with the process that called it.

Progress is one line that is redrawn: in a notebook an output of its own, which is updated. Where a
notebook runs without a front end, a line that is drawn again by a carriage return would stay in its
file as often as it is drawn.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from dtrain import errors
from dtrain.api.objects import Trust
from dtrain.errors import DtrainError, Interrupted, TrainingError, UsageError, printable
from dtrain.files import reading
from dtrain.files.fields import Json, Values
from dtrain.host import pickles, python_path
from dtrain.host.python_path import RESERVED
from dtrain.run import schemas
from dtrain.run.folder import RunDir
from dtrain.run.progress import counted, measured


class Line:
    """Prints messages, and redraws a line: below them on a terminal, in its place in a notebook.

    Args:
        show: without, nothing is printed.
    """

    def __init__(self, show: bool = True):
        self._show, self._shown = show, ""
        stream = sys.stdout
        self._notebook = type(stream).__module__.startswith("ipykernel")
        #: Whether it shows a line that is redrawn.
        self.draws = stream is not None and (self._notebook or stream.isatty())
        self._output: Any = None  # of the notebook

    def message(self, text: str) -> None:
        """Print a line that stays."""
        if not self._notebook:
            self._clear()
        self._print(f"{printable(text)}\n")

    def update(self, report: Json | None) -> None:
        """Draw what the task last wrote to ``progress.json``."""
        text = printable(_line(report)) if report and self.draws else ""
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
            self._output = _display(text, self._output)

    def _print(self, text: str) -> None:
        if self._show and sys.stdout is not None:
            print(text, end="", flush=True)


def _display(text: str, output: Any) -> Any:
    """Show a text in an output of the notebook; return it, to be shown another one."""
    from IPython.display import display  # which is there, since its kernel is

    data = {"text/plain": text}
    if output is None:
        return display(data, raw=True, display_id=True)
    output.update(data, raw=True)
    return output


def _line(report: Json) -> str:
    try:
        return f"{counted(report)}  {measured(report)}"
    except (KeyError, TypeError, ValueError):  # of another kind of task, or half of one
        return ""


_ROOT = Path(__file__).resolve().parents[2]
#: Seconds between two looks at the progress, and for what is printed last to come.
_TURN, _LAST = 0.25, 5.0
#: Lines that are said of a command that ended without a sentence.
_KEPT = 5
#: Variables of a notebook that say its output is a terminal, which the command's is not.
_OF_TERMINALS = ("FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@dataclasses.dataclass(frozen=True)
class Done:
    """How a command ended.

    Attributes:
        code: its exit code.
        left: what it has left for its caller (:mod:`dtrain.host.answer`).
        printed: the last lines of what it has printed.
        stopped: it was asked to stop from here (Ctrl-C, "Interrupt kernel").
    """

    code: int
    left: Json
    printed: Sequence[str] = ()
    stopped: bool = False

    def error(self) -> DtrainError:
        """Return the exception of a command that did not end well, with its own sentence."""
        text = self.left.get("error") or "\n".join(self.printed)
        if self.code == errors.USAGE:
            return _make_error(UsageError, text, key=self.left.get("key") or "")
        if self.code == errors.INTERRUPTED or self.stopped:
            return _make_error(Interrupted, text or "stopped")
        text = text or f"the command ended with exit code {self.code}, and said nothing"
        return _make_error(TrainingError, text)


def _make_error(kind: type[DtrainError], text: str, **attributes: object) -> DtrainError:
    """Return an exception with the sentence of another process."""
    made = kind.__new__(kind, text)
    vars(made).update(attributes)
    return made


def call(
    arguments: Sequence[str], line: Line, trust: Trust | None = None, *,
    reserved: Path | None = None, follow: Path | None = None,
) -> Done:  # fmt: skip
    """Run ``python -m dtrain ARGUMENTS`` until it ends.

    A KeyboardInterrupt in the meantime asks it to save and end, a second one to end at once.

    Args:
        arguments: a command line.
        line: shows what it reports.
        trust: what it may call and load, beside what the user trusts.
        reserved: folder that was made for its run or sweep.
        follow: run folder whose progress is shown.
    """
    with tempfile.TemporaryDirectory(prefix="dtrain-") as place:
        answer = Path(place) / "answer.json"
        drawn = "drawn" if line.draws and follow is not None else "not drawn"
        child = subprocess.Popen(
            [sys.executable, "-m", "dtrain.api.child", str(answer), drawn, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=_environment(trust or Trust(), reserved),
            # "Interrupt kernel" reaches the whole group: a second request would end it unsaved.
            start_new_session=True,
        )  # fmt: skip
        try:
            printed, stopped = _shown(child, line, None if follow is None else RunDir(follow))
            code = _wait(child)
        finally:
            line.close()
            assert child.stdin is not None
            child.stdin.close()  # and with it the command, if it is still at work
        return Done(code, reading.read_json(answer) or {}, printed, stopped)


def _shown(
    child: subprocess.Popen[bytes], line: Line, rundir: RunDir | None
) -> tuple[Sequence[str], bool]:
    """Show what a command reports until it ends.

    Returns:
        The last lines that it has printed, and whether it was asked to stop.
    """
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(child.stdout, lines.put), daemon=True).start()
    before = None if rundir is None else _progress(rundir)  # of an earlier command
    printed: collections.deque[str] = collections.deque(maxlen=_KEPT)
    stopped, ended = False, None
    while True:
        try:
            try:
                text = lines.get(timeout=_TURN)
            except queue.Empty:
                text = ""
            if text is None:
                return printed, stopped
            if text:
                printed.append(text)
                line.message(text)
            elif rundir is not None and (report := _progress(rundir)) != before:
                line.update(report)
            if child.poll() is not None:
                ended = ended or time.monotonic()
                if time.monotonic() - ended > _LAST:  # a process left behind holds its output
                    return printed, stopped
        except KeyboardInterrupt:
            stopped = True
            child.send_signal(signal.SIGINT)


def _progress(rundir: RunDir) -> Json | None:
    report: Any = schemas.glance(rundir.progress, schemas.Progress)
    return report


def _wait(child: subprocess.Popen[bytes]) -> int:
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


def _environment(trust: Trust, reserved: Path | None) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name not in _OF_TERMINALS}
    if variables.get("MPLBACKEND", "").startswith("module://"):
        del variables["MPLBACKEND"]  # of the notebook
    variables.pop(RESERVED, None)
    if reserved is not None:
        variables[RESERVED] = str(reserved)
    _extend(variables, python_path.TRUST, ",", trust.names)
    _extend(variables, pickles.FILES, os.pathsep, trust.files)
    checkout = [str(_ROOT)] if (_ROOT / "conf").is_dir() else []
    _extend(variables, "PYTHONPATH", os.pathsep, [*trust.paths, *checkout])
    return variables


def _extend(variables: dict[str, str], name: str, between: str, values: Iterable[str]) -> None:
    whole = [*variables.get(name, "").split(between), *values]
    if kept := list(dict.fromkeys(filter(None, whole))):
        variables[name] = between.join(kept)


def words(options: Values) -> list[str]:
    """Return words of a command, of keywords that are not None."""
    return [f"{name}={value}" for name, value in options.items() if value is not None]
