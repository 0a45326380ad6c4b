"""The launchers: real processes, what they say, their exit codes, their end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain import errors
from dtrain.config import tree
from dtrain.errors import UsageError
from dtrain.host.forkserver import Process
from dtrain.launchers import Env, Inline, Launcher, Local
from dtrain.launchers import env as launch
from dtrain.launchers import local as module
from dtrain.launchers.platforms.tf_config import TFConfig
from dtrain.launchers.rendezvous import messages
from dtrain.launchers.rendezvous.cluster_key import VARIABLE
from dtrain.run.cluster import Cluster, Task
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, read_json, write_json
from tests import warm
from tests.integration.test_failures import processes, until
from tests.test_schema import composed

SETTINGS = {"grace_seconds": 5, "start_timeout": 60, "stall_timeout": None, "max_restarts": 0}
SERVED = (
    Task("chief", 0, 0),
    Task("worker", 0, 1, serves=True, replaceable=True),
    Task("ps", 0, 0, serves=True),
)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster((Task("chief", 0, 1),), "cpu", 1, warm.ENVIRONMENT)


@pytest.fixture
def several() -> Cluster:
    return Cluster(SERVED, "cpu", 1, warm.ENVIRONMENT)


@pytest.fixture
def launcher() -> Iterator[Local]:
    launcher = Local(**SETTINGS)
    yield launcher
    launcher.kill()


def broken(tmp_path: Path, cluster: Cluster) -> RunDir:
    """Return a run folder whose configuration lacks all that a task needs."""
    rundir = RunDir.create(tmp_path / "run")
    write_json(rundir.cluster, cluster.to_json())
    rundir.config.write_text("hardware: {}\n")
    return rundir


@pytest.fixture(autouse=True)
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tests")


def endless(tmp_path: Path, cluster: Cluster, kind: str = "Endless") -> RunDir:
    """Return a run folder whose tasks wait for ever, in the midst of their start."""
    rundir = broken(tmp_path, cluster)
    config = composed(f"strategy._target_=tests.hang.{kind}")
    rundir.config.write_text(tree.to_yaml(config))
    return rundir


def busy(tmp_path: Path, cluster: Cluster) -> RunDir:
    """Return a run folder whose tasks compute for ever."""
    return endless(tmp_path, cluster, "Busy")


def heard(launcher: Launcher, *last: tuple[str, str]) -> dict[str, list[str]]:
    """Wait for news until those of ``last`` have come; return the words of each task."""
    news: list[tuple[str, str]] = []

    def come() -> bool:
        news.extend(launcher.poll(0.05))
        return set(last) <= set(news)

    until(come, lambda: news, 60)
    # The cause of a failure has its own test: tests/integration/test_torch_plain.py.
    said = [(who, word) for who, word in news if not word.startswith("failed ")]
    return {name: [word for who, word in said if who == name] for name, _ in said}


# --- one task


def test_exit_codes_and_logs(tmp_path: Path, cluster: Cluster, launcher: Local) -> None:
    rundir = broken(tmp_path, cluster)
    launcher.prepare(cluster)
    launcher.start(rundir, cluster)
    assert heard(launcher, ("chief-0", "ended")) == {"chief-0": ["started", "ended"]}
    assert launcher.exit_codes() == {"chief-0": 1}
    assert "Traceback" in rundir.log("chief-0").read_text()
    assert launcher.poll(0) == []  # each event is returned once


def test_a_framework_that_cannot_be_imported(tmp_path: Path, launcher: Local) -> None:
    cluster = Cluster((Task("chief", 0, 1),), "cpu", 1, {"KERAS_BACKEND": "broken"})
    rundir = broken(tmp_path, cluster)
    launcher.start(rundir, cluster)
    heard(launcher, ("chief-0", "ended"))
    assert launcher.exit_codes() == {"chief-0": 1}
    assert "ValueError: Unable to import backend : broken" in rundir.log("chief-0").read_text()


def test_kill_leaves_nothing(tmp_path: Path, cluster: Cluster, launcher: Local) -> None:
    launcher.start(endless(tmp_path, cluster), cluster)
    heard(launcher, ("chief-0", "started"))
    assert set(processes(tmp_path)) == {"chief-0"}
    assert launcher.exit_codes() == {}
    launcher.kill()
    assert processes(tmp_path) == {}
    assert launcher.exit_codes() == {"chief-0": -9}


def ends(pipe: Any) -> None:
    os._exit(3)


def test_several_threads_read_the_same_exit_codes() -> None:
    """As in a sweep: multiprocessing looks at all processes whenever one is started."""
    started: list[Process] = []
    done, wrong = threading.Event(), set()

    def look() -> None:
        while not done.is_set():
            wrong.update({process.code() for process in started} - {None, 3})

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        started.append(Process(warm.ENVIRONMENT, "ends", ends, (), {}))
    for process in started:
        process.join()
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == set()
    assert {process.code() for process in started} == {3}


def test_gpus_of_a_slot(launcher: Local, cluster: Cluster) -> None:
    two = Cluster((Task("chief", 0, 1), Task("worker", 0, 1)), "gpu", 2, {})
    launcher._cluster = two
    launcher.gpus = ("GPU-c", "7")
    assert [launcher._gpus(task) for task in two.tasks] == ["GPU-c", "7"]
    launcher._cluster = cluster
    assert launcher._gpus(cluster.chief) == "-1"


def test_tasks_are_fresh_processes_where_nothing_can_be_forked(
    capsys: pytest.CaptureFixture[str], launcher: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtrain.host.forkserver._LONGEST", 0)  # bytes of a folder's path
    launcher.prepare(Cluster((), "cpu", 1, {**warm.ENVIRONMENT, "KERAS_BACKEND": "jax"}))
    assert "importing JAX anew" in capsys.readouterr().err


def test_the_environment_of_this_process_stays_as_it_is(
    tmp_path: Path, cluster: Cluster, launcher: Local
) -> None:
    before = dict(os.environ)
    module.warm(warm.ENVIRONMENT)
    launcher.start(broken(tmp_path, cluster), cluster)
    assert dict(os.environ) == before


@pytest.mark.faults
def test_a_hanging_task_writes_where_it_is(
    tmp_path: Path, cluster: Cluster, launcher: Local
) -> None:
    rundir = endless(tmp_path, cluster)
    launcher.start(rundir, cluster)
    heard(launcher, ("chief-0", "started"))
    log = rundir.log("chief-0")
    launcher.dump()
    for part in ("Current thread", "main.py"):
        until(lambda part=part: part in log.read_text(), log.read_text, 20)
    assert launcher.poll(0) == []  # and goes on
    launcher.kill()
    launcher.dump()  # nobody is there: nobody is signalled


def test_a_frozen_task(tmp_path: Path, cluster: Cluster, launcher: Local) -> None:
    launcher.start(busy(tmp_path, cluster), cluster)
    heard(launcher, ("chief-0", "started"))
    pid = processes(tmp_path)["chief-0"]

    def work() -> None:
        """Wait until it has had processor time since the last look."""
        before = module._state(pid)[1]
        until(lambda: module._state(pid)[1] > before, lambda: module._state(pid), 20)

    def stop() -> None:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: module._state(pid)[0] == "T", lambda: module._state(pid), 20)

    assert launcher.frozen() == set()
    work()
    stop()
    assert launcher.frozen() == set()  # it has done something since
    assert launcher.frozen() == {"chief-0"}
    assert launcher.frozen() == {"chief-0"}
    os.kill(pid, signal.SIGCONT)
    work()
    assert launcher.frozen() == set()
    work()
    stop()
    assert launcher.frozen() == set()
    assert launcher.frozen() == {"chief-0"}
    launcher.kill()
    assert launcher.frozen() == set()


def test_a_task_that_waits_is_not_frozen(tmp_path: Path, cluster: Cluster, launcher: Local) -> None:
    launcher.start(endless(tmp_path, cluster), cluster)
    heard(launcher, ("chief-0", "started"))
    pid = processes(tmp_path)["chief-0"]
    until(lambda: module._state(pid)[0] == "S", lambda: module._state(pid), 20)
    assert [launcher.frozen() for _ in range(3)] == [set(), set(), set()]


# --- several tasks


def test_every_task_starts_and_one_again(tmp_path: Path, several: Cluster, launcher: Local) -> None:
    rundir = broken(tmp_path, several)
    placed = launcher.start(rundir, several)
    assert len({task.address for task in placed.tasks}) == 3
    assert Cluster.from_json(read_json(rundir.cluster) or {}) == placed
    names = [task.name for task in several.tasks]
    words = heard(launcher, *((name, "ended") for name in names))
    assert words == {name: ["started", "ended"] for name in names}
    assert launcher.exit_codes() == dict.fromkeys(names, 1)
    once = rundir.log("worker-0").read_text()

    launcher.start_again("worker-0")
    assert "worker-0" not in launcher.exit_codes()
    assert heard(launcher, ("worker-0", "ended")) == {"worker-0": ["started", "ended"]}
    assert launcher.exit_codes()["worker-0"] == 1
    assert len(rundir.log("worker-0").read_text()) > len(once)


def test_one_task_is_ended(tmp_path: Path, several: Cluster, launcher: Local) -> None:
    launcher.start(endless(tmp_path, several), several)
    heard(launcher, *((task.name, "started") for task in several.tasks))
    launcher.end("worker-0")
    assert heard(launcher, ("worker-0", "ended")) == {"worker-0": ["ended"]}
    assert launcher.exit_codes() == {"worker-0": -9}
    assert set(processes(tmp_path)) == {"chief-0", "ps-0"}


def test_a_stop_is_for_those_that_train(tmp_path: Path, several: Cluster, launcher: Local) -> None:
    """These need the others to save their state."""
    launcher.start(endless(tmp_path, several), several)
    heard(launcher, *((task.name, "started") for task in several.tasks))
    launcher.stop()
    assert heard(launcher, ("chief-0", "stop")) == {"chief-0": ["stop"]}
    launcher.end("chief-0")
    assert heard(launcher, ("chief-0", "ended")) == {"chief-0": ["ended"]}
    assert set(processes(tmp_path)) == {"worker-0", "ps-0"}
    assert launcher.poll(0) == []


def test_what_asks_every_process_to_stop_ends_none(
    tmp_path: Path, several: Cluster, launcher: Local
) -> None:
    """As a scheduler may, or a terminal that is closed: tasks and their server live."""
    launcher.start(endless(tmp_path, several), several)
    heard(launcher, *((task.name, "started") for task in several.tasks))
    found = processes(tmp_path)
    server = int(Path(f"/proc/{found['ps-0']}/stat").read_text().rpartition(")")[2].split()[1])
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        for process in (server, *found.values()):
            os.kill(process, number)
    words = heard(launcher, *((task.name, "stop") for task in several.tasks))
    assert words == {name: ["stop"] for name in found}, "each tells it once"
    assert processes(tmp_path) == found
    assert os.getppid() != server and Path(f"/proc/{server}").exists()


def says(pipe: Any) -> None:
    from dtrain.task.entry import StatusPipe

    words = StatusPipe(pipe)
    count = 200  # so few that the pipe has room for all

    def handler(*_: Any) -> None:
        words("handler")

    signal.signal(signal.SIGUSR1, handler)
    done = threading.Event()

    def talk() -> None:
        for _ in range(count):
            words("thread")
            os.kill(os.getpid(), signal.SIGUSR1)
        done.set()

    threading.Thread(target=talk).start()
    for _ in range(count):
        words("main")
    done.wait()
    words("end")
    os._exit(0)


def test_words_of_threads_and_handlers_are_whole() -> None:
    process = Process(warm.ENVIRONMENT, "says", says, (), {})
    heard: list[str] = []

    def ended() -> bool:
        heard.extend(process.statuses())
        return "end" in heard

    until(ended, lambda: heard, 60)
    process.join()
    assert set(heard) == {"thread", "handler", "main", "end"}
    assert heard.count("thread") == heard.count("main") == 200


def test_addresses(cluster: Cluster, several: Cluster, launcher: Local) -> None:
    assert launcher.place(cluster) is cluster
    placed = launcher.place(several)
    addresses = [str(task.address) for task in placed.tasks]
    assert len(set(addresses)) == 3
    for address in addresses:
        host, _, port = address.partition(":")
        assert host == "127.0.0.1"
        with socket.socket() as probe:
            probe.bind(("", int(port)))  # it is free
    assert [dataclasses.replace(task, address=None) for task in placed.tasks] == [*SERVED]
    again = launcher.place(placed)
    assert again.spec().keys() == {"chief", "worker", "ps"}
    assert len(launcher._ports._locks) == 3  # those of before are given back
    launcher.kill()
    assert launcher._ports._locks == []


# --- devices

HOSTS = (Task("chief", 0, 2), Task("worker", 0, 1), Task("worker", 1, 2))


@pytest.mark.parametrize(
    ("tasks", "kind", "visible", "expected"),
    [
        (HOSTS, "gpu", None, ["0,1", "2", "3,4"]),
        (HOSTS, "gpu", "7,5,GPU-3,1,0", ["7,5", "GPU-3", "1,0"]),
        (HOSTS, "cpu", "0,1", ["-1", "-1", "-1"]),
        (SERVED, "gpu", None, ["-1", "0", "-1"]),
        (SERVED, "gpu", "6,7", ["-1", "6", "-1"]),
    ],
)
def test_each_task_has_gpus_of_its_own(
    tasks: tuple[Task, ...], kind: str, visible: str | None, expected: list[str],
    monkeypatch: pytest.MonkeyPatch, launcher: Local,
) -> None:  # fmt: skip
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    launcher._cluster = Cluster(tasks, kind, 1, {})
    assert [launcher._gpus(task) for task in tasks] == expected


@pytest.mark.parametrize(("visible", "expected"), [(None, "0,1"), ("3,4,5", "3,4")])
def test_a_host_of_its_own_has_all_gpus(
    visible: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    launcher = Env(**SETTINGS, environment=TFConfig())
    launcher._cluster = Cluster(HOSTS, "gpu", 5, {})
    assert launcher._gpus(HOSTS[2]) == expected


# --- in this process


def test_one_process_is_not_several_tasks(cluster: Cluster, several: Cluster) -> None:
    launcher = Inline(**SETTINGS)
    assert launcher.check(cluster, {}) is cluster
    with pytest.raises(UsageError) as caught:
        launcher.check(several, {})
    assert "launcher=inline: one process cannot be 3 tasks" in str(caught.value)
    assert "type: launcher=local" in str(caught.value)


# --- one task of many

FACTS = {"strategy.name": "ps", "strategy.on_hosts": "False"}
PLACES = {"chief": ["a.example:2222"], "worker": ["b.example:2222"], "ps": ["c.example:2222"]}


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[Env]:
    """Return the launcher of ps-0's host, and leave nothing."""
    task = {"type": "ps", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": PLACES, "task": task}))
    monkeypatch.setenv(VARIABLE, "a key of these tests")
    launcher = Env(**SETTINGS, environment=TFConfig())
    yield launcher
    launcher.kill()


def test_others_start_the_others_again() -> None:
    with pytest.raises(UsageError) as caught:
        Env(**{**SETTINGS, "max_restarts": 2}, environment=TFConfig())
    assert str(caught.value).startswith("launcher.max_restarts=2: one task of many")
    assert str(caught.value).endswith("type: launcher.max_restarts=0")


def test_a_place_in_somebodys_cluster(several: Cluster, env: Env) -> None:
    placed = env.check(several, FACTS)
    assert placed.spec() == PLACES
    assert env.own(placed) == placed.task("ps-0")
    assert env.followed(placed) == (placed.task("ps-0"),)
    assert not env.shares_machine


def test_the_own_task_alone_is_started(tmp_path: Path, several: Cluster, env: Env) -> None:
    placed = env.check(several, FACTS)
    env.start_own(broken(tmp_path, placed), placed)
    assert heard(env, ("ps-0", "ended")) == {"ps-0": ["started", "ended"]}
    assert env.exit_codes() == {"ps-0": 1}
    assert not (tmp_path / "run" / "logs" / "chief-0.log").exists()


@pytest.mark.parametrize(
    ("code", "expected"), [(errors.PORT_TAKEN, errors.FAILED), (75, 75), (0, 0), (-9, -9)]
)
def test_nobody_here_can_choose_another_port(
    code: int, expected: int, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Local, "exit_codes", lambda self: {"ps-0": code})
    assert env.exit_codes() == {"ps-0": expected}


class Others:
    """The chief's connections to the other commands."""

    def __init__(self, *news: tuple[str, dict[str, Any]], mute: tuple[str, ...] = ()):
        self.news = list(news)
        self.mute = list(mute)
        self.ended: list[int] = []

    def messages(self) -> list[tuple[str, dict[str, Any]]]:
        news, self.news = self.news, []
        return news

    def silent(self, seconds: float) -> list[str]:
        return self.mute

    def move(self, step: int) -> None:
        self.step = step

    def end(self, code: int) -> None:
        self.ended.append(code)


GONE, LOST = {"kind": "gone"}, {"kind": "lost"}


def left(code: int, reason: str = "", kind: str = "failed") -> dict[str, Any]:
    return {"kind": "left", "code": code, "failed": kind, "reason": reason, "place": ""}


@pytest.mark.parametrize(
    ("message", "failure"),
    [
        (left(0), None),
        (left(75), None),
        (left(1, "no memory"), Failure("failed", "ps-0", "no memory")),
        (left(3), Failure("failed", "ps-0", "ended with exit code 3")),
        (left(1, "x", "died"), Failure("died", "ps-0", "x")),
        (GONE, Failure("lost", "ps-0", "is lost: its command has ended, or the connection was "
                       "closed")),
        (LOST, Failure("lost", "ps-0", "is lost: nothing came from it for 45 s, nor from worker-0 "
                       "(launcher.peer_timeout)")),
        ({"kind": "late"}, Failure("lost", "ps-0", "is hardly reached: the job stood still for "
                                   "most of 45 s (launcher.peer_timeout)")),
    ],
    ids=str,
)  # fmt: skip
def test_a_task_of_another_host_is_lost(
    message: dict[str, Any], failure: Failure | None, env: Env, several: Cluster, tmp_path: Path
) -> None:
    env._cluster, env._rundir = several, RunDir(tmp_path)
    write_json(env._rundir.progress, {"step": 12})
    env._host = Others(("ps-0", message), ("ps-0", GONE), mute=("worker-0",))  # type: ignore[assignment]
    assert env.poll(0) == ([("ps-0", "lost")] if failure else [])
    assert env.losses.get("ps-0") == failure
    assert env.silent() == ["worker-0"]
    assert env._host.step == 12  # type: ignore[union-attr]


def test_workers_that_the_job_does_without(
    env: Env, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    env._rundir = RunDir(tmp_path)
    workers = [Task("worker", n, 1, serves=True, replaceable=True) for n in range(3)]
    env._cluster = Cluster((SERVED[0], *workers, SERVED[2]), "cpu", 3, {})
    others = Others(("worker-0", GONE))
    env._host = others  # type: ignore[assignment]
    assert env.poll(0) == []
    said = "its command has ended, or the connection was closed; the others continue without it\n"
    assert capsys.readouterr().err == f"dtrain: worker-0: is lost: {said}"
    others.news = [("worker-1", left(1)), ("worker-1", GONE)]
    assert env.poll(0) == []
    others.news = [("worker-2", left(1, "x"))]
    assert env.poll(0) == [("worker-2", "lost")], "it is the last one"
    others.news = [("worker-0", GONE)]
    assert env.poll(0) == [], "it is known"


def test_a_worker_that_is_silent(env: Env, tmp_path: Path) -> None:
    """TensorFlow would wait for its answer without an end."""
    env._rundir = RunDir(tmp_path)
    workers = [Task("worker", n, 1, serves=True, replaceable=True) for n in range(3)]
    env._cluster = Cluster((SERVED[0], *workers, SERVED[2]), "cpu", 3, {})
    env._host = Others(("worker-0", LOST))  # type: ignore[assignment]
    assert env.poll(0) == [("worker-0", "lost")]


def test_what_other_hosts_ask(env: Env, several: Cluster, tmp_path: Path) -> None:
    env._cluster, env._rundir = several, RunDir(tmp_path)
    others = Others(("worker-0", {"kind": "stop"}))
    env._host = others  # type: ignore[assignment]
    assert env.poll(0) == [("worker-0", "stop")]
    env.farewell(75)
    env.farewell(75)
    assert others.ended == [75]


# --- the key


@pytest.fixture
def here(several: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Env:
    """Return the launcher of a command that has no key yet, on loopback."""
    places = {role: [f"127.0.0.1:{2222 + n}"] for n, role in enumerate(PLACES)}
    monkeypatch.setenv("TF_CONFIG", json.dumps(
        {"cluster": places, "task": {"type": "ps", "index": 0}}
    ))  # fmt: skip
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Env(**SETTINGS, environment=TFConfig())


def test_commands_of_one_machine_make_a_key(here: Env, several: Cluster, tmp_path: Path) -> None:
    placed = here.check(several, FACTS)
    assert not (tmp_path / "home").exists(), "a check makes nothing"
    here.peer(placed)
    file = tmp_path / "home" / ".dtrain" / "cluster.key"
    assert file.stat().st_mode & 0o777 == 0o600


def test_hosts_without_a_key(
    here: Env, several: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = {"type": "ps", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": PLACES, "task": task}))
    with pytest.raises(UsageError) as caught:
        here.check(several, FACTS)
    assert "DTRAIN_CLUSTER_KEY" in str(caught.value)
    assert "secrets.token_hex(32)" in str(caught.value)
    assert not (tmp_path / "home").exists()


# --- the place of a run


def test_a_run_has_an_identity(tmp_path: Path, several: Cluster) -> None:
    rundir = RunDir.create(tmp_path / "2026-01-01" / "run")
    write_json(rundir.command, {"format": 2, "overrides": ["a=1"], "config_dir": None})
    placed, place = launch._identified(rundir, several)
    assert (place.day, place.name) == ("2026-01-01", "run")
    assert placed.job == place.job
    assert Cluster.from_json(read_json(rundir.cluster) or {}) == placed
    assert (read_json(rundir.command) or {})["overrides"] == ["a=1"]
    write_json(rundir.cluster, several.to_json())  # as each start of a job does
    assert launch._identified(rundir, several)[1] == place
    assert len({launch._identified(RunDir.create(tmp_path / "x" / n), several)[1].job
                for n in "ab"}) == 2  # fmt: skip


def test_a_folder_of_which_no_other_host_can_have_one(tmp_path: Path, several: Cluster) -> None:
    rundir = RunDir.create(tmp_path / ".hidden" / "run")
    _, place = launch._identified(rundir, several)
    assert messages.is_name(place.day) and place.name == place.job
