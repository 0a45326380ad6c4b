"""Where the commands of a job meet, and what they prove to each other there."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from collections.abc import Callable

from dtrain.controller.launchers.cluster_env.base import Started
from dtrain.controller.launchers.local import FIRST, LAST
from dtrain.errors import UsageError
from dtrain.host import network

#: Ports at which a job's chief may wait, where the platform gives it none: each may be taken by
#: another program.
CANDIDATES = 4


@dataclasses.dataclass(frozen=True)
class Meeting:
    """The meeting of one job, whose tasks agree there on their addresses.

    Attributes:
        hosts: that the chief may be on, the likeliest first.
        ports: that it may wait at, in this order.
        own: this machine's address, for the other tasks; empty for the one that they see.
        job: what no other job of this user has.
    """

    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    own: str
    job: str

    @property
    def addresses(self) -> list[str]:
        """Return ``host:port``, at one of which the chief is."""
        return [at(host, port) for host in self.hosts for port in self.ports]

    def key(self, key: bytes) -> bytes:
        """Return the key of this job alone: another one of the user's may wait at the same port."""
        return hmac.digest(key, f"job {self.job}".encode(), hashlib.sha256).hex().encode()


def of(
    started: Started, wanted: str | None, chief: str | None, reach: Callable[[str], str]
) -> Meeting:
    """Return where the commands meet that a platform has started without ports of their own.

    Args:
        started: what the platform says.
        wanted: ``launcher.network``.
        chief: ``launcher.chief``.
        reach: from a host's name to one by which it is reached.

    Raises:
        UsageError: the chief's host is not known, or this machine is not in the network.
    """
    own = "" if wanted is None else network.own_address(wanted)
    hosts = started.chief if chief is None else (chief,)
    if started.is_on_one_machine:
        hosts = ("127.0.0.1",)
    elif not hosts:
        raise UsageError(
            "launcher.chief", "null", f"{started.what} does not say on which host its task 0 is",
            "the name or address of that host, the same for all tasks", "launcher.chief=HOST",
        )  # fmt: skip
    elif started.rank:
        hosts = tuple(map(reach, hosts))
    digest = hashlib.sha256(started.job.encode()).digest()
    numbers = [int.from_bytes(digest[i : i + 4], "big") for i in range(0, 4 * CANDIDATES, 4)]
    ports = dict.fromkeys(FIRST + number % (LAST - FIRST + 1) for number in numbers)
    return Meeting(hosts, tuple(ports), own, started.job)


def at(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
