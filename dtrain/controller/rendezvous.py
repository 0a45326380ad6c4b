"""Where the commands of one cluster meet: before TensorFlow starts, at the chief's own address.

Each guest connects to the chief and sends one JSON line, ``{"task", "facts", "dtrain"}``. When all
have come and agree, each gets ``{"ok": true, "folder"}``; otherwise ``{"ok": false}`` with the
reason. The connections stay open while the job runs: ``{"stop": true}`` goes to the chief,
``{"ended": code}`` to the guests, and a connection that closes means that its other end is gone.

Nothing here is encrypted or authenticated; TensorFlow's servers, which use the same network
afterwards, are not either.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from dtrain import __version__, errors
from dtrain.controller.tf_config import host_port, is_local
from dtrain.errors import TrainingError, UsageError

#: Bytes of a line; what is longer comes from a stranger.
LONGEST = 1 << 20
#: Connections that have not yet said who they are; beyond it the oldest has to go.
STRANGERS = 64
#: Seconds between two attempts to reach the chief; for a connection to open or a line to leave;
#: and that a guest waits longer than the chief, which knows who is missing and says it.
RETRY, SEND, MARGIN = 0.2, 5.0, 5.0


class Host:
    """The chief's side; one thread may use it.

    Args:
        address: ``host:port`` of the chief's TensorFlow server, to start after :meth:`wait`.
        expected: names of the other tasks.
        facts: what must be the same everywhere: configuration keys and their values as text.
        folder: name of the run folder, which the guests are told.
    """

    def __init__(self, address: str, expected: list[str], facts: dict[str, str], folder: str):
        self._address, self._expected, self._folder = address, expected, folder
        self._facts = {"dtrain": __version__, **facts}
        self._guests: dict[str, _Line] = {}

    def wait(self, timeout: float, say: Callable[[str], None] | None = None) -> None:
        """Return when all guests have come and agree; the port is free again then.

        Args:
            timeout: seconds that they have.
            say: called with a sentence whenever another set of tasks is missing.

        Raises:
            UsageError: a guest has another configuration. The guests that came know it too.
            TrainingError: some did not come in time, or this machine cannot listen.
        """
        if not self._expected:
            return
        try:
            with _listen(self._address) as listener:
                self._gather(listener, timeout, say or (lambda sentence: None))
            # ORDER: the port is closed before a guest's TensorFlow can look for ours there.
            for line in self._guests.values():
                line.send({"ok": True, "folder": self._folder})
        except BaseException:
            self._close()
            raise

    def messages(self) -> list[tuple[str, str]]:
        """Return the news: a task's name with ``stop`` (it was asked to) or ``gone``."""
        news = []
        for name, line in list(self._guests.items()):
            while (message := line.receive()) is not None:
                if message.get("stop"):
                    news.append((name, "stop"))
            if line.closed:
                del self._guests[name]
                news.append((name, "gone"))
        return news

    def end(self, code: int) -> None:
        """Tell the guests the job's exit code, and close."""
        self._close({"ended": code})

    def _close(self, last: dict[str, Any] | None = None) -> None:
        for line in self._guests.values():
            line.close(last)
        self._guests.clear()

    def _gather(self, listener: socket.socket, timeout: float, say: Callable[[str], None]) -> None:
        deadline = time.monotonic() + timeout
        strangers: list[_Line] = []
        said: list[str] = []
        try:
            while missing := [name for name in self._expected if name not in self._guests]:
                if missing != said:
                    said = missing
                    say(f"waiting for {', '.join(missing)}")
                if (left := deadline - time.monotonic()) <= 0:
                    error = f"{', '.join(missing)} did not come to the chief at {self._address}"
                    self._close({"ok": False, "error": f"{error} within {timeout:g} s"})
                    raise TrainingError(f"{error} within {timeout:g} s")
                ready = _readable([listener, *strangers, *self._guests.values()], left)
                if listener in ready:
                    with contextlib.suppress(OSError):  # it may have gone again
                        strangers.append(_Line(listener.accept()[0]))
                    if len(strangers) > STRANGERS:
                        strangers[0].close()
                # ORDER: a guest that has left may be here again, among the strangers.
                for name, line in list(self._guests.items()):
                    if line.receive() is None and line.closed:
                        del self._guests[name]
                for line in [line for line in strangers if line in ready]:
                    if (message := line.receive()) is not None:
                        strangers.remove(line)
                        self._greet(line, message)
                strangers = [line for line in strangers if not line.closed]
        finally:
            for line in strangers:
                line.close()

    def _greet(self, line: _Line, message: dict[str, Any]) -> None:
        task, facts = message.get("task"), message.get("facts")
        if not isinstance(task, str) or not isinstance(facts, dict):
            line.close()  # it speaks JSON, but is none of us
        elif task not in self._expected:
            line.close(_problem(
                "TF_CONFIG.task", task, "the chief expects no such task",
                ", ".join(self._expected), "the same TF_CONFIG cluster on every host",
            ))  # fmt: skip
        elif task in self._guests:
            line.close(_problem(
                "TF_CONFIG.task", task, f"another process has come to the chief as {task}",
                "one process for each task", "TF_CONFIG with another task.index on this host",
            ))  # fmt: skip
        else:
            self._guests[task] = line
            self._compare(task, {"dtrain": message.get("dtrain"), **facts})

    def _compare(self, task: str, facts: dict[str, Any]) -> None:
        mine = self._facts
        differ = [key for key in {**mine, **facts} if mine.get(key) != facts.get(key)]
        if not differ:
            return
        key, *more = differ
        others = f" (also different: {', '.join(more)})" if more else ""
        theirs, ours = (str(side.get(key, "(not set)")) for side in (facts, mine))
        hint = f"{key}={ours}" if key in mine else f"the command without {key}"
        said = _problem(
            key, theirs, f"{task} has this, and the chief has {ours}{others}",
            "the same on every host", f"pip install dtrain=={ours}" if key == "dtrain" else hint,
        )  # fmt: skip
        self._close(said)
        raise UsageError(**said["problem"])


