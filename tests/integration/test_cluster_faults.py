"""Clusters that are hurt: real processes and signals; what is said, what goes on, what is left."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.launchers.local import Ports
from dtrain.run import journal
from tests.conftest import QUICK, Run, need
from tests.integration.test_failures import processes, sound, until
from tests.integration.test_records import points, runs
from tests.sampled import sampled

MULTIWORKER = ("strategy=multiworker", "hardware.hosts=2")
PS = ("strategy=ps", "strategy.workers=2", "strategy.servers=1")
TORCH = ("backend=torch", "strategy=mirrored")  # a process for each device
ENDLESS = ("trainer.epochs=5000", "trainer.log_every_steps=4")


class Hurt(threading.Thread):
    """Does something to a task as soon as the run has come to an event."""

    def __init__(self, folder: Path, event: str, act: Callable[[dict[str, int]], None]):
        super().__init__(daemon=True)
        self._folder = folder
        self._event = event
        self._act = act
        self.at = 0.0
        self.problem: Any = None
        self.start()

    def run(self) -> None:
        try:
            until(self._there, lambda: f"no {self._event}", 60)
            self.at = time.monotonic()
            self._act(processes(self._folder))
        except BaseException as error:
            self.problem = error

    def _there(self) -> bool:
        folders = list(self._folder.glob("outputs/*/*/journal.jsonl"))
        return bool(folders) and any(e["event"] == self._event for e in journal.read(folders[0]))


@pytest.fixture
def hurt(tmp_path: Path) -> Iterator[Callable[..., Hurt]]:
    made: list[Hurt] = []

    def start(task: str, number: signal.Signals, event: str = "checkpoint") -> Hurt:
        made.append(Hurt(tmp_path, event, lambda found: os.kill(found[task], number)))
        return made[-1]

    yield start
    for each in made:
        each.join()
        assert each.problem is None, each.problem
    assert processes(tmp_path) == {}, "nothing is left behind"


def failed_within(run: Run, thread: Hurt, seconds: float) -> None:
    """Assert that the job failed, with everything gone in time."""
    took = time.monotonic() - thread.at
    assert run.code == 1, run.output
    assert run.result["status"] == "FAILED"
    assert took < seconds, took
    sound(run.rundir)


def lost(*tasks: str) -> list[Any]:
    """Return how each may be lost; in ``make test`` the first is killed."""
    killed = [(task, signal.SIGKILL) for task in tasks]
    stopped = [(task, signal.SIGSTOP) for task in tasks]
    return sampled(killed + stopped, killed[0])


@pytest.mark.parametrize(("task", "number"), lost("chief-0", "worker-0"))
def test_a_host_is_lost(task: str, number: signal.Signals, dtrain, hurt) -> None:
    thread = hurt(task, number)
    run = dtrain(*QUICK, *MULTIWORKER, *ENDLESS)
    failed_within(run, thread, 20)
    how = "ended by SIGKILL" if number == signal.SIGKILL else "was stopped (SIGSTOP) for 5 s"
    assert f"{task}: {how}" in run.error
    assert f"{task}.log" in run.output


@pytest.mark.parametrize(("task", "number"), lost("worker-0", "chief-0"))
def test_a_process_of_a_device_is_lost(task: str, number: signal.Signals, dtrain, hurt) -> None:
    need("torch")
    hurt(task, number)
    run = dtrain(*QUICK, *TORCH, "trainer.epochs=60", "launcher.max_restarts=1")
    assert run.code == 0, run.output
    assert (run.result["step"], run.result["restarts"]) == (240, 1)
    losses = [event["step"] for event in run.events("metrics") if "loss" in event["metrics"]]
    assert losses == list(range(1, 241)), "no point twice"


@pytest.mark.parametrize(("task", "number"), lost("ps-0", "chief-0"))
def test_a_coordinator_or_a_server_is_lost(task: str, number: signal.Signals, dtrain, hurt) -> None:
    thread = hurt(task, number)
    run = dtrain(*QUICK, *PS, *ENDLESS)
    failed_within(run, thread, 20)
    assert task in run.error


USER = '''
import os
import random
import threading
import keras
import tensorflow as tf
from dtrain.task.strategies import MultiWorker


def role():
    import json
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    return f"{task['type']}-{task['index']}"


class Leave(keras.callbacks.Callback):
    """worker-0 ends in Python in its second epoch, and in every later one."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= 1 and role() == "worker-0":
            raise SystemExit(3)


