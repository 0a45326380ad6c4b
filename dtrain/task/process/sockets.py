"""Connections between tasks whose other end no longer answers are given up.

gRPC and gloo wait for an answer as long as TCP lets them: for ever, where the question has arrived.
Their options for that are not within the reach of TensorFlow or JAX, those of their sockets are.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Collection

from dtrain.run.cluster import Cluster, Task

#: Seconds between two looks for new connections.
_LOOK = 2.0


def give_up_after(
    seconds: float, cluster: Cluster, task: Task, by_host: bool = False
) -> threading.Event:
    """Have the kernel end connections between the tasks on which nothing is answered for so long.

    Args:
        seconds: that the other end may be silent.
        cluster: all tasks, with their addresses.
        task: the one that this process is.
        by_host: all connections to the hosts of the other tasks, as those of gloo have any ports.

    Returns:
        What ends the looking for new connections, when it is set.
    """
    over = threading.Event()
    ports = {_port(each.address) for each in cluster.tasks if each != task and each.address}
    hosts = _addresses(cluster, task) if by_host else set()
    own = _port(task.address or ":0")

    def watch() -> None:
        while not over.wait(_LOOK):
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    _limit(int(name), seconds, own, ports, hosts)

    if sys.platform == "linux":
        threading.Thread(target=watch, name="sockets", daemon=True).start()
    return over


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _addresses(cluster: Cluster, task: Task) -> set[str]:
    """Return the addresses of the hosts of the other tasks."""
    names = {each.address.rpartition(":")[0].strip("[]") for each in cluster.tasks
             if each != task and each.address}  # fmt: skip
    return {str(info[4][0]) for name in names for info in socket.getaddrinfo(name, None)}


def _limit(
    descriptor: int, seconds: float, own: int, ports: Collection[int], hosts: Collection[str] = ()
) -> None:
    connection = socket.socket(fileno=descriptor)  # an OSError where it is none
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        if connection.type != socket.SOCK_STREAM:
            return
        # ORDER: one that is only being connected has no peer yet, and is looked at again.
        if connection.getsockname()[1] != own:
            host, port = connection.getpeername()[:2]
            if port not in ports and host.removeprefix("::ffff:") not in hosts:
                return
        probe = max(1, int(seconds / 4))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
    finally:
        connection.detach()  # it is not this function's to close
