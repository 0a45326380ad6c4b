"""Hosts, as a launcher sees them: their agents and names, and which gets which tasks."""

from __future__ import annotations

import dataclasses
import queue
import re
import secrets
import time
from pathlib import Path

from dtrain.errors import DtrainError, TrainingError, UsageError, refuse
from dtrain.files.fields import Json
from dtrain.launchers.agents import mirror
from dtrain.launchers.agents.stream import Message, Stream, Transport
from dtrain.launchers.platforms.tf_config import joined
from dtrain.run.cluster import Cluster, Task
from dtrain.run.mirror import Receiver

#: Seconds between two looks at whether files move.
_TURN = 1.0


class Lost(TrainingError):
    """The agent of a host is not there any more.

    Args:
        host: whose.
        why: a clause about it.
    """

    def __init__(self, host: Host, why: str):
        super().__init__(f"{host.name}: {why}")
        self.host, self.why = host, why


class Host:
    """One host, and the tasks that it is given.

    Args:
        transport: leads to its agent.
        slots: how many tasks it has room for.
        inbox: where messages of all hosts go, each with its host.

    Attributes:
        facts: what the agent has said of the host (:mod:`.facts`); empty until it has.
        tasks: names of those that are its.
        address: by which the others reach it; None where that is not known.
        lost: why the agent is not there any more; None while it is.
        frozen: tasks that are stopped (SIGSTOP).
        copy: takes in what its tasks write, where it does not see the run folder.
        came: how many pieces of that there were.
    """

    def __init__(
        self, transport: Transport, slots: int, inbox: queue.SimpleQueue[tuple[Host, Message]]
    ):
        self.transport, self.slots = transport, slots
        self.name = transport.host
        self.facts: Json = {}
        self.tasks: list[str] = []
        self.address: str | None = None
        self.lost: str | None = None
        self.frozen: set[str] = set()
        self.copy: Receiver | None = None
        self.came = 0
        self._inbox = inbox
        self._broken = False
        self.stream: Stream | None = None

    def open(self) -> None:
        """Start the agent; what it says comes later.

        Raises:
            OSError: the command that would cannot be started.
        """
        reader, writer = self.transport.open()
        self.stream = Stream(reader, writer, self._hear, noisy=True)

    def _hear(self, message: Message) -> None:
        if message["kind"] == "hello":  # of a slow host that is waited for the clock goes on
            message["came"] = time.time()
        if message["kind"] != "change":
            self._inbox.put((self, message))
            return
        if self._broken:
            return
        message.pop("kind")
        try:
            if self.copy is None:
                raise ValueError("it has no run folder of its own")
            self.copy.apply(mirror.of_message(**message))
            self.came += 1
        except (OSError, DtrainError, ValueError, TypeError) as error:
            self._broken = True
            why = f"what came of its run folder cannot be kept ({error})"
            self._inbox.put((self, {"kind": "gone", "why": why}))

    def send(self, kind: str, data: bytes = b"", **fields: object) -> None:
        """Send a message; one that is lost gets none."""
        if self.stream is not None:
            self.stream.send(kind, data, **fields)

    @property
    def written(self) -> int:
        """Bytes that were sent to it."""
        return self.stream.written if self.stream is not None else 0

    @property
    def silent(self) -> float:
        """Seconds since something came from it."""
        return self.stream.silent() if self.stream is not None else 0.0

    def close(self, seconds: float) -> None:
        """End the connection, at which the agent ends what it has started."""
        if self.stream is not None:
            self.stream.close()
            self.transport.close(seconds)


