"""Where the commands of a job meet without ports of their own, what they agree on, and the key."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from dtrain import secrets
from dtrain.errors import TrainingError, UsageError
from dtrain.launchers.env import CANDIDATES, Meeting
from dtrain.launchers.local import FIRST, LAST, around_proxies
from dtrain.launchers.platforms.base import Started
from dtrain.launchers.platforms.tf_config import joined
from dtrain.launchers.rendezvous import cluster_key, messages, sides
from dtrain.launchers.rendezvous.sides import Host, Peer, Place, _at
from dtrain.run.cluster import Cluster, Task
from tests.test_rendezvous import FACTS, KEY, LONG, PLACE, connect, ended

STEP = Started("SLURM step 7.0", 1, 3, chief=("n1",), job="SLURM step 7.0 of ci, start None")


def of(started: Started = STEP, network: str | None = None, chief: str | None = None) -> Meeting:
    return Meeting.of(started, network, chief, lambda host: f"{host}.reached")


def test_where_a_job_meets() -> None:
    found = of()
    assert found == of() and len(found.ports) == CANDIDATES
    assert all(FIRST <= port <= LAST for port in found.ports)
    assert found.addresses == [f"n1.reached:{port}" for port in found.ports]
    assert of(chief="boss").hosts == ("boss.reached",)
    assert of(network="lo").own == "127.0.0.1"
    assert joined("fe80::1", 7) == "[fe80::1]:7"


def test_no_two_jobs_meet() -> None:
    other = of(Started("SLURM step 7.1", 1, 3, chief=("n1",), job="SLURM step 7.1"))
    assert of().key(KEY) not in (KEY, other.key(KEY))
    assert of().key(KEY) != of().key(b"another key of the user")
    assert set(of().ports) != set(other.ports)


def test_one_machine_meets_on_loopback() -> None:
    assert of(Started("Open MPI", 1, 2, local=(1, 2))).hosts == ("127.0.0.1",)


def test_a_chief_of_whom_nothing_is_known() -> None:
    with pytest.raises(UsageError) as caught:
        of(Started("Open MPI", 0, 2))  # at all of them, the chief too: they end together
    assert str(caught.value) == (
        "launcher.chief=null: Open MPI does not say on which host its task 0 is; accepted: the "
        "name or address of a host, or null; hint: launcher.chief=HOST, the same for all tasks"
    )


# --- real connections


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def free() -> list[str]:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in made]


def met(host: Host, pool: ThreadPoolExecutor, *others: Peer) -> list[str]:
    """Let a chief and its peers meet, and return the addresses that all of them have then."""
    asked: list[Future[Place]] = [pool.submit(peer.meet, LONG) for peer in others]
    host.wait(LONG)
    agreed = host.agreed(":20001")
    host.begin(PLACE._replace(addresses=tuple(agreed)))
    assert {future.result(LONG).addresses for future in asked} == {tuple(agreed)}
    for peer in others:
        peer.close()
    host.end(0)
    return agreed


def test_addresses_are_agreed(free: list[str], pool: ThreadPoolExecutor) -> None:
    """One says its port alone, one its address in a network."""
    names = ["worker-0", "worker-1"]
    said = [":20002", "10.1.2.3:20003"]
    pairs = zip(names, said, strict=True)
    others = [Peer(free, name, FACTS, KEY, LONG, own) for name, own in pairs]
    agreed = met(Host(free, names, FACTS, KEY, LONG), pool, *others)
    assert agreed == ["127.0.0.1:20001", "127.0.0.1:20002", "10.1.2.3:20003"]


def test_a_port_that_another_program_has(
    free: list[str], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chief takes the next one, and its peer passes over what does not prove the key."""
    monkeypatch.setattr(sides, "PROVE", 0.2)
    host, port = free[0].split(":")
    with socket.create_server((host, int(port))):  # it accepts, and never says a word
        peer = Peer(free, "worker-0", FACTS, KEY, LONG, ":20002")
        assert len(met(Host(free, ["worker-0"], FACTS, KEY, LONG), pool, peer)) == 2
        assert peer.address == free[1]


def test_another_job_of_the_user_at_the_first_port(
    free: list[str], pool: ThreadPoolExecutor
) -> None:
    """Its chief waits for a task of the same name, with the same configuration."""
    own, foreign = of().key(KEY), of(Started("x", 0, 2, chief=("n",), job="x")).key(KEY)
    other = Host(free[:1], ["worker-0"], FACTS, foreign, LONG)
    waiting = pool.submit(other.wait, LONG)
    while not waiting.done():  # until it listens
        with contextlib.suppress(ConnectionRefusedError), connect(free[0]):
            break
    peer = Peer(free, "worker-0", FACTS, own, LONG, ":20002")
    met(Host(free, ["worker-0"], FACTS, own, LONG), pool, peer)
    assert peer.address == free[1] and not waiting.done()
    met_late = Peer(free[:1], "worker-0", FACTS, foreign, LONG)
    place = pool.submit(met_late.meet, LONG)
    waiting.result(LONG)
    other.begin(PLACE)
    assert place.result(LONG) == PLACE
    met_late.close()
    other.end(0)


def test_no_port_is_free(free: list[str]) -> None:
    with contextlib.ExitStack() as stack:
        for address in free:
            host, port = address.split(":")
            stack.enter_context(socket.create_server((host, int(port))))
        with pytest.raises(TrainingError, match=f"cannot listen at {free[-1]}"):
            Host(free, ["worker-0"], FACTS, KEY, LONG).wait(LONG)


