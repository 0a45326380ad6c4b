"""``launcher=slurm`` on a real SLURM of three nodes (``make test-slurm``)."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
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
from tests.slurm import EXPIRE, Slurm, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(slurm.lacking() is not None, reason=str(slurm.lacking())),
]

#: Waits at steps that files in the folder ``gates`` name, until a file says that it may go on.
USER = """
import time
from pathlib import Path

import keras


class Gates(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations.numpy())
        if Path(f"gates/{step}.wait").exists():
            Path(f"gates/{step}.here").touch()
            while not Path(f"gates/{step}.go").exists():
                time.sleep(0.05)


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise RuntimeError("a defect of the user's")
"""
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


def test_nodes_with_a_process_for_each_device(dtrain) -> None:
    words = (*ONE, "backend=torch")
    one = dtrain(*words, "strategy=one_device")
    hosts = ("strategy=multiworker", "hardware.hosts=2", "hardware.devices=2")
    command = dtrain(*words, *hosts, "launcher=slurm")
    assert (one.wait(), command.wait()) == (0, 0), command.log
    assert "runs on n[1-2]" in command.said
    assert points(command.rundir, "loss") == pytest.approx(points(one.rundir, "loss"), abs=1e-5)
    assert (read_json(command.rundir.result) or {})["replicas"] == 4


def kill(cluster: Slurm, command: str) -> None:
    """Send SIGKILL to the processes of jobs that were started by this command."""
    found = [p for p, line in cluster.processes().items() if line.startswith(command)]
    assert found, cluster.processes()
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def comes_back(cluster: Slurm, job: str, start: int) -> None:
    """Wait until a job was put back into the queue, and has begun again."""

    def waits() -> bool:
        found = cluster.job(job)
        return found["JobState"] == "PENDING" and int(found["Restarts"]) >= start

    until(waits, f"job {job} does not come back: {cluster.job(job)}", 90)
    until(lambda: state(cluster, job) != "PENDING", f"job {job} does not begin", EXPIRE + 60)


def state(cluster: Slurm, job: str) -> str:
    """Return a job's state; one that is held is released, as an administrator does.

    A daemon that was just started may not have cleaned up: SLURM then drains its node, and holds
    the job.
    """
    found = cluster.job(job)
    if "held" in found["Reason"].lower():
        for name, its in cluster.states().items():
            if its.startswith("drain"):
                cluster.call("scontrol", "update", f"NodeName={name}", "State=RESUME")
        with contextlib.suppress(AssertionError):  # it is not held any more
            cluster.call("scontrol", "release", job)
    return found["JobState"]


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
    until(lambda: not cluster.processes(), f"it goes on: {cluster.processes()}", 60)


def without_its_step(cluster: Slurm, job: str) -> None:
    kill(cluster, f"{sys.executable} -m dtrain resume=")


DEATHS = (signalled, at_its_limit, without_its_daemon, without_its_step)


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

    def arrived(step: int) -> bool:
        state(cluster, command.job)  # what is late of the start before may put it back
        return (tmp_path / f"gates/{step}.here").exists()

    for number, (step, death) in enumerate(zip(steps, deaths, strict=True)):
        until(lambda step=step: arrived(step), f"{death.__name__}: {command.log}", EXPIRE + 120)
        death(cluster, command.job)
        (tmp_path / f"gates/{step}.go").touch()
        comes_back(cluster, command.job, number + 1)
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


def left(cluster: Slurm) -> bool:
    return bool(cluster.jobs() or cluster.processes())


def test_scancel_leaves_no_process_and_the_run_can_be_resumed(
    cluster: Slurm, dtrain, tmp_path: Path
) -> None:
    (tmp_path / "gates/6.wait").touch()
    words = (*QUICK, GATES, "strategy=multiworker", "hardware.hosts=2", "hardware.devices=1")
    command = dtrain(*words, "hardware=cpu", "launcher=slurm")
    until((tmp_path / "gates/6.here").exists, command.log, 90)
    cluster.call("scancel", command.job)
    (tmp_path / "gates/6.go").touch()
    assert command.wait() == 75, command.log
    assert "cancelled" in command.said
    until(lambda: not left(cluster), f"left: {cluster.processes()}", 60)

    again = dtrain(f"resume={command.rundir.path}")
    assert again.wait() == 0, again.log
    assert (read_json(command.rundir.result) or {})["status"] == "FINISHED"


def interrupt(command: Command) -> None:
    command.process.send_signal(signal.SIGINT)


def test_ctrl_c_detaches_and_twice_cancels(cluster: Slurm, dtrain, tmp_path: Path) -> None:
    (tmp_path / "gates/6.wait").touch()
    command = dtrain(*QUICK, GATES, "launcher=slurm")
    until((tmp_path / "gates/6.here").exists, command.log, 90)
    interrupt(command)
    assert command.wait() == 75
    path = command.rundir.path.relative_to(tmp_path)
    assert f"follow it with: python -m dtrain resume={path}" in command.said
    assert cluster.jobs() == {command.job: "RUNNING"}

    refused = dtrain(f"resume={path}", "trainer.epochs=3")
    assert refused.wait() == 2
    assert f"SLURM job {command.job} is at work on it" in refused.said

    again = dtrain(f"resume={path}")
    until(lambda: "has the run already" in again.said and "runs on" in again.said, again.said)
    interrupt(again)
    until(lambda: "detaching" in again.said, again.said)
    interrupt(again)
    until(lambda: "cancelling" in again.said, again.said)
    until(lambda: cluster.job(command.job)["JobState"] != "RUNNING", again.said)
    (tmp_path / "gates/6.go").touch()
    assert again.wait() == 75, again.log
    until(lambda: not left(cluster), "the job is left", 60)


def test_what_is_submitted_is_cancelled_by_the_line_that_is_printed(
    cluster: Slurm, dtrain, tmp_path: Path
) -> None:
    (tmp_path / "gates/2.wait").touch()
    command = dtrain(*QUICK, GATES, "launcher=slurm", "launcher.follow=false")
    assert command.wait() == 0
    until((tmp_path / "gates/2.here").exists, command.log, 90)
    [line] = re.findall(r"cancel it with: (.+)", command.said)
    cluster.call(*line.split())
    (tmp_path / "gates/2.go").touch()
    until(lambda: not left(cluster), str(cluster.jobs()), 60)
    assert (read_json(command.rundir.result) or {})["status"] == "KILLED"


def test_what_slurm_refuses_leaves_nothing(dtrain, tmp_path: Path) -> None:
    command = dtrain(*QUICK, "launcher=slurm", "launcher.partition=none")
    assert command.wait() == 2
    assert "SLURM does not take the job:" in command.said
    assert "invalid partition" in command.said
    assert not (tmp_path / "outputs").exists()


def test_a_training_that_fails_is_not_started_again(cluster: Slurm, dtrain) -> None:
    callback = "trainer.callbacks=[{_target_:mine.Fails}]"
    command = dtrain(*QUICK, callback, "launcher=slurm")
    assert command.wait() == 1, command.log
    assert "a defect of the user's" in command.said
    assert cluster.job(command.job)["Restarts"] == "0"


def test_a_job_that_makes_no_progress_is_given_up(cluster: Slurm, dtrain, tmp_path: Path) -> None:
    (tmp_path / "gates/2.wait").touch()
    command = dtrain(*QUICK, GATES, "launcher=slurm", "launcher.max_requeues=1")
    for number in (1, 2):
        until((tmp_path / "gates/2.here").exists, command.log, 90)
        (tmp_path / "gates/2.here").unlink()
        without_its_step(cluster, command.job)
        comes_back(cluster, command.job, number)
    assert command.wait() == 1, command.log
    assert "started 2 times since the last checkpoint: not again" in command.log


def test_preempted_it_goes_on_later(cluster: Slurm, dtrain, tmp_path: Path) -> None:
    for step in (2, 6):
        (tmp_path / f"gates/{step}.wait").touch()
    (tmp_path / "gates/2.go").touch()
    words = (
        *QUICK,
        GATES,
        "trainer.epochs=3",
        "launcher=slurm",
        "launcher.extra={exclusive: true}",
    )
    command = dtrain(*words)
    until((tmp_path / "gates/6.here").exists, command.log, 90)
    urgent = cluster.call(
        "sbatch", "--parsable", "--partition=urgent", "--nodes=3", "--exclusive",
        "--wrap=sleep 2", cwd=tmp_path,
    ).strip()  # fmt: skip
    until(lambda: cluster.job(command.job)["JobState"] != "RUNNING", "not preempted", 60)
    (tmp_path / "gates/6.go").touch()
    until(lambda: cluster.job(urgent)["JobState"] == "COMPLETED", "the urgent job waits", 90)
    comes_back(cluster, command.job, 1)
    assert command.wait() == 0, command.log
    assert len(list(tmp_path.glob("outputs/*/*/result.json"))) == 1


SWEEP = ("-m", *QUICK, "seed=0,1,2,3,4,5,6,7", "launcher=slurm")


def states(folder: Path) -> list[str]:
    [sweep] = folder.glob("outputs/multirun/*/*/sweep.json")
    return [job["status"] for job in (read_json(sweep) or {})["jobs"]]


def test_an_array_of_eight_with_one_failing_job(cluster: Slurm, dtrain, tmp_path: Path) -> None:
    failing = "trainer.callbacks=[{_target_:mine.FailsOn}]"
    with (tmp_path / "mine.py").open("a") as file:
        file.write("""

