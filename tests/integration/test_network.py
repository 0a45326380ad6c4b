"""Hosts with networks and disks of their own, and what becomes of a job when one is lost.

``pytest -n 0 -m "faults or not faults" tests/integration/test_network.py`` needs root and some
minutes, and prints the table of ``docs/network.md``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.run import failure, journal
from dtrain.run.folder import RunDir, read_json
from tests import network
from tests.conftest import QUICK, need
from tests.integration.test_cluster_faults import ENDLESS
from tests.integration.test_failures import sound, until
from tests.network import Command, Host, Network

pytestmark = pytest.mark.skipif(network.lacking() is not None, reason=str(network.lacking()))

#: Seconds until everything has ended, or gone on, after a host was lost (docs/network.md).
BOUND = 60.0

ENV = (*QUICK, "launcher=env", "launcher.start_timeout=120", "hardware=cpu")
STRATEGIES = {
    "multiworker": (["chief-0", "worker-0", "worker-1"],
                    ["strategy=multiworker", "hardware.hosts=3", "trainer.batch_size=24"]),
    "ps": (["chief-0", "worker-0", "worker-1", "ps-0"],
           ["strategy=ps", "strategy.workers=2", "strategy.servers=1", "strategy.update=sync"]),
    "multiworker on JAX": (["chief-0", "worker-0"],
                           ["backend=jax", "strategy=multiworker", "hardware.hosts=2"]),
    "multiworker on PyTorch": (["chief-0", "worker-0"],
                               ["backend=torch", "strategy=multiworker", "hardware.hosts=2"]),
}  # fmt: skip


class Job:
    """A command on each host of a network."""

    def __init__(self, hosts: Network, folder: Path, *arguments: str):
        self.network, self.folder = hosts, folder
        self.arguments = arguments
        self.commands: dict[str, Command] = {}
        self.ended: dict[str, float] = {}

    def start(self, *more: str, **own: str) -> None:
        """Start them all, with arguments for all of them, or for that of ``chief_0``."""
        for host in self.network.hosts:
            extra = [own[key] for key in own if key == host.name.replace("-", "_")]
            given = (*self.arguments, *more, *extra)
            self.commands[host.name] = host.start(self.folder, self.network.tf_config(host), *given)
        self.ended = {}

    @property
    def rundir(self) -> RunDir:
        """The chief's run folder."""
        [found] = self.folder.glob("chief-0/outputs/*/*/journal.jsonl")
        return RunDir(found.parent)

    @property
    def error(self) -> str:
        """Why the run failed, as its command says it."""
        return str(failure.sentence((read_json(self.rundir.result) or {}).get("failure")))

    def events(self, kind: str) -> list[dict[str, Any]]:
        with contextlib.suppress(ValueError):
            return [e for e in journal.read(self.rundir.journal) if e["event"] == kind]
        return []

    def points(self, name: str) -> dict[int, float]:
        return {
            e["step"]: e["metrics"][name] for e in self.events("metrics") if name in e["metrics"]
        }

    def steps(self) -> int:
        return max(self.points("loss"), default=0)

    def said(self) -> str:
        return "\n".join(
            f"--- {name} ({c.process.poll()})\n{c.output}" for name, c in self.commands.items()
        )

    def look(self) -> set[str]:
        """Return the commands that run, and note when the others have ended."""
        running = set()
        for name, command in self.commands.items():
            if command.process.poll() is None:
                running.add(name)
            else:
                self.ended.setdefault(name, time.monotonic())
        return running

    def codes(self) -> dict[str, int]:
        return {name: command.process.wait(60) for name, command in self.commands.items()}


@pytest.fixture
def hosts() -> Iterator[Network]:
    with network.switch() as found:
        yield found


@pytest.fixture
def job(request: pytest.FixtureRequest, hosts: Network, tmp_path: Path) -> Job:
    names, arguments = STRATEGIES[request.getfixturevalue("strategy")]
    need(arguments[0].removeprefix("backend=") if "backend=" in arguments[0] else "tensorflow")
    for name in names:
        hosts.host(name)
    job = Job(hosts, tmp_path, *ENV, *arguments)
    job.start(*ENDLESS)
    return trained(job)


def trained(job: Job) -> Job:
    """Wait for its first checkpoint."""
    until(lambda: bool(job.events("checkpoint")) or not job.look(), job.said, 300)
    assert job.events("checkpoint"), job.said()
    return job


def kill(host: Host) -> None:
    host.signal(signal.SIGKILL)


def stop(host: Host) -> None:
    host.signal(signal.SIGSTOP)


def stop_command(host: Host) -> None:
    """Stop its command alone; its task is not."""
    processes = host.processes()
    parents = {
        pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        for pid in processes
    }
    [command] = [pid for pid, parent in parents.items() if parent not in processes]
    os.kill(command, signal.SIGSTOP)


