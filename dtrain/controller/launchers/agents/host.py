"""A host, as a launcher sees it: the agent there, and what it is asked and answers."""

from __future__ import annotations

import queue
import time
from typing import Any

from dtrain.controller.launchers.agents import mirror
from dtrain.controller.launchers.agents.stream import Message, Stream, Transport
from dtrain.errors import DtrainError, TrainingError
from dtrain.run.mirror import Receiver


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
        self.facts: dict[str, Any] = {}
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

    def send(self, kind: str, data: bytes = b"", **fields: Any) -> None:
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
        """Wait until each host has sent a message of a kind; return them by the hosts' names.

        What else comes is kept for :meth:`take`.

        Args:
            hosts: of which each is waited for.
            kind: of the messages.
            seconds: that they have.
            doing: what they do, for the message: "did not DOING within".

        Raises:
            Lost: one of them is.
            TrainingError: one has a problem, or is late.
        """
        found: dict[str, Message] = {}
        missing = self.collect(hosts, kind, seconds, found)
        for host in missing:
            if host.lost is not None:
                raise Lost(host, host.lost)
        if missing:
            names = ", ".join(host.name for host in missing)
            raise TrainingError(f"{names} did not {doing} within {seconds:g} s")
        return found

    def collect(
        self, hosts: list[Host], kind: str, seconds: float, found: dict[str, Message]
    ) -> list[Host]:
        """Wait as :meth:`gather` does, also where a host is lost.

        Args:
            hosts, kind, seconds: as there.
            found: the messages, by the names of hosts; they are put there.

        Returns:
            The hosts whose message has not come.

        Raises:
            TrainingError: one has a problem.
        """
        kept: list[tuple[Host, Message]] = []
        missing, deadline = list(hosts), time.monotonic() + seconds
        try:
            while missing and (left := deadline - time.monotonic()) > 0:
                for host, message in self.take(hosts, min(left, 1.0)):
                    if message["kind"] == "problem":
                        raise TrainingError(f"{host.name}: {message['message']}")
                    if message["kind"] == kind:
                        found[host.name] = message
                    else:
                        kept.append((host, message))
                missing = [h for h in hosts if h.name not in found]
                if all(host.lost is not None for host in missing):
                    break
        finally:
            self._later = kept
        return missing
