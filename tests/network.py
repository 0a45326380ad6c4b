"""Hosts that are network namespaces on one switch, whose links can be cut or made to lose packets.

Needs root and Linux. Nothing of the machine's own network is touched: the switch is a namespace,
too, and all of it goes with the namespaces.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PORT = 2222
SLOW = str(Path(__file__).parent / "slow.py")
#: Bytes that a limited link passes on at once.
BURST = 16_384
_numbers = itertools.count()
KEY = "a key of the tests, on all of their hosts"


def ip(*words: str) -> str:
    """Run ip(8)."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


@functools.cache
def lacking() -> str | None:
    """Return why there can be no such hosts here, None if there can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "network namespaces need root on Linux"
    try:
        with switch() as network:
            network.host("a")
    except (OSError, AssertionError) as error:
        return f"no network namespaces here: {error}"
    return None


@functools.cache
def lossless() -> str | None:
    """Return why no packets can be lost on purpose here, None if they can."""
    try:
        with switch() as network:
            network.host("a").lose(50)
    except (OSError, AssertionError) as error:
        return f"no way to lose packets here: {error}"
    return None


class Host:
    """One namespace, with a folder of its own for a disk.

    Args:
        network: whose switch it is plugged into.
        name: such as ``worker-0``.
        number: last part of its address.
    """

    def __init__(self, network: Network, name: str, number: int):
        self.name, self.space = name, f"{network.name}-{number}"
        self.address = f"10.77.0.{number}"
        self.commands: list[Command] = []
        self._loses = False
        self._switch, self.plug = network.space, f"plug{number}"
        ip("netns", "add", self.space)
        ip("-n", self.space, "link", "set", "lo", "up")
        ip("link", "add", "eth0", "netns", self.space, "type", "veth",
           "peer", "name", self.plug, "netns", self._switch)  # fmt: skip
        ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.space, "link", "set", "eth0", "up")
        ip("-n", self._switch, "link", "set", self.plug, "master", "switch", "up")

    def cut(self) -> None:
        """Pull the plug; the host itself does not see it."""
        ip("-n", self._switch, "link", "set", self.plug, "nomaster")

    def heal(self) -> None:
        """Plug it in, and lose nothing."""
        ip("-n", self._switch, "link", "set", self.plug, "master", "switch")
        if self._loses:
            self._loses = False
            for space in (self.space, self._switch):
                ip("netns", "exec", space, "nft", "delete", "table", "netdev", "loss")

    def lose(self, percent: int) -> None:
        """Lose so many of the packets in both directions."""
        self._loses = True
        for space, device in ((self.space, "eth0"), (self._switch, self.plug)):
            chain = f"chain {device} {{ type filter hook ingress device {device} priority 0; }}"
            drop = f"add rule netdev loss {device} numgen random mod 100 < {percent} drop"
            rules = f"table netdev loss {{ {chain}\n}}\n{drop}\n"
            done = subprocess.run(
                ["ip", "netns", "exec", space, "nft", rules], capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr

    def slow(self, milliseconds: int, percent: int) -> subprocess.Popen[bytes]:
        """Delay each packet on its cable, in both directions, and lose some of them.

        Returns:
            The process that does; to be killed in the end.
        """
        cable, far = f"slow{self.plug}", f"far{self.plug}"
        for space, device in ((self.space, "eth0"), (self._switch, self.plug)):
            ip("netns", "exec", space, sys.executable, SLOW, device)
        ip("link", "add", cable, "netns", self._switch, "type", "veth",
           "peer", "name", far, "netns", self._switch)  # fmt: skip
        for device in (cable, far):
            ip("netns", "exec", self._switch, sys.executable, SLOW, device)
            ip("-n", self._switch, "link", "set", device, "up")
        ip("-n", self._switch, "link", "set", self.plug, "nomaster")
        ip("-n", self._switch, "link", "set", far, "master", "switch")
        return _cable(self._switch, milliseconds, percent, 0, self.plug, cable)

    def limit(self, bits: int) -> None:
        """Have its link carry so many bits a second in each direction, where the kernel has tbf."""
        for space, device in ((self.space, "eth0"), (self._switch, self.plug)):
            # What is sent at once after a silence is not more than one frame of these.
            ip("-n", space, "link", "set", "dev", device, "gso_max_size", str(BURST))
            words = ["root", "tbf", "rate", f"{bits}bit", "burst", str(BURST), "latency", "50ms"]
            done = subprocess.run(
                ["tc", "-n", space, "qdisc", "add", "dev", device, *words],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr

    def start(
        self, folder: Path, tf_config: dict[str, Any] | None, *arguments: str, **variables: str
    ) -> Command:
        """Start ``python -m dtrain`` there, in a folder of its own, with more variables."""
        if tf_config is not None:
            variables["TF_CONFIG"] = json.dumps(tf_config)
        self.commands.append(Command(self, folder / self.name, variables, arguments))
        return self.commands[-1]

    def processes(self) -> list[int]:
        """Return the processes that are in this namespace."""
        return [int(pid) for pid in ip("netns", "pids", self.space).split()]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to each of its processes."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _cable(
    space: str, milliseconds: float, percent: int, bits: int, *devices: str
) -> subprocess.Popen[bytes]:
    """Start ``slow.py`` between some devices."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", space, sys.executable, SLOW, str(milliseconds), str(percent),
         str(bits), *devices], stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as said:
        assert said.readline() == b"ready\n"
    return process


