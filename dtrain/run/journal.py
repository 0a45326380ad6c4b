"""The journal: one JSON object a line, appended by the chief alone; the truth about a run.

Nothing is taken back: where a run goes back to a checkpoint the controller, when no task runs, adds
``restart`` or ``resumed``. Readers pass over what was recorded after its step before that.

A damaged line costs that line: whoever reads the journal passes over it and counts it.

Every line has ``event`` and ``time`` (seconds since the epoch). Events:

``data``        what the data is, by split (:mod:`dtrain.task.data.data_identity`)
``start``       training is about to begin: what was derived (replicas, parameters, ...);
                ``objective`` and ``objective_mode`` as they were typed or chosen
``phases``      ``seconds``: of what was done before the first step, by name
``init``        ``path``, ``digest``: what ``init.weights`` stood for when the run began
``metrics``     ``step``, ``epoch``, ``metrics``, and ``kind``: what they are of
                (:data:`MetricsKind`)
``epoch``       ``step``, ``epoch``, ``epochs``, ``metrics``: what was measured of a whole epoch;
                ``epoch_seconds``: that it took; ``best``: its objective is the best so far; of a
                fork ``epochs_before``: those of the run that it forks
``file``        ``step``, ``name``, ``path`` below the run folder, ``kind`` (``image``, ``table`` or
                ``file``): what user code has logged
``tag``         ``step``, ``name``, ``value``: what user code has set
``checkpoint``  ``step``, ``path``
``objective``   ``objective``, ``objective_mode``: chosen at the end of an epoch, as its metrics
                were not known at the start
``notice``      ``message``: something the user should know
``evaluation``  ``step``, ``metrics``, ``prefix``: of a checkpoint (:mod:`dtrain.run.evaluations`)
``debug``       ``summary``, ``rows``: what a check found (:mod:`dtrain.debug`)
``restart``     ``step``, ``message``: tasks died, and were started again from a checkpoint;
                ``validated``: it was saved after the validation that belongs to its step, if any
``resumed``     ``step``, ``validated``: another command goes on from a checkpoint
``error``       ``kind`` (``usage`` or ``training``), ``message``
``end``         ``status``, ``step``, ``examples``, ``examples_per_second``; ``ended``: why, where
                that was before the last epoch
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from dtrain.errors import DamagedFile
from dtrain.files import reading, writing
from dtrain.files.fields import Json, JsonValue
from dtrain.files.reading import Tail
from dtrain.run import schemas

#: Bytes of the longest line; a longer one is damaged.
LINE_BYTES = 1 << 20
#: Of a file with more damaged lines than these, or more bytes in lines that are too long, nothing
#: is read.
DAMAGED, LONG_BYTES = 100_000, 2 << 30
#: What metrics are of: the steps since the last point, the examples of a whole epoch, a
#: validation (with what callbacks have added to it), or callbacks alone.
MetricsKind = Literal["interval", "epoch", "validation", "callbacks"]
RESUMED = "resumed"
#: Begins ``ended`` where a callback has ended the training.
EARLY = "stopped early"
#: Events of a run that goes back to a checkpoint, and what a line of one has.
_BACK = {RESUMED: b'"resumed"', "restart": b'"restart"'}
#: Events that a run that goes back goes on with; it writes all others anew.
_LASTING = ("start", "init", "notice", "metrics", "epoch", "checkpoint", "restart", "objective",
            "file", "tag")  # fmt: skip
#: Of events that are read here and elsewhere: the fields that they cannot do without.
_REQUIRED = {
    "metrics": {"step", "metrics"},
    "epoch": {"step", "epoch", "epochs", "metrics", "epoch_seconds", "best"},
    "evaluation": {"step", "metrics", "prefix"},
    "restart": {"step"},
    RESUMED: {"step"},
    "checkpoint": {"step"},
    "file": {"step", "name", "path", "kind"},
    "tag": {"step", "name", "value"},
}
_COUNTS = ("step", "epoch", "epochs", "epochs_before", "examples", "evaluated_examples",
           "parameters", "train_examples")  # fmt: skip
_NUMBERS = ("examples_per_second", "best_objective", "epoch_seconds")
_TEXTS = ("message", "status", "kind", "path", "prefix", "objective", "objective_mode", "name",
          "value", "ended")  # fmt: skip
_NO_NUMBERS = ("nan", "inf", "-inf")


def _finite(value: JsonValue) -> JsonValue:
    # JSON has no NaN: a number that is none is written as its name, and read back as a float.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


class Journal:
    """Appends events; :func:`read` finds each as one whole line when :meth:`write` returns.

    Whatever becomes of the process then, the line stays; it survives the loss of power from
    :meth:`sync` on, which is called before each checkpoint is saved.

    Args:
        path: the file. A last line that a killed writer left torn is cut off first.

    Raises:
        DamagedFile: it is no regular file, or has a second name (a hard link).
        OSError: it cannot be written.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = writing.open_append(path)
        try:
            _cut_torn(path)
        except BaseException:
            os.close(self._file)
            raise
        self._lock = threading.Lock()  # checkpoints are reported from their own thread

    def write(self, event: str, **fields: object) -> None:
        """Append one event, stamped with the present time unless ``time`` is given.

        Raises:
            ValueError: it is longer than :data:`LINE_BYTES`, or holds what JSON has not.
            OSError: the disk is full; nothing of the event is left.
        """
        line = _finite({"event": event, "time": round(time.time(), 3), **fields})
        text = json.dumps(line, allow_nan=False, ensure_ascii=False)
        # Half a character, of a file's name in a message, would make the line a damaged one.
        data = f"{text}\n".encode(errors="replace")
        if len(data) > LINE_BYTES:
            raise ValueError(f"the event {event} has {len(data):,} bytes: {LINE_BYTES:,} at most")
        with self._lock:
            before = os.fstat(self._file).st_size
            try:
                writing.write_all(self._file, data)
            except OSError:
                writing.truncate(self._path, before)  # half a line would spoil the next one
                raise

    def sync(self) -> None:
        """Flush what was written to the disk itself."""
        os.fsync(self._file)

    def close(self) -> None:
        """Flush to the disk itself and close."""
        try:
            self.sync()
        finally:
            os.close(self._file)


