"""The commands of a cluster meet: real connections on loopback, peers in threads and processes."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dtrain import __version__, errors
from dtrain.errors import TrainingError, UsageError
from dtrain.launchers.rendezvous import keepalive, messages, sides
from dtrain.launchers.rendezvous.messages import Message, Seal
from dtrain.launchers.rendezvous.sides import Host, Peer, Place
from dtrain.run.failure import Failure

FACTS = {"optimizer.learning_rate": "0.01", "seed": "0"}
LONG = 60.0  # longer than any of these tests can last
KEY = b"a key that only these tests know"
PLACE = Place("2026-01-02", "12-00-00_run", "ab" * 16)


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


class Meeting:
    """A chief and its peers, each in a thread."""

    def __init__(self, address: str, pool: ThreadPoolExecutor):
        self.address = address
        self.peers: dict[str, Peer] = {}
        self.said: list[str] = []
        self.hosts: list[Host] = []
        self._pool = pool
        self._futures: list[Future[Place]] = []
        self._changed = threading.Condition()

    def host(
        self, *expected: str, timeout: float = LONG, facts: dict[str, str] = FACTS
    ) -> Future[None]:
        host = Host([self.address], list(expected), facts, KEY, LONG)
        self.hosts.append(host)

        def begin() -> None:
            host.wait(timeout, self.say)
            host.begin(PLACE)

        return self._pool.submit(begin)

    def say(self, sentence: str) -> None:
        with self._changed:
            self.said.append(sentence)
            self._changed.notify_all()

    def missing(self, *names: str) -> None:
        """Wait until the chief has said that these are missing, and these only."""
        sentence = f"waiting for {', '.join(names)}"
        with self._changed:
            assert self._changed.wait_for(lambda: self.said[-1:] == [sentence], LONG), self.said

    def peer(self, task: str, facts: dict[str, str] = FACTS) -> Future[Place]:
        peer = Peer([self.address], task, facts, KEY, LONG)
        self.peers[task] = peer
        self._futures.append(self._pool.submit(peer.meet, LONG))
        return self._futures[-1]

    def close(self) -> None:
        for future in self._futures:
            future.exception(LONG)
        for peer in self.peers.values():
            peer.close()
        for host in self.hosts:
            host.end(0)

    def met(self, *names: str) -> Host:
        """Let a chief and its peers meet."""
        waiting, *folders = [self.host(*names), *map(self.peer, names)]
        assert waiting.result(LONG) is None
        assert [folder.result(LONG) for folder in folders] == [PLACE] * len(names)
        return self.hosts[-1]


@pytest.fixture
def meeting(address: str) -> Iterator[Meeting]:
    with ThreadPoolExecutor(16) as pool:
        meeting = Meeting(address, pool)
        yield meeting
        meeting.close()


class Clock:
    """The time that the rendezvous sees: a test may move it on."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.slept = threading.Event()

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.slept.set()
        time.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sides, "time", clock)
    return clock


def news(host: Host) -> list[tuple[str, Message]]:
    """Wait for something to come to the chief."""
    found = host._watch.news.get(timeout=LONG)
    return [found, *host.messages()]


def both(host: Host) -> list[tuple[str, Message]]:
    """Wait for two pieces of news."""
    found = news(host)
    return found if len(found) > 1 else found + news(host)


def code(peer: Peer) -> int | None:
    """Wait for the end to come to a peer."""
    deadline = time.monotonic() + LONG
    while (found := peer.ended()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


class Bare:
    """A peer that speaks the protocol by hand, and may do it wrongly."""

    def __init__(self, address: str, key: bytes = KEY, nonce: bytes = b"n" * 32):
        self.socket = connect(address)
        self.file = self.socket.makefile("rb")
        theirs = messages.nonce_of(self.line()[:-1])
        assert theirs is not None
        self.socket.sendall(messages.greeting(nonce))
        self.seal = Seal(key, "peer", (theirs, nonce))
        self.opener = Seal(key, "chief", (theirs, nonce))
        self.sent = b""

    def line(self) -> bytes:
        try:
            return self.file.readline()
        except ConnectionResetError:
            return b""

    def put(self, *datas: bytes) -> Bare:
        """Send bytes as sealed messages."""
        for data in datas:
            self.raw(self.seal.close(data))
        return self

    def hello(self, task: str = "worker-0", **fields: Any) -> Bare:
        hello = {
            "kind": "hello",
            "task": task,
            "dtrain": __version__,
            "facts": FACTS,
            "address": "",
            **fields,
        }
        return self.put(json.dumps({"kind": "proof"}).encode(), json.dumps(hello).encode())

    def raw(self, data: bytes) -> None:
        self.sent += data
        with contextlib.suppress(OSError):  # it was closed already
            self.socket.sendall(data)

    def message(self) -> Message | None:
        """Return the next message that comes, beats aside; None at the end."""
        while line := self.line():
            data = self.opener.open(line[:-1])
            assert data is not None, line
            found = messages.parse(data)
            assert found is not None
            if found["kind"] not in ("proof", "beat"):
                return found
        return None

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def failure(future: Future[Any], kind: type[Exception]) -> str:
    error = future.exception(LONG)
    assert type(error) is kind, error
    return str(error)


def connect(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), LONG)


