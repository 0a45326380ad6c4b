"""The side of a command that is not the chief's, where the commands of a cluster meet."""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import time
from collections.abc import Callable, Sequence

from dtrain import __version__, errors
from dtrain.controller.launchers.cluster_env.tf_config import host_port
from dtrain.controller.launchers.rendezvous import messages
from dtrain.controller.launchers.rendezvous.chief import Place
from dtrain.controller.launchers.rendezvous.keepalive import Watch
from dtrain.controller.launchers.rendezvous.messages import PROVE, Connection, ready
from dtrain.errors import TrainingError, UsageError

#: Seconds between two attempts to reach the chief; for a connection to open; and that a peer waits
#: longer than the chief, which knows who is missing and says it.
RETRY, CONNECT, MARGIN = 0.2, 5.0, 5.0


class Peer:
    """The side of every other task.

    Args:
        addresses: ``host:port``, at one of which the chief is.
        task: own name.
        facts: as of :class:`Host`.
        key: the cluster's.
        peer_timeout: seconds of silence after which the chief is lost.
        own: ``host:port``, or ``:port``, of this task, where addresses are agreed.

    Attributes:
        address: of the chief; the one that was tried last, as long as it is not found.
        reason: why the job is over for this task though the chief has not said so; a clause.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        task: str,
        facts: dict[str, str],
        key: bytes,
        peer_timeout: float,
        own: str = "",
    ):
        self._addresses, self._task, self._key = addresses, task, key
        self._facts = messages.shorten_facts(facts)
        self.address, self._own = addresses[0], own
        self._peer_timeout = peer_timeout
        self._watch: Watch | None = None
        self._code: int | None = None
        self.reason: str | None = None

    def meet(self, timeout: float, say: Callable[[str], None] | None = None) -> Place:
        """Find the chief, which may start later, and wait until it has seen all peers.

        Args:
            timeout: seconds to find it in, and again for the others to come.
            say: called with a sentence when what answers there knows another key.

        Returns:
            The run folder.

        Raises:
            UsageError: the chief's, about this task or another.
            TrainingError: there is no chief, it is missing other tasks, or it is lost.
        """
        deadline = time.monotonic() + timeout
        reasons = dict.fromkeys(self._addresses, "no time to look")
        said = False
        for address in itertools.cycle(self._addresses):
            if (left := deadline - time.monotonic()) <= 0:
                break
            self.address = address
            try:
                connected = socket.create_connection(host_port(address), min(left, CONNECT))
                connection = Connection(connected, self._key, chief=False)
            except (OSError, UnicodeError) as error:
                reasons[address] = getattr(error, "strerror", None) or str(error)
            else:
                reason = self._prove(connection, deadline)
                if not reason and (place := self._ask(connection, timeout)) is not None:
                    return place
                reasons[address] = reason = reason or "it was there, and is gone"
                if connection.refused and not said and say is not None:
                    said = True
                    say(f"{reason}: is it the same on every host?")
            if address == self._addresses[-1]:
                time.sleep(max(0.0, min(RETRY, deadline - time.monotonic())))
        where = ", ".join(f"{address} ({why})" for address, why in reasons.items())
        raise TrainingError(f"no chief within {timeout:g} s at {where}")

    def _prove(self, connection: Connection, deadline: float) -> str:
        """Return an empty text when the chief has proven itself, else why it has not."""
        deadline = min(deadline, time.monotonic() + PROVE)
        try:
            while (left := deadline - time.monotonic()) > 0:
                ready([connection], left)
                connection.flush()
                # Nothing is lost: what is not the chief's proof is an end of this connection.
                early = connection.receive()
                if connection.refused:
                    return "what answers there does not know this cluster's key"
                if connection.closed or early is not None:
                    break
                if connection.proven:
                    return ""
        except BaseException:
            connection.close()
            raise
        connection.close()
        return "what answers there is not a chief that waits"

    def _ask(self, connection: Connection, timeout: float) -> Place | None:
        """Return the run folder; None where the chief has gone and said nothing."""
        deadline = time.monotonic() + timeout + MARGIN
        connection.send(
            "hello", task=self._task, dtrain=__version__, facts=self._facts, address=self._own
        )
        self._watch = Watch(self._peer_timeout)
        self._watch.add("chief", connection)
        self._watch.start()
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                _, answer = self._watch.news.get(timeout=left)
                if answer["kind"] == "place":
                    addresses = tuple(answer["addresses"])
                    return Place(answer["day"], answer["name"], answer["job"], addresses)
                if answer["kind"] in ("gone", "lost"):
                    self._watch.end()
                    return None
                if answer.pop("kind") == "problem":
                    raise UsageError(**answer)
                raise TrainingError(answer.get("error", "the chief has ended the job"))
        late = f"the chief at {self.address} did not begin within {timeout + MARGIN:g} s"
        raise TrainingError(late)

    def ask_to_stop(self) -> None:
        """Tell the chief that this task was asked to stop."""
        if self._watch is not None:
            self._watch.send("stop")

    def ended(self) -> int | None:
        """Return the job's exit code, FAILED if the chief is gone or lost, None till then."""
        if self._code is None and self._watch is not None:
            late = [(name, {"kind": "late"}) for name in self._watch.hindrances()]
            for _, message in self._watch.take() + late:
                if self._code is None and message["kind"] in ("ended", "gone", "lost", "late"):
                    self._code = message.get("code", errors.FAILED)
                    self.reason = self._clause(message["kind"])
        return self._code

    def silent(self, seconds: float) -> bool:
        """Say whether nothing came from the chief for so long."""
        return self._watch is not None and bool(self._watch.silent(seconds))

    def _clause(self, kind: str) -> str | None:
        if kind == "ended":
            return None
        if kind == "gone":
            return f"the chief at {self.address} is gone"
        if kind == "late":
            return (
                f"the job stood still for most of {self._peer_timeout:g} s "
                "(launcher.peer_timeout), and much was lost between here and the chief at "
                f"{self.address}"
            )
        return f"nothing came from the chief at {self.address} for {self._peer_timeout:g} s " + (
            "(launcher.peer_timeout)"
        )

    def close(self, code: int | None = None, lines: str = "", signal: int = 0) -> None:
        """Leave.

        Args:
            code: how the own task has ended, for the chief; None if it has not.
            lines: the last ones of its log.
            signal: that has ended it; 0 for none.
        """
        if self._watch is None:
            return
        if code is None:
            self._watch.end()
        else:
            self._watch.end("left", code=code, lines=lines, signal=signal)