class Command:
    """A command on a host."""

    def __init__(
        self, host: Host, folder: Path, variables: dict[str, str], arguments: tuple[str, ...]
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.host, self.folder = host, folder
        self._file = folder / f"output-{len(list(folder.glob('output-*')))}.txt"
        with self._file.open("w") as file:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", host.space, sys.executable, "-m", "dtrain", *arguments],
                cwd=folder, stdout=file, stderr=file,
                env={**os.environ, "DTRAIN_CLUSTER_KEY": KEY, **variables},
            )  # fmt: skip

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._file.read_text()


class Network:
    """A switch, and the hosts that are plugged into it."""

    def __init__(self, name: str):
        self.name, self.space = name, f"{name}-switch"
        self.hosts: list[Host] = []
        ip("netns", "add", self.space)
        ip("-n", self.space, "link", "add", "switch", "type", "bridge")
        ip("-n", self.space, "link", "set", "switch", "up")

    def host(self, name: str) -> Host:
        """Plug another host in."""
        self.hosts.append(Host(self, name, len(self.hosts) + 1))
        return self.hosts[-1]

    def slow(self, milliseconds: float, bits: int) -> subprocess.Popen[bytes]:
        """Delay each packet between two hosts, and limit the bits a second that a host has.

        Returns:
            The process that is the switch from now on; to be killed in the end.
        """
        plugs = [host.plug for host in self.hosts]
        for plug in plugs:
            ip("-n", self.space, "link", "set", plug, "nomaster")
        return _cable(self.space, milliseconds, 0, bits, *plugs)

    def tf_config(self, own: Host) -> dict[str, Any]:
        """Return the variable's contents for one host: each is named after its task."""
        cluster: dict[str, list[str]] = {}
        for host in self.hosts:
            cluster.setdefault(host.name.partition("-")[0], []).append(f"{host.address}:{PORT}")
        role, _, index = own.name.partition("-")
        return {"cluster": cluster, "task": {"type": role, "index": int(index)}}

    def processes(self) -> dict[str, list[int]]:
        """Return what runs on any host."""
        return {host.name: found for host in self.hosts if (found := host.processes())}


@contextlib.contextmanager
def switch() -> Iterator[Network]:
    """Make a network; afterwards nothing of it is left, processes included."""
    for space in [line.split()[0] for line in ip("netns", "list").splitlines() if line.strip()]:
        left = re.fullmatch(r"dtrain([0-9]+)\.[0-9]+-.*", space)
        if left and not Path(f"/proc/{left[1]}").exists():  # a killed test run has left it
            ip("netns", "del", space)
    name = f"dtrain{os.getpid()}.{next(_numbers)}"
    network: Network | None = None
    try:
        network = Network(name)
        yield network
    finally:
        for host in network.hosts if network is not None else []:
            host.signal(signal.SIGKILL)
            for command in host.commands:
                command.process.wait()
            with contextlib.suppress(AssertionError):
                ip("netns", "del", host.space)
        with contextlib.suppress(AssertionError):
            ip("netns", "del", f"{name}-switch")