def listen_as_tensorflow(address: str) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, port = address.split(":")
        server.bind((host, int(port)))
        server.listen()
        with connect(address), server.accept()[0]:
            pass


def test_a_job_from_beginning_to_end(meeting: Meeting) -> None:
    names = [f"worker-{index}" for index in range(6)]
    host = meeting.met(*names)
    listen_as_tensorflow(meeting.address)  # while all connections are open
    assert host.messages() == []
    assert {peer.ended() for peer in meeting.peers.values()} == {None}
    meeting.peers["worker-4"].ask_to_stop()
    assert news(host) == [("worker-4", {"kind": "stop"})]
    meeting.peers.pop("worker-2").close()
    assert news(host) == [("worker-2", {"kind": "gone"})]
    assert host.messages() == []
    left = {"kind": "left", "code": 1, "failed": "died", "reason": "no memory", "place": ""}
    meeting.peers.pop("worker-5").close(1, Failure("died", reason="no memory"))
    assert both(host) == [("worker-5", left), ("worker-5", {"kind": "gone"})]
    meeting.peers["worker-3"].ask_to_stop()
    host.end(errors.INTERRUPTED)
    assert {code(peer) for peer in meeting.peers.values()} == {errors.INTERRUPTED}
    assert {peer.ended() for peer in meeting.peers.values()} == {errors.INTERRUPTED}
    meeting.peers["worker-0"].ask_to_stop()  # too late, and no harm
    listen_as_tensorflow(meeting.address)


def test_a_request_and_an_end_that_come_together(meeting: Meeting) -> None:
    host = meeting.met("ps-0")
    meeting.peers["ps-0"].ask_to_stop()
    meeting.peers["ps-0"].close()
    assert both(host) == [("ps-0", {"kind": "stop"}), ("ps-0", {"kind": "gone"})]


def test_a_chief_alone_waits_for_nobody(meeting: Meeting) -> None:
    meeting.met()
    assert meeting.hosts[0].messages() == [] and meeting.said == []


def test_a_peer_that_is_first(meeting: Meeting, clock: Clock) -> None:
    folder = meeting.peer("worker-0")
    assert clock.slept.wait(LONG)  # it was refused once
    meeting.host("worker-0").result(LONG)
    assert folder.result(LONG) == PLACE


def test_who_is_missing_is_said(meeting: Meeting) -> None:
    waiting = meeting.host("worker-0", "worker-1", "ps-0")
    meeting.missing("worker-0", "worker-1", "ps-0")
    meeting.peer("worker-1")
    meeting.missing("worker-0", "ps-0")
    meeting.peer("ps-0")
    meeting.missing("worker-0")
    meeting.peer("worker-0")
    waiting.result(LONG)
    assert len(meeting.said) == 3


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"optimizer.learning_rate": "0.1"},
         "optimizer.learning_rate=0.1: worker-1 has this, and the chief has 0.01; accepted: the "
         "same on every host; type: optimizer.learning_rate=0.01"),
        ({"seed": None}, "seed=(not set): worker-1 has this, and the chief has 0; accepted: the "
         "same on every host; type: seed=0"),
        ({"model.x": "1"}, "model.x=1: worker-1 has this, and the chief has (not set); accepted: "
         "the same on every host; hint: the command without model.x"),
        ({"model.x": "1", "seed": "3"}, "seed=3: worker-1 has this, and the chief has 0 (also "
         "different: model.x); accepted: the same on every host; type: seed=0"),
    ],
)  # fmt: skip
def test_another_configuration(meeting: Meeting, facts: dict[str, Any], said: str) -> None:
    waiting = meeting.host("worker-0", "worker-1", "worker-2")
    first = meeting.peer("worker-0")
    meeting.missing("worker-1", "worker-2")
    theirs = {key: value for key, value in {**FACTS, **facts}.items() if value is not None}
    second = meeting.peer("worker-1", theirs)
    assert {failure(future, UsageError) for future in (waiting, first, second)} == {said}
    error = second.exception()
    assert isinstance(error, UsageError) and error.key == said.split("=")[0]
    listen_as_tensorflow(meeting.address)


