"""One end of a connection between two commands of a cluster."""

from __future__ import annotations

import collections
import contextlib
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from dtrain.controller.launchers.rendezvous import messages
from dtrain.controller.launchers.rendezvous.messages import Message, Seal
from dtrain.controller.launchers.rendezvous.pace import Pace

#: Seconds between two signs of life; the same everywhere: hosts may differ in their patience.
BEAT = 1.0
#: Seconds that a connection may take to prove itself.
PROVE = 10.0
#: Seconds between two signs of life that mean nothing.
SLACK = 2.0


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
        self.taken = False  # another thread follows it now
        #: Addresses of both ends.
        self.address, self.own = _address(connected.getpeername), _address(connected.getsockname)
        self.pace = Pace()  # of the steps that the other side reported
        self._step = 0
        self._gaps: collections.deque[tuple[float, float]] = collections.deque()
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
            self._hear(message)
            if not self.proven:
                self.proven = True
                for data in self._waiting:
                    self._put(data)
                self._waiting = []
                self.flush()
            if message["kind"] not in ("beat", "proof"):
                return message
        return None

    def _hear(self, message: Message) -> None:
        now = time.monotonic()
        if now - self.heard > SLACK:
            self._gaps.append((now, now - self.heard - SLACK))
        self.heard = now
        if message.get("step", self._step) != self._step:
            self._step = message["step"]
            self.pace.move()

    def late(self, seconds: float) -> float:
        """Return for how much of the last ``seconds`` something should have come.

        A single gap counts for nothing: the network was gone and is back, or all is lost.
        """
        now = time.monotonic()
        while self._gaps and now - self._gaps[0][0] > seconds:
            self._gaps.popleft()
        gaps = [gap for _, gap in self._gaps]
        if now - self.heard > SLACK:
            gaps.append(now - self.heard - SLACK)
        return sum(gaps) if len(gaps) > 1 else 0.0

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
        chiefs, peers = (Seal(self._key, sender, nonces) for sender in ("chief", "peer"))
        self._seals = (chiefs, peers) if self._chief else (peers, chiefs)
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

    def beat(self, step: int) -> None:
        """Give a sign of life, if the last one was long ago; what waits to be sent comes first."""
        if self.proven and not self._out and time.monotonic() - self._sent >= BEAT:
            self.send("beat", step=step)

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


def _address(ask: Callable[[], Any]) -> str:
    try:
        name = ask()
    except OSError:
        return "an unknown address"
    # An IPv4 address that a socket for both kinds has is written as one of IPv6.
    return str(name[0]).removeprefix("::ffff:") if isinstance(name, tuple) else "this machine"


def ready(files: Iterable[Any], timeout: float) -> list[Any]:
    """Wait until one of sockets and connections can be read, or sent what it has waiting."""
    with selectors.DefaultSelector() as selector:
        for file in files:
            wanted = selectors.EVENT_READ
            if isinstance(file, Connection) and file.pending:
                wanted |= selectors.EVENT_WRITE
            selector.register(file, wanted)
        return [key.fileobj for key, _ in selector.select(timeout)]
