"""Links between tasks for ``experiments/communication.py``, and what they really do.

A link of a rate alone is the kernel's (tbf); one with a delay is a switch in user space
(``tests/slow.py``), which needs some processor time of the machine that is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PORT = 2222
#: Seconds of a transfer on a link that does what its name says; transfers; messages there and back.
SECONDS, TRANSFERS, MESSAGES = 0.3, 5, 200


@dataclasses.dataclass(frozen=True)
class Link:
    """Of each task to the switch: bits a second (0: all are on one machine), milliseconds."""

    name: str
    bits: int = 0
    delay: float = 0.0


@dataclasses.dataclass
class Places:
    """Where tasks are.

    Attributes:
        starts: what the command of each task begins with.
        addresses: of the tasks.
        switch: the process that passes on their packets; None where that is the kernel.
        found: what the link does, in words.
    """

    starts: list[list[str]]
    addresses: list[str]
    switch: int | None = None
    found: str = ""


def parsed(text: str) -> Link:
    """Return the link that is called ``none``, ``1gbit`` or ``100mbit+1ms``."""
    if text == "none":
        return Link(text)
    found = re.fullmatch(r"([0-9]+)([mg])bit(?:\+([0-9.]+)ms)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not none, RATE or RATE+DELAY: 100mbit+1ms")
    bits = int(found[1]) * {"m": 10**6, "g": 10**9}[found[2]]
    return Link(text, bits, float(found[3] or 0))


@contextlib.contextmanager
def places(count: int, link: Link) -> Iterator[Places]:
    """Yield places for tasks; with a link each is a network namespace, as root on Linux."""
    if not link.bits:
        with contextlib.ExitStack() as stack:
            taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                     for _ in range(count)]  # fmt: skip
            ports = [server.getsockname()[1] for server in taken]
        yield Places([[]] * count, [f"127.0.0.1:{port}" for port in ports])
        return
    sys.path.insert(0, str(ROOT))
    from tests import network

    with network.switch() as switch:
        hosts = [switch.host(f"task-{i}") for i in range(count)]
        made = Places(
            [["ip", "netns", "exec", host.space] for host in hosts],
            [f"{host.address}:{PORT}" for host in hosts],
        )
        process = None
        try:
            if link.delay:
                process = switch.slow(link.delay, link.bits)
                made.switch = process.pid
                # A switch waits for no task to leave it a core.
                os.sched_setscheduler(process.pid, os.SCHED_FIFO, os.sched_param(1))
            else:
                for host in hosts:
                    host.limit(link.bits)
            made.found = probed(made, int(link.bits / 8 * SECONDS))
            yield made
        finally:
            if process is not None:
                process.kill()
                process.wait()


def spent(process: int | None) -> float:
    """Return the processor seconds of a process, 0 without one."""
    if process is None:
        return 0.0
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def probed(made: Places, count: int) -> str:
    """Return what is measured between the first two places, which do nothing else."""
    servant, asker = (
        [*start, sys.executable, __file__, made.addresses[0], str(count)]
        for start in made.starts[:2]
    )
    with subprocess.Popen([*servant, "serve"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            done = subprocess.run(asker, capture_output=True, text=True, timeout=120, check=True)
        finally:
            process.kill()
    return done.stdout.strip()


def serve(address: tuple[str, int], count: int) -> None:
    """Answer each message of as many bytes, and each of one, by a byte."""
    with socket.create_server(address) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    room = bytearray(1 << 20)
    for size in [count] * TRANSFERS + [1] * MESSAGES:
        left = size
        while left:
            left -= connection.recv_into(room, min(left, len(room)))
        connection.sendall(b"x")


def ask(address: tuple[str, int], count: int) -> str:
    """Return the median rate of messages of as many bytes, and the time of one of a byte."""
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for size in [count] * TRANSFERS + [1] * MESSAGES:
        began = time.perf_counter()
        connection.sendall(bytes(size))
        assert connection.recv(1)
        times.append(time.perf_counter() - began)
    rate = 8 * count / statistics.median(times[:TRANSFERS]) / 1e6
    there_and_back = 1000 * statistics.median(times[TRANSFERS:])
    return f"{rate:.0f} Mbit/s, {there_and_back:.2f} ms there and back"


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    if sys.argv[3:]:
        serve((host, int(port)), int(sys.argv[2]))
    else:
        print(ask((host, int(port)), int(sys.argv[2])))
