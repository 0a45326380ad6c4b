"""What the commands of one cluster send each other: as bytes, on a connection of two threads.

Each side of a connection begins with a line of its own random bytes. From these and the cluster's
key both derive the keys of this one connection, one for each direction; every later line begins
with a code of its text and its number (HMAC-SHA-256). So each side knows the key, no line is of
another connection, comes twice or in another order, and none is read before it is proven. Nothing
is encrypted.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import hmac
import json
import re
import secrets
import selectors
import socket
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from dtrain.errors import TrainingError
from dtrain.files import reading
from dtrain.run.failure import KINDS as KINDS_OF_FAILURE

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
        self._in, self._out = b"", greeting(self._nonce)
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
            message = parse(data) if data is not None else None
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
        longest = LONGEST_LINE if self.proven else GREETING
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
        other = nonce_of(line)
        if other is None or other == self._nonce:  # nothing we know, or this very socket
            self.close()
            return
        nonces = (self._nonce, other) if self._chief else (other, self._nonce)
        chiefs, peers = (Seal(self._key, sender, nonces) for sender in ("chief", "peer"))
        self._seals = (chiefs, peers) if self._chief else (peers, chiefs)
        self._put(make("proof"))
        self.flush()

    def _put(self, data: bytes) -> None:
        assert self._seals is not None
        self._out += self._seals[0].close(data)
        self._sent = time.monotonic()

    def send(self, kind: str, **fields: object) -> None:
        """Send a message, once the peer is proven; nothing happens where it is gone."""
        data = make(kind, **fields)
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


def _address(ask: Callable[[], object]) -> str:
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


#: Bytes of a message, of a line with its code, and of the first lines of a connection.
LONGEST = 1 << 22
CODE = 64
LONGEST_LINE = CODE + LONGEST
GREETING = 128
#: Bytes of an error's text, or of one of its parts, that another host is sent.
TEXT = 4000

Message = dict[str, Any]

_MAGIC = b"dtrain-cluster-2 "


def _text(value: object) -> bool:
    return isinstance(value, str) and value.replace("\n", "").isprintable()


def _texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _code(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255


def _step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _name(value: object) -> bool:
    return isinstance(value, str) and is_name(value)


def _is_address(value: object) -> bool:
    """Say whether ``value`` is ``host:port``, ``:port`` of a host that is known, or nothing."""
    return (
        isinstance(value, str)
        and re.fullmatch(r"([\w.:\[\]-]{0,260}:[0-9]{1,5})?", value) is not None
    )


def _addresses(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_address, value))


def _job(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}", value) is not None


#: Each kind of message, with its fields and what they may be. ``proof`` is the chief's first one:
#: it says nothing but that it knows the key. ``beat`` says that its sender is alive, and how far
#: the job is.
KINDS: dict[str, dict[str, Callable[[object], bool]]] = {
    "proof": {},
    "beat": {"step": _step},
    "hello": {"task": _text, "dtrain": _text, "facts": _texts, "address": _is_address},
    "stop": {},
    "left": {
        "code": _code,
        "failed": KINDS_OF_FAILURE.__contains__,
        "reason": _text,
        "place": _text,
    },
    "place": {"day": _name, "name": _name, "job": _job, "addresses": _addresses},
    "problem": dict.fromkeys(("key", "value", "why", "accepted", "typed", "hint"), _text),
    "error": {"error": _text},
    "ended": {"code": _code},
}


def is_name(text: str) -> bool:
    """Say whether ``text`` is the name of a file or folder, one component and no hidden one."""
    return reading.component(text) is None and not text.startswith(".")


def parse(data: bytes) -> Message | None:
    """Return the message that ``data`` is, with all fields of its kind; None if it is none."""
    if len(data) > LONGEST:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    kind = value.get("kind") if isinstance(value, dict) else None
    fields = KINDS.get(kind) if isinstance(kind, str) else None
    if fields is None or value.keys() != {"kind", *fields}:
        return None
    return value if all(check(value[name]) for name, check in fields.items()) else None


def make(kind: str, **fields: object) -> bytes:
    """Return a message as :func:`parse` takes it: long texts are cut, odd characters replaced.

    Raises:
        TrainingError: it is too long all the same.
    """
    checks = KINDS[kind]
    for name, value in fields.items():
        if checks[name] is _text:
            fields[name] = "".join(c if _text(c) else "?" for c in str(value)[:TEXT])
    data = json.dumps({"kind": kind, **fields}).encode()
    if len(data) > LONGEST:
        raise TrainingError(f"the message {kind!r} to another host has {len(data):,} bytes; "
                            f"{LONGEST:,} at most can be sent")  # fmt: skip
    return data


def shorten_facts(facts: dict[str, str]) -> dict[str, str]:
    """Return facts that fit in a message: of a long text its beginning, and what tells it apart."""
    return {key: text if len(text) <= TEXT else _shortened(text) for key, text in facts.items()}


def _shortened(text: str) -> str:
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    return f"{text[:200]}... ({len(text)} characters, sha256 {digest})"


def greeting(nonce: bytes) -> bytes:
    """Return the line that a side of a connection begins with."""
    return _MAGIC + nonce.hex().encode() + b"\n"


def nonce_of(line: bytes) -> bytes | None:
    """Return the random bytes of the other side's :func:`greeting`, None if it is no such line."""
    found = re.fullmatch(re.escape(_MAGIC) + rb"([0-9a-f]{64})", line)
    return bytes.fromhex(found[1].decode()) if found else None