def test_another_version(meeting: Meeting) -> None:
    waiting = meeting.host("worker-0")
    meeting.missing("worker-0")
    with Bare(meeting.address).hello(facts={"seed": "9"}, dtrain="0.0.1") as old:
        said = failure(waiting, UsageError)
        assert (old.message() or {})["kind"] == "problem"
    assert said == (
        f"dtrain=0.0.1: worker-0 has this, and the chief has {__version__} (also different: "
        f"optimizer.learning_rate, seed); accepted: the same on every host; type: pip install "
        f"dtrain=={__version__}"
    )


def test_a_peer_that_never_comes(meeting: Meeting, clock: Clock) -> None:
    waiting = meeting.host("worker-0", "worker-1", "ps-0", timeout=LONG / 2)
    first = meeting.peer("worker-0")
    meeting.missing("worker-1", "ps-0")
    clock.ahead = LONG / 2  # the chief's deadline is past, the peer's is not
    with connect(meeting.address):  # somebody comes: it looks at the clock
        said = failure(waiting, TrainingError)
    assert said == (
        f"worker-1, ps-0 did not come to the chief at {meeting.address} within {LONG / 2:g} s"
    )
    assert failure(first, TrainingError) == said


@pytest.mark.parametrize(
    ("chief", "why"),
    [
        (None, r"Connection refused\)$"),
        ("pod-0:1", r"Name or service not known\)$"),
        (f"{'a' * 64}.b:1", "label"),
    ],
)
def test_no_chief(
    chief: str | None, why: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*arguments: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    if chief == "pod-0:1":
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(
        TrainingError, match=rf"no chief within 0\.05 s at {chief or address} .*{why}"
    ):
        Peer([chief or address], "worker-0", FACTS, KEY, LONG).meet(0.05)


def test_what_answers_says_nothing(address: str, clock: Clock, meeting: Meeting) -> None:
    """It may be no chief: the peer looks again, until its time is over."""
    host, port = address.split(":")
    with socket.create_server((host, int(port))) as server:
        waiting = meeting.peer("worker-0")
        with server.accept()[0] as connection:
            assert connection.recv(9)  # it has begun, and waits
            clock.ahead = LONG
            connection.sendall(messages.greeting(b"c" * 32))  # it looks at the clock
            said = failure(waiting, TrainingError)
    assert said == (
        f"no chief within 60 s at {address} (what answers there is not a chief that waits)"
    )


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"[1]\n", b'{"task": "x"}\n', b"\0\xff\n"]
)
def test_something_else_at_the_address(meeting: Meeting, clock: Clock, answer: bytes) -> None:
    host, port = meeting.address.split(":")
    with socket.create_server((host, int(port))) as server:
        waiting = meeting.peer("worker-0")
        with server.accept()[0] as connection:
            connection.makefile("rb").readline()
            connection.sendall(answer)
        assert clock.slept.wait(LONG)  # it will try again
        clock.ahead = LONG
        said = failure(waiting, TrainingError)
    assert said == (
        f"no chief within 60 s at {meeting.address} (what answers there is not a chief that waits)"
    )


def test_a_chief_with_another_key(meeting: Meeting, clock: Clock) -> None:
    """Whoever sits at the address first ends nothing: the peer waits for its chief."""
    heard: list[str] = []
    host, port = meeting.address.split(":")
    with ThreadPoolExecutor(1) as pool, socket.create_server((host, int(port))) as server:
        peer = Peer([meeting.address], "worker-0", FACTS, KEY, LONG)
        waiting = pool.submit(peer.meet, LONG, heard.append)
        with server.accept()[0] as connection:
            theirs = messages.nonce_of(connection.makefile("rb").readline()[:-1])
            assert theirs is not None
            seal = Seal(b"another key", "chief", (b"c" * 32, theirs))
            connection.sendall(messages.greeting(b"c" * 32))
            connection.sendall(seal.close(messages.make("proof")))
            connection.sendall(seal.close(messages.make("ended", code=0)))
        assert clock.slept.wait(LONG)
        clock.ahead = LONG
        said = failure(waiting, TrainingError)
    assert "(what answers there does not know this cluster's key)" in said
    assert heard == ["what answers there does not know this cluster's key: is it the same on "
                     "every host?"]  # fmt: skip


