"""An evaluator beside the training: the same points, whatever becomes of it."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtrain.run import checkpoint, journal
from dtrain.run.folder import RunDir
from dtrain.run.sidecar import Sidecar
from tests.conftest import QUICK
from tests.integration.test_env import ENV, ended, shells, the_run
from tests.integration.test_failures import command, processes, until

__all__ = ["command", "shells"]

SIDECAR = ("sidecar.evaluate=true", "checkpoint.keep=1")
#: The arithmetic of a task that has one core for itself.
ONE_CORE = "hardware.intra_op_threads=1"

SLOW = """
import multiprocessing
import os
import pathlib
import time

import keras
import tensorflow as tf


def wait(x):
    if multiprocessing.current_process().name == "evaluator-0":
        work = pathlib.Path("run/sidecar/work")
        while pathlib.Path("hold").exists() and list(work.glob("[0-9]*")):
            time.sleep(0.02)
        time.sleep(float(os.environ.get("SLOW", "0")))
    return x


class Pause(keras.layers.Layer):
    \"\"\"Takes its time where it is evaluated.\"\"\"

    def call(self, x, training=False):
        if training:
            return x
        y = tf.py_function(wait, [x], x.dtype)
        y.set_shape(x.shape)
        return y

    def compute_output_shape(self, shape):
        return shape


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    x = Pause()(keras.layers.Dense(16, activation="relu")(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(x))
"""


def points(rundir: RunDir) -> list[tuple[int, dict[str, float]]]:
    """Return the validations in the journal, in its order."""
    return [
        (event["step"], event["metrics"])
        for event in journal.read(rundir.journal)
        if event["event"] == "metrics" and any(n.startswith("val_") for n in event["metrics"])
    ]


def here(*words: str) -> int:
    from dtrain.__main__ import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dtrain", *words])
        return main()


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, dict[str, float]]]:
    """The points of a run that evaluates by itself."""
    folder = tmp_path_factory.mktemp("inline")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        assert here(*QUICK, "strategy=one_device", ONE_CORE, "hydra.run.dir=run") == 0
    return points(RunDir(folder / "run"))


def clean(rundir: RunDir) -> None:
    """Assert that nothing is left of what was shared, and no process."""
    assert Sidecar(rundir).items() == {} and not processes(rundir.path)
    left = {path.name for path in Sidecar(rundir).folder.iterdir()}
    assert left - {"progress.json"} == {"finished", "points.jsonl", "queue", "work"}


def test_the_bits_of_a_validation_of_its_own(inline: Any, store: Path, dtrain: Any) -> None:
    words = [word for word in QUICK if word != "tracking=none"]
    run = dtrain(*words, *SIDECAR, "strategy=one_device")
    assert run.code == 0, run.output
    assert points(run.rundir) == inline
    result = run.result
    assert result["metrics"]["val_accuracy"] == result["objective"] == inline[-1][1]["val_accuracy"]
    assert {s: m["val_accuracy"] for s, m in inline}[result["best_step"]] == max(
        m["val_accuracy"] for _, m in inline
    ) == result["best_objective"]  # fmt: skip
    assert "checkpoint 2/2  batch" in run.output, "the command shows what it waits for"
    clean(run.rundir)
    cluster = json.loads(run.rundir.cluster.read_text())
    assert (cluster["evaluator"]["role"], len(cluster["tasks"])) == ("evaluator", 1)
    cores = [cluster["tasks"][0]["cores"], cluster["evaluator"]["cores"]]
    assert cores[0] and cores[1] and not set(cores[0]) & set(cores[1])
    tracked = history(run.rundir, "val_accuracy")
    assert tracked == [(step, metrics["val_accuracy"]) for step, metrics in inline]


def history(rundir: RunDir, name: str) -> list[tuple[int, float]]:
    """Return the points of a metric in MLflow."""
    from dtrain.tracking.mlflow.store import import_mlflow

    found = json.loads(rundir.tracking.read_text())
    client = import_mlflow().tracking.MlflowClient(found["uri"])
    return [(each.step, each.value) for each in client.get_metric_history(found["run_id"], name)]


@pytest.mark.faults
def test_of_several_processes(inline: Any, dtrain: Any) -> None:
    run = dtrain(*QUICK, *SIDECAR, "strategy=multiworker")
    assert run.code == 0, run.output
    for (step, found), (other, metrics) in zip(points(run.rundir), inline, strict=True):
        assert step == other and found == pytest.approx(metrics, abs=1e-5)
    clean(run.rundir)


#: QUICK with a model whose evaluation can be held up.
HELD = (
    *(word for word in QUICK if not word.startswith("model")),
    "model=custom", "model._target_=mine.model", "strategy=one_device",
)  # fmt: skip


class Killer(threading.Thread):
    """Kills each evaluator of a run as soon as it is at a checkpoint, so many times.

    Args:
        folder: that the run is in, as ``run``.
        times: how often.
        moment: returns seconds from there to the kill.
        last: called afterwards.
    """

    def __init__(
        self,
        folder: Path,
        times: int,
        moment: Callable[[], float] = lambda: 0.0,
        last: Callable[[], None] = lambda: None,
    ):
        super().__init__(daemon=True)
        self._folder, self._times, self._moment, self._last = folder, times, moment, last
        self.killed: list[int] = []
        self.problem: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for _ in range(self._times):
                until(lambda: self._at_work() is not None, lambda: "no evaluator is at work", 30)
                pid = self._at_work()
                assert pid is not None
                threading.Event().wait(self._moment())
                self.killed.append(pid)
                os.kill(pid, signal.SIGKILL)
            self._last()
        except BaseException as error:
            self.problem = error

    def _at_work(self) -> int | None:
        pid = processes(self._folder).get("evaluator-0")
        work = list((self._folder / "run" / "sidecar" / "work").glob("[0-9]*"))
        return pid if work and pid not in self.killed else None

    def done(self) -> None:
        self.join()
        assert self.problem is None, self.problem


def test_killed_while_it_is_held_up_it_misses_nothing(
    dtrain: Any, user_code: Any, tmp_path: Path
) -> None:
    """The training goes on to its end meanwhile, and keeps one checkpoint."""
    user_code(SLOW)
    (tmp_path / "hold").touch()
    run = RunDir(tmp_path / "run")

    def let_go() -> None:
        until(lambda: 20 in checkpoint.steps(run.checkpoints), lambda: "the training has not ended")
        (tmp_path / "hold").unlink()

    killer = Killer(tmp_path, 2, last=let_go)
    done = dtrain(
        *HELD, *SIDECAR, "trainer.epochs=5", "hydra.run.dir=run", "objective=val_loss",
        "objective_mode=min", "optimizer.learning_rate=0.5",
    )  # fmt: skip
    assert done.code == 0, done.output
    killer.done()
    assert done.output.count("evaluator-0 ended by SIGKILL: it is started again") == 2
    found = points(run)
    assert [step for step, _ in found] == [4, 8, 12, 16, 20]
    clean(run)
    # The best one, which the training had removed long ago, is back.
    losses = {step: metrics["val_loss"] for step, metrics in found}
    best = min(losses, key=lambda step: losses[step])
    assert best < 20 and checkpoint.steps(run.checkpoints) == [best, 20]
    assert checkpoint.choose(run.checkpoints, "best", "min")[0].name == str(best)


def test_stopped_and_resumed_it_does_the_rest(dtrain: Any, user_code: Any, tmp_path: Path) -> None:
    """First its evaluator dies too often; then the command is asked to stop."""
    user_code(SLOW)
    (tmp_path / "hold").touch()
    run = RunDir(tmp_path / "run")
    killer = Killer(tmp_path, 1)
    first = dtrain(*HELD, *SIDECAR, "hydra.run.dir=run", "sidecar.max_restarts=0")
    killer.done()
    assert first.code == 0, first.output
    assert "evaluator-0 ended by SIGKILL (log: " in first.output
    assert "training continues, and resume= evaluates the rest" in first.output
    assert points(run) == [] and list(Sidecar(run).items()) == [4, 8]

    def stop() -> None:
        until(lambda: bool(waiting(run)), lambda: "nobody waits")
        os.kill(os.getpid(), signal.SIGTERM)

    run.progress.unlink()
    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    second = dtrain("resume=run", "sidecar.max_restarts=5")
    thread.join()
    assert second.code == 75, second.output
    assert list(Sidecar(run).items()) == [4, 8]
    (tmp_path / "hold").unlink()
    third = dtrain("resume=run")
    assert third.code == 0, third.output
    assert [step for step, _ in points(run)] == [4, 8]
    assert json.loads(run.result.read_text())["best_step"] in (4, 8)
    clean(run)


def waiting(run: RunDir) -> int:
    if not run.progress.exists():
        return 0
    return int(json.loads(run.progress.read_text()).get("waiting", 0))


STOP = "{_target_: keras.callbacks.EarlyStopping, monitor: val_loss, min_delta: 100, patience: 2}"


def test_callbacks_listen_to_it(dtrain: Any) -> None:
    run = dtrain(
        *QUICK, *SIDECAR, "strategy=one_device", "trainer.epochs=100000", "sidecar.every=newest",
        f"trainer.callbacks=[{STOP}]",
    )  # fmt: skip
    assert run.code == 0, run.output
    assert run.result["status"] == "FINISHED" and 12 <= run.result["step"] < 100_000
    found = points(run.rundir)
    assert len(found) >= 3 and found[-1][0] == run.result["step"]


@pytest.mark.faults
@pytest.mark.parametrize("evaluate", ["true", "false"])
def test_the_best_is_exported(evaluate: str, dtrain: Any) -> None:
    run = dtrain(
        *QUICK, "strategy=one_device", "sidecar.export=true", f"sidecar.evaluate={evaluate}",
    )  # fmt: skip
    assert run.code == 0, run.output
    best = run.result["best_step"]
    assert f"exported: {run.rundir.path.absolute()}/exports/mlp_one_device/{best}" in run.output
    made = run.rundir.path / "exports" / "mlp_one_device" / str(best)
    assert (made / "saved_model.pb").is_file() and (made / "export.json").is_file()
    # A server that the export's command has used ends by itself when that command has gone.
    until(lambda: not processes(run.rundir.path), lambda: processes(run.rundir.path), 20)


@pytest.mark.faults
def test_twenty_kills(dtrain: Any, user_code: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """An evaluation takes five times as long as an epoch, and is killed at random moments of it."""
    user_code(SLOW)
    monkeypatch.setenv("SLOW", "0.5")
    draw = random.Random(0)
    killer = Killer(tmp_path, 20, moment=lambda: draw.uniform(0, 1.5))
    run = dtrain(
        *HELD, *SIDECAR, "hydra.run.dir=run", "trainer.epochs=30", "sidecar.max_restarts=30",
    )  # fmt: skip
    killer.done()
    assert run.code == 0, run.output
    assert run.output.count("is started again") == 20
    assert [step for step, _ in points(RunDir("run"))] == list(range(4, 121, 4))
    clean(RunDir(tmp_path / "run"))


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(6))
def test_all_of_it_is_killed(
    seed: int, command: Any, user_code: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """The command and its tasks, at random moments; the bits of a run that was not."""
    user_code(SLOW)
    monkeypatch.setenv("SLOW", "0.05")
    run, draw = RunDir(tmp_path / "run"), random.Random(seed)
    words = (*HELD, *SIDECAR, "trainer.epochs=40", "optimizer.learning_rate=0.1")
    first = command(*words, "hydra.run.dir=run")
    for _ in range(3):
        until(lambda: run.progress.exists(), lambda: "it does not begin", 60)
        threading.Event().wait(draw.uniform(0, 1.0))
        assert first.process.poll() is None, first.output
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        until(lambda: not processes(tmp_path), lambda: "tasks are left", 30)
        run.progress.unlink(missing_ok=True)
        first = command("resume=run")
    assert first.process.wait(120) == 0, first.output
    found = points(run)
    assert sorted(found, key=lambda each: each[0]) == found
    assert [step for step, _ in found] == list(range(4, 161, 4))
    clean(run)
    assert here(*words, "hydra.run.dir=whole", "sidecar.evaluate=false", ONE_CORE) == 0
    assert found == points(RunDir(tmp_path / "whole"))


@pytest.mark.faults
@pytest.mark.parametrize(("strategy", "workers"), [("one_device", 0), ("multiworker", 1)])
def test_a_host_of_its_own(
    strategy: str, workers: int, inline: Any, shells: Any, tmp_path: Path
) -> None:
    words = (*QUICK, *ENV, *SIDECAR, ONE_CORE, f"strategy={strategy}")
    roles = {"chief": 1, "evaluator": 1, **({"worker": workers} if workers else {})}
    started = shells(roles, *words)
    assert set(ended(started).values()) == {0}, [each.output for each in started]
    run = the_run(tmp_path)
    for (step, found), (other, metrics) in zip(points(run), inline, strict=True):
        assert step == other and found == pytest.approx(metrics, abs=1e-5 if workers else 0)
    clean(run)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGKILL, "is gone: its command has ended"), (signal.SIGTERM, "was asked to stop")],
)
def test_a_host_of_its_own_is_lost(
    number: signal.Signals, how: str, user_code: Any, shells: Any, tmp_path: Path
) -> None:
    """First its task, which is started again there; then its command."""
    user_code(SLOW)
    (tmp_path / "hold").touch()
    words = (*HELD, *ENV, *SIDECAR, "hydra.run.dir=run")
    chief, beside = shells({"chief": 1, "evaluator": 1}, *words)
    Killer(tmp_path, 1).done()
    until(lambda: "it is started again" in beside.output, lambda: beside.output)
    until(lambda: bool(waiting(RunDir(tmp_path / "run"))), lambda: chief.output)
    beside.process.send_signal(number)
    if number == signal.SIGTERM:
        until(lambda: "asked to stop: the training goes on" in beside.output, lambda: beside.output)
        (tmp_path / "hold").unlink()  # it looks between two calls
    assert chief.process.wait(60) == 0, chief.output
    assert f"evaluator-0 {how}; training continues" in chief.output
    assert list(Sidecar(RunDir(tmp_path / "run")).items())[-1] == 8
