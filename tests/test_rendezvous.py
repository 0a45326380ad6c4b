"""The commands of a cluster meet: real connections on loopback, guests in threads and processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dtrain import __version__, errors
from dtrain.controller import rendezvous
from dtrain.controller.rendezvous import Guest, Host
from dtrain.errors import TrainingError, UsageError

FACTS = {"optimizer.learning_rate": "0.01", "seed": "0"}
LONG = 60.0  # longer than any of these tests can last


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


class Meeting:
    """A chief and its guests, each in a thread."""

    def __init__(self, address: str, pool: ThreadPoolExecutor):
        self.address = address
        self.guests: dict[str, Guest] = {}
        self.said: list[str] = []
        self.hosts: list[Host] = []
        self._pool = pool
        self._futures: list[Future[str]] = []
        self._changed = threading.Condition()

    def host(self, *expected: str, timeout: float = LONG) -> Future[None]:
        self.hosts.append(Host(self.address, list(expected), FACTS, "2026/run"))
        return self._pool.submit(self.hosts[-1].wait, timeout, self.say)

    def say(self, sentence: str) -> None:
        with self._changed:
            self.said.append(sentence)
            self._changed.notify_all()

    def missing(self, *names: str) -> None:
        """Wait until the chief has said that these are missing, and these only."""
        sentence = f"waiting for {', '.join(names)}"
        with self._changed:
            assert self._changed.wait_for(lambda: self.said[-1:] == [sentence], LONG), self.said

    def guest(self, task: str, facts: dict[str, str] = FACTS) -> Future[str]:
        guest = Guest(self.address, task, facts)
        self.guests[task] = guest
        self._futures.append(self._pool.submit(guest.meet, LONG))
        return self._futures[-1]

    def close(self) -> None:
        for future in self._futures:
            future.exception(LONG)
        for guest in self.guests.values():
            guest.close()
        for host in self.hosts:
            host.end(0)

    def met(self, *names: str) -> Host:
        """Let a chief and its guests meet."""
        waiting, *folders = [self.host(*names), *map(self.guest, names)]
        assert waiting.result(LONG) is None
        assert [folder.result(LONG) for folder in folders] == ["2026/run"] * len(names)
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
    monkeypatch.setattr(rendezvous, "time", clock)
    return clock


def news(host: Host) -> list[tuple[str, str]]:
    """Wait for something to come to the chief."""
    assert rendezvous._readable(host._guests.values(), LONG)
    return host.messages()


def code(guest: Guest) -> int | None:
    """Wait for something to come to a guest."""
    assert guest._line is not None
    assert rendezvous._readable([guest._line], LONG)
    return guest.ended()


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
    assert {guest.ended() for guest in meeting.guests.values()} == {None}
    meeting.guests["worker-4"].ask_to_stop()
    assert news(host) == [("worker-4", "stop")]
    meeting.guests.pop("worker-2").close()
    assert news(host) == [("worker-2", "gone")]
    assert host.messages() == []
    meeting.guests["worker-3"].ask_to_stop()
    host.end(errors.INTERRUPTED)
    assert {code(guest) for guest in meeting.guests.values()} == {errors.INTERRUPTED}
    assert {guest.ended() for guest in meeting.guests.values()} == {errors.INTERRUPTED}
    assert host.messages() == []
    meeting.guests["worker-0"].ask_to_stop()  # too late, and no harm
    listen_as_tensorflow(meeting.address)


def test_a_request_and_an_end_that_come_together(meeting: Meeting) -> None:
    host = meeting.met("ps-0")
    meeting.guests["ps-0"].ask_to_stop()
    meeting.guests["ps-0"].close()
    assert news(host) + host.messages() == [("ps-0", "stop"), ("ps-0", "gone")]


def test_guests_of_other_processes(meeting: Meeting) -> None:
    script = (
        "import sys; from dtrain.controller import rendezvous as r\n"
        "guest = r.Guest(sys.argv[1], sys.argv[2], {'seed': '0', 'optimizer.learning_rate': "
        "'0.01'})\n"
        "print(guest.meet(60), flush=True)\n"
        "r._readable([guest._line], 60); sys.exit(guest.ended())\n"
    )
    names = ["worker-0", "worker-1", "ps-0"]
    waiting = meeting.host(*names)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, meeting.address, name], stdout=subprocess.PIPE, text=True
        )
        for name in names
    ]
    try:
        waiting.result(LONG)
        lines = [process.stdout.readline() for process in processes if process.stdout]
        assert lines == ["2026/run\n"] * 3
        processes[1].kill()
        assert news(meeting.hosts[0]) == [("worker-1", "gone")]
        meeting.hosts[0].end(7)
        assert [process.wait(LONG) for process in processes] == [7, -9, 7]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_chief_alone_waits_for_nobody(meeting: Meeting) -> None:
    meeting.met()
    assert meeting.hosts[0].messages() == [] and meeting.said == []


def test_a_guest_that_is_first(meeting: Meeting, clock: Clock) -> None:
    folder = meeting.guest("worker-0")
    assert clock.slept.wait(LONG)  # it was refused once
    meeting.host("worker-0").result(LONG)
    assert folder.result(LONG) == "2026/run"


def test_who_is_missing_is_said(meeting: Meeting) -> None:
    waiting = meeting.host("worker-0", "worker-1", "ps-0")
    meeting.missing("worker-0", "worker-1", "ps-0")
    meeting.guest("worker-1")
    meeting.missing("worker-0", "ps-0")
    meeting.guest("ps-0")
    meeting.missing("worker-0")
    meeting.guest("worker-0")
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
         "the same on every host; type: the command without model.x"),
        ({"model.x": "1", "seed": "3"}, "seed=3: worker-1 has this, and the chief has 0 (also "
         "different: model.x); accepted: the same on every host; type: seed=0"),
    ],
)  # fmt: skip
def test_another_configuration(meeting: Meeting, facts: dict[str, Any], said: str) -> None:
    waiting = meeting.host("worker-0", "worker-1", "worker-2")
    first = meeting.guest("worker-0")
    meeting.missing("worker-1", "worker-2")
    theirs = {key: value for key, value in {**FACTS, **facts}.items() if value is not None}
    second = meeting.guest("worker-1", theirs)
    assert {failure(future, UsageError) for future in (waiting, first, second)} == {said}
    error = second.exception()
    assert isinstance(error, UsageError) and error.key == said.split("=")[0]
    listen_as_tensorflow(meeting.address)


def test_another_version(meeting: Meeting) -> None:
    waiting = meeting.host("worker-0")
    meeting.missing("worker-0")
    with connect(meeting.address) as old:
        hello = {"task": "worker-0", "facts": {"seed": "9"}, "dtrain": "0.0.1"}
        old.sendall(json.dumps(hello).encode() + b"\n")
        said = failure(waiting, UsageError)
        assert json.loads(old.makefile().readline())["ok"] is False
    assert said == (
        f"dtrain=0.0.1: worker-0 has this, and the chief has {__version__} (also different: "
        f"optimizer.learning_rate, seed); accepted: the same on every host; type: pip install "
        f"dtrain=={__version__}"
    )


def test_a_guest_that_never_comes(meeting: Meeting, clock: Clock) -> None:
    waiting = meeting.host("worker-0", "worker-1", "ps-0", timeout=LONG / 2)
    first = meeting.guest("worker-0")
    meeting.missing("worker-1", "ps-0")
    clock.ahead = LONG / 2  # the chief's deadline is past, the guest's is not
    with connect(meeting.address):  # somebody comes: it looks at the clock
        said = failure(waiting, TrainingError)
    assert said == (
        f"worker-1, ps-0 did not come to the chief at {meeting.address} within {LONG / 2:g} s"
    )
    assert failure(first, TrainingError) == said


def test_no_chief(address: str) -> None:
    with pytest.raises(TrainingError) as caught:
        Guest(address, "worker-0", FACTS).meet(0.05)
    assert str(caught.value) == f"no chief at {address} within 0.05 s (Connection refused)"


def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(TrainingError, match=r"no chief at pod-0:1 within 0\.05 s \(Name or serv"):
        Guest("pod-0:1", "worker-0", FACTS).meet(0.05)


def test_a_name_that_cannot_be_one() -> None:
    with pytest.raises(TrainingError, match=r"no chief at .*label"):
        Guest(f"{'a' * 64}.b:1", "worker-0", FACTS).meet(0.05)


def test_a_chief_that_says_nothing(address: str, clock: Clock, meeting: Meeting) -> None:
    host, port = address.split(":")
    with socket.create_server((host, int(port))) as server:
        waiting = meeting.guest("worker-0")
        with server.accept()[0] as connection:
            assert connection.recv(9)  # it has asked, and waits
            clock.ahead = LONG + rendezvous.MARGIN
            connection.sendall(b"{")  # it looks at the clock
            said = failure(waiting, TrainingError)
    assert said == f"the chief at {address} did not begin within 65 s"


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"[1]\n", b'{"task": "x"}\n', b"\0\xff\n"]
)
def test_something_else_at_the_address(meeting: Meeting, clock: Clock, answer: bytes) -> None:
    host, port = meeting.address.split(":")
    with socket.create_server((host, int(port))) as server:
        waiting = meeting.guest("worker-0")
        with server.accept()[0] as connection:
            connection.makefile("rb").readline()
            connection.sendall(answer)
        assert clock.slept.wait(LONG)  # it will try again
        clock.ahead = LONG
        said = failure(waiting, TrainingError)
    assert said == (
        f"no chief at {meeting.address} within 60 s (what answers there is not a chief that waits)"
    )


@pytest.mark.parametrize(
    "garbage",
    [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xfe\n", b"[1]\n", b"{}\n", b"\n",
     b'{"task": ["worker-0"], "facts": {}}\n', b'{"task": "worker-0", "facts": []}\n',
     b"[" * 5000 + b"\n", b"9" * 5000 + b"\n", b"x" * 70_000],
    ids=lambda garbage: repr(garbage[:12]),
)  # fmt: skip
def test_a_stranger(meeting: Meeting, garbage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "LONGEST", 60_000)
    waiting = meeting.host("worker-0")
    meeting.missing("worker-0")
    with connect(meeting.address) as silent, connect(meeting.address) as stranger:
        stranger.sendall(garbage)
        if garbage:
            assert not received(stranger)
        else:
            stranger.shutdown(socket.SHUT_WR)
        folder = meeting.guest("worker-0")
        waiting.result(LONG)
        assert folder.result(LONG) == "2026/run"
        assert not received(silent)


def received(connection: socket.socket) -> bytes:
    """Wait for what comes, or for the end."""
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


def test_many_strangers(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "STRANGERS", 2)
    waiting = meeting.host("worker-0")
    meeting.missing("worker-0")
    strangers = [connect(meeting.address) for _ in range(5)]
    assert [received(stranger) for stranger in strangers[:3]] == [b""] * 3
    meeting.guest("worker-0")
    waiting.result(LONG)
    for stranger in strangers:
        assert not received(stranger)
        stranger.close()


def test_a_line_in_pieces(meeting: Meeting) -> None:
    waiting = meeting.host("worker-0")
    meeting.missing("worker-0")
    hello = {"task": "worker-0", "facts": FACTS, "dtrain": __version__, "more": "é" * 100_000}
    with connect(meeting.address) as guest:
        guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in json.dumps(hello).encode()[:20]:
            guest.sendall(bytes([byte]))
        guest.sendall(json.dumps(hello).encode()[20:] + b"\n")
        waiting.result(LONG)
        assert json.loads(guest.makefile().readline()) == {"ok": True, "folder": "2026/run"}


def test_a_task_that_comes_twice(meeting: Meeting) -> None:
    waiting = meeting.host("worker-0", "worker-1")
    first = meeting.guest("worker-0")
    meeting.missing("worker-1")
    second = meeting.guest("worker-0b")
    assert failure(second, UsageError) == (
        "TF_CONFIG.task=worker-0b: the chief expects no such task; accepted: worker-0, worker-1; "
        "type: the same TF_CONFIG cluster on every host"
    )
    twin = Guest(meeting.address, "worker-0", FACTS)
    with pytest.raises(UsageError) as caught:
        twin.meet(LONG)
    assert str(caught.value) == (
        "TF_CONFIG.task=worker-0: another process has come to the chief as worker-0; accepted: one "
        "process for each task; type: TF_CONFIG with another task.index on this host"
    )
    meeting.guest("worker-1")
    waiting.result(LONG)
    assert first.result(LONG) == "2026/run"


def test_a_guest_that_leaves_and_comes_again(meeting: Meeting) -> None:
    waiting = meeting.host("worker-0", "worker-1")
    meeting.missing("worker-0", "worker-1")
    with connect(meeting.address) as guest:
        hello = {"task": "worker-0", "facts": FACTS, "dtrain": __version__}
        guest.sendall(json.dumps(hello).encode() + b"\n")
        meeting.missing("worker-1")
    meeting.missing("worker-0", "worker-1")
    meeting.guest("worker-0")
    meeting.missing("worker-1")
    meeting.guest("worker-1")
    waiting.result(LONG)


def test_a_chief_that_dies(meeting: Meeting) -> None:
    host = meeting.met("worker-0")
    host._close()
    assert code(meeting.guests["worker-0"]) == errors.FAILED


def test_a_chief_that_is_interrupted(meeting: Meeting) -> None:
    def interrupt(sentence: str) -> None:
        if sentence == "waiting for worker-1":
            raise KeyboardInterrupt

    host = Host(meeting.address, ["worker-0", "worker-1"], FACTS, "run")
    guest = meeting.guest("worker-0")
    with pytest.raises(KeyboardInterrupt):
        host.wait(LONG, interrupt)
    listen_as_tensorflow(meeting.address)
    meeting.host("worker-0").result(LONG)  # another chief: the guest has looked for one again
    assert guest.result(LONG) == "2026/run"


def test_an_address_in_use(address: str) -> None:
    host, port = address.split(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(TrainingError, match=rf"the chief cannot listen at {address}: Address alr"),
    ):
        Host(address, ["worker-0"], FACTS, "run").wait(LONG)


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
        Host(address, ["worker-0"], FACTS, "run").wait(LONG)
    assert str(caught.value) == f"the chief cannot listen at {address}: {bound}"


@pytest.mark.parametrize("act", [Guest.ask_to_stop, Guest.ended, Guest.close])
def test_a_guest_that_has_not_met(act: Callable[[Guest], int | None]) -> None:
    assert act(Guest("localhost:1", "worker-0", FACTS)) is None
