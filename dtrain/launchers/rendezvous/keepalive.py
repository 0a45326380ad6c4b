"""A thread that keeps the connections of a cluster's command alive, and sees which are not."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time

from dtrain import errors
from dtrain.files.fields import Json
from dtrain.launchers.rendezvous.messages import BEAT, Connection, Message, Pace, ready

#: Part of the patience with a silent peer that may be silence before the peer is a hindrance.
SHARE = 0.25
#: Exit codes of a task that has done its part, or was asked to stop.
ENDED_WELL = (errors.OK, errors.INTERRUPTED)
#: Seconds that the last message has to reach the other side.
LAST = 2.0


class Watch(threading.Thread):
    """Gives and takes signs of life, whatever else this command is doing meanwhile.

    Attributes:
        news: of each connection: its name with a message, ``{"kind": "gone"}`` (it was closed),
            ``{"kind": "late"}`` (it left or was closed, and much had been lost before) or
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
        self._last: tuple[str, Json] | None = None
        self._over = False
        self._lost: list[str] = []
        self._step, self._pace = 0, Pace()
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

    def send(self, kind: str, **fields: object) -> None:
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
        """Return the names of those from which nothing has come for so long, the lost included."""
        now = time.monotonic()
        with self._lock:
            waiting = [n for n, c in self._connections.items() if now - c.heard >= seconds]
            return [*self._lost, *waiting]

    def move(self, step: int) -> None:
        """Take note of how far the job is; it is reported to the other sides."""
        if step != self._step:
            self._step = step
            self._pace.move()

    def hindrances(self) -> list[str]:
        """Return those without whom the job would not stand still: it does, and they are late.

        Where packets are lost, TCP may bring signs of life in time, and what is trained never.
        """
        found = []
        with self._lock:
            for name, connection in self._connections.items():
                paces = (self._pace, connection.pace)
                stands = all(pace.stands(self._timeout) for pace in paces)
                if stands and connection.late(self._timeout) >= SHARE * self._timeout:
                    found.append(name)
        return found

    def end(self, kind: str | None = None, **fields: object) -> None:
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
                connection.beat(self._step)
                # ORDER: read before it is judged: this process may have been stopped itself.
                while (message := connection.receive()) is not None:
                    left = message["kind"] == "left" and message["code"] not in ENDED_WELL
                    late = left and self._is_lossy(connection)
                    self.news.put((name, {"kind": "late"} if late else message))
                if not connection.closed:
                    if time.monotonic() - connection.heard < self._timeout:
                        continue
                    connection.close()
                    self._lost.append(name)
                    self.news.put((name, {"kind": "lost"}))
                else:
                    lossy = self._is_lossy(connection)
                    self.news.put((name, {"kind": "late" if lossy else "gone"}))
                del self._connections[name]

    def _is_lossy(self, connection: Connection) -> bool:
        """Say whether one that leaves does so because much is lost.

        What was handed to it is lost as well, and TensorFlow would wait for it.
        """
        return connection.late(self._timeout) >= SHARE / 2 * self._timeout

    def _say_last(self, kind: str, fields: Json) -> None:
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