GARBAGE = [
    b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xfe\n", b"[1]\n",
    b"\n", b"x" * 70_000,
    b'{"task": "worker-0", "facts": {}, "dtrain": "0"}\n', b"[" * 5000 + b"\n",
    messages.greeting(b"n" * 32), messages.greeting(b"n" * 32) * 9,
    messages.greeting(b"n" * 32) + b"0" * 64 + messages.make("proof") + b"\n",
    messages.greeting(b"n" * 32) + b"x" * 1_000_000,
]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda garbage: repr(garbage[:25]))
def test_a_peer_without_the_key(meeting: Meeting, garbage: bytes) -> None:
    waiting = meeting.host("worker-0")
    meeting.missing("worker-0")
    with connect(meeting.address) as silent, connect(meeting.address) as other:
        with contextlib.suppress(OSError):  # it was closed before all had left
            other.sendall(garbage)
        place = meeting.peer("worker-0")
        waiting.result(LONG)
        assert place.result(LONG) == PLACE
        assert ended(silent) and ended(other)


def ended(connection: socket.socket) -> bool:
    """Read to the end."""
    connection.settimeout(LONG)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


DEEP = b'{"kind": ' + b"[" * 400_000 + b"]" * 400_000 + b"}"
WRONG = [
    b"", b"{", b"[1]", b"{}", b"null", b"9" * 5000, b"\xff\xfe", DEEP, b"[" * 900_000,
    b'{"kind": "hello"}', b'{"kind": ["hello"]}', b'{"kind": "hello", "task": ["worker-0"]}',
    json.dumps({"kind": "hello", "task": "worker-0", "dtrain": "1", "facts": []}).encode(),
    json.dumps({"kind": "hello", "task": "worker-0", "dtrain": "1", "facts": {"a": 1}}).encode(),
    json.dumps({"kind": "hello", "task": 1, "dtrain": "1", "facts": {}}).encode(),
    json.dumps({"kind": "hello", "task": "a\x1b", "dtrain": "1", "facts": {}}).encode(),
    json.dumps({"kind": "ended", "code": True}).encode(),
    json.dumps({"kind": "stop"}).encode(), b"x" * (messages.LONGEST + 9),
]  # fmt: skip


@pytest.mark.parametrize("data", WRONG, ids=lambda data: repr(data[:40]))
def test_a_message_that_is_none(meeting: Meeting, data: bytes) -> None:
    """Even with the key: it costs its sender alone."""
    waiting = meeting.host("worker-0")
    meeting.missing("worker-0")
    with Bare(meeting.address).put(messages.make("proof"), data) as wrong:
        assert wrong.message() is None
        place = meeting.peer("worker-0")
        waiting.result(LONG)
        assert place.result(LONG) == PLACE


def test_another_key(meeting: Meeting) -> None:
    """It is reported, for the few first addresses."""
    waiting = meeting.host("worker-0")
    meeting.missing("worker-0")
    for _ in range(3):
        with Bare(meeting.address, key=b"another key").hello() as wrong:
            assert ended(wrong.socket)
    place = meeting.peer("worker-0")
    waiting.result(LONG)
    assert place.result(LONG) == PLACE
    assert meeting.said.count("a peer at 127.0.0.1 does not know this cluster's key") == 1


def test_messages_of_another_connection(meeting: Meeting) -> None:
    """What a peer with the key has sent is worth nothing a second time."""
    waiting = meeting.host("worker-0", "worker-1")
    meeting.missing("worker-0", "worker-1")
    with Bare(meeting.address).hello() as peer:
        meeting.missing("worker-1")
        heard = peer.sent
    meeting.missing("worker-0", "worker-1")
    with Bare(meeting.address, key=b"unknown") as thief:  # the same random bytes, too
        thief.raw(heard)
        assert ended(thief.socket)
    names = ("worker-0", "worker-1")
    places = [meeting.peer(name) for name in names]
    waiting.result(LONG)
    assert [place.result(LONG) for place in places] == [PLACE, PLACE]