class Inbox:
    """Messages of several hosts, in the order in which they came.

    Args:
        peer_timeout: seconds of silence after which a host is lost.
    """

    def __init__(self, peer_timeout: float):
        self.queue: queue.SimpleQueue[tuple[Host, Message]] = queue.SimpleQueue()
        self._peer_timeout = peer_timeout
        self._later: list[tuple[Host, Message]] = []

    def take(self, hosts: list[Host], timeout: float) -> list[tuple[Host, Message]]:
        """Return what has come, waiting up to ``timeout`` seconds for something.

        A host that is lost has one message more, ``{"kind": "lost"}``: :attr:`Host.lost` says why.
        """
        found, self._later = self._later, []
        deadline = time.monotonic() + (0.0 if found else timeout)
        while True:
            try:
                left = deadline - time.monotonic()
                host, message = self.queue.get(timeout=left) if left > 0 else self.queue.get(False)
            except queue.Empty:
                break
            deadline = 0.0  # the rest without waiting
            if message["kind"] != "gone":
                found.append((host, message))
            elif host.lost is None:
                broken = host.stream is not None and not host.stream.gone
                host.lost = message["why"] if broken else host.transport.why() or message["why"]
                found.append((host, {"kind": "lost"}))
        for host in hosts:
            if host.lost is None and host.silent > self._peer_timeout:
                host.lost = f"nothing came from it for {self._peer_timeout:g} s " + (
                    "(launcher.peer_timeout)"
                )
                found.append((host, {"kind": "lost"}))
        return found

    def gather(
        self, hosts: list[Host], kind: str, seconds: float, doing: str
    ) -> dict[str, Message]:
        """Wait as :meth:`collect` does; return the messages by the hosts' names.

        Args:
            hosts, kind, seconds: as there.
            doing: what the hosts do, for the message: "did not DOING within".

        Raises:
            Lost: one of them is.
            TrainingError: one has a problem, or is late.
        """
        found: dict[str, Message] = {}
        missing = self.collect(hosts, kind, seconds, found, first=True)
        for host in missing:
            if host.lost is not None:
                raise Lost(host, host.lost)
        if missing:
            names = ", ".join(host.name for host in missing)
            raise TrainingError(f"{names} did not {doing} within {seconds:g} s")
        return found

    def collect(
        self, hosts: list[Host], kind: str, seconds: float, found: dict[str, Message],
        first: bool = False,
    ) -> list[Host]:  # fmt: skip
        """Wait until each host has sent a message of a kind, or is lost.

        What else comes is kept for :meth:`take`.

        Args:
            hosts: of which each is waited for.
            kind: of the messages.
            seconds: that they have; as long as files move they begin anew.
            found: the messages, by the names of hosts; they are put there.
            first: one that is lost ends it.

        Returns:
            The hosts whose message has not come.

        Raises:
            TrainingError: one has a problem.
        """
        kept: list[tuple[Host, Message]] = []
        missing, since, moved = list(hosts), time.monotonic(), -1
        enough = any if first else all
        try:
            while missing and not enough(host.lost is not None for host in missing):
                remaining = since + seconds - time.monotonic()
                if (now := sum(host.came + host.written for host in missing)) != moved:
                    since, moved = time.monotonic(), now
                elif remaining <= 0:
                    break
                for host, message in self.take(hosts, min(max(remaining, 0.0), _TURN)):
                    if message["kind"] == "problem":
                        raise TrainingError(f"{host.name}: {message['message']}")
                    if message["kind"] == kind:
                        found[host.name] = message
                    else:
                        kept.append((host, message))
                missing = [host for host in hosts if host.name not in found]
        finally:
            self._later = kept
        return missing


#: Seconds that hosts have to try whether they reach each other.
REACH = 10.0


class Unreached(TrainingError):
    """A host does not reach a port of another."""


def placed(cluster: Cluster, hosts: list[Host], inbox: Inbox, seconds: float) -> Cluster:
    """Divide the tasks among the hosts, and return the cluster with their addresses.

    Hosts are filled in their order. A place is that of one task, or of those that have a device
    each of its host.

    Args:
        cluster: as planned.
        hosts: with agents; they get to know their tasks.
        inbox: of the hosts.
        seconds: that they have to find ports.

    Raises:
        Unreached: they do not reach each other.
        TrainingError: there are too few places, no free ports, or a host is gone.
    """
    slots = [host for host in hosts for _ in range(host.slots)]
    rooms = [host for host in slots for _ in range(cluster.together)]
    if len(rooms) < len(cluster.tasks):
        raise TrainingError(f"{len(cluster.tasks)} tasks have {len(rooms)} places")
    where = dict(zip((task.name for task in cluster.tasks), rooms, strict=False))
    for host in hosts:
        host.tasks = [name for name, its in where.items() if its is host]
    cluster = dataclasses.replace(cluster, tasks=_divided(cluster, where))
    if len(cluster.tasks) == 1:
        return cluster
    used, secret = [host for host in hosts if host.tasks], secrets.token_hex(16)
    for host in used:
        host.send("ports", count=len(host.tasks), secret=secret)
    ports = inbox.gather(used, "ports", seconds, "find free ports")
    left = {name: iter(message["ports"]) for name, message in ports.items()}
    addresses = [
        joined(where[task.name].address or "127.0.0.1", next(left[where[task.name].name]))
        for task in cluster.tasks
    ]
    _check(used, addresses, secret, inbox)
    return cluster.at(addresses)


