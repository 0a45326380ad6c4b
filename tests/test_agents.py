"""Agents and their launcher: streams, tasks, deaths; on this machine, over pipes."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import queue
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dtrain import errors
from dtrain.cli.commands import predict
from dtrain.errors import TrainingError, UsageError
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.launchers import facts
from dtrain.launchers.agents import host as hosts
from dtrain.launchers.agents import launcher as launchers
from dtrain.launchers.agents import mirror, stream
from dtrain.launchers.agents.host import Host, Inbox, Lost
from dtrain.launchers.agents.stream import Stream, packed
from dtrain.launchers.rendezvous import messages
from dtrain.run import checkpoint
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import LOCK, RunDir, read_json
from tests.agents import Together
from tests.conftest import QUICK, need
from tests.integration.test_failures import processes, until
from tests.sampled import sampled
from tests.test_launchers import SETTINGS, broken, cluster, endless, heard, several

__all__ = ["cluster", "several"]


@pytest.fixture(autouse=True)
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tests")


def agents(folder: Path) -> list[int]:
    """Return the processes of agents, and what they have started, that are in a folder."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            words = (link.parent / "cmdline").read_bytes().split(b"\0")
            if Path(os.readlink(link)) == folder and (
                b"dtrain.agent" in words or any(b"forkserver" in word for word in words)
            ):
                found.append(int(link.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


class Pair:
    """A stream, and the raw ends of what it reads and writes."""

    def __init__(self, noisy: bool = False):
        reader, self.writer = os.pipe()
        self.reader, writer = os.pipe()
        self.heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.stream = Stream(reader, writer, self.heard.put, noisy)

    def close(self) -> None:
        self.stream.close()
        for descriptor in (self.reader, self.writer):
            try:
                os.close(descriptor)
            except OSError:
                continue


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(getattr(request, "param", False))
    yield made
    made.close()


# --- streams


def test_messages_carry_bytes(pair: Pair) -> None:
    data = os.urandom(300_000)
    written = b"".join([*packed("a", x=1), *packed("b", data, name="é\n"), *packed("c")])
    assert os.write(pair.writer, written) == len(written)
    assert pair.heard.get(timeout=10) == {"kind": "a", "x": 1}
    assert pair.heard.get(timeout=10) == {"kind": "b", "name": "é\n", "data": data}
    assert pair.heard.get(timeout=10) == {"kind": "c"}


def test_a_beat_a_second_and_what_is_sent(pair: Pair) -> None:
    pair.stream.send("x", b"abc", n=2)
    found = b""
    while b'"beat"' not in found:
        found += os.read(pair.reader, 100)
    assert found.startswith(b'{"kind": "x", "n": 2, "size": 3}\nabc{"kind": "beat"}')
    assert pair.stream.drain(0)
    os.write(pair.writer, b'{"kind": "beat"}\n{"kind": "y"}\n')
    assert pair.heard.get(timeout=10) == {"kind": "y"}, "a beat is no news"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"no json\n", "is no message"),
        (b"[]\n", "no object"),
        (b'{"kind": 1}\n', "no object"),
        (b'{"kind": "x", "size": -1}\n', "a wrong size"),
        (b'{"kind": "x", "size": 99999999}\n', "a wrong size"),
        (b'{"kind": "x", "size": true}\n', "a wrong size"),
        (b"\xff\xfe\n", "is no message"),
        (b'{"kind": "x", "size": 5}\nabc', "was closed"),
        (b'{"kind": "x"', "was closed"),
    ],
)
def test_what_is_no_message_ends_it(line: bytes, why: str, pair: Pair) -> None:
    os.write(pair.writer, line)
    os.close(pair.writer)
    last = pair.heard.get(timeout=10)
    assert last["kind"] == "gone" and why in last["why"]
    assert pair.stream.gone