HARMS: dict[str, Callable[[Host], None]] = {
    "cut for good": Host.cut,
    "cut for 5 s": Host.cut,
    "50 % loss": lambda host: host.lose(50),
    "killed": kill,
    "stopped": stop,
    "its command stopped": stop_command,
}
VICTIMS = [
    (strategy, victim)
    for strategy, (names, _) in STRATEGIES.items()
    for victim in names
    if victim != "worker-1"
]
#: Two harms of each, in turn: a case takes a minute.
CASES = [(*victim, harm) for turn, victim in enumerate(VICTIMS) for harm in [*HARMS][turn % 3 :: 3]]


@pytest.mark.faults
@pytest.mark.parametrize(("strategy", "victim", "harm"), CASES)
def test_a_host_is_lost(
    strategy: str, victim: str, harm: str, job: Job, dtrain, capfd: pytest.CaptureFixture[str]
) -> None:
    [host] = [host for host in job.network.hosts if host.name == victim]
    if harm == "50 % loss" and network.lossless() is not None:
        pytest.skip(str(network.lossless()))
    HARMS[harm](host)
    began = time.monotonic()
    frozen = {victim} if "stopped" in harm else set()
    healed, later = False, 0

    def settled() -> bool:
        nonlocal healed
        if harm == "cut for 5 s" and not healed and time.monotonic() - began >= 5:
            healed = True
            host.heal()
        running = job.look()
        return not running - frozen or went_on()

    def went_on() -> bool:
        """Say whether steps were made that were not under way when it was lost."""
        nonlocal later
        if harm in ("cut for good", "stopped", "its command stopped"):
            return False  # the host that is lost must end as well
        if time.monotonic() - began < 15:
            return False
        later = later or job.steps()
        return job.steps() > later

    until(settled, job.said, BOUND + 30)
    took = {name: round(at - began, 1) for name, at in job.ended.items()}
    with capfd.disabled():
        print(f"\n| {strategy} | {victim} | {harm} | {took or 'goes on'} |")
        print(job.said())
    assert all(seconds <= BOUND for seconds in took.values()), took
    if job.look() - frozen:  # it goes on, perhaps without one
        host.heal()
        job.commands["chief-0"].process.send_signal(signal.SIGTERM)
        until(lambda: not job.look() - frozen, job.said, BOUND)
    else:
        named(job, victim, all if harm != "50 % loss" else any)
    host.signal(signal.SIGCONT)
    until(lambda: not job.look(), job.said, BOUND)
    until(lambda: not job.network.processes(), job.network.processes, 30)
    resumes(job, host, dtrain)


def named(job: Job, victim: str, by: Callable[..., bool]) -> None:
    """The chief names the host that is lost; if it is the chief's, the others do.

    Where packets are lost, TensorFlow may be the first to notice, of whatever it had in hand.
    """
    if victim != "chief-0":
        error = job.error
        assert victim in error, job.said()
        return
    others = [command for name, command in job.commands.items() if name != victim]
    assert {command.process.returncode for command in others} == {1}, job.said()
    assert by("the chief at" in c.output.partition("started;")[2] for c in others), job.said()


@pytest.mark.faults
def test_a_chief_is_cut_off(hosts: Network, tmp_path: Path, dtrain) -> None:
    """The quick one of these cases: TensorFlow itself would wait for minutes, or for ever."""
    for name in ("chief-0", "worker-0", "ps-0"):
        hosts.host(name)
    ps = ("strategy=ps", "strategy.workers=1", "strategy.servers=1", "strategy.update=sync")
    job = Job(hosts, tmp_path, *ENV, *ps, "launcher.peer_timeout=15")
    job.start(*ENDLESS)
    chief = trained(job).network.hosts[0]
    chief.cut()
    began = time.monotonic()
    until(lambda: not job.look(), job.said, BOUND)
    assert time.monotonic() - began < BOUND
    assert set(job.codes().values()) == {1}, job.said()
    until(lambda: not hosts.processes(), hosts.processes, 30)
    error = job.error
    assert "is lost: nothing came from it for 15 s" in error
    assert "worker-0" in error and "ps-0" in error
    for name in ("worker-0", "ps-0"):
        said = "nothing came from the chief at 10.77.0.1:2222 for 15 s (launcher.peer_timeout)"
        assert said in job.commands[name].output
    resumes(job, chief, dtrain)


def resumes(job: Job, host: Host, dtrain: Any) -> None:
    """The same commands go on, and the curve is that of a run that was never hurt."""
    host.heal()
    sound(job.rundir)
    epochs = job.steps() // 4 + 3
    job.start(ENDLESS[1], f"trainer.epochs={epochs}", chief_0=f"resume={job.rundir.path}")
    until(lambda: not job.look(), job.said, 300)
    assert set(job.codes().values()) == {0}, job.said()
    whole = dtrain(
        *QUICK, *job.arguments[len(ENV) :], "hardware=cpu", ENDLESS[1], f"trainer.epochs={epochs}"
    )
    assert whole.code == 0, whole.output
    assert job.points("loss") == whole.points("loss")
    assert job.points("val_loss") == whole.points("val_loss")