class FailsOn(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        import os
        if os.environ["SLURM_ARRAY_TASK_ID"] == "3":
            raise RuntimeError("a defect of job 3")
""")
    command = dtrain(*SWEEP, failing, "sweep.parallel=2", "tracking=none")
    most = 0
    while command.process.poll() is None:
        most = max(most, list(cluster.jobs().values()).count("RUNNING"))
    assert command.wait() == 1, command.said
    assert states(tmp_path) == ["FINISHED"] * 3 + ["FAILED"] + ["FINISHED"] * 4
    assert "job 3 failed: " in command.said and "a defect of job 3" in command.said
    assert most == 2
    [sweep] = tmp_path.glob("outputs/multirun/*/*")
    assert (sweep / "comparison.html").is_file()


def test_the_first_failure_of_an_array_cancels_the_others(
    cluster: Slurm, dtrain, tmp_path: Path
) -> None:
    (tmp_path / "gates/2.wait").touch()
    with (tmp_path / "mine.py").open("a") as file:
        file.write("""

class FailsOn(Gates):
    def on_train_batch_end(self, batch, logs=None):
        import os
        if os.environ["SLURM_ARRAY_TASK_ID"] != "0":
            super().on_train_batch_end(batch, logs)
        elif Path("gates/2.here").exists():
            raise RuntimeError("a defect of job 0")
        else:
            time.sleep(0.2)
""")
    failing = "trainer.callbacks=[{_target_:mine.FailsOn}]"
    command = dtrain(*SWEEP, failing, "trainer.epochs=200", "sweep.fail_fast=true")
    until((tmp_path / "gates/2.here").exists, command.said, 120)
    until(lambda: "sweep.fail_fast=true" in command.said, command.said, 120)
    (tmp_path / "gates/2.go").touch()
    assert command.wait() == 1, command.said
    assert states(tmp_path)[0] == "FAILED" and "FINISHED" not in states(tmp_path)
    until(lambda: not left(cluster), f"left: {cluster.jobs()}", 60)


def test_a_sweep_is_left_and_found_again(cluster: Slurm, dtrain, tmp_path: Path) -> None:
    command = dtrain(*SWEEP[:-2], "seed=0,1", "launcher=slurm", "launcher.follow=false")
    assert command.wait() == 0, command.said
    [sweep] = tmp_path.glob("outputs/multirun/*/*")
    assert f"sweep.resume={sweep.relative_to(tmp_path)}" in command.said
    again = dtrain(f"sweep.resume={sweep}")
    assert again.wait() == 0, again.said
    assert states(tmp_path) == ["FINISHED"] * 2
    submitted = re.findall(r"SLURM job (\S+) is submitted", again.said)
    assert set(submitted) <= {command.job}  # nothing was submitted anew


def in_allocation(cluster: Slurm, folder: Path, line: str, *options: str) -> str:
    """Return what a line of shell prints in an allocation, as in a shell of ``salloc``."""
    cluster.call(
        "salloc", *options, "bash", "-c", f"{line} > said.txt 2>&1 || true", cwd=folder,
        PYTHONPATH=str(Path(__file__).parents[2]),
    )  # fmt: skip
    return (folder / "said.txt").read_text()


DTRAIN = f"{sys.executable} -m dtrain"
THREE = ("strategy=multiworker", "hardware.hosts=3", "hardware.devices=1")


def test_in_an_allocation_srun_starts_the_tasks(cluster: Slurm, tmp_path: Path, alone) -> None:
    words = shlex.join((*ONE, *THREE))
    refused = in_allocation(cluster, tmp_path, f"{DTRAIN} {words} launcher=slurm", "-N3", "-n3")
    [typed] = re.findall(r"hint: (srun .*) python -m dtrain \.\.\.", refused)
    said = in_allocation(cluster, tmp_path, f"{typed} {DTRAIN} {words}", "-N3", "-n3")
    rundir = re.search(r"^run folder: (.+)$", said, re.M)
    assert rundir is not None, said
    assert "3 tasks on n[1-2,10]" in said
    assert points(RunDir(tmp_path / rundir[1]), "loss") == pytest.approx(alone, abs=1e-5)


def test_a_sweep_in_an_allocation_of_one_node(cluster: Slurm, tmp_path: Path) -> None:
    line = f"{DTRAIN} {shlex.join((*SWEEP[:-2], 'seed=0,1'))}"
    options = ("-N1", "-n2")
    said = in_allocation(cluster, tmp_path, f"srun {line}", *options)
    assert "has 2 tasks, and each would do the whole sweep" in said
    assert "hint: srun -n1 ... -m launcher=local sweep.parallel=2" in said
    assert not (tmp_path / "outputs").exists()
    for start in ("", "srun -n1 "):
        words = "launcher=local sweep.parallel=2"
        said = in_allocation(cluster, tmp_path, f"{start}{line} {words}", *options)
        assert "2 jobs, 2 at a time" in said and "2 of 2 jobs done" in said, said


def test_names_with_several_numbers_and_paths_with_blanks(
    tmp_path: Path, alone, monkeypatch
) -> None:
    folder = tmp_path / "a b 100%"
    folder.mkdir()
    with slurm.cluster(("r1n09", "r1n10", "r2n1")) as made:
        environment = {**os.environ, **made.environment,
                       "PYTHONPATH": str(Path(__file__).parents[2])}  # fmt: skip
        words = ("strategy=multiworker", "hardware.hosts=3", "hardware.devices=1")
        command = Command(folder, environment, *ONE, *words, "launcher=slurm")
        assert command.wait() == 0, command.log
        listed = made.call("scontrol", "show", "hostnames", "r1n[09-10],r2n1").split()
        assert listed == list(made.names)
    assert "3 tasks on r1n[09-10],r2n1" in command.log
    assert points(command.rundir, "loss") == pytest.approx(alone, abs=1e-5)