class Hang(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and role() == "worker-0":
            threading.Event().wait()


class Late(MultiWorker):
    """worker-0 never comes to the cluster."""

    def __init__(self, devices, cluster, task, **options):
        if task.name == "worker-0":
            threading.Event().wait()
        super().__init__(devices, cluster, task, **options)


class DieOnce(keras.callbacks.Callback):
    """The worker kills itself once, in the middle of the third epoch."""

    def on_train_batch_end(self, batch, logs=None):
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == 10 and role() == "worker-0" and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), 9)
'''


@pytest.mark.faults
def test_a_task_that_exits_in_python(dtrain, user_code) -> None:
    user_code(USER)
    run = dtrain(*QUICK, *MULTIWORKER, *ENDLESS, "trainer.callbacks=[{_target_:mine.Leave}]")
    assert run.code == 1, run.output
    assert "worker-0" in run.error
    assert "SystemExit: 3" in run.output


def test_a_task_that_never_comes(dtrain, user_code) -> None:
    user_code(USER)
    run = dtrain(*QUICK, *MULTIWORKER, "strategy._target_=mine.Late", "launcher.start_timeout=6")
    assert run.code == 1, run.output
    assert "worker-0: did not join the cluster within 6 s (launcher.start_timeout)" in run.error


def test_a_task_that_hangs_leaves_its_stack(dtrain, user_code) -> None:
    user_code(USER)
    run = dtrain(
        *QUICK, *MULTIWORKER, *ENDLESS, "trainer.callbacks=[{_target_:mine.Hang}]",
        "launcher.stall_timeout=15",
    )  # fmt: skip
    assert run.code == 1, run.output
    assert "no step in 15 s (launcher.stall_timeout)" in run.error
    for task in ("chief-0", "worker-0"):
        assert "Current thread" in run.rundir.log(task).read_text()
    assert "mine.py" in run.rundir.log("worker-0").read_text()


def asked() -> list[Any]:
    """Return every signal with every kind of task; two of them for ``make test``."""
    tasks = [("chief-0", MULTIWORKER), ("worker-0", MULTIWORKER), ("ps-0", PS), ("worker-1", PS)]
    kept = {("worker-0", signal.SIGTERM), ("ps-0", signal.SIGINT)}
    return [
        pytest.param(
            number, task, strategy, id=f"{number.name}-{task}-{strategy[0]}",
            marks=() if (task, number) in kept else pytest.mark.faults,
        )
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
        for task, strategy in tasks
    ]  # fmt: skip


@pytest.mark.parametrize(("number", "task", "strategy"), asked())
def test_any_task_may_be_asked_to_stop(
    number: signal.Signals, task: str, strategy: tuple[str, ...], dtrain, hurt
) -> None:
    hurt(task, number)
    run = dtrain(*QUICK, *strategy, *ENDLESS)
    assert run.code == 75, run.output
    assert run.result["status"] == "KILLED"
    assert sound(run.rundir)[-1] == run.result["step"]


def test_the_controller_may_be_asked_to_stop(dtrain, tmp_path: Path) -> None:
    thread = Hurt(tmp_path, "checkpoint", lambda _: os.kill(os.getpid(), signal.SIGUSR2))
    run = dtrain(*QUICK, *MULTIWORKER, *ENDLESS)
    thread.join()
    assert run.code == 75, run.output
    assert sound(run.rundir)[-1] == run.result["step"]
    epochs = run.result["step"] // 4 + 2
    resumed = dtrain(f"resume={run.rundir.path}", f"trainer.epochs={epochs}")
    assert resumed.code == 0, resumed.output
    assert resumed.result["step"] == epochs * 4


@pytest.mark.faults
@pytest.mark.usefixtures("store")
def test_a_restart_leaves_no_trace_in_the_curve(dtrain, user_code, tmp_path: Path) -> None:
    user_code(USER)
    base = (*QUICK, *MULTIWORKER, "trainer.epochs=4", "tracking=mlflow",
            "trainer.callbacks=[{_target_:mine.DieOnce}]")  # fmt: skip
    hurt = dtrain(*base, "launcher.max_restarts=1")
    assert hurt.code == 0, hurt.output
    assert (hurt.result["status"], hurt.result["restarts"]) == ("FINISHED", 1)
    assert "restart 1 of 1 from step 8: worker-0: ended by SIGKILL" in hurt.output
    [(client, recorded)] = runs(tmp_path)
    assert points(client, recorded, "loss") == hurt.points("loss")
    assert recorded.data.tags["restarts"] == "1"

    whole = dtrain(*base)  # the file `died` is there: nobody dies
    assert whole.result["restarts"] == 0
    for name in ("loss", "val_loss"):
        assert hurt.points(name) == whole.points(name)


def test_restarts_come_to_an_end(dtrain, user_code) -> None:
    user_code(USER)
    run = dtrain(
        *QUICK, *MULTIWORKER, *ENDLESS, "trainer.callbacks=[{_target_:mine.Leave}]",
        "launcher.max_restarts=2",
    )  # fmt: skip
    assert run.code == 1, run.output
    assert run.result["restarts"] == 2
    assert len(run.events("restart")) == 2


@pytest.mark.parametrize("number", sampled([signal.SIGKILL, signal.SIGSTOP]))
def test_a_worker_of_parameter_servers_is_replaced(number: signal.Signals, dtrain, hurt) -> None:
    hurt("worker-0", number)
    run = dtrain(*QUICK, *PS, "trainer.epochs=60", "trainer.log_every_steps=4")
    assert run.code == 0, run.output
    assert run.result["status"] == "FINISHED"
    assert run.result["step"] == 240
    assert run.result["examples"] == 240 * 32
    assert (run.result["restarts"], run.result["replaced_workers"]) == (0, 1)
    assert sum(run.result["worker_steps"].values()) == 240
    assert "worker-0 ended by SIGKILL: it is started again" in run.output


@pytest.mark.faults
def test_a_lost_parameter_server_restarts_the_job(dtrain, hurt) -> None:
    hurt("ps-0", signal.SIGKILL)
    run = dtrain(*QUICK, *PS, "trainer.epochs=60", "launcher.max_restarts=1")
    assert run.code == 0, run.output
    assert (run.result["step"], run.result["restarts"]) == (240, 1)
    losses = [event["step"] for event in run.events("metrics") if "loss" in event["metrics"]]
    assert losses == list(range(1, 241)), "no point twice"


@pytest.mark.parametrize("words", [MULTIWORKER, TORCH])
def test_a_stolen_port_is_replaced(words: tuple[str, ...], dtrain, monkeypatch) -> None:
    need("torch" if words is TORCH else "tensorflow")
    with socket.socket() as thief:
        thief.bind(("", 0))
        thief.listen()
        stolen = thief.getsockname()[1]
        take, seen = Ports.take, []

        def unlucky(self: Ports, count: int) -> list[int]:
            ports = take(self, count)
            seen.append(ports)
            return [stolen, *ports[1:]] if len(seen) == 1 else ports

        monkeypatch.setattr(Ports, "take", unlucky)
        run = dtrain(*QUICK, *words)
    assert run.code == 0, run.output
    assert len(seen) == 2
    assert run.result["restarts"] == 0


def test_a_task_that_does_not_stop_is_ended_by_force(dtrain, user_code, hurt) -> None:
    user_code(USER)
    hurt("chief-0", signal.SIGTERM)
    began = time.monotonic()
    run = dtrain(
        *QUICK, *MULTIWORKER, *ENDLESS, "trainer.callbacks=[{_target_:mine.Hang}]",
        "launcher.grace_seconds=2",
    )  # fmt: skip
    # Hanging tasks may be asked as soon as the first checkpoint is there, which stays.
    assert run.code == 75, run.output
    assert run.result["status"] == "KILLED"
    assert time.monotonic() - began < 60
    assert sound(run.rundir)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(10))
def test_any_task_may_die_at_any_moment(seed: int, dtrain, tmp_path: Path) -> None:
    """The job ends with the curve of one that was never hurt."""
    chance = random.Random(seed)
    base = (*QUICK, *MULTIWORKER, "trainer.epochs=60")
    moments = sorted(chance.randrange(4, 200) for _ in range(3))

    def act() -> None:
        for moment in moments:

            def reached(moment: int = moment) -> bool:
                [folder] = tmp_path.glob("outputs/*/*/journal.jsonl")
                return any(e.get("step", 0) >= moment for e in journal.read(folder))

            until(reached, lambda: moments, 100)
            found = processes(tmp_path)
            if found:  # else it is between two starts
                os.kill(found[chance.choice(sorted(found))], signal.SIGKILL)

    thread = Hurt(tmp_path, "checkpoint", lambda _: act())
    hurt = dtrain(*base, "launcher.max_restarts=3")
    thread.join()
    assert hurt.code == 0, hurt.output
    assert hurt.result["restarts"] >= 1
    whole = dtrain(*base)
    for name in ("loss", "val_loss"):
        assert hurt.points(name) == whole.points(name)
