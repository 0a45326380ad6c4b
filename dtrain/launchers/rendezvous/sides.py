"""Where the commands of one cluster meet: before TensorFlow starts, at the chief's own address.

Each peer connects to the chief, and both prove that they know the cluster's key
(:mod:`.messages`). It says which task it is, what its configuration says, and its address where the
platform gives it none. When all have come and agree, each is given the name of the run folder and
the addresses of all; otherwise the reason. The connections stay open while the job runs: both
sides give signs of life, a peer passes on that it was asked to stop and how its task ended, the
chief how the job ended.

A peer that does not prove the key costs nothing but its own connection.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dtrain import __version__, errors
from dtrain.errors import TrainingError, UsageError
from dtrain.files.fields import Json
from dtrain.launchers.facts import MODULE, advise
from dtrain.launchers.platforms.tf_config import host_port, is_local, joined
from dtrain.launchers.rendezvous import messages
from dtrain.launchers.rendezvous.keepalive import Watch
from dtrain.launchers.rendezvous.messages import PROVE, Connection, Message, ready
from dtrain.run.failure import Failure

#: Connections that have not yet said who they are; beyond it one of them has to go.
UNIDENTIFIED = 64
#: Of what a peer sends or does, what concerns the job.
_NEWS = ("stop", "left", "gone", "lost", "late")
#: Addresses of which is printed that they know another key.
REPORTED = 5
#: Seconds between two looks at those that have come.
LOOK = 0.2


class Place(NamedTuple):
    """Names the run folder, ``<day>/<name>`` below each host's ``output_dir``, and the run.

    Attributes:
        day, name: names of a folder each.
        job: random, the same as long as the run is resumed.
        addresses: of all tasks that TensorFlow connects, where they were agreed; else empty.
    """

    day: str
    name: str
    job: str
    addresses: tuple[str, ...] = ()


class Host:
    """The chief's side.

    Args:
        addresses: ``host:port``, the first of which that is free is where the peers are waited
            for; it is free again after :meth:`wait`, for the chief's TensorFlow server.
        expected: names of the other tasks.
        facts: what must be the same everywhere: configuration keys and their values as text.
        key: the cluster's.
        peer_timeout: seconds of silence after which a peer is lost.
    """

    def __init__(
        self, addresses: Sequence[str], expected: list[str], facts: dict[str, str], key: bytes,
        peer_timeout: float,
    ):  # fmt: skip
        self._addresses, self._expected, self._key = addresses, expected, key
        self._address = addresses[0]
        self._places: dict[str, tuple[str, Connection]] = {}  # what each has said of its own
        self._facts = messages.shorten_facts({"dtrain": __version__, **facts})
        self._watch = Watch(peer_timeout)
        self._news: list[tuple[str, Message]] = []  # that came while the others were waited for
        self._strange: set[str] = set()  # addresses of those that know another key

    def wait(self, timeout: float, say: Callable[[str], None] | None = None) -> None:
        """Return when all peers have come and agree; the port is free again then.

        Args:
            timeout: seconds that they have.
            say: called with a sentence whenever another set of tasks is missing.

        Raises:
            UsageError: a peer has another configuration. The peers that came know it too.
            TrainingError: some did not come in time, or this machine cannot listen.
        """
        if not self._expected:
            return
        try:
            with self._listen() as listener:
                self._watch.start()
                self._gather(listener, timeout, say or (lambda sentence: None))
        except BaseException:
            self._watch.end()
            raise

    def _listen(self) -> socket.socket:
        """Listen at the first of the addresses whose port is free.

        Raises:
            TrainingError: none is.
        """
        for address in self._addresses[:-1]:
            with contextlib.suppress(TrainingError):
                listener = _listen_at(address)
                self._address = address
                return listener
        self._address = self._addresses[-1]
        return _listen_at(self._address)

    def agreed(self, own: str) -> list[str]:
        """Return the addresses of the tasks, the chief's first, as they have said them.

        A host that has not said its name has the address that its connection came from; on the
        chief's machine it is the one at which the others have found the chief.

        Args:
            own: of the chief, ``host:port`` or ``:port``.
        """
        connections = [connection for _, connection in self._places.values()]
        beyond = [c.own for c in connections if not is_local(c.address)]
        here = beyond[0] if beyond else "127.0.0.1"
        found = [_at(here, own)]
        for said, connection in map(self._places.__getitem__, self._expected):
            found.append(_at(here if is_local(connection.address) else connection.address, said))
        return found

    def begin(self, place: Place) -> None:
        """Send the peers that have come the place of the job, with which they begin."""
        # ORDER: the port was closed before a peer's TensorFlow can look for ours there.
        self._watch.send("place", **place._asdict())

    def messages(self) -> list[tuple[str, Message]]:
        """Return the news: a task's name with ``stop``, ``left``, ``gone``, ``lost`` or ``late``.

        ``gone`` follows what was sent last, ``left`` too. ``late`` is one whose network loses so
        much that the job stands still.
        """
        news, self._news = self._news + self._watch.take(), []
        news += [(name, {"kind": "late"}) for name in self._watch.hindrances()]
        return [(name, message) for name, message in news if message["kind"] in _NEWS]

    def move(self, step: int) -> None:
        """Take note of how far the job is."""
        self._watch.move(step)

    def silent(self, seconds: float) -> list[str]:
        """Return the tasks of which nothing was heard for so long, those that are lost included."""
        return self._watch.silent(seconds)

    def end(self, code: int) -> None:
        """Send the peers the job's exit code, and close."""
        self._watch.end("ended", code=code)

    def _gather(self, listener: socket.socket, timeout: float, say: Callable[[str], None]) -> None:
        deadline = time.monotonic() + timeout
        unidentified: list[Connection] = []
        said: list[str] = []
        try:
            while missing := self._missing():
                if missing != said:
                    said = missing
                    say(f"waiting for {', '.join(missing)}")
                if (left := deadline - time.monotonic()) <= 0:
                    error = f"{', '.join(missing)} did not come to the chief at {self._address}"
                    self._watch.end("error", error=f"{error} within {timeout:g} s")
                    raise TrainingError(f"{error} within {timeout:g} s")
                found = ready([listener, *unidentified], min(left, LOOK))
                for connection in unidentified:
                    self._look(connection, say)
                unidentified = [c for c in unidentified if self._keep(c)]
                if listener in found:
                    self._accept(listener, unidentified)
        finally:
            for connection in unidentified:
                connection.close()

    def _missing(self) -> list[str]:
        """Return who is missing: a peer that has left may come again."""
        self._news += self._watch.take()
        here = self._watch.names()
        missing = [name for name in self._expected if name not in here]
        self._news = [(n, m) for n, m in self._news if n in here and m["kind"] == "stop"]
        return missing

    def _accept(self, listener: socket.socket, unidentified: list[Connection]) -> None:
        try:
            connected, _ = listener.accept()
        except OSError:  # it may have gone again
            return
        if len(unidentified) >= UNIDENTIFIED:
            # Any of them: a flood would have the oldest go before they can prove themselves.
            unidentified.pop(secrets.randbelow(len(unidentified))).close()
        unidentified.append(Connection(connected, self._key, chief=True))

    def _keep(self, connection: Connection) -> bool:
        """Say whether a connection is still to be identified; close it when its time is over."""
        if connection.taken or connection.closed:
            return False
        if time.monotonic() - connection.began < PROVE:
            return True
        connection.close()
        return False

    def _look(self, connection: Connection, say: Callable[[str], None]) -> None:
        connection.flush()
        message = connection.receive()
        if message is not None and message["kind"] == "hello":
            connection.taken = True
            self._greet(connection, message)
        elif message is not None:
            connection.close()
        if connection.refused and connection.address not in self._strange:
            self._strange.add(connection.address)
            if len(self._strange) <= REPORTED:
                say(f"a peer at {connection.address} does not know this cluster's key")

    def _greet(self, connection: Connection, hello: Message) -> None:
        task = hello["task"]
        if task not in self._expected:
            self._refuse(
                connection, task, "the chief expects no such task", ", ".join(self._expected),
                "the same cluster on every host",
            )  # fmt: skip
        elif task in self._watch.names():
            self._refuse(
                connection, task, f"another process has come to the chief as {task}",
                "one process for each task", "another index of the task on this host",
            )  # fmt: skip
        else:
            self._places[task] = (hello["address"], connection)
            self._watch.add(task, connection)
            self._compare(task, {**hello["facts"], "dtrain": hello["dtrain"]})

    def _refuse(
        self, connection: Connection, task: str, why: str, accepted: str, hint: str
    ) -> None:
        """Send one peer the reason; it closes the connection, or its time is over."""
        connection.send(
            "problem", key="task", value=task, why=why, accepted=accepted, typed="", hint=hint
        )
        connection.shut()
        connection.taken = False

    def _compare(self, task: str, facts: Json) -> None:
        mine = self._facts
        both = mine.keys() & facts.keys()  # a module that one host alone trusts cannot differ
        keys = [key for key in {**mine, **facts} if key in both or not key.startswith(MODULE)]
        differ = [key for key in keys if mine.get(key) != facts.get(key)]
        if not differ:
            return
        key, *more = differ
        others = f" (also different: {', '.join(more)})" if more else ""
        theirs, ours = (str(side.get(key, "(not set)")) for side in (facts, mine))
        problem = {
            "key": key, "value": theirs, "accepted": "the same on every host",
            "why": f"{task} has this, and the chief has {ours}{others}",
            **advise(key, ours if key in mine else None),
        }  # fmt: skip
        self._watch.end("problem", **problem)
        raise UsageError(**problem)


