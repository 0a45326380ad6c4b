"""Messages between a launcher and an agent, and what leads from one to the other.

A line is an object with ``kind``; one with ``size`` has so many bytes behind it. Both sides send a
sign of life every second, from a thread of their own: what either is busy with delays none.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from dtrain.errors import TrainingError
from dtrain.host import variables

#: Seconds between two signs of life.
BEAT = 1.0
#: Bytes of a line, and of what is behind one.
LINE, DATA = 1 << 20, 1 << 22
#: Bytes before the greeting that are no message: what a shell prints where it starts.
NOISE = 1 << 20
#: Begins the first message of an agent.
GREETING = b'{"kind": "hello",'
_BEAT = b'{"kind": "beat"}\n'

Message = dict[str, Any]


class Stream:
    """One end of it; takes over both descriptors.

    Args:
        reader, writer: descriptors, which may block.
        hear: called with each message, in the order in which they come, from another thread; the
            last one is ``{"kind": "gone", "why": CLAUSE}``. Bytes are at ``data``.
        noisy: what comes before the agent's greeting is left out.

    Attributes:
        heard: when something came last, on the monotonic clock.
        gone: nothing comes any more.
        noise: the end of what was left out.
        written: bytes of messages that were sent.
    """

    def __init__(
        self, reader: int, writer: int, hear: Callable[[Message], None], noisy: bool = False
    ):
        self._reader, self._writer, self._hear = reader, writer, hear
        self._noisy, self._in = noisy, b""
        self._queue: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        self._less, self._waiting = threading.Condition(), 0
        self.heard = time.monotonic()
        self.gone = self._broken = False  # nothing can be read, or written
        self.noise = b""
        self.written = 0
        self._threads = [
            threading.Thread(target=work, name=f"agent-{work.__name__}", daemon=True)
            for work in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, kind: str, data: bytes = b"", **fields: object) -> None:
        """Send a message when those before it are sent; returns at once."""
        self.put(packed(kind, data, **fields))

    def put(self, parts: tuple[bytes, ...]) -> None:
        """Send what :func:`packed` has returned, as :meth:`send` does."""
        with self._less:
            self._waiting += sum(map(len, parts))
        self._queue.put(parts)

    def send_all(self, messages: Iterable[tuple[bytes, ...]]) -> None:
        """Send messages of :func:`packed`, of which each is made when it is its turn.

        Where one cannot be made (``OSError``), ``{"kind": "unsent", "why": CLAUSE}`` is heard here.
        """
        self._queue.put(self._made(messages))

    def _made(self, messages: Iterable[tuple[bytes, ...]]) -> Iterator[bytes]:
        try:
            for parts in messages:
                yield from parts
        except OSError as error:
            self._hear({"kind": "unsent", "why": f"{error.filename}: {error.strerror}"})

    def drain(self, most: int) -> bool:
        """Wait until at most so many bytes of :meth:`send` wait; False: the other side is gone."""
        with self._less:
            self._less.wait_for(lambda: self._waiting <= most or self._broken)
            return not self._broken

    def silent(self) -> float:
        """Return for how many seconds nothing has come."""
        return time.monotonic() - self.heard

    def close(self) -> None:
        """End what is sent, after what was given to it; returns at once."""
        self._queue.put(None)

    def flush(self, seconds: float) -> None:
        """Close, and wait so long until all is written."""
        self.close()
        self._threads[1].join(seconds)

    def _write(self) -> None:
        try:
            while True:
                try:
                    parts = self._queue.get(timeout=BEAT)
                except queue.Empty:
                    self._put(_BEAT)
                    continue
                if parts is None:
                    return
                for part in parts:
                    self._put(part)
                if isinstance(parts, tuple):
                    with self._less:
                        self._waiting -= sum(map(len, parts))
                        self._less.notify_all()
        except OSError:  # the other side is gone: the reader knows why
            pass
        finally:
            with self._less:
                self._broken = True
                self._less.notify_all()
            os.close(self._writer)

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            count = os.write(self._writer, left)
            left = left[count:]
            if data is not _BEAT:
                self.written += count

    def _read(self) -> None:
        why = "the connection was closed"
        try:
            while (message := self._next()) is not None:
                self.heard = time.monotonic()
                if message["kind"] != "beat":
                    self._hear(message)
        except OSError as error:
            why = f"the connection broke ({error.strerror})"
        except ValueError as error:
            why = f"what came is no message ({error})"
        finally:
            self.gone = True
            with contextlib.suppress(OSError):
                os.close(self._reader)
            self._hear({"kind": "gone", "why": why})

    def _next(self) -> Message | None:
        """Return the next message, None at the end.

        Raises:
            ValueError: it is none.
        """
        while True:
            line = self._line()
            if line is None:
                return None
            if not self._noisy:
                break
            if line.startswith(GREETING):
                self._noisy = False
                break
            self.noise = (self.noise + line + b"\n")[-LINE:]
            if len(self.noise) > NOISE // 2:
                raise ValueError("no agent answers there")
        message = json.loads(line)
        if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
            raise ValueError("no object with kind")
        size = message.pop("size", 0)
        if type(size) is not int or not 0 <= size <= DATA:
            raise ValueError("a wrong size")
        if size:
            data = self._take(size)
            if data is None:
                return None
            message["data"] = data
        return message

    def _line(self) -> bytes | None:
        searched = 0
        while (end := self._in.find(b"\n", searched)) < 0:
            searched = len(self._in)
            if searched > LINE:
                raise ValueError("a line without an end")
            if not self._more():
                return None
        line, self._in = self._in[:end], self._in[end + 1 :]
        return line

    def _take(self, size: int) -> bytes | None:
        parts, have = [self._in], len(self._in)
        while have < size:
            data = os.read(self._reader, min(1 << 20, size - have))
            if not data:
                return None
            self.heard = time.monotonic()
            parts.append(data)
            have += len(data)
        whole = b"".join(parts)
        self._in = whole[size:]
        return whole[:size]

    def _more(self) -> bool:
        data = os.read(self._reader, 1 << 16)
        self._in += data
        return bool(data)


def packed(kind: str, data: bytes = b"", **fields: object) -> tuple[bytes, ...]:
    """Return a message as it is written.

    Raises:
        TrainingError: it is too long.
    """
    head = {"kind": kind, **fields, **({"size": len(data)} if data else {})}
    line = json.dumps(head).encode() + b"\n"
    if len(line) > LINE:
        raise TrainingError(f"the message {kind!r} to another host has {len(line):,} bytes; "
                            f"{LINE:,} at most can be sent")  # fmt: skip
    return (line, data) if data else (line,)


#: Seconds that a command has to end by itself once its input has ended.
_LAST = 5.0
#: Bytes of what a command has printed to standard error that are looked at.
_TAIL = 8192


class Transport(Protocol):
    """Starts one agent (``python -m dtrain.agent``), and reaches its standard input and output.

    Attributes:
        host: what the host is called, in messages.
    """

    host: str

    def open(self) -> tuple[int, int]:
        """Start the agent.

        Returns:
            A descriptor to read its output from, and one to write its input to. They belong to
            the caller, and may block.

        Raises:
            OSError: it cannot be started.
        """

    def why(self) -> str:
        """Return what is known of how it ended, as a clause; empty where nothing is known."""

    def close(self, seconds: float = _LAST) -> None:
        """Let it end, within so many seconds; then end by force what there is of it here."""


class Command:
    """An agent that a command starts: on this machine itself, or by way of ``ssh`` or ``srun``.

    It has a session of its own: Ctrl-C in a terminal is for the launcher to act upon.

    Args:
        host: in messages.
        arguments: of the command.
        environment: of its process, beside that of this one.
    """

    def __init__(self, host: str, arguments: Sequence[str], environment: Mapping[str, str] = {}):
        self.host = host
        self._arguments, self._environment = list(arguments), dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> tuple[int, int]:
        """Start the command."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = process = subprocess.Popen(
            self._arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            env={**variables.copied(), **self._environment},
        )
        assert process.stdin is not None and process.stdout is not None
        found = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdin.close()
        process.stdout.close()
        return found

    def printed(self) -> str:
        """Return the end of what the command has printed to standard error."""
        if self._process is None or self._errors.closed:
            return ""
        size = os.fstat(self._errors.fileno()).st_size
        data = os.pread(self._errors.fileno(), _TAIL, max(0, size - _TAIL))
        return data.decode(errors="replace").strip()

    def why(self) -> str:
        """Return the last line that the command has printed, and its exit code."""
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its output has ended
                code = self._process.wait(1.0)
        last = (self.printed().splitlines() or [""])[-1]
        if not code:
            return last
        name = os.path.basename(self._arguments[0])
        return f"{name} ended with exit code {code}" + (f": {last}" if last else "")

    def close(self, seconds: float = _LAST) -> None:
        """Wait for the end of the command, then end it and what it has started here."""
        if self._process is None:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()
