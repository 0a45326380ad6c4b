"""Connections between tasks get a bound; those of anything else are left alone."""

from __future__ import annotations

import dataclasses
import socket
import threading

import pytest

from dtrain.run.cluster import Cluster, Task
from dtrain.task.process import sockets
from tests.integration.test_failures import until

TIMEOUT = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
ALIVE = (socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def pair() -> tuple[socket.socket, socket.socket, socket.socket]:
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    return server, client, server.accept()[0]


def test_connections_of_tasks() -> None:
    own, other, elsewhere = pair(), pair(), pair()
    ports = {other[0].getsockname()[1]}
    datagram, local = socket.socket(type=socket.SOCK_DGRAM), socket.socketpair()
    everything = [*own, *other, *elsewhere, datagram, *local]
    for each in everything:
        try:
            sockets._limit(each.fileno(), 45, own[0].getsockname()[1], ports)
        except OSError:  # a listening one has no peer
            assert each in (other[0], elsewhere[0])
    limited = [each for each in (*own, *other, *elsewhere) if each.getsockopt(*TIMEOUT)]
    assert limited == [own[0], own[2], other[1]]
    assert all(each.getsockopt(*TIMEOUT) == 45_000 and each.getsockopt(*ALIVE) for each in limited)
    sockets._limit(elsewhere[1].fileno(), 45, 1, set(), {"127.0.0.1"})  # as of gloo
    assert elsewhere[1].getsockopt(*TIMEOUT) == 45_000
    for each in everything:
        each.close()


@pytest.mark.parametrize("seconds", [5, 45.5])
def test_connections_that_come_later(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_LOOK", 0.01)
    server, client, accepted = pair()
    tasks = (Task("chief", 0, 1), Task("worker", 0, 1, address="b:1"))
    address = f"127.0.0.1:{server.getsockname()[1]}"
    chief = dataclasses.replace(tasks[0], address=address)
    over = sockets.give_up_after(seconds, Cluster((chief, tasks[1]), "cpu", 2, {}), tasks[1])
    until(lambda: client.getsockopt(*TIMEOUT) == int(seconds * 1000), lambda: "no bound", 20)
    with socket.create_connection(server.getsockname()) as later:
        until(lambda: later.getsockopt(*TIMEOUT) != 0, lambda: "no bound", 20)
    over.set()
    until(lambda: "sockets" not in {t.name for t in threading.enumerate()}, lambda: "it ends", 20)
    for each in (server, client, accepted):
        each.close()
