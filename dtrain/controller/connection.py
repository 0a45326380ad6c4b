"""One end of a connection between two commands of a cluster, and a thread that keeps it alive."""

from __future__ import annotations

import contextlib
import queue
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

from dtrain.controller import messages
from dtrain.controller.messages import Message, Seal

#: Seconds between two signs of life; the same everywhere: hosts may differ in their patience.
BEAT = 1.0
#: Seconds that a connection may take to prove itself.
PROVE = 10.0
#: Seconds that the last message has to reach the other side.
LAST = 2.0


class Connection:
    """Sealed messages over a socket, which never blocks.

    Args:
        connected: the socket, which is taken over.
        key: the cluster's.
        chief: whether this is the chief's end.
    """

    def __init__(self, connected: socket.socket, key: bytes, chief: bool):
        self._socket = connected
        self._key, self._chief = key, chief
        self._nonce = secrets.token_bytes(32)
        self._seals: tuple[Seal, Seal] | None = None  # for what is sent, and what is received
        self._waiting: list[bytes] = []  # messages that are for a proven peer only
        self._in, self._out = b"", messages.greeting(self._nonce)
        self.began = self.heard = time.monotonic()
        self._sent = self.began
        self.proven = False  # the other side has
        self.refused = False  # it knows another key
        self.taken = False  # somebody else follows it now
        self.address = _address(connected)
        self.closed = False
        connected.setblocking(False)
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.flush()

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._out) and not self.closed

    def receive(self) -> Message | None:
        """Return the next message that has come; close at the end, and at what is no message."""
        while not self.closed and (line := self._line()) is not None:
            if self._seals is None:
                self._meet(line)
                continue
            data = self._seals[1].open(line)
            message = messages.parse(data) if data is not None else None
            if message is None:
                self.refused = self.refused or not self.proven
                self.close()
                return None
            self.heard = time.monotonic()
            if not self.proven:
                self.proven = True
                for data in self._waiting:
                    self._put(data)
                self._waiting = []
                self.flush()
            if message["kind"] not in ("beat", "proof"):
                return message
        return None

    def _line(self) -> bytes | None:
        """Return the next line without its end, None if it has not come as a whole."""
        longest = messages.LONGEST_LINE if self.proven else messages.GREETING
        try:
            while b"\n" not in self._in:
                data = self._socket.recv(1 << 16)
                self._in += data
                if not data or (b"\n" not in data and len(self._in) > longest):
                    self.close()
                    return None
        except BlockingIOError:
            return None
        except OSError:
            self.close()
            return None
        line, _, self._in = self._in.partition(b"\n")
        return line

    def _meet(self, line: bytes) -> None:
        other = messages.nonce_of(line)
        if other is None or other == self._nonce:  # nothing we know, or this very socket
            self.close()
            return
        nonces = (self._nonce, other) if self._chief else (other, self._nonce)
        chiefs, guests = (Seal(self._key, sender, nonces) for sender in ("chief", "guest"))
        self._seals = (chiefs, guests) if self._chief else (guests, chiefs)
        self._put(messages.make("proof"))
        self.flush()

    def _put(self, data: bytes) -> None:
        assert self._seals is not None
        self._out += self._seals[0].close(data)
        self._sent = time.monotonic()

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message, once the peer is proven; nothing happens where it is gone."""
        data = messages.make(kind, **fields)
        if not self.proven:
            self._waiting.append(data)
        elif not self.closed:
            self._put(data)
            self.flush()

    def beat(self) -> None:
        """Give a sign of life, if the last one was long ago; what waits to be sent comes first."""
        if self.proven and not self._out and time.monotonic() - self._sent >= BEAT:
            self.send("beat")

    def flush(self) -> None:
        """Send what can be sent now."""
        try:
            while self._out and not self.closed:
                self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            pass
        except OSError:
            self._out = b""  # what has come may still be read, and then the end is

    def shut(self) -> None:
        """Send no more; the other side may still be read."""
        self.flush()
        self._out = b""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close it."""
        self.closed = True
        self._socket.close()