@pytest.mark.parametrize("change", ["twice", "order", "bit", "back"])
def test_messages_that_were_touched(change: str, meeting: Meeting) -> None:
    host = meeting.host("worker-0")
    meeting.missing("worker-0")
    with Bare(meeting.address).hello() as peer:
        host.result(LONG)
        assert (peer.message() or {})["kind"] == "place"
        first, second = (peer.seal.close(messages.make(kind)) for kind in ("stop", "proof"))
        sent = {
            "twice": first + first,
            "order": second + first,
            "bit": first[:70] + bytes([first[70] ^ 1]) + first[71:],
            "back": peer.opener.close(messages.make("stop")),
        }[change]
        peer.raw(sent)
        found = news(meeting.hosts[0])
        if change == "twice" and len(found) == 1:
            found += news(meeting.hosts[0])
        stop, gone = ("worker-0", {"kind": "stop"}), ("worker-0", {"kind": "gone"})
        assert found == ([stop, gone] if change == "twice" else [gone])


def test_many_unidentified_connections(meeting: Meeting) -> None:
    waiting = meeting.host("worker-0", "worker-1")
    meeting.missing("worker-0", "worker-1")
    silent = [connect(meeting.address) for _ in range(100)]
    places = [meeting.peer("worker-0")]
    meeting.missing("worker-1")
    silent += [connect(meeting.address) for _ in range(20)]
    places.append(meeting.peer("worker-1"))
    waiting.result(LONG)
    assert [place.result(LONG) for place in places] == [PLACE] * 2
    for connection in silent:
        assert ended(connection)
        connection.close()


def test_a_connection_that_says_nothing_has_its_time(meeting: Meeting, clock: Clock) -> None:
    waiting = meeting.host("worker-0")
    meeting.missing("worker-0")
    with connect(meeting.address) as silent:
        assert silent.recv(1)  # it was accepted
        clock.ahead = messages.PROVE
        assert ended(silent)
    clock.ahead = 0.0
    assert not waiting.done()
    meeting.peer("worker-0")
    waiting.result(LONG)


def test_a_message_in_pieces(meeting: Meeting) -> None:
    waiting = meeting.host("worker-0")
    meeting.missing("worker-0")
    facts = {**FACTS, "more": "é" * 100_000}
    with Bare(meeting.address) as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent, peer.raw = [], lambda data: sent.append(data)  # type: ignore[method-assign]
        peer.hello(facts=facts)
        whole = b"".join(sent)
        for byte in whole[:200]:
            peer.socket.sendall(bytes([byte]))
        peer.socket.sendall(whole[200:])
        assert "more" in failure(waiting, UsageError)
        assert (peer.message() or {})["key"] == "more"


def test_facts_that_are_longer_than_a_message(meeting: Meeting) -> None:
    files = str([f"gs://data/part-{number:06d}-of-100000.tfrecord" for number in range(100_000)])
    waiting = meeting.host("worker-0", facts={**FACTS, "dataset.path": files})
    meeting.missing("worker-0")
    theirs = meeting.peer("worker-0", {**FACTS, "dataset.path": f"{files[:-3]}x']"})
    assert "dataset.path=" in failure(waiting, UsageError)
    assert failure(theirs, UsageError) == failure(waiting, UsageError)


def test_a_task_that_comes_twice(meeting: Meeting) -> None:
    waiting = meeting.host("worker-0", "worker-1")
    first = meeting.peer("worker-0")
    meeting.missing("worker-1")
    second = meeting.peer("worker-0b")
    assert failure(second, UsageError) == (
        "task=worker-0b: the chief expects no such task; accepted: worker-0, worker-1; "
        "hint: the same cluster on every host"
    )
    twin = Peer([meeting.address], "worker-0", FACTS, KEY, LONG)
    with pytest.raises(UsageError) as caught:
        twin.meet(LONG)
    assert str(caught.value) == (
        "task=worker-0: another process has come to the chief as worker-0; accepted: one "
        "process for each task; hint: another index of the task on this host"
    )
    meeting.peer("worker-1")
    waiting.result(LONG)
    assert first.result(LONG) == PLACE


def test_a_peer_that_leaves_and_comes_again(meeting: Meeting) -> None:
    waiting = meeting.host("worker-0", "worker-1")
    meeting.missing("worker-0", "worker-1")
    with Bare(meeting.address).hello():
        meeting.missing("worker-1")
    meeting.missing("worker-0", "worker-1")
    meeting.peer("worker-0")
    meeting.missing("worker-1")
    meeting.peer("worker-1")
    waiting.result(LONG)


