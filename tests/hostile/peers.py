"""What connects to the chief of a cluster, or answers in its place, and is no command of it."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable

#: Bytes of a peer that never stops.
FLOOD = 100 << 20

Attack = Callable[[tuple[str, int], list[socket.socket]], None]


def _connect(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, 10)
    connection.settimeout(10)
    return connection


def _sends(data: bytes, hold: bool = False) -> Attack:
    """Return a peer that sends something, and then hangs up or waits."""

    def attack(address: tuple[str, int], held: list[socket.socket]) -> None:
        connection = _connect(address)
        with contextlib.suppress(OSError):
            connection.sendall(data)
        if hold:
            held.append(connection)
            return
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        connection.close()

    return attack


def _line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _floods(piece: bytes) -> Attack:
    """Return a peer that sends 100 MB, as far as it is listened to."""

    def attack(address: tuple[str, int], held: list[socket.socket]) -> None:
        with _connect(address) as connection, contextlib.suppress(OSError):
            for _ in range(FLOOD // len(piece)):
                connection.sendall(piece)

    return attack


def _reset(address: tuple[str, int], held: list[socket.socket]) -> None:
    with _connect(address) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _crowd(address: tuple[str, int], held: list[socket.socket]) -> None:
    """Come with more connections than a chief can have tasks."""
    for _ in range(300):
        with contextlib.suppress(OSError):
            held.append(_connect(address))


def _echo(address: tuple[str, int], held: list[socket.socket]) -> None:
    """Say what the chief says."""
    with _connect(address) as connection, contextlib.suppress(OSError):
        connection.settimeout(0.5)
        connection.sendall(b"\n")
        for _ in range(20):
            data = connection.recv(1 << 16)
            if not data:
                break
            connection.sendall(data)


def _reflect(address: tuple[str, int], held: list[socket.socket]) -> None:
    """Have the chief answer its own questions, by a second connection."""
    with _connect(address) as one, _connect(address) as other, contextlib.suppress(OSError):
        for connection in (one, other):
            connection.settimeout(0.3)
        for _ in range(6):
            for source, sink in ((one, other), (other, one)):
                with contextlib.suppress(TimeoutError):
                    sink.sendall(source.recv(1 << 16))


def _drip(address: tuple[str, int], held: list[socket.socket]) -> None:
    """Send a byte now and then for as long as the test lasts."""
    connection = _connect(address)
    held.append(connection)

    def send() -> None:
        wait = threading.Event()
        with contextlib.suppress(OSError):
            for byte in b'{"task": "worker-0", "facts": {' * 100:
                connection.sendall(bytes([byte]))
                wait.wait(0.05)

    threading.Thread(target=send, daemon=True).start()


_DEEP = 100_000
#: By name: each is done to a chief that waits for its worker.
ATTACKS: dict[str, Attack] = {
    "nothing, and waits": _sends(b"", hold=True),
    "nothing, and leaves": _sends(b""),
    "a reset": _reset,
    "half a line, and waits": _sends(b'{"task": "worker-0", "fac', hold=True),
    "half a line, and leaves": _sends(b'{"task": "worker-0", "fac'),
    "garbage": _sends(bytes(range(256)) * 64 + b"\n"),
    "NUL bytes": _sends(b"\0" * 65536 + b"\n"),
    "empty lines": _sends(b"\n" * 10_000),
    "a page of the web": _sends(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "the hello of TLS": _sends(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 600),
    "the preface of HTTP/2": _sends(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "no UTF-8": _sends(b'{"task": "\xff"}\n'),
    "deep lists": _sends(b"[" * _DEEP + b"\n"),
    "deep tables": _sends(b'{"a":' * _DEEP + b"1" + b"}" * _DEEP + b"\n"),
    "a number of 100,000 digits": _sends(b'{"task": ' + b"1" * _DEEP + b"}\n"),
    "a list": _sends(_line(["worker-0"])),
    "null": _sends(_line(None)),
    "an empty table": _sends(_line({})),
    "a task that is a list": _sends(_line({"task": ["worker-0"], "facts": {}})),
    "a task of the chief's name": _sends(_line({"task": "chief-0", "facts": {}})),
    "a task that is none": _sends(_line({"task": "../../x\x1b[31m", "facts": {}})),
    "a hello without facts": _sends(_line({"task": "worker-0"})),
    "a hello of no facts": _sends(_line({"task": "worker-0", "facts": {}, "dtrain": "0.1.0"})),
    "a hello of wrong facts": _sends(_line(
        {"task": "worker-0", "facts": {"seed": "\x1b[31m999"}, "dtrain": "9.9"})),
    "a hello that waits": _sends(
        _line({"task": "worker-0", "facts": {}, "dtrain": "0.1.0"}), hold=True),
    "facts that are lists": _sends(_line({"task": "worker-0", "facts": {"seed": [[]]}})),
    "a request to stop": _sends(_line({"stop": True})),
    "an end": _sends(_line({"ended": 0})),
    "a folder": _sends(_line({"folder": "/etc"})),
    "a challenge of Python's": _sends(b"\x00\x00\x00\x27#CHALLENGE#{sha256}" + b"x" * 32),
    "a welcome of Python's": _sends(b"\x00\x00\x00\x09#WELCOME#"),
    "a length of 4 GB": _sends(b"\xff" * 8, hold=True),
    "a pickle": _sends(b"cos\nsystem\n(S'touch ran'\ntR.\n"),
    "what the chief says": _echo,
    "the chief's own answers": _reflect,
    "a byte now and then": _drip,
    "100 MB without an end": _floods(b"x" * (1 << 20)),
    "100 MB of lines": _floods(b"{}\n" * 100_000),
    "300 connections": _crowd,
}  # fmt: skip

#: What a false chief answers to every command that comes to it.
ANSWERS: dict[str, bytes] = {
    "nothing": b"",
    "garbage": bytes(range(256)) * 64 + b"\n",
    "deep lists": b"[" * _DEEP + b"\n",
    "a folder elsewhere": _line({"folder": "{canary}/folder"}),
    "a folder above": _line({"folder": "../../../canary/folder"}),
    "a folder that is a list": _line({"folder": ["x"]}),
    "a problem of other fields": _line({"ok": False, "problem": {"x": 1}}),
    "a problem with escapes": _line({"problem": {
        "key": "\x1b[31m", "value": "\x1b]0;x\x07", "problem": "x", "accepted": "y", "hint": "z"}}),
    "a problem of lists": _line({"problem": {
        "key": [], "value": {}, "problem": None, "accepted": 1, "hint": [[]]}}),
    "an error that is a list": _line({"error": [1]}),
    "an error with escapes": _line({"error": "\x1b]0;x\x07"}),
    "an end": _line({"ended": 0}),
    "a page of the web": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "100 MB without an end": b"x" * (32 << 20),
}  # fmt: skip


class FalseChief:
    """Listens at the address of a chief, and gives every command that comes the same answer.

    Args:
        answer: as of :data:`ANSWERS`.
    """

    def __init__(self, answer: bytes):
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        self.came = 0
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.came += 1
                self._held.append(connection)
                connection.settimeout(2)
                with contextlib.suppress(OSError):
                    connection.sendall(self._answer)
                    connection.recv(1 << 16)

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for each in [self._socket, *self._held]:
            each.close()
        self._thread.join(10)
