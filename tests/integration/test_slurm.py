"""``launcher=slurm`` on a real SLURM of three nodes (``make test-slurm``)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.run import checkpoint, journal
from dtrain.run.folder import RunDir, read_json
from tests import slurm
from tests.conftest import QUICK
from tests.slurm import Slurm, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(slurm.lacking() is not None, reason=str(slurm.lacking())),
]

#: Waits at steps that files in the folder ``gates`` name, until a file says that it may go on.
USER = '''
import time
from pathlib import Path

import keras


class Gates(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        if Path(f"gates/{step}.wait").exists():
            Path(f"gates/{step}.here").touch()
            while not Path(f"gates/{step}.go").exists():
                time.sleep(0.05)


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise RuntimeError("a defect of the user's")
'''
GATES = "trainer.callbacks=[{_target_:mine.Gates}]"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm.cluster() as made:
        yield made


class Command:
    """A command on the login node."""

    def __init__(self, folder: Path, environment: dict[str, str], *words: str):
        self.folder, self._file = folder, folder / f"said-{len(list(folder.glob('said-*')))}.txt"
        with self._file.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dtrain", *words], cwd=folder, env=environment,
                stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._file.read_text()

    def wait(self, seconds: float = 180.0) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.said) from None

    @property
    def job(self) -> str:
        """The number of the job that it submitted."""
        found = until(lambda: re.search(r"SLURM job (\S+) is submitted", self.said), self.said, 60)
        return str(found[1])

    @property
    def rundir(self) -> RunDir:
        found = until(lambda: re.search(r"^run folder: (.+)$", self.said, re.M), self.said, 60)
        return RunDir(self.folder / found[1])

    @property
    def log(self) -> str:
        path = self.rundir.path / "slurm.log"
        return f"{self.said}\n---\n{path.read_text() if path.is_file() else ''}"


@pytest.fixture
def dtrain(cluster: Slurm, tmp_path: Path, monkeypatch) -> Iterator[Callable[..., Command]]:
    """Start commands in the test's folder; afterwards no job of theirs is left."""
    (tmp_path / "mine.py").write_text(USER)
    (tmp_path / "gates").mkdir()
    environment = {
        **os.environ, **cluster.environment, "DTRAIN_TRUST": "mine",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    started: list[Command] = []

    def start(*words: str) -> Command:
        started.append(Command(tmp_path, environment, *words))
        return started[-1]

    yield start
    for command in started:
        command.process.kill()
        command.process.wait()
    for job in cluster.jobs():
        cluster.call("scancel", job.partition("_")[0])
    until(lambda: not cluster.jobs() and not cluster.processes(), "jobs are left", 60)


def last(rundir: RunDir) -> tuple[str, int]:
    """Return what identifies the last checkpoint, bit by bit, and its step."""
    found, _ = checkpoint.newest(rundir.checkpoints)
    assert found is not None
    return checkpoint.digest(found.arrays), found.step


def points(rundir: RunDir, name: str) -> dict[int, float]:
    events = [e for e in journal.read(rundir.journal) if e["event"] == "metrics"]
    return {e["step"]: e["metrics"][name] for e in events if name in e["metrics"]}


ONE = (*QUICK, "trainer.batch_size=48", "hardware=cpu", "seed=3")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of ``one_device``."""
    folder = tmp_path_factory.mktemp("alone")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = Command(folder, environment, *ONE, "strategy=one_device")
    assert command.wait() == 0, command.said
    return points(command.rundir, "loss")


@pytest.mark.parametrize(
    "words",
    [
        ("strategy=multiworker", "hardware.hosts=3", "hardware.devices=1"),
        ("strategy=ps", "strategy.update=sync", "strategy.workers=1", "strategy.servers=1"),
    ],
    ids=["multiworker", "ps"],
)
def test_three_nodes_equal_one_device(words: tuple[str, ...], dtrain, alone) -> None:
    command = dtrain(*ONE, *words, "launcher=slurm")
    assert command.wait() == 0, command.log
    assert "runs on n[1-2,10]" in command.said
    assert points(command.rundir, "loss") == pytest.approx(alone, abs=1e-5)
    assert (read_json(command.rundir.result) or {})["status"] == "FINISHED"


def of(cluster: Slurm, *words: str) -> list[int]:
    """Return the processes of jobs whose command line has all of these words."""
    return [pid for pid, line in cluster.processes().items() if all(w in line for w in words)]


def kill(cluster: Slurm, *words: str) -> None:
    for pid in of(cluster, *words):
        os.kill(pid, signal.SIGKILL)


def hurry(cluster: Slurm, job: str, start: int) -> None:
    """Wait until a job was put back into the queue, and spare it the two minutes that it waits."""

    def waits() -> bool:
        found = cluster.job(job)
        return found["JobState"] == "PENDING" and int(found["Restarts"]) >= start

    until(waits, f"job {job} does not come back: {cluster.job(job)}", 90)
    # Two starts at once SLURM itself refuses on one node.
    until(lambda: not cluster.processes(), f"an earlier start is left: {cluster.processes()}", 60)
    cluster.call("scontrol", "update", f"JobId={job}", "StartTime=now")


def signalled(cluster: Slurm, job: str) -> None:
    cluster.call("scancel", "--signal=USR2", job)


def at_its_limit(cluster: Slurm, job: str) -> None:
    """Let SLURM find that the time is nearly over: it looks every half minute."""
    cluster.call("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    log = Path(cluster.job(job)["StdOut"])
    until(lambda: "SLURM ends the job soon" in log.read_text(), "no warning", 90)
    cluster.call("scontrol", "update", f"JobId={job}", "TimeLimit=60")
    log.write_text("")  # the next one is another


def without_its_daemon(cluster: Slurm, job: str) -> None:
    node = cluster.job(job)["BatchHost"]
    cluster.kill_node(node)
    until(lambda: cluster.job(job)["JobState"] != "RUNNING", "the node is not missed", 90)
    cluster.start_node(node)


def without_its_step(cluster: Slurm, job: str) -> None:
    kill(cluster, "-m dtrain resume=", sys.executable)


def without_its_script(cluster: Slurm, job: str) -> None:
    kill(cluster, "-m dtrain jobs run")


DEATHS = (signalled, at_its_limit, without_its_daemon, without_its_step, without_its_script)


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.faults)])
def test_requeued_it_ends_with_the_bits_of_an_undisturbed_run(
    rounds: int, cluster: Slurm, dtrain, tmp_path: Path
) -> None:
    deaths = DEATHS * rounds
    run = (*(word for word in QUICK if word != "tracking=none"), GATES, "model.dropout=0.3",
           f"trainer.epochs={len(deaths) + 1}", "checkpoint.every_steps=3",
           "checkpoint.every_epochs=null", "launcher.grace_seconds=20")  # fmt: skip
    whole = dtrain(*run, "name=whole", "launcher=slurm")
    assert whole.wait() == 0, whole.log

    steps = [4 * number + 2 for number in range(len(deaths))]
    for step in steps:
        (tmp_path / f"gates/{step}.wait").touch()
    command = dtrain(*run, "name=hurt", "launcher=slurm")
    for number, (step, death) in enumerate(zip(steps, deaths, strict=True)):
        until((tmp_path / f"gates/{step}.here").exists, f"{death.__name__}: {command.log}", 120)
        death(cluster, command.job)
        (tmp_path / f"gates/{step}.go").touch()
        hurry(cluster, command.job, number + 1)
    assert command.wait() == 0, command.log
    assert last(command.rundir) == last(whole.rundir)
    assert points(command.rundir, "loss") == points(whole.rundir, "loss")
    assert len(list(tmp_path.glob("outputs/*/*_hurt*"))) == 1
    assert tracked(tmp_path, "hurt") == ["FINISHED"]


def tracked(folder: Path, name: str) -> list[Any]:
    """Return the states of the runs of a name in the embedded store."""
    from dtrain.tracking.mlflow.store import import_mlflow

    client = import_mlflow().tracking.MlflowClient(f"sqlite:///{folder}/outputs/mlflow.db")
    experiments = [each.experiment_id for each in client.search_experiments()]
    runs = client.search_runs(experiments)
    return [run.info.status for run in runs if run.info.run_name.endswith(name)]