def test_a_line_has_an_end(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LINE", 1000)
    os.write(pair.writer, b"x" * 5000)
    assert "without an end" in pair.heard.get(timeout=10)["why"]


@pytest.mark.parametrize("pair", [True], indirect=True)
def test_what_a_shell_prints_first_is_left_out(pair: Pair) -> None:
    os.write(pair.writer, b'Welcome!\n{"kind": "x"}\n\n' + packed("hello", a=1)[0])
    assert pair.heard.get(timeout=10) == {"kind": "hello", "a": 1}
    assert pair.stream.noise.startswith(b"Welcome!\n")


def test_an_end_in_the_midst_of_what_is_sent(pair: Pair) -> None:
    def messages() -> Iterator[tuple[bytes, ...]]:
        yield packed("a")
        raise OSError(5, "it is broken", "disk")

    pair.stream.send_all(messages())
    pair.stream.send("b")
    assert pair.heard.get(timeout=10) == {"kind": "unsent", "why": "disk: it is broken"}
    found = b""
    while b'"b"' not in found:
        found += os.read(pair.reader, 100)
    assert found.startswith(b'{"kind": "a"}\n')


# --- hosts


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["a", "b:2"], [("a", 1), ("b", 2)]),
        (["me@a.b-c.d:3"], [("me@a.b-c.d", 3)]),
        (["[::1]:2", "[fe80::1%eth0]"], [("::1", 2), ("fe80::1%eth0", 1)]),
    ],
)
def test_listed_hosts(given: list[str], found: list[tuple[str, int]]) -> None:
    assert hosts.listed(given) == found


@pytest.mark.parametrize(
    "given",
    ["", "-oProxyCommand=x", "a:0", "a:00", "a:x", "a b", "a;b", "a/b", "::1", "a:", "$(x)", "@a"],
)
def test_what_is_no_host(given: str) -> None:
    with pytest.raises(UsageError, match="is no host"):
        hosts.listed([given])


def test_a_host_is_given_once() -> None:
    with pytest.raises(UsageError, match=r"is given twice.*a:3"):
        hosts.listed(["a", "b", "a:2"])


def test_a_file_of_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(
        "# mine\n\na slots=2\nb   # one\nc slots = 4 max_slots=8\nme@d max-slots=2 slots=3\n"
        "a slots=1\ne:2\nf slots=0\n"
    )
    assert hosts.in_file(str(path)) == [("a", 3), ("b", 1), ("c", 4), ("me@d", 3), ("e", 2)]
    for line, problem in (("a slots=x", "line 1 is 'a slots=x'"), ("a,b", "is no host")):
        path.write_text(line)
        with pytest.raises(UsageError, match=re.escape(problem)):
            hosts.in_file(str(path))
    with pytest.raises(UsageError, match="cannot be read"):
        hosts.in_file(str(tmp_path / "other"))


# --- reaching each other


def test_open_and_closed_doors() -> None:
    with socket.socket() as taken, socket.socket() as closed:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        closed.bind(("127.0.0.1", 0))
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        doors = facts.Doors([port], "this job")
        there, silent = f"127.0.0.1:{port}", f"127.0.0.1:{taken.getsockname()[1]}"
        none = f"127.0.0.1:{closed.getsockname()[1]}"
        found = facts.tried([there, silent, none], "this job", 0.5)
        assert found[there] is None
        assert "nothing answered within" in str(found[silent])
        assert "refused" in str(found[none])
        other = facts.tried([there], "another job", 0.5)
        assert other == {there: "another program answers there"}
        doors.close()
        doors.close()
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as TensorFlow does
            again.bind(("", port))


def test_what_differs_from_this_machine(monkeypatch) -> None:
    here, inbox = facts.found(), Inbox(60.0)
    Host(cast(Any, SimpleNamespace(host="a")), 1, inbox.queue)._hear({"kind": "hello", **here})
    [(_, greeting)] = inbox.take([], 0.0)
    # Its greeting is looked at when that of the slowest host has come.
    monkeypatch.setattr(time, "time", lambda: here["time"] + 70)
    assert facts.problem(greeting, here) is None
    for change, said in (
        ({"dtrain": "0.0.1"}, "has dtrain 0.0.1, and this machine"),
        ({"tensorflow": None}, "has no TensorFlow"),
        ({"code": "x"}, "its code of dtrain is another"),
        ({"time": here["time"] - 100, "came": here["time"]}, "clock is 100 s behind"),
    ):
        problem = facts.problem({**greeting, **change}, here)
        assert problem is not None and said in problem[0]
    jax = FRAMEWORKS["jax"]
    assert facts.framework_problem(jax, greeting, here) is None
    assert facts.problem({**greeting, "jax": "0"}, here) is None  # TensorFlow computes
    problem = facts.framework_problem(jax, {**greeting, "jaxlib": None}, here)
    assert problem is not None and problem[0].startswith("has no jaxlib; this machine has ")


# --- tasks


