"""A command that is not the chief's: from the meeting to its exit code."""

from __future__ import annotations

import dataclasses
import os
import signal
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtrain import errors
from dtrain.config import tree
from dtrain.config.tree import Config
from dtrain.errors import TrainingError, UsageError
from dtrain.job import host_task
from dtrain.job.run import JobSpec
from dtrain.launchers.rendezvous.sides import Place
from dtrain.run import outcome
from dtrain.run.cluster import Cluster, Task
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, read_json, write_json
from tests.test_schema import composed

PLACES = ["a.example:1", "b.example:2", "c.example:3"]
CLUSTER = Cluster(
    (Task("chief", 0, 1), Task("worker", 0, 1), Task("ps", 0, 0, serves=True)), "cpu", 2, {}
).at(PLACES)
CHIEFS = "2026-01-01/12-00-00_name"
PLACE = Place("2026-01-01", "12-00-00_name", "ab" * 16)


def config(tmp_path: Path, *overrides: str) -> Config:
    return composed(f"output_dir={tmp_path}/mine", *overrides)


# --- the run folder


def chiefs_folder(
    path: Path, own: Config, cluster: Cluster = CLUSTER, job: str = PLACE.job
) -> tuple[RunDir, dict[Path, bytes]]:
    """Make a run folder as the chief does, and return its contents too."""
    rundir = RunDir.create(path)
    rundir.config.write_text(tree.to_yaml(own))
    write_json(rundir.cluster, {**cluster.to_json(), "job": job})
    return rundir, contents(rundir)


def contents(rundir: RunDir) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in rundir.path.rglob("*") if path.is_file()}


def test_a_shared_disk(tmp_path: Path) -> None:
    """The chief's folder is used as it is, though this host has other devices."""
    chiefs = config(tmp_path, "hardware.devices=2", "name=other")
    there, before = chiefs_folder(tmp_path / "mine" / CHIEFS, chiefs)
    found = host_task._folder(config(tmp_path), CLUSTER, PLACE)
    assert found.path == there.path
    assert contents(found) == before
    assert found.logs.is_dir()


def test_a_disk_of_ones_own(tmp_path: Path) -> None:
    own = config(tmp_path, "trainer.epochs=7")
    found = host_task._folder(own, CLUSTER, PLACE)
    assert found.path == tmp_path / "mine" / CHIEFS
    assert tree.written(tree.read(found.config)) == tree.written(own)
    written = Cluster.from_json(read_json(found.cluster) or {})
    assert written == dataclasses.replace(CLUSTER, job=PLACE.job)
    assert found.logs.is_dir()


def test_what_a_resumed_run_left_here(tmp_path: Path) -> None:
    """The first life of the run had other ports and ended earlier."""
    path = tmp_path / "mine" / CHIEFS
    old = CLUSTER.at(["a.example:7", "b.example:8", "c.example:9"])
    chiefs_folder(path, config(tmp_path, "trainer.epochs=7"), old)
    found = host_task._folder(config(tmp_path, "trainer.epochs=9"), CLUSTER, PLACE)
    assert found.path == path
    assert tree.read(found.config).trainer.epochs == 9
    assert Cluster.from_json(read_json(found.cluster) or {}).spec() == CLUSTER.spec()


@pytest.mark.parametrize("job", ["cd" * 16, "", None])
def test_the_folder_of_another_run(job: Any, tmp_path: Path) -> None:
    """It is left as it is, be it of the same name."""
    path = tmp_path / "mine" / CHIEFS
    there, before = chiefs_folder(path, config(tmp_path, "trainer.epochs=7"), job=job)
    found = host_task._folder(config(tmp_path), CLUSTER, PLACE)
    assert found.path == path.with_name(f"{path.name}-2")
    assert contents(there) == before