class Seal:
    """Proves the messages of one direction of one connection.

    Args:
        key: the cluster's.
        sender: ``chief`` or ``peer``.
        nonces: the chief's random bytes and the peer's.
    """

    def __init__(self, key: bytes, sender: str, nonces: tuple[bytes, bytes]):
        own = b"\0".join([_MAGIC, sender.encode(), *nonces])
        self._key = hmac.digest(key, own, hashlib.sha256)
        self._number = 0

    def close(self, data: bytes) -> bytes:
        """Return the line that carries ``data``."""
        return self._next(data) + data + b"\n"

    def open(self, line: bytes) -> bytes | None:
        """Return what a line carries, None if it is not the next one of this connection."""
        code, data = line[:CODE], line[CODE:]
        return data if hmac.compare_digest(self._next(data), code) else None

    def _next(self, data: bytes) -> bytes:
        numbered = self._number.to_bytes(8, "big") + data
        self._number += 1
        return hmac.digest(self._key, numbered, hashlib.sha256).hex().encode()


#: A pause between two steps counts from so many seconds on, and from so many times the usual one.
LEAST, FACTOR = 5.0, 5.0
#: Pauses that tell the usual one, at least and at most.
FEW, MANY = 3, 50
#: Part of a time that a job stands still for, if it does.
MOST = 0.75


class Pace:
    """When a job made steps.

    Where packets are lost, a step comes through now and then, and each would begin the waiting
    anew: so it is the sum of the pauses that counts, not the last one.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._moved = False
        self._usual: collections.deque[float] = collections.deque(maxlen=MANY)
        self._pauses: collections.deque[tuple[float, float]] = collections.deque()

    def move(self) -> None:
        """Note that there was a step."""
        now = time.monotonic()
        if self._moved and self._is_pause(now - self._last):
            self._pauses.append((self._last, now))
        if self._moved:  # what comes before the first is no pace
            self._usual.append(now - self._last)
        self._moved, self._last = True, now

    def stands(self, seconds: float) -> bool:
        """Say whether it stood still for the last ``seconds``, or for most of them.

        Before the first step it is all of them: imports and tracing are no pauses.
        """
        now = time.monotonic()
        if now - self._last >= seconds or not self._moved:
            return now - self._last >= seconds
        begin = now - seconds
        while self._pauses and self._pauses[0][1] < begin:
            self._pauses.popleft()
        stood = sum(end - max(start, begin) for start, end in self._pauses)
        if self._is_pause(now - self._last):
            stood += now - self._last
        return stood >= MOST * seconds

    def _is_pause(self, seconds: float) -> bool:
        usual = statistics.median(self._usual) if len(self._usual) >= FEW else 0.0
        return seconds > max(LEAST, FACTOR * usual)