class Guest:
    """The side of every other task.

    Args:
        address: ``host:port`` of the chief.
        task: own name.
        facts: as of :class:`Host`.
    """

    def __init__(self, address: str, task: str, facts: dict[str, str]):
        self._address = address
        self._hello = {"task": task, "facts": facts, "dtrain": __version__}
        self._line: _Line | None = None
        self._code: int | None = None

    def meet(self, timeout: float) -> str:
        """Find the chief, which may start later, and wait until it has seen all guests.

        Args:
            timeout: seconds to find it in, and again for the others to come.

        Returns:
            The name of the run folder.

        Raises:
            UsageError: the chief's, about this task or another.
            TrainingError: there is no chief, or it is missing other tasks.
        """
        deadline = time.monotonic() + timeout
        reason = "no time to look"
        while (left := deadline - time.monotonic()) > 0:
            try:
                connection = socket.create_connection(host_port(self._address), min(left, SEND))
                self._line = _Line(connection)
                folder = self._ask(self._line, timeout)
                if folder is not None:
                    return folder
                reason = "what answers there is not a chief that waits"
            except (OSError, UnicodeError) as error:
                reason = getattr(error, "strerror", None) or str(error)
            except BaseException:
                self.close()
                raise
            time.sleep(max(0.0, min(RETRY, deadline - time.monotonic())))
        raise TrainingError(f"no chief at {self._address} within {timeout:g} s ({reason})")

    def _ask(self, line: _Line, timeout: float) -> str | None:
        """Return the folder; None where ``line`` leads to something else, be it back to here."""
        deadline = time.monotonic() + timeout + MARGIN
        line.send(self._hello)
        while (answer := line.receive()) is None and not line.closed:
            if (left := deadline - time.monotonic()) <= 0:
                late = f"the chief at {self._address} did not begin within {timeout + MARGIN:g} s"
                raise TrainingError(late)
            _readable([line], left)
        answer = answer or {}
        if isinstance(folder := answer.get("folder"), str):
            return folder
        if isinstance(problem := answer.get("problem"), dict):
            raise UsageError(**problem)
        if "error" in answer:
            raise TrainingError(answer["error"])
        line.close()
        return None

    def ask_to_stop(self) -> None:
        """Tell the chief that this task was asked to stop."""
        if self._line is not None:
            self._line.send({"stop": True})

    def ended(self) -> int | None:
        """Return the job's exit code, FAILED if the chief is silently gone, None till then."""
        if self._code is None and self._line is not None:
            message = self._line.receive()
            if message is not None or self._line.closed:
                code = (message or {}).get("ended")
                self._code = code if isinstance(code, int) else errors.FAILED
                self._line.close()
        return self._code

    def close(self) -> None:
        """Leave: the chief sees that this task is gone."""
        if self._line is not None:
            self._line.close()


class _Line:
    """One end of a connection: JSON objects, one a line, without blocking."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._buffer = b""
        self.closed = False
        connection.setblocking(False)
        # A machine that loses its power says no good-bye: ask it after half a minute's silence.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, if it has come; close at the end, and at what is no message."""
        try:
            if b"\n" not in self._buffer:
                data = self._socket.recv(1 << 16)
                self._buffer += data
                if not data or len(self._buffer) > LONGEST:
                    self.close()
            if b"\n" in self._buffer and not self.closed:
                line, _, self._buffer = self._buffer.partition(b"\n")
                message = json.loads(line)
                if isinstance(message, dict):
                    return message
                self.close()
        except BlockingIOError:
            pass
        except (OSError, ValueError, RecursionError):
            self.close()
        return None

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; nothing happens where the other end is gone."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(SEND)
            try:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            finally:
                self._socket.setblocking(False)

    def close(self, last: dict[str, Any] | None = None) -> None:
        """Close it, after a ``last`` message."""
        if last is not None and not self.closed:
            self.send(last)
            with contextlib.suppress(OSError):
                # ORDER: a connection closed with unread data is reset, and the message lost.
                self._socket.shutdown(socket.SHUT_WR)
                self._socket.recv(1 << 16)
        self.closed = True
        self._socket.close()


def _problem(*fields: str) -> dict[str, Any]:
    names = ("key", "value", "problem", "accepted", "hint")
    return {"ok": False, "problem": dict(zip(names, fields, strict=True))}


def _readable(files: Iterable[socket.socket | _Line], timeout: float) -> list[Any]:
    with selectors.DefaultSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(timeout)]


def _listen(address: str) -> socket.socket:
    """Listen on the port of ``address``: on all interfaces, or on loopback for a local address."""
    host, port = host_port(address)
    both = not is_local(host) and socket.has_dualstack_ipv6()
    host = "" if not is_local(host) else "127.0.0.1" if host[0].isalpha() else host
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        # SO_REUSEADDR, set here, passes to the connections: TensorFlow can bind the port.
        listener = socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise TrainingError(f"the chief cannot listen at {address}: {error.strerror}") from None
    listener.setblocking(False)
    return listener