def _at(host: str, said: str) -> str:
    """Return the address that a task has said, with ``host`` where it has said a port alone."""
    return joined(host, said[1:]) if said.startswith(":") else said


def _listen_at(address: str) -> socket.socket:
    """Listen on the port of ``address``: on all interfaces, or on loopback for a local address."""
    host, port = host_port(address)
    both = not is_local(host) and socket.has_dualstack_ipv6()
    host = "" if not is_local(host) else "127.0.0.1" if host[0].isalpha() else host
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        # SO_REUSEADDR, set here, passes to the connections: TensorFlow can bind the port.
        listener = socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise TrainingError(f"the chief cannot listen at {address}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


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
        self, addresses: Sequence[str], task: str, facts: dict[str, str], key: bytes,
        peer_timeout: float, own: str = "",
    ):  # fmt: skip
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

    def close(self, code: int | None = None, failure: Failure | None = None) -> None:
        """Leave.

        Args:
            code: how the own task has ended, for the chief; None if it has not.
            failure: what it has failed of.
        """
        if self._watch is None:
            return
        failure = failure or Failure("failed")
        fields = {"reason": failure.reason or "", "place": failure.place or ""}
        if code is None:
            self._watch.end()
        else:
            self._watch.end("left", code=code, failed=failure.kind, **fields)