def test_silence(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides give signs of life; one from which none comes is lost, and named."""
    monkeypatch.setattr(messages, "BEAT", 0.05)
    monkeypatch.setattr(keepalive, "BEAT", 0.05)
    waiting = meeting.host("worker-0", "worker-1")
    meeting.peer("worker-0")
    meeting.missing("worker-1")
    with Bare(meeting.address).hello("worker-1") as mute:  # from here on it says nothing
        waiting.result(LONG)
        host = meeting.hosts[0]
        until(lambda: host.silent(0.3) == ["worker-1"])
        host._watch._timeout = 0.4
        assert news(host) == [("worker-1", {"kind": "lost"})]
        assert host.silent(LONG) == ["worker-1"], "and is named beside others that are lost"
        assert (mute.message() or {})["kind"] == "place"
        assert meeting.peers["worker-0"].ended() is None


@pytest.mark.parametrize(("code", "lost", "kind"), [
    (1, LONG / 8, "late"), (1, 0.01, "left"), (0, LONG / 8, "left"), (75, LONG / 8, "left"),
])  # fmt: skip
def test_one_that_leaves_a_network_that_loses_much(
    code: int, lost: float, kind: str, meeting: Meeting
) -> None:
    """It noticed first: the job has to end, which would else continue and wait for it."""
    host = meeting.met("worker-0")
    connection = host._watch._connections["worker-0"]
    until(lambda: connection.proven)
    connection._gaps.extend([(time.monotonic(), lost)] * 2)
    meeting.peers["worker-0"].close(code)
    found: list[str] = []
    until(lambda: found.extend(m["kind"] for _, m in host.messages()) or len(found) > 0)
    assert found[0] == kind


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_silent_chief(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    host = meeting.met("worker-0")
    monkeypatch.setattr(messages.Connection, "beat", lambda self, step: None)
    peer = meeting.peers["worker-0"]
    assert peer._watch is not None
    peer._watch._timeout = 0.1
    assert code(peer) == errors.FAILED
    assert peer.reason == (
        f"nothing came from the chief at {meeting.address} for 60 s (launcher.peer_timeout)"
    )
    assert news(host) == [("worker-0", {"kind": "gone"})]


def test_a_chief_that_is_interrupted(meeting: Meeting) -> None:
    def interrupt(sentence: str) -> None:
        if sentence == "waiting for worker-1":
            raise KeyboardInterrupt

    host = Host([meeting.address], ["worker-0", "worker-1"], FACTS, KEY, LONG)
    peer = meeting.peer("worker-0")
    with pytest.raises(KeyboardInterrupt):
        host.wait(LONG, interrupt)
    listen_as_tensorflow(meeting.address)
    meeting.host("worker-0").result(LONG)  # another chief: the peer has looked for one again
    assert peer.result(LONG) == PLACE


def test_an_address_in_use(address: str) -> None:
    host, port = address.split(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(TrainingError, match=rf"the chief cannot listen at {address}: Address alr"),
    ):
        Host([address], ["worker-0"], FACTS, KEY, LONG).wait(LONG)


@pytest.mark.parametrize(
    ("address", "dual", "bound"),
    [
        ("localhost:7", True, ("127.0.0.1", socket.AF_INET, False)),
        ("127.0.1.1:7", True, ("127.0.1.1", socket.AF_INET, False)),
        ("[::1]:7", True, ("::1", socket.AF_INET6, False)),
        ("pod-0.svc:7", True, ("", socket.AF_INET6, True)),
        ("pod-0.svc:7", False, ("", socket.AF_INET, False)),
        ("10.0.0.1:7", False, ("", socket.AF_INET, False)),
    ],
)
def test_interfaces(
    address: str, dual: bool, bound: tuple[str, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(at: tuple[str, int], family: int, dualstack_ipv6: bool) -> None:
        assert at[1] == 7
        raise OSError(0, f"{(at[0], family, dualstack_ipv6)}")

    monkeypatch.setattr(socket, "create_server", create)
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: dual)
    with pytest.raises(TrainingError) as caught:
        Host([address], ["worker-0"], FACTS, KEY, LONG).wait(LONG)
    assert str(caught.value) == f"the chief cannot listen at {address}: {bound}"


@pytest.mark.parametrize("act", [Peer.ask_to_stop, Peer.ended, Peer.close])
def test_a_peer_that_has_not_met(act: Callable[[Peer], int | None]) -> None:
    assert act(Peer(["localhost:1"], "worker-0", FACTS, KEY, LONG)) is None