@pytest.mark.parametrize("damage", ["{", "[1]", "link", "fifo"])
def test_a_folder_that_cannot_be_read(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "mine" / CHIEFS
    there, _ = chiefs_folder(path, config(tmp_path))
    text = there.cluster.read_text()
    there.cluster.unlink()
    if damage == "link":
        (tmp_path / "elsewhere").write_text(text)
        there.cluster.symlink_to(tmp_path / "elsewhere")
    elif damage == "fifo":
        os.mkfifo(there.cluster)
    else:
        there.cluster.write_text(damage)
    assert host_task._folder(config(tmp_path), CLUSTER, PLACE).path.name == f"{path.name}-2"


def test_a_folder_that_is_resumed(tmp_path: Path) -> None:
    """It is this host's own word where it lies, and the chief's that it is the same run."""
    there, before = chiefs_folder(tmp_path / "moved", config(tmp_path))
    own = config(tmp_path, f"resume={there.path}")
    assert host_task._folder(own, CLUSTER, PLACE).path == there.path
    assert contents(there) == before
    with pytest.raises(UsageError, match="is not the run that the chief is at"):
        host_task._folder(own, CLUSTER, PLACE._replace(job="cd" * 16))
    assert contents(there) == before


# --- the loop


class Peer:
    """This command's line to the chief."""

    def __init__(self, folder: Place):
        self.folder: Place | BaseException = folder
        self.code: int | None = None
        self.asked = 0
        self.closed = False
        self.left: tuple[int, Failure | None] | None = None
        self.reason: str | None = None
        self.chief_silent = False
        self.address = CLUSTER.chief.address

    def meet(self, timeout: float, say: Callable[[str], None]) -> Place:
        assert timeout == 60
        if isinstance(self.folder, BaseException):
            raise self.folder
        return self.folder

    def ended(self) -> int | None:
        return self.code

    def ask_to_stop(self) -> None:
        self.asked += 1

    def silent(self, seconds: float) -> bool:
        return self.chief_silent

    def close(self, code: int | None = None, failure: Failure | None = None) -> None:
        if code is not None and not self.closed:
            self.left = (code, failure)
        self.closed = True


class Story:
    """A launcher of one task, told in looks: what happens before each of them."""

    start_timeout, grace_seconds = 60.0, 30.0

    def __init__(self, name: str, peer: Peer):
        self.peer_, self.name = peer, name
        self.looks: list[Callable[[], Any]] = []
        self.code: int | None = None
        self.asked: list[str] = []
        self.now = 1000.0
        self.last_lines = "my last lines\n"
        self._words: list[str] = []

    def frozen(self) -> set[str]:
        return set()

    def own(self, cluster: Cluster) -> Task:
        return cluster.task(self.name)

    def placed(self, cluster: Cluster, place: Place) -> Cluster:
        return cluster

    def peer(self, cluster: Cluster) -> Peer:
        return self.peer_

    def start_own(self, rundir: RunDir, cluster: Cluster) -> None:
        self.asked.append("start")
        rundir.log(self.name).write_text(self.last_lines)

    def word(self, word: str) -> Callable[[], None]:
        return lambda: self._words.append(word)

    def end_with(self, code: int) -> Callable[[], None]:
        def act() -> None:
            self.code = code
            self._words.append("ended")

        return act

    def chief_ends(self, code: int) -> Callable[[], None]:
        return lambda: setattr(self.peer_, "code", code)

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        self.now += timeout
        assert self.now < 2000, "this goes on for ever"
        if self.looks:
            self.looks.pop(0)()
        words, self._words = self._words, []
        return [(self.name, word) for word in words]

    def stop(self) -> None:
        self.asked.append("stop")

    def kill(self) -> None:
        self.asked.append("kill")
        if self.code is None and "start" in self.asked:
            self.code = -9

    def exit_codes(self) -> dict[str, int]:
        return {} if self.code is None else {self.name: self.code}

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Story]:
    def make(name: str) -> Story:
        story = Story(name, Peer(PLACE))
        monkeypatch.setattr(host_task, "time", story)
        return story

    return make


def spec(story: Any, tmp_path: Path) -> JobSpec:
    planned: Any = types.SimpleNamespace(cluster=CLUSTER)
    return JobSpec(config(tmp_path), planned, story, tmp_path, {})


def run(story: Any, tmp_path: Path) -> int:
    before = signal.getsignal(signal.SIGTERM)
    code = host_task.run(spec(story, tmp_path)).exit_code
    assert signal.getsignal(signal.SIGTERM) is before
    assert story.peer_.closed
    assert story.asked[-1] == "kill"
    return code


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("code", [errors.OK, errors.FAILED, errors.INTERRUPTED])
def test_a_task_that_trains_has_its_own_code(
    code: int, story: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = story("worker-0")
    told.looks = [told.word("started"), told.word("joined"), told.end_with(code)]
    assert run(told, tmp_path) == code
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "worker-0: looking for the chief at a.example:1",
        f"worker-0: started; its log is mine/{CHIEFS}/logs/worker-0.log",
    ]
    assert ("worker-0: my last lines" in lines) == (code == errors.FAILED)
    failed = Failure("failed", "worker-0", "my last lines") if code == errors.FAILED else None
    assert told.peer_.left == (code, failed)
    assert lines[-1] == f"worker-0: ended with exit code {code}"


