"""Connections between tasks, and how it is noticed that the other end is gone or stands still.

A task that has died closes its connections, which is noticed at once. One that is stopped, or cut
off, is noticed by its silence: beside what carries data each link has a connection by which either
side gives a sign of life every second, whatever its training does.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Collection

#: Seconds between two signs of life.
BEAT = 1.0
#: Own beats without one of the other side after which it is lost. Counted and not timed: a task
#: that was stopped itself has heard nothing, and the others may be well.
MISSED = 15


class Lost(OSError):
    """Another task of the job is gone, or stands still."""


class Link:
    """A task's two connections to another one.

    Args:
        name: of the other task, for messages.
        data: carries vectors.
        pulse: carries signs of life.
    """

    def __init__(self, name: str, data: socket.socket, pulse: socket.socket):
        self.name = name
        self.data, self._pulse = data, pulse
        self.missed = 0
        data.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for side in (data, pulse):
            side.setblocking(False)

    def beat(self) -> None:
        """Give a sign of life, and look for those of the other side."""
        self.missed += 1
        # A full or closed connection says no more than silence does.
        with contextlib.suppress(OSError):
            self._pulse.send(b".")
        with contextlib.suppress(OSError):
            if self._pulse.recv(1 << 12):
                self.missed = 0

    def close(self) -> None:
        """Close both connections."""
        self.data.close()
        self._pulse.close()


class Pulse:
    """Has all links of a task beat, until it is closed."""

    def __init__(self, links: Collection[Link], seconds: float = BEAT):
        self._links, self._seconds = links, seconds
        self._over = threading.Event()
        threading.Thread(target=self._run, name="exchange", daemon=True).start()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            for link in self._links:
                link.beat()

    def close(self) -> None:
        """Stop."""
        self._over.set()


def swap(to: Link, out: memoryview, of: Link, into: memoryview) -> None:
    """Send ``out`` to one task, and meanwhile fill ``into`` with what comes from another.

    Args:
        to: may be the same as ``of``.
        out, into: of bytes; either may be empty.

    Raises:
        Lost: one of the two is gone, or stands still.
    """
    while out or into:
        sent, came = _send(to, out), _receive(of, into)
        out, into = out[sent:], into[came:]
        if not (sent or came):
            _wait(to if out else None, of if into else None)


def barrier(links: Collection[Link]) -> None:
    """Wait until every one of these tasks is here as well.

    Raises:
        Lost: one of them is gone, or stands still.
    """
    nothing = memoryview(b"")
    for link in links:
        swap(link, memoryview(b"."), link, nothing)
    for link in links:
        swap(link, nothing, link, memoryview(bytearray(1)))


def _send(link: Link, out: memoryview) -> int:
    try:
        return link.data.send(out) if out else 0
    except BlockingIOError:
        return 0
    except OSError as error:
        raise _gone(link) from error


def _receive(link: Link, into: memoryview) -> int:
    if not into:
        return 0
    try:
        count = link.data.recv_into(into)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise _gone(link) from error
    if not count:
        raise _gone(link)
    return count


def _gone(link: Link) -> Lost:
    return Lost(f"{link.name} is gone: it has closed its connection")


def _wait(to: Link | None, of: Link | None) -> None:
    poll = select.poll()  # and not select.select, which takes no descriptor beyond 1023
    wanted = {link: 0 for link in (to, of) if link is not None}
    for link, event in ((to, select.POLLOUT), (of, select.POLLIN)):
        if link is not None:
            wanted[link] |= event
    for link, events in wanted.items():
        poll.register(link.data, events)
    while not poll.poll(1000 * BEAT):
        for link in wanted:
            if link.missed >= MISSED:
                raise Lost(f"{link.name} is lost: nothing came from it for {MISSED * BEAT:g} s")
