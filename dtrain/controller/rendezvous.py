"""Where the commands of one cluster meet: before TensorFlow starts, at the chief's own address.

Each guest connects to the chief, and both prove that they know the cluster's key
(:mod:`dtrain.controller.messages`). It says which task it is and what its configuration says. When
all have come and agree, each is given the name of the run folder; otherwise the reason. The
connections stay open while the job runs: both sides give signs of life, a guest passes on that it
was asked to stop and how its task ended, the chief how the job ended.

A peer that does not prove the key costs nothing but its own connection.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dtrain import __version__, errors
from dtrain.controller.connection import PROVE, Connection, Watch, ready
from dtrain.controller.messages import Message
from dtrain.controller.tf_config import host_port, is_local
from dtrain.errors import TrainingError, UsageError

#: Connections that have not yet said who they are; beyond it one of them has to go.
UNIDENTIFIED = 64
#: Addresses of which is printed that they know another key.
REPORTED = 5
#: Seconds between two attempts to reach the chief; for a connection to open; between two looks at
#: those that have come; and that a guest waits longer than the chief, which knows who is missing.
RETRY, CONNECT, LOOK, MARGIN = 0.2, 5.0, 0.2, 5.0


class Place(NamedTuple):
    """Names the run folder, ``<day>/<name>`` below each host's ``output_dir``, and the run.

    Attributes:
        day, name: names of a folder each.
        job: random, the same as long as the run is resumed.
    """

    day: str
    name: str
    job: str


class Host:
    """The chief's side.

    Args:
        address: ``host:port`` of the chief's TensorFlow server, to start after :meth:`wait`.
        expected: names of the other tasks.
        facts: what must be the same everywhere: configuration keys and their values as text.
        place: the run folder.
        key: the cluster's.
        peer_timeout: seconds of silence after which a guest is lost.
    """

    def __init__(
        self,
        address: str,
        expected: list[str],
        facts: dict[str, str],
        place: Place,
        key: bytes,
        peer_timeout: float,
    ):
        self._address, self._expected, self._place, self._key = address, expected, place, key
        self._facts = {"dtrain": __version__, **facts}
        self._watch = Watch(peer_timeout)
        self._news: list[tuple[str, Message]] = []  # that came while the others were waited for
        self._strange: set[str] = set()  # addresses of those that know another key

    def wait(self, timeout: float, say: Callable[[str], None] | None = None) -> None:
        """Return when all guests have come and agree; the port is free again then.

        Args:
            timeout: seconds that they have.
            say: called with a sentence whenever another set of tasks is missing.

        Raises:
            UsageError: a guest has another configuration. The guests that came know it too.
            TrainingError: some did not come in time, or this machine cannot listen.
        """
        if not self._expected:
            return
        try:
            with _listen(self._address) as listener:
                self._watch.start()
                self._gather(listener, timeout, say or (lambda sentence: None))
            # ORDER: the port is closed before a guest's TensorFlow can look for ours there.
            self._watch.send("place", **self._place._asdict())
        except BaseException:
            self._watch.end()
            raise

    def messages(self) -> list[tuple[str, Message]]:
        """Return the news: a task's name with ``stop``, ``left``, ``gone`` or ``lost``.

        ``gone`` follows what was sent last, ``left`` too.
        """
        news, self._news = self._news + _all(self._watch), []
        return [(name, message) for name, message in news if message["kind"] in _NEWS]

    def silent(self, seconds: float) -> list[str]:
        """Return the tasks of which nothing was heard for so long, and that are not lost yet."""
        return self._watch.silent(seconds)

    def end(self, code: int) -> None:
        """Send the guests the job's exit code, and close."""
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
        """Return who is missing: a guest that has left may come again."""
        self._news += _all(self._watch)
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
            self._refuse(connection, (
                "TF_CONFIG.task", task, "the chief expects no such task",
                ", ".join(self._expected), "the same TF_CONFIG cluster on every host",
            ))  # fmt: skip
        elif task in self._watch.names():
            self._refuse(connection, (
                "TF_CONFIG.task", task, f"another process has come to the chief as {task}",
                "one process for each task", "TF_CONFIG with another task.index on this host",
            ))  # fmt: skip
        else:
            self._watch.add(task, connection)
            self._compare(task, {"dtrain": hello["dtrain"], **hello["facts"]})

    def _refuse(self, connection: Connection, fields: tuple[str, ...]) -> None:
        """Send one peer the reason; it closes the connection, or its time is over."""
        connection.send("problem", **_problem(*fields))
        connection.shut()
        connection.taken = False

    def _compare(self, task: str, facts: dict[str, Any]) -> None:
        mine = self._facts
        differ = [key for key in {**mine, **facts} if mine.get(key) != facts.get(key)]
        if not differ:
            return
        key, *more = differ
        others = f" (also different: {', '.join(more)})" if more else ""
        theirs, ours = (str(side.get(key, "(not set)")) for side in (facts, mine))
        hint = f"{key}={ours}" if key in mine else f"the command without {key}"
        said = _problem(
            key, theirs, f"{task} has this, and the chief has {ours}{others}",
            "the same on every host", f"pip install dtrain=={ours}" if key == "dtrain" else hint,
        )  # fmt: skip
        self._watch.end("problem", **said)
        raise UsageError(**said)