@pytest.fixture
def together() -> Iterator[Together]:
    launcher = Together((1,), **SETTINGS)
    yield launcher
    launcher.kill()


def placed(launcher: Together, cluster: Cluster) -> Cluster:
    return launcher.check(cluster, {"strategy.name": "default"})


def test_exit_codes_events_and_logs(tmp_path: Path, cluster: Cluster, together: Together) -> None:
    rundir = broken(tmp_path, cluster)
    started = together.start(rundir, placed(together, cluster))
    assert read_json(rundir.cluster) == json.loads(json.dumps(started.to_json()))
    assert heard(together, ("chief-0", "ended")) == {"chief-0": ["started", "ended"]}
    assert together.exit_codes() == {"chief-0": 1}
    assert "AttributeError" in rundir.log("chief-0").read_text()
    assert together.poll(0) == []
    together.kill()
    assert agents(tmp_path) == []


@pytest.mark.faults
def test_kill_and_start_again(tmp_path: Path, several: Cluster) -> None:
    launcher = Together((2, 1), **SETTINGS)
    rundir = endless(tmp_path, several)
    started = launcher.start(rundir, placed(launcher, several))
    ports = {task.address for task in started.tasks}
    assert len(ports) == 3
    heard(launcher, *[(task.name, "started") for task in several.tasks])
    assert set(processes(tmp_path)) == {"chief-0", "worker-0", "ps-0"}
    launcher.kill()
    assert processes(tmp_path) == {} and agents(tmp_path) == []
    assert set(launcher.exit_codes().values()) == {-9}
    again = launcher.start(rundir, started)
    heard(launcher, *[(task.name, "started") for task in several.tasks])
    assert launcher.exit_codes() == {}
    assert again.job != started.job
    launcher.kill()
    assert processes(tmp_path) == {} and agents(tmp_path) == []


@pytest.mark.faults
def test_one_task_is_ended_and_started_again(
    tmp_path: Path, cluster: Cluster, together: Together
) -> None:
    together.start(endless(tmp_path, cluster), placed(together, cluster))
    heard(together, ("chief-0", "started"))
    together.end("chief-0")
    heard(together, ("chief-0", "ended"))
    assert together.exit_codes() == {"chief-0": -9}
    together.start_again("chief-0")
    heard(together, ("chief-0", "started"))
    assert together.exit_codes() == {}


def test_no_agent_comes(tmp_path: Path) -> None:
    inbox = Inbox(5.0)
    from dtrain.launchers.agents import Command

    host = Host(Command("x", ["sh", "-c", "echo noise; echo no >&2; exit 3"]), 1, inbox.queue)
    host.open()
    with pytest.raises(Lost, match="x: sh ended with exit code 3: no"):
        inbox.gather([host], "hello", 10, "start")
    host.close(1)
    host = Host(Command("y", ["sleep", "60"]), 1, inbox.queue)
    host.open()
    with pytest.raises(TrainingError, match=r"y did not start within 0\.2 s"):
        inbox.gather([host], "hello", 0.2, "start")
    host.close(0)


