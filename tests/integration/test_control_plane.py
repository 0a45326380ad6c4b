"""What a job of several hosts promises, however its tasks are commanded: by agents, or by commands
that meet (``launcher=env``). Real processes on loopback; what is said, and that nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.launchers.env import Meeting
from dtrain.launchers.local import Ports
from dtrain.launchers.platforms.numbered import TorchVariables
from dtrain.run.folder import read_json
from tests.conftest import QUICK
from tests.integration.test_cluster_faults import ENDLESS, MULTIWORKER
from tests.integration.test_env import Shell, ended
from tests.integration.test_failures import processes, until
from tests.sampled import sampled

ROOT = Path(__file__).parents[2]
JOB = (*QUICK, *MULTIWORKER, "launcher.start_timeout=60", "launcher.peer_timeout=10")
WAITS = (*JOB, "strategy._target_=tests.hang.Endless")
VICTIM = "worker-0"


class Plane(ABC):
    """A job of two hosts, ``chief-0`` on the first and ``worker-0`` on the other.

    Attributes:
        there: the other host's own folder.
        shells: the commands that the user has typed, the chief's first.
    """

    def __init__(self, folder: Path):
        self.folder, self.there = folder, folder / "there"
        self.there.mkdir()
        self.shells: list[Shell] = []
        self.stolen: int | None = None

    @abstractmethod
    def type(self, *words: str, **how: bool) -> None:
        """Type its commands.

        Args:
            words: of all of them.
            how: ``apart``: the other host has a folder and code of its own; ``hidden``: it does
                not see the run folder; ``relayed``: :meth:`cut` can be called.
        """

    @abstractmethod
    def cut(self) -> None:
        """Cut the connection between the two hosts off."""

    def steal(self, thief: socket.socket) -> None:
        """Take the port that the chief would choose first."""
        thief.bind(("127.0.0.1", 0))
        self.stolen = thief.getsockname()[1]

    def start(self, *words: str, **how: bool) -> None:
        """Start it, and wait until its tasks are there."""
        self.type(*words, **how)
        until(self._started, self.said, 300)

    def _started(self) -> bool:
        found = processes(self.folder)
        self.task = found.get(VICTIM, 0)  # of the other host
        return len(found) == 2

    def shell(self, name: str, variables: dict[str, str], folder: Path, *words: str) -> None:
        path = os.pathsep.join([str(folder), str(ROOT)])
        more = {"PYTHONPATH": path, "DTRAIN_CLUSTER_KEY": "a key of these tests"}
        variables = {**more, **variables, "PLANE": str(self.folder)}
        self.shells.append(Shell(folder, name, variables, *words))

    @property
    def remote(self) -> int:
        """The process that commands the task of the other host."""
        pid = self.task
        while b"-m\0dtrain" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return pid

    def left(self) -> list[int]:
        """Return the processes of this job, and what they have started."""
        found = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if f"PLANE={self.folder}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(int(pid))
        return found

    def kill(self, number: signal.Signals) -> None:
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        self.kill(signal.SIGKILL)
        for shell in self.shells:
            shell.process.wait()

    def said(self) -> str:
        return "\n".join(f"--- {shell.name}\n{shell.output}" for shell in self.shells)

    def end(self, code: int) -> dict[str, Any]:
        """Wait until all commands have ended with a code and nothing is left; return the result."""
        assert self.shells[0].process.wait(240) == code, self.said()
        self.kill(signal.SIGCONT)  # what was stopped goes on, and has to notice
        assert set(ended(self.shells).values()) <= {code, -signal.SIGKILL}, self.said()
        until(lambda: not self.left(), self.left, 20)
        [found] = self.folder.glob("outputs/*/*/result.json")
        return read_json(found) or {}


class OfAgents(Plane):
    def type(self, *words: str, **how: bool) -> None:
        outputs = self.folder / "outputs"
        outputs.mkdir()
        hides = "hidden" in how and os.system("unshare -m true 2>/dev/null") == 0
        options = {
            "slots": "[1,1]", "there": self.there if "apart" in how else None,
            "relayed": "relayed" in how, "hidden": outputs if hides else None,
            "stolen": self.stolen,
        }  # fmt: skip
        more = [f"+launcher.{name}={value}" for name, value in options.items() if value]
        target = ("launcher=local", "launcher._target_=tests.agents.Together")
        self.shell("chief-0", {}, self.folder, *words, *target, *more)

    def cut(self) -> None:
        for pid in self.left():
            with contextlib.suppress(OSError):  # it has just ended
                if Path(f"/proc/{pid}/cmdline").read_bytes() == b"cat\0":
                    os.kill(pid, signal.SIGKILL)


class Relay(threading.Thread):
    """Passes on what two hosts say to each other, from a port to another one."""

    def __init__(self, port: int):
        super().__init__(daemon=True)
        self._ends = [socket.create_server(("127.0.0.1", 0))]
        self.port, self._to = self._ends[0].getsockname()[1], port
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = self._ends[0].accept()[0], socket.socket()
                self._ends += [near, far]
                if far.connect_ex(("127.0.0.1", self._to)):  # it does not listen yet
                    near.close()
                    continue
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class OfCommands(Plane):
    _relay: Relay | None = None

    def type(self, *words: str, **how: bool) -> None:
        ports = Ports()
        own, other = ports.take(2)
        ports.release()
        self._relay = Relay(own) if "relayed" in how else None
        for index, name in enumerate(("chief-0", VICTIM)):
            chief = self._relay.port if self._relay is not None and index else own
            cluster = {"chief": [f"127.0.0.1:{chief}"], "worker": [f"127.0.0.1:{other}"]}
            task = {"cluster": cluster, "task": {"type": name.split("-")[0], "index": 0}}
            variables = {"TF_CONFIG": json.dumps(task)}
            if self.stolen is not None:
                variables = self._numbered(index)
            self.shell(name, variables, self.there if index and how else self.folder, *words,
                       "launcher=env")  # fmt: skip

    @staticmethod
    def _numbered(index: int) -> dict[str, str]:
        """Return the variables of PyTorch, in which tasks have numbers; it need not be there."""
        return {"RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(os.getpid())}  # fmt: skip

    def steal(self, thief: socket.socket) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._numbered(0).items():
                patch.setenv(name, value)
            started = TorchVariables().started()
        assert started is not None
        self.stolen = Meeting.of(started, None, None, str).ports[0]
        thief.bind(("127.0.0.1", self.stolen))

    def cut(self) -> None:
        if self._relay is not None:
            self._relay.close()

    def close(self) -> None:
        super().close()
        self.cut()


@pytest.fixture(params=[OfAgents, OfCommands], ids=["agents", "env"])
def plane(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Plane]:
    monkeypatch.setenv("DTRAIN_TRUST", "tests")
    made = request.param(tmp_path)
    yield made
    made.close()


STOPPED = "was stopped (SIGSTOP) for 5 s"
SILENT = "nothing came from it for 10 s (launcher.peer_timeout)"
HARMS = {
    "its task dies": ("died", "ended by SIGKILL", lambda p: os.kill(p.task, signal.SIGKILL)),
    "its task hangs": ("frozen", STOPPED, lambda p: os.kill(p.task, signal.SIGSTOP)),
    "it is silent": ("lost", SILENT, lambda p: os.kill(p.remote, signal.SIGSTOP)),
    "its command dies": ("lost", "ended", lambda p: os.kill(p.remote, signal.SIGKILL)),
    "it is cut off": ("lost", "is lost", lambda p: p.cut()),
}


@pytest.mark.parametrize("harm", sampled(HARMS, "its task dies"))
def test_a_host_is_hurt(plane: Plane, harm: str) -> None:
    kind, reason, hurt = HARMS[harm]
    plane.start(*WAITS, **({"relayed": True} if harm == "it is cut off" else {}))
    hurt(plane)
    result = plane.end(1)
    failure = result["failure"]
    assert (result["status"], failure["kind"], failure["task"]) == ("FAILED", kind, VICTIM)
    assert reason in failure["reason"] and failure["reason"] in plane.shells[0].output
    if kind != "lost":
        assert all(f"{VICTIM}: {reason}" in shell.output for shell in plane.shells)


@pytest.mark.faults
def test_a_task_fails(plane: Plane) -> None:
    """What it says is all that is known of it: its log is on its own disk."""
    plane.type(*WAITS[:-1], "strategy._target_=tests.hang.Fails", hidden=True)
    failure = plane.end(1)["failure"]
    assert (failure["kind"], failure["task"]) == ("failed", VICTIM)
    assert failure["reason"] == "RuntimeError: no memory on this host"


def test_the_first_command_is_killed(plane: Plane) -> None:
    plane.start(*WAITS)
    plane.shells[0].process.kill()
    assert set(ended(plane.shells).values()) <= {1, -signal.SIGKILL}, plane.said()
    assert all(" is gone" in shell.output for shell in plane.shells[1:]), plane.said()
    until(lambda: not plane.left(), plane.left, 20)


@pytest.mark.parametrize(
    ("where", "trains"),
    sampled([("first", False), ("there", True), ("first", True), ("there", False)],
            ("there", True)),
)  # fmt: skip
def test_it_is_stopped(plane: Plane, where: str, trains: bool) -> None:
    if trains:
        plane.start(*JOB, *ENDLESS, apart=True)
        saved = "outputs/*/*/checkpoints/*/manifest.json"
        until(lambda: any(plane.folder.glob(saved)), plane.said)
    else:
        plane.start(*WAITS)
    os.kill(plane.shells[0].process.pid if where == "first" else plane.remote, signal.SIGINT)
    result = plane.end(75 if trains else 1)
    assert result["status"] == "KILLED"
    assert trains or result["failure"]["kind"] == "unsaved"
    assert result["step"] > 0 or not trains


def other_version(there: Path, more: str = "\n__version__ = '0.0.1'\n") -> None:
    for name in ("dtrain", "conf", "experiments"):
        shutil.copytree(ROOT / name, there / name)
    with (there / "dtrain" / "__init__.py").open("a") as file:
        file.write(more)


def other_dtrain(there: Path) -> None:
    other_version(there, "\n# mine\n")


def other_code(there: Path) -> None:
    (there / "own_code.py").write_text("# other\n")


@pytest.mark.parametrize(
    ("differ", "what"),
    sampled([(other_version, r"dtrain[ =]0\.0\.1"), (other_dtrain, "code of dtrain"),
             (other_code, "module own_code")], (other_code, "module own_code")),
)  # fmt: skip
def test_another_host_has_other_code(
    plane: Plane, differ: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plane.folder / "own_code.py").write_text("# mine\n")
    monkeypatch.setenv("DTRAIN_TRUST", "tests,own_code")
    differ(plane.there)
    plane.type(*WAITS, apart=True)
    assert set(ended(plane.shells).values()) == {2}, plane.said()
    for shell in plane.shells:
        assert re.search(rf"error: .*{what}.*accepted: the same", shell.output), shell.output
    assert not list(plane.folder.glob("outputs/*/*"))
    until(lambda: not plane.left(), plane.left, 20)


@pytest.mark.faults
def test_a_disk_that_is_not_shared(plane: Plane) -> None:
    plane.type(*JOB, hidden=True)
    assert plane.end(0)["status"] == "FINISHED"


def test_a_port_that_another_program_has(plane: Plane) -> None:
    with socket.socket() as thief:
        plane.steal(thief)
        thief.listen()
        plane.type(*JOB)
        result = plane.end(0)
    assert (result["status"], result["restarts"]) == ("FINISHED", 0)


@pytest.mark.faults
def test_facts_of_30_000_files(plane: Plane) -> None:
    files = [f"data/part-{number:05d}-of-30000.tfrecord" for number in range(30_000)]
    for folder in (plane.folder, plane.there):
        (folder / "presets" / "dataset").mkdir(parents=True)
        preset = folder / "presets" / "dataset" / "many.yaml"
        preset.write_text(f"_target_: tests.hang.load\nfiles: [{','.join(files)}]\n")
    words = [word for word in WAITS if not word.startswith("dataset")]
    plane.start(*words, "dataset=many", "launcher.peer_timeout=60", apart=True)
    os.kill(plane.shells[0].process.pid, signal.SIGINT)
    assert plane.end(1)["failure"]["kind"] == "unsaved"