#: Of what a guest sends or does, what concerns the job.
_NEWS = ("stop", "left", "gone", "lost")


class Guest:
    """The side of every other task.

    Args:
        address: ``host:port`` of the chief.
        task: own name.
        facts: as of :class:`Host`.
        key: the cluster's.
        peer_timeout: seconds of silence after which the chief is lost.

    Attributes:
        reason: why the job is over for this task though the chief has not said so; a clause.
    """

    def __init__(
        self, address: str, task: str, facts: dict[str, str], key: bytes, peer_timeout: float
    ):
        self._address, self._task, self._facts, self._key = address, task, facts, key
        self._peer_timeout = peer_timeout
        self._watch: Watch | None = None
        self._code: int | None = None
        self.reason: str | None = None

    def meet(self, timeout: float, say: Callable[[str], None] | None = None) -> Place:
        """Find the chief, which may start later, and wait until it has seen all guests.

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
        reason, said = "no time to look", False
        while (left := deadline - time.monotonic()) > 0:
            try:
                connected = socket.create_connection(host_port(self._address), min(left, CONNECT))
                connection = Connection(connected, self._key, chief=False)
            except (OSError, UnicodeError) as error:
                reason = getattr(error, "strerror", None) or str(error)
            else:
                reason = self._prove(connection, deadline)
                if not reason and (place := self._ask(connection, timeout)) is not None:
                    return place
                reason = reason or "it was there, and is gone"
                if connection.refused and not said and say is not None:
                    said = True
                    say(f"{reason}: is it the same on every host?")
            time.sleep(max(0.0, min(RETRY, deadline - time.monotonic())))
        raise TrainingError(f"no chief at {self._address} within {timeout:g} s ({reason})")

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
        """Return the run folder; None where the chief has gone without a word."""
        deadline = time.monotonic() + timeout + MARGIN
        connection.send("hello", task=self._task, dtrain=__version__, facts=self._facts)
        self._watch = Watch(self._peer_timeout)
        self._watch.add("chief", connection)
        self._watch.start()
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                _, answer = self._watch.news.get(timeout=left)
                if answer["kind"] == "place":
                    return Place(answer["day"], answer["name"], answer["job"])
                if answer["kind"] in ("gone", "lost"):
                    self._watch.end()
                    return None
                if answer.pop("kind") == "problem":
                    raise UsageError(**answer)
                raise TrainingError(answer.get("error", "the chief has ended the job"))
        late = f"the chief at {self._address} did not begin within {timeout + MARGIN:g} s"
        raise TrainingError(late)

    def ask_to_stop(self) -> None:
        """Tell the chief that this task was asked to stop."""
        if self._watch is not None:
            self._watch.send("stop")

    def ended(self) -> int | None:
        """Return the job's exit code, FAILED if the chief is gone or lost, None till then."""
        if self._code is None and self._watch is not None:
            for _, message in _all(self._watch):
                if self._code is None and message["kind"] in ("ended", "gone", "lost"):
                    self._code = message.get("code", errors.FAILED)
                    self.reason = self._clause(message["kind"])
        return self._code

    def _clause(self, kind: str) -> str | None:
        if kind == "ended":
            return None
        if kind == "gone":
            return f"the chief at {self._address} is gone"
        return f"nothing came from the chief at {self._address} for {self._peer_timeout:g} s " + (
            "(launcher.peer_timeout)"
        )

    def close(self, code: int | None = None, words: str = "") -> None:
        """Leave.

        Args:
            code: how the own task has ended, for the chief; None if it has not.
            words: the last ones of its log.
        """
        if self._watch is None:
            return
        if code is None:
            self._watch.end()
        else:
            self._watch.end("left", code=code, words=words)


def _all(watch: Watch) -> list[tuple[str, Message]]:
    found = []
    with contextlib.suppress(queue.Empty):
        while True:
            found.append(watch.news.get_nowait())
    return found


def _problem(*fields: str) -> dict[str, str]:
    names = ("key", "value", "problem", "accepted", "hint")
    return dict(zip(names, fields, strict=True))


def _listen(address: str) -> socket.socket:
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
