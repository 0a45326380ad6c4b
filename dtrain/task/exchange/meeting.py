"""How the tasks of a job connect to each other, each proving that it knows the job's key.

The side that connects begins with its random bytes, both numbers of tasks and what the connection
is for. The other one answers with random bytes of its own and a code of all that (HMAC-SHA-256
with the key), and gets such a code back. So neither sends or takes a number before it knows that
the other is of the job. What follows is neither encrypted nor proven.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Collection, Sequence

from dtrain.task.exchange.links import Link

#: Seconds for all connections, and for one of them to prove itself.
PATIENCE, PROOF = 20.0, 5.0
DATA, PULSE = 0, 1
_MAGIC = b"dtrain-exchange-1"
_HELLO = struct.Struct("!17s32sIIB")
_CODE = 32


def listen(host: str) -> socket.socket:
    """Return a socket that waits at this task's address, or at all where that is no own one."""
    for each in (host, ""):
        family = socket.AF_INET6 if ":" in each else socket.AF_INET
        try:
            return socket.create_server((each, 0), family=family, backlog=128)
        except OSError:
            if not each:
                raise
    raise AssertionError("one of them was returned or raised")


def connect(
    rank: int,
    wanted: Collection[int],
    addresses: Sequence[tuple[str, int]],
    names: Sequence[str],
    server: socket.socket,
    key: bytes,
) -> dict[int, Link]:
    """Connect this task with others, which do the same.

    Args:
        rank: of this task.
        wanted: ranks of the others; a task of a higher rank connects to that of a lower one.
        addresses: where each task listens, by rank.
        names: of the tasks, by rank.
        server: of :func:`listen`.
        key: of the job.

    Returns:
        The link to each of them, by rank.

    Raises:
        OSError: one of them was not reached in time, or does not know the key.
    """
    deadline = time.monotonic() + PATIENCE
    found: dict[tuple[int, int], socket.socket] = {}
    try:
        for other in sorted(each for each in wanted if each < rank):
            for kind in (DATA, PULSE):
                found[other, kind] = _reach(addresses[other], rank, other, kind, key, deadline)
        missing = {(each, kind) for each in wanted if each > rank for kind in (DATA, PULSE)}
        while missing:
            server.settimeout(_left(deadline, [names[each] for each, _ in sorted(missing)]))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            peer = _taken(connection, rank, missing, key)
            if peer is None:
                connection.close()  # a stranger: the others may still come
                continue
            missing.discard(peer)
            found[peer] = connection
    except BaseException:
        for connection in found.values():
            connection.close()
        raise
    return {each: Link(names[each], found[each, DATA], found[each, PULSE]) for each in wanted}


def _left(deadline: float, names: list[str]) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"{', '.join(dict.fromkeys(names))} did not connect in {PATIENCE:g} s")
    return left


def _reach(
    address: tuple[str, int], rank: int, other: int, kind: int, key: bytes, deadline: float
) -> socket.socket:
    connection = socket.create_connection(address, max(0.1, deadline - time.monotonic()))
    try:
        hello = _HELLO.pack(_MAGIC, secrets.token_bytes(32), rank, other, kind)
        connection.sendall(hello)
        answer = _exactly(connection, 32 + _CODE)
        said = hello + answer[:32]
        if not hmac.compare_digest(_code(key, b"accepted", said), answer[32:]):
            raise PermissionError(f"{address[0]}:{address[1]} does not know the job's key")
        connection.sendall(_code(key, b"connected", said))
    except BaseException:
        connection.close()
        raise
    return connection


def _taken(
    connection: socket.socket, rank: int, missing: Collection[tuple[int, int]], key: bytes
) -> tuple[int, int] | None:
    """Return which task has connected and what for; None if it has not proven to be one."""
    connection.settimeout(PROOF)
    try:
        hello = _exactly(connection, _HELLO.size)
        magic, _, other, own, kind = _HELLO.unpack(hello)
        if magic != _MAGIC or own != rank or (other, kind) not in missing:
            return None
        said = hello + secrets.token_bytes(32)
        connection.sendall(said[-32:] + _code(key, b"accepted", said))
        if not hmac.compare_digest(_code(key, b"connected", said), _exactly(connection, _CODE)):
            return None
    except OSError:
        return None
    return other, kind


def _code(key: bytes, side: bytes, said: bytes) -> bytes:
    return hmac.digest(key, side + b"\0" + said, hashlib.sha256)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise ConnectionError("the other side has closed the connection")
        found += more
    return found