def _cut_torn(path: Path) -> None:
    """Cut off what stands behind the last newline."""
    with os.fdopen(reading.open_read(path), "rb") as file:
        end = begin = os.fstat(file.fileno()).st_size
        found = -1
        while found < 0 < begin:
            begin = max(0, begin - LINE_BYTES)
            file.seek(begin)
            found = file.read(LINE_BYTES).rfind(b"\n")
    if begin + found + 1 < end:
        writing.truncate(path, begin + found + 1)


def read(path: Path) -> list[Json]:
    """Return all whole events of the journal at ``path``; an absent file has none.

    Raises:
        DamagedFile: it is no regular file.
        OSError: it cannot be read.
    """
    return Follower(path).new()


def starts(path: Path) -> set[float]:
    """Return when training began, of each start of the run.

    Raises:
        DamagedFile, OSError: as of :func:`read`.
    """
    return {event["time"] for event in Follower(path).events() if event["event"] == "start"}


class _Return(NamedTuple):
    """Where a run went back to a checkpoint: the number of the line, and what counts before it."""

    line: int
    step: int
    validated: bool

    def keeps(self, event: Json) -> bool:
        """Say whether an event before it still counts, and will not be written again."""
        ends_epoch = event["event"] == "epoch" or event.get("kind") == "validation"
        again = not self.validated and ends_epoch and event.get("step") == self.step
        return event["event"] in _LASTING and event.get("step", 0) <= self.step and not again


def _returns(path: Path) -> list[_Return]:
    """Return where a run went back, in the order of the lines."""
    found, line = [], 0
    for piece in Tail(path, LINE_BYTES).pieces():
        line += piece.endswith(b"\n")
        # Of millions of lines few are parsed for this.
        event = _event(piece) if any(name in piece for name in _BACK.values()) else None
        if event is not None and event["event"] in _BACK:
            found.append(_Return(line, event["step"], bool(event.get("validated", True))))
    return found