def _address(connected: socket.socket) -> str:
    try:
        name = connected.getpeername()
    except OSError:
        return "an unknown address"
    return str(name[0]) if isinstance(name, tuple) else "this machine"


class Watch(threading.Thread):
    """Gives and takes signs of life, whatever else this command is doing meanwhile.

    Attributes:
        news: of each connection: its name with a message, ``{"kind": "gone"}`` (it was closed) or
            ``{"kind": "lost"}`` (nothing came from it for too long).

    Args:
        timeout: seconds of silence after which the other side is lost.
    """

    def __init__(self, timeout: float):
        super().__init__(name="peers", daemon=True)
        self._timeout = timeout
        self._connections: dict[str, Connection] = {}
        self._lock = threading.Lock()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._last: tuple[str, dict[str, Any]] | None = None
        self._over = False
        self.news: queue.SimpleQueue[tuple[str, Message]] = queue.SimpleQueue()

    def add(self, name: str, connection: Connection) -> None:
        """Take over a connection."""
        with self._lock:
            self._connections[name] = connection
        self._waker.send(b"+")

    def names(self) -> list[str]:
        """Return the names of the connections that are open."""
        with self._lock:
            return list(self._connections)

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message to all."""
        with self._lock:
            for connection in self._connections.values():
                connection.send(kind, **fields)

    def take(self) -> list[tuple[str, Message]]:
        """Return the news that have come."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self.news.get_nowait())
        return found

    def silent(self, seconds: float) -> list[str]:
        """Return the names of those from which nothing has come for so long."""
        now = time.monotonic()
        with self._lock:
            return [n for n, c in self._connections.items() if now - c.heard >= seconds]

    def end(self, kind: str | None = None, **fields: Any) -> None:
        """Close all connections, after a last message, which has a moment to arrive."""
        if self._over:
            return
        self._over = True
        self._last = None if kind is None else (kind, fields)
        if self.ident is None:
            self._close()
        else:
            self._waker.send(b"-")
            self.join()
        self._wake.close()
        self._waker.close()

    def run(self) -> None:
        """Follow the connections until :meth:`end`."""
        try:
            while not self._over:
                self._turn()
            if self._last is not None:
                self._say_last(*self._last)
        finally:
            self._close()

    def _close(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _turn(self) -> None:
        with self._lock:
            watched = list(self._connections.values())
        ready([self._wake, *watched], BEAT / 2)
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(64)
        with self._lock:
            for name, connection in list(self._connections.items()):
                connection.flush()
                connection.beat()
                # ORDER: read before it is judged: this process may have been stopped itself.
                while (message := connection.receive()) is not None:
                    self.news.put((name, message))
                if not connection.closed:
                    if time.monotonic() - connection.heard < self._timeout:
                        continue
                    connection.close()
                    self.news.put((name, {"kind": "lost"}))
                else:
                    self.news.put((name, {"kind": "gone"}))
                del self._connections[name]

    def _say_last(self, kind: str, fields: dict[str, Any]) -> None:
        with self._lock:
            left = list(self._connections.values())
        for connection in left:
            connection.send(kind, **fields)
            connection.shut()
        deadline = time.monotonic() + LAST
        # ORDER: a connection closed with unread data is reset, and the message lost.
        while left and (patience := deadline - time.monotonic()) > 0:
            for connection in ready(left, patience):
                while connection.receive() is not None:
                    pass
            left = [connection for connection in left if not connection.closed]


def ready(files: Iterable[Any], timeout: float) -> list[Any]:
    """Wait until one of sockets and connections can be read, or sent what it has waiting."""
    with selectors.DefaultSelector() as selector:
        for file in files:
            wanted = selectors.EVENT_READ
            if isinstance(file, Connection) and file.pending:
                wanted |= selectors.EVENT_WRITE
            selector.register(file, wanted)
        return [key.fileobj for key, _ in selector.select(timeout)]