@pytest.mark.parametrize(
    ("number", "hung", "last"), sampled([(3, 1, 1.0), (30, 5, 10.0)], (3, 1, 1.0))
)
def test_all_hosts_are_left_at_once(
    number: int, hung: int, last: float, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Ctrl-C waits once for all hosts that do not answer, and not for the others."""
    monkeypatch.setattr(launchers, "LAST", last)
    launcher = Together((1,) * number, **{**SETTINGS, "start_timeout": 300})
    hosts = launcher.connect()
    for host in hosts[:hung]:
        os.kill(host.facts["pid"], signal.SIGSTOP)
    launcher.kill()
    names = ", ".join(host.name for host in hosts[:hung])
    said = f"no answer within {last:g} s, the connection is closed: {names}"
    assert capsys.readouterr().err == f"dtrain: {said}\n"
    until(lambda: not agents(tmp_path), lambda: agents(tmp_path), 20)


def test_a_message_that_is_too_long_is_not_sent() -> None:
    for make, kind in ((stream.packed, "start"), (messages.make, "hello")):
        facts = {"task": "a", "dtrain": "1", "address": "", "facts": {"a": "x" * (1 << 22)}}
        with pytest.raises(TrainingError, match=f"'{kind}' to another host has 4,194,"):
            make(kind, **facts)


def test_an_agent_that_gets_nonsense_says_so(together: Together) -> None:
    [host] = together.connect()
    for kind, said in (("dance", "knows nothing of 'dance'"), ("again", "missing 1 required")):
        host.send(kind)
        with pytest.raises(TrainingError, match=said):
            together._inbox.gather([host], "danced", 10, "dance")


def test_tasks_with_a_device_each_share_a_place(several: Cluster) -> None:
    tasks = [Task("chief", 0, 1), *(Task("worker", n, 1, device=(n + 1) % 2) for n in range(3))]
    cluster = dataclasses.replace(several, tasks=tuple(tasks))
    launcher = Together((1, 1), **SETTINGS)
    try:
        placed(launcher, cluster)
        assert [host.tasks for host in launcher._hosts] == [
            ["chief-0", "worker-0"], ["worker-1", "worker-2"],
        ]  # fmt: skip
        with pytest.raises(UsageError, match=r"has 4 places for 6 tasks.*:3\]"):
            launcher.check(
                dataclasses.replace(cluster, tasks=cluster.tasks + cluster.tasks[:2]),
                {"strategy.name": "multiworker"},
            )
    finally:
        launcher.kill()


def test_variables_that_a_configuration_refers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "x")
    monkeypatch.setenv("OTHER", "y")
    text = "a: ${oc.env:MY_TOKEN}\nb: s3://${oc.env:'GONE',z}/${ oc.env : MY_TOKEN }\nc: OTHER\n"
    assert facts.referred(text) == {"MY_TOKEN": "x"}


# --- whole runs

AGENTS = (*QUICK, "launcher=local", "launcher._target_=tests.agents.Together")


def test_a_run_equals_one_device(dtrain: Any) -> None:
    one = dtrain(*QUICK, "trainer.batch_size=32")
    # The hosts of the first one do not see the run folder: what they write is sent back.
    hides = os.system("unshare -m true 2>/dev/null") == 0
    hidden = [f"+launcher.hidden={Path('outputs').absolute()}"] if hides else []
    for more in (
        ("strategy=multiworker", "+launcher.slots=[1,1]", *hidden),
        ("strategy=ps", "strategy.update=sync", "strategy.workers=2", "+launcher.slots=[2,2]"),
    ):
        run = dtrain(*AGENTS, "trainer.batch_size=32", *more)
        assert run.code == errors.OK, run.output
        points = run.points("loss")
        assert points == pytest.approx(one.points("loss"), abs=1e-5) and points
        assert isinstance(run.rundir, RunDir) and run.rundir.log("chief-0").exists()
        found, problems = checkpoint.newest(run.rundir.checkpoints)
        assert found is not None and not problems and run.rundir.model.exists()


def test_hosts_with_a_process_for_each_device(dtrain: Any) -> None:
    need("torch")
    words = ("backend=torch", "trainer.epochs=1")
    one = dtrain(*QUICK, *words, "strategy=one_device")
    hosts = ("strategy=multiworker", "hardware.devices=2", "+launcher.slots=[1,1]")
    run = dtrain(*AGENTS, *words, *hosts)
    assert (run.code, run.result["replicas"]) == (errors.OK, 4), run.output
    assert run.points("loss") == pytest.approx(one.points("loss"), abs=1e-5)
    assert len(list(run.rundir.logs.iterdir())) == 4


def test_workers_of_predict_are_given_places(dtrain: Any, capfd: Any) -> None:
    run = dtrain(*QUICK, "trainer.epochs=1")
    words = [str(run.rundir.path), *AGENTS[-2:], "+launcher.slots=[1,1]"]
    assert predict.main([*words, "workers=2", "dry_run=true"]) == errors.OK
    assert "worker-0" in capfd.readouterr().out
    assert predict.main([*words, "workers=3"]) == errors.USAGE
    assert "has 2 places for 3 tasks" in capfd.readouterr().err
    assert not (run.rundir.path / "predictions").exists()


def test_agents_that_start_together_keep_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removes what others have left, and not what another one is making."""
    monkeypatch.setattr(mirror.tempfile, "gettempdir", lambda: str(tmp_path))
    left = mirror.Folder("left")
    assert left._lock is not None
    os.close(left._lock)  # its process has ended

    def make(agent: int) -> None:
        for number in range(60):
            folder = mirror.Folder(f"{agent}-{number}")
            assert (folder.path / LOCK).is_file()
            folder.remove()

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(make, range(6)))
    assert not list(tmp_path.glob("dtrain-agents-*/[!.]*"))