class Follower:
    """Reads a journal while it grows; where the run goes back meanwhile, from its beginning again.

    What was recorded after the checkpoint that a run went back to is passed over.

    Args:
        path: the file; it need not exist yet.

    Attributes:
        damaged: how many lines were passed over.
    """

    def __init__(self, path: Path):
        self._path = path
        # Each line has its time, no two are alike: it is known again.
        self._tail = Tail(path, LINE_BYTES, self._begin)
        self._begin()

    def _begin(self) -> None:
        self._long = False  # the last piece did not end a line
        self._passed = 0  # bytes of lines that are too long
        self._number = 0  # of lines that were read
        self._first = 0  # number of the first that is damaged
        self._returns: list[_Return] = []
        self.damaged = 0

    def new(self) -> list[Json]:
        """Return the events completed since the last call.

        Raises:
            DamagedFile: it is no regular file, or has too many damaged lines.
            OSError: it cannot be read.
        """
        return list(self.events())

    def events(self) -> Iterator[Json]:
        """Yield what :meth:`new` returns, one by one: of a long journal a line is in memory."""
        return (event for _, event in self.lines())

    def lines(self) -> Iterator[tuple[bytes, Json]]:
        """Yield each sound line completed since the last call, and the event that it is."""
        if not self._number:
            self._returns = _returns(self._path)
        for line in self._lines():
            event = _event(line)
            if event is not None and event["event"] in _BACK and self._is_new(event):
                self._tail.begin_again()
                yield from self.lines()
                return
            if event is not None:
                later = (each for each in self._returns if each.line > self._number)
                if event["event"] != RESUMED and all(each.keeps(event) for each in later):
                    yield line, event
            else:
                self.damaged += 1
                self._first = self._first or self._number
                if self.damaged > DAMAGED:
                    raise DamagedFile(self._path, f"has more than {DAMAGED:,} damaged lines")

    def _is_new(self, event: Json) -> bool:
        """Say whether the run has gone back since the file was read from its beginning."""
        return all(each.line != self._number for each in self._returns)

    def skip(self) -> None:
        """Pass over the events completed since the last call, unread."""
        for _ in self._lines():
            pass

    def notice(self) -> str | None:
        """Return a sentence about the lines that were passed over; None where there are none."""
        if not self.damaged:
            return None
        lines = "1 damaged line" if self.damaged == 1 else f"{self.damaged:,} damaged lines"
        return f"{self._path.name}: passed over {lines}, the first is line {self._first:,}"

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines completed since the last call; one that is too long is empty."""
        for piece in self._tail.pieces():
            ends = piece.endswith(b"\n")
            line, self._long = b"" if self._long else piece, not ends
            self._passed += len(piece) if self._long else 0
            if self._passed > LONG_BYTES:
                raise DamagedFile(self._path, f"has lines of more than {LONG_BYTES:,} bytes")
            if ends:
                self._number += 1
                yield line


def _event(line: bytes) -> Json | None:
    """Return the event that a line is, its metrics as numbers; None if it is damaged."""
    if not line.startswith(b"{"):
        return None
    try:
        event = json.loads(line)
        return event if isinstance(event, dict) and _sound(event) else None
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _sound(event: Json) -> bool:
    """Say whether the fields that an event has are of their types."""
    if (
        not isinstance(event.get("event"), str)
        or not 0 <= _number(event.get("time")) <= schemas.LATEST
    ):
        return False
    if not _REQUIRED.get(event["event"], set()) <= event.keys():
        return False
    for name, value in event.items():
        if name == "metrics" and not isinstance(value, dict):
            return False
        elif name == "metrics":
            event[name] = {metric: _number(item) for metric, item in value.items()}
        elif name in _COUNTS and value is not None and not _is_count(value):
            return False
        elif name in _NUMBERS and value is not None:
            _number(value)
        elif name in _TEXTS and not isinstance(value, str):
            return False
    return all(event.get(name, 0) is not None for name in ("step", "epoch", "metrics"))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= schemas.LARGEST


def _number(value: JsonValue) -> float:
    """Return a number, or the name of one that JSON has not, as it is read.

    Raises:
        TypeError, ValueError, OverflowError: it is none.
    """
    if isinstance(value, bool) or (isinstance(value, str) and value not in _NO_NUMBERS):
        raise ValueError
    return float(value)