@pytest.mark.parametrize("code", [errors.OK, errors.FAILED, errors.INTERRUPTED])
def test_a_task_that_serves_has_the_job_s_code(code: int, story: Any, tmp_path: Path) -> None:
    told = story("ps-0")
    told.looks = [told.word("joined"), told.chief_ends(code)]
    assert run(told, tmp_path) == code
    assert told.now < 1001, "it is not waited for"


def test_a_job_that_fails_elsewhere(
    story: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The task itself has nothing to say."""
    told = story("ps-0")
    told.looks = [told.word("joined"), told.chief_ends(errors.FAILED)]
    told.last_lines = ""
    assert run(told, tmp_path) == errors.FAILED
    said = "ps-0: the job has failed, and the chief at a.example:1 says why"
    assert said in capsys.readouterr().err.splitlines()


def test_a_chief_that_is_silent(
    story: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorFlow misses it first: its error does not name it as we do."""
    told = story("worker-0")
    told.peer_.chief_silent = True
    told.looks = [told.end_with(errors.FAILED)]
    assert run(told, tmp_path) == errors.FAILED
    said = "worker-0: my last lines; nothing came lately from the chief at a.example:1"
    assert said in capsys.readouterr().err


def test_a_chief_that_answers_too_late(
    story: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is heard now and then, and TensorFlow names a call alone."""
    said = "Deadline Exceeded RPC: /tensorflow.CoordinationService/Heartbeat"
    monkeypatch.setattr(outcome, "last_lines", lambda log: said)
    told = story("worker-0")
    told.looks = [told.end_with(errors.FAILED)]
    assert run(told, tmp_path) == errors.FAILED
    wanted = f"worker-0: {said}; the chief at a.example:1 did not answer in time"
    assert wanted in capsys.readouterr().err


def test_a_task_that_lingers_after_the_chief(story: Any, tmp_path: Path) -> None:
    told = story("worker-0")
    told.looks = [told.word("training"), told.chief_ends(errors.OK)]
    assert run(told, tmp_path) == errors.OK
    assert round(told.now - 1000) == told.grace_seconds


def test_a_chief_that_ends_before_the_first_step(story: Any, tmp_path: Path) -> None:
    """The task may be in the midst of what takes minutes, and nothing of it is wanted."""
    told = story("worker-0")
    told.looks = [told.word("joined"), ctrl_c, told.chief_ends(errors.INTERRUPTED)]
    assert run(told, tmp_path) == errors.INTERRUPTED
    assert told.now < 1002


def test_a_task_that_ends_after_the_chief(story: Any, tmp_path: Path) -> None:
    told = story("worker-0")
    told.looks = [
        told.word("training"), told.chief_ends(errors.FAILED), lambda: None,
        told.end_with(errors.INTERRUPTED),
    ]  # fmt: skip
    assert run(told, tmp_path) == errors.INTERRUPTED


@pytest.mark.parametrize("at_a_terminal", [False, True])
def test_a_task_that_was_asked_to_stop(at_a_terminal: bool, story: Any, tmp_path: Path) -> None:
    """Ctrl-C at a terminal reaches this command and its task, which says so: one request."""
    told = story("ps-0")
    told.looks = [told.word("stop"), lambda: None, told.chief_ends(errors.INTERRUPTED)]
    if at_a_terminal:
        told.looks.insert(0, ctrl_c)
    assert run(told, tmp_path) == errors.INTERRUPTED
    assert told.peer_.asked == 1


def test_a_second_request(story: Any, tmp_path: Path) -> None:
    told = story("worker-0")
    told.looks = [ctrl_c, lambda: None, ctrl_c]
    assert run(told, tmp_path) == errors.FAILED
    assert told.now < 1001
    assert told.asked == ["start", "stop", "kill"]


def test_ctrl_c_while_the_chief_is_looked_for(story: Any, tmp_path: Path) -> None:
    told = story("worker-0")
    told.peer_.folder = KeyboardInterrupt()
    assert run(told, tmp_path) == errors.FAILED
    assert told.asked == ["kill"]


@pytest.mark.parametrize(
    "problem",
    [TrainingError("no chief"), UsageError("a.b", "is not 2", 1, accepted="2", typed="a.b=2")],
)
def test_a_meeting_that_fails(problem: Exception, story: Any, tmp_path: Path) -> None:
    told = story("worker-0")
    told.peer_.folder = problem
    with pytest.raises(type(problem), match=str(problem)):
        host_task.run(spec(told, tmp_path))
    assert told.peer_.closed
    assert told.asked == ["kill"]
    assert not (tmp_path / "mine").exists()