def _divided(cluster: Cluster, where: dict[str, Host]) -> tuple[Task, ...]:
    """Return the tasks; those that share a host have a part of its cores each."""
    found = []
    for task in cluster.tasks:
        host = where[task.name]
        sharing = [t.name for t in cluster.tasks if where[t.name] is host and t.devices]
        own = host.facts["cores"] // max(1, len(sharing))
        if cluster.device_kind == "cpu" and len(sharing) > 1 and task.devices and own:
            first = sharing.index(task.name) * own
            cores = tuple(range(first, first + own))
            task = dataclasses.replace(task, threads=task.threads or own, cores=cores)
        found.append(task)
    return tuple(found)


def _check(used: list[Host], addresses: list[str], secret: str, inbox: Inbox) -> None:
    """Have every host try the ports of all."""
    for host in used:
        host.send("reach", addresses=addresses, secret=secret, seconds=REACH)
    replies = inbox.gather(used, "reach", 2 * REACH + 5, "try the ports of the others")
    for host in used:
        for address, why in replies[host.name]["found"].items():
            if why is not None:
                raise Unreached(f"{host.name} does not reach {address}: {why}")


#: A host as OpenSSH takes it, with the tasks that it has room for behind it.
_HOST = re.compile(
    r"(?P<user>[\w.+-]+@)?(?:\[(?P<six>[0-9a-fA-F:.]+(?:%\w+)?)\]|(?P<name>\w[\w.-]*))"
    r"(?::(?P<slots>[0-9]{1,4}))?"
)
_ACCEPTED = "[user@]host, or host:2 for two tasks, an IPv6 address in brackets"
#: Options of a line of a file: Open MPI's and DeepSpeed's, of which the number of tasks counts.
_SLOTS = re.compile(r"slots\s*=\s*([0-9]{1,4})")
_OPTION = re.compile(r"(slots|max[-_]slots)\s*=\s*[0-9]{1,4}")
#: Lines of a file.
_MOST = 100_000


def listed(hosts: list[str]) -> list[tuple[str, int]]:
    """Return the names of ``launcher.hosts``, and how many tasks each has room for.

    Raises:
        UsageError: one is no host, or is given twice.
    """
    found = [_parsed("launcher.hosts", text) for text in hosts]
    return _once("launcher.hosts", found)


def in_file(path: str) -> list[tuple[str, int]]:
    """Return those of a file of hosts: ``host slots=N`` a line, ``#`` before a comment.

    Open MPI's and DeepSpeed's files are of this form, and so is a plain list of hosts. A host that
    stands there again has room for more.

    Raises:
        UsageError: there is no such file, or a line is none of these.
    """
    key = "launcher.hostfile"
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no text"
        raise UsageError(key, f"cannot be read ({why})", path, hint=f"{key}=FILE, with a line for "
                         "each host: host slots=N") from None  # fmt: skip
    slots: dict[str, int] = {}
    for number, line in enumerate(lines[:_MOST], 1):
        name, _, options = line.partition("#")[0].strip().partition(" ")
        if not name:
            continue
        if _OPTION.sub("", options).strip():
            refuse(key, f"line {number} is {line.strip()!r}", path,
                   accepted="host slots=N in each line", hint=f"{name} slots=1")  # fmt: skip
        host, room = _parsed(key, name)
        given = _SLOTS.findall(re.sub(r"max[-_]slots\s*=\s*[0-9]+", "", options))
        slots[host] = slots.get(host, 0) + (int(given[0]) if given else room)
    return [(host, room) for host, room in slots.items() if room]


def _parsed(key: str, text: str) -> tuple[str, int]:
    found = _HOST.fullmatch(str(text).strip())
    if found is None or int(found["slots"] or 1) == 0:
        refuse(key, "is no host", text, accepted=_ACCEPTED, typed="'launcher.hosts=[a,b:2]'")
    return (found["user"] or "") + (found["six"] or found["name"]), int(found["slots"] or 1)


def _once(key: str, found: list[tuple[str, int]]) -> list[tuple[str, int]]:
    for place, (name, slots) in enumerate(found):
        if name in [other for other, _ in found[:place]]:
            more = slots + next(room for other, room in found if other == name)
            refuse(key, "is given twice", name, hint=f"{name}:{more} once, for all of its tasks")
    return found