def test_a_flood(free: list[str], pool: ThreadPoolExecutor) -> None:
    """1,000 connections, lines of 10 MB without an end, parts of greetings: the job meets."""
    host = Host(free[:1], ["worker-0"], FACTS, KEY, LONG)
    waiting = pool.submit(host.wait, LONG)
    while not waiting.done():
        with contextlib.suppress(ConnectionRefusedError), connect(free[0]):
            break
    strangers = []
    for number in range(1000):
        stranger = connect(free[0])
        strangers.append(stranger)
        with contextlib.suppress(OSError):  # it was closed already
            if number % 100 == 0:
                stranger.sendall(b"x" * 10_000_000)
            elif number % 2:
                stranger.sendall(messages.greeting(b"s" * 32)[: number % 40])
    peer = Peer(free[:1], "worker-0", FACTS, KEY, LONG, ":20002")
    place = pool.submit(peer.meet, LONG)
    waiting.result(LONG)
    host.begin(PLACE)
    assert place.result(LONG) == PLACE
    peer.close()
    host.end(0)
    for stranger in strangers:
        with contextlib.suppress(BrokenPipeError):
            assert ended(stranger)
        stranger.close()


# --- what is sent


@pytest.mark.parametrize(
    ("address", "is_one"),
    [(":1", True), ("n1:65535", True), ("[fd00::2]:7", True), ("", True), ("n1", False),
     ("n1:x", False), (7, False), ("a b:1", False), ("x" * 300 + ":1", False), ("\x1b:1", False)],
)  # fmt: skip
def test_addresses_that_peers_say(address: object, is_one: bool) -> None:
    hello = {"task": "worker-0", "dtrain": "1", "facts": {}}
    found = messages.parse(messages.make("hello", **hello, address=address))
    assert (found is not None) is is_one
    place = {"day": "2026-01-01", "name": "run", "job": "ab" * 16}
    found = messages.parse(messages.make("place", **place, addresses=[address]))
    assert (found is not None) is is_one


@pytest.mark.parametrize("name", ["../../etc", "/etc", ".ssh", "a/b", "", "a\0"])
def test_a_chief_names_no_path(name: str) -> None:
    """A run folder is two names below the peer's own output_dir."""
    for day, folder in ((name, "run"), ("2026-01-01", name)):
        data = messages.make("place", day=day, name=folder, job="ab" * 16, addresses=[])
        assert messages.parse(data) is None


def test_hosts_and_ports() -> None:
    assert _at("10.0.0.1", ":7") == "10.0.0.1:7"
    assert _at("fd00::1", ":7") == "[fd00::1]:7"
    assert _at("10.0.0.1", "n1:7") == "n1:7"


# --- proxies


def test_tasks_are_reached_without_a_proxy() -> None:
    tasks = (Task("chief", 0, 1, address="n1:7"), Task("worker", 0, 1, address="[fd00::2]:8"))
    cluster = Cluster(tasks, "cpu", 2, {})
    assert around_proxies(cluster, {}) == "127.0.0.1,localhost,n1,fd00::2"
    kept = {"no_proxy": "example.org,n1"}
    assert around_proxies(cluster, kept) == "127.0.0.1,localhost,n1,fd00::2,example.org"
    both = {**kept, "no_grpc_proxy": "other"}
    assert around_proxies(cluster, both) == "127.0.0.1,localhost,n1,fd00::2,other"


SECRET = "0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(cluster_key.VARIABLE, raising=False)
    return tmp_path


@pytest.fixture
def file(home: Path) -> Path:
    (home / ".dtrain").mkdir()
    return home / ".dtrain" / "cluster.key"


def test_there_is_none(home: Path) -> None:
    assert cluster_key.find() is None
    assert list(home.iterdir()) == []


def test_the_variable_comes_first(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("another key than that of the variable\n")
    monkeypatch.setenv(cluster_key.VARIABLE, SECRET)
    assert cluster_key.find() == SECRET.encode()
    assert SECRET not in secrets.mask(f"a text with {SECRET} in it")


def test_a_file(file: Path) -> None:
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    assert cluster_key.find() == SECRET.encode()


@pytest.mark.parametrize("key", [SECRET[:-1], "x"])
def test_a_short_key(key: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cluster_key.VARIABLE, key)
    with pytest.raises(UsageError, match="is too short; accepted: 16 characters or more"):
        cluster_key.find()


def test_an_empty_file(file: Path) -> None:
    file.touch(0o600)
    with pytest.raises(UsageError, match="too short"):
        cluster_key.find()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o604])
def test_a_file_that_others_can_use(mode: int, file: Path) -> None:
    file.write_text(SECRET)
    file.chmod(mode)
    with pytest.raises(UsageError, match=r"may be read by others.*chmod 600"):
        cluster_key.find()


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_file(kind: str, file: Path, tmp_path: Path) -> None:
    if kind == "link":
        (tmp_path / "elsewhere").write_text(SECRET)
        file.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(file, 0o600)
    else:
        file.mkdir()
    with pytest.raises(UsageError, match=r"cluster\.key"):
        cluster_key.find()


def test_several_commands_make_one(home: Path) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(cluster_key.make())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1 and len(found[0]) == 64
    assert [path.name for path in (home / ".dtrain").iterdir()] == ["cluster.key"]
    assert (home / ".dtrain" / "cluster.key").stat().st_mode & 0o777 == 0o600
    assert (home / ".dtrain").stat().st_mode & 0o777 == 0o700
    assert cluster_key.find() == found[0]


def test_no_place_for_a_key(home: Path) -> None:
    (home / ".dtrain").write_text("a file")
    with pytest.raises(UsageError, match=r"no key can be made.*DTRAIN_CLUSTER_KEY"):
        cluster_key.make()
