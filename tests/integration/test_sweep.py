"""Sweeps with TensorFlow: each job's own layout, jobs that fail, sweeps that are killed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from dtrain import errors
from dtrain.run import checkpoint, journal
from dtrain.run.folder import RunDir, read_json
from tests.conftest import QUICK
from tests.integration.test_failures import command, processes, sound, until
from tests.sampled import sampled

__all__ = ["command"]  # a fixture

USER = '''
import os, signal, time
import keras


class Act(keras.callbacks.Callback):
    """After the second epoch, of the jobs with these seeds: an error, the end, a wait, Ctrl-C."""

    def __init__(self, seed, bang=None, die=None, wait=None, interrupt=None):
        self.acts = {bang: self.bang, die: self.die, wait: self.wait, interrupt: self.interrupt}
        self.act = self.acts.get(seed)

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and self.act is not None and not os.path.exists("go"):
            self.act()

    def bang(self):
        raise RuntimeError("bang")

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def wait(self):
        open("waits", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.05)

    def interrupt(self):
        os.kill(int(os.environ["CONTROLLER"]), signal.SIGINT)
'''


def acts(**seeds: int) -> str:
    """Return the word that says what the jobs of these seeds do."""
    words = ",".join(f"{what}:{seed}" for what, seed in seeds.items())
    return f"trainer.callbacks=[{{_target_:mine.Act,seed:${{seed}},{words}}}]"


def folder() -> Path:
    [found] = Path().glob("outputs/multirun/*/*/sweep.json")
    return found.parent


def told() -> dict[str, Any]:
    return read_json(folder() / "sweep.json") or {}


def statuses() -> list[str]:
    return [job["status"] for job in told()["jobs"]]


def rundir(number: int) -> RunDir:
    return RunDir(folder() / str(number))


def losses(number: int) -> list[float]:
    events = journal.read(rundir(number).journal)
    return [e["metrics"]["loss"] for e in events if "loss" in e.get("metrics", {})]


@pytest.mark.faults
def test_each_job_has_its_own_layout(dtrain) -> None:
    run = dtrain(
        "-m", *QUICK, "trainer.epochs=1", "strategy=one_device,mirrored,multiworker",
        "optimizer.learning_rate=0.001,0.01",
    )  # fmt: skip
    assert run.code == errors.OK, run.output
    assert told()["status"] == "FINISHED"
    assert folder().name.endswith("_mlp")
    layouts = []
    for number in range(6):
        tasks = (read_json(rundir(number).cluster) or {})["tasks"]
        layouts.append([task["devices"] for task in tasks])
        result = read_json(rundir(number).result) or {}
        assert (result["status"], result["step"]) == ("FINISHED", 4)
        [start] = [e for e in journal.read(rundir(number).journal) if e["event"] == "start"]
        assert start["replicas"] == sum(layouts[-1])
        assert 0 < result["start_seconds"] < 60
    assert layouts == [[1], [1], [2], [2], [1, 1], [1, 1]]
    for rate in (0, 1):  # and the numbers are the same
        for strategy in (1, 2):
            assert losses(2 * strategy + rate) == pytest.approx(losses(rate), rel=1e-5)


@pytest.mark.parametrize(("count", "bang", "die"), sampled([(20, 7, 13), (5, 1, 3)]))
def test_two_fail_and_are_run_again(count: int, bang: int, die: int, dtrain, user_code) -> None:
    user_code(USER)
    run = dtrain("-m", *QUICK, f"seed=range({count})", acts(bang=bang, die=die))
    assert run.code == errors.FAILED, run.output
    expected = ["FINISHED"] * count
    expected[bang] = expected[die] = "FAILED"
    assert statuses() == expected
    whole = [n for n in range(count) if n not in (bang, die)]
    assert [
        n for n in range(count) if re.search(rf"^{n} +{n} +FINISHED", run.output, re.M)
    ] == whole
    for number, problem in ((bang, "RuntimeError: bang"), (die, "ended by SIGKILL")):
        log = rundir(number).log("chief-0")
        line = rf"job {number} .*FAILED: chief-0: {problem}.*\(log: {log.relative_to(Path.cwd())}\)"
        assert re.search(line, run.output), run.output
    assert f"FAILED: {len(whole)} of {count} jobs done" in run.output
    before = {n: rundir(n).result.read_text() for n in whole}

    Path("go").touch()
    run = dtrain(f"sweep.resume={folder()}")
    assert run.code == errors.OK, run.output
    assert statuses() == ["FINISHED"] * count
    assert {n: rundir(n).result.read_text() for n in before} == before
    for number in (bang, die):  # from their checkpoints
        result = read_json(rundir(number).result) or {}
        assert result["step"] == 8
        steps = [e["step"] for e in journal.read(rundir(number).journal) if e["event"] == "start"]
        # That of step 8 was saved, or begun, before the callback that failed.
        assert steps in ([0, 4], [0, 8])


def test_ctrl_c_saves_all_that_run(dtrain, user_code, monkeypatch: pytest.MonkeyPatch) -> None:
    user_code(USER)
    monkeypatch.setenv("CONTROLLER", str(os.getpid()))
    run = dtrain("-m", *QUICK, "seed=1,2,3", "trainer.epochs=100000", acts(interrupt=1),
                 "sweep.parallel=2")  # fmt: skip
    assert run.code == errors.INTERRUPTED, run.output
    assert told()["status"] == "KILLED"
    found = statuses()
    assert found.count("WAITING") == 1 and found[0] == "KILLED"
    assert sound(rundir(0))[-1] == (read_json(rundir(0).result) or {})["step"]
    assert f"resume with: python -m dtrain sweep.resume={folder()}" in run.output


def test_a_sweep_that_is_killed(command, dtrain, user_code, tmp_path: Path) -> None:
    """By SIGKILL: no task survives; resumed, it runs what is missing, and that alone."""
    user_code(USER)
    running = command("-m", *QUICK, "trainer.epochs=3", "seed=1,2,3", acts(wait=2),
                      "sweep.parallel=1")  # fmt: skip
    until((tmp_path / "waits").exists, lambda: running.output)
    running.process.kill()
    running.process.wait()
    until(lambda: not running.group(), running.group, 20)
    assert processes(tmp_path) == {}
    assert told()["status"] == "RUNNING"
    assert statuses() == ["FINISHED", "RUNNING", "WAITING"]
    saved, _ = checkpoint.newest(rundir(1).checkpoints)
    # That of step 8 was begun before the callback.
    assert saved is not None and saved.step in (4, 8)
    before = rundir(0).result.read_text()

    (tmp_path / "go").touch()
    run = dtrain(f"sweep.resume={folder()}")
    assert run.code == errors.OK, run.output
    assert statuses() == ["FINISHED"] * 3
    assert rundir(0).result.read_text() == before
    starts = [
        [e["step"] for e in journal.read(rundir(n).journal) if e["event"] == "start"]
        for n in range(3)
    ]
    assert starts == [[0], [0, saved.step], [0]]
    assert (read_json(rundir(1).result) or {})["examples"] == 3 * 128


def test_the_speed_of_a_training_is_an_objective(dtrain: Any) -> None:
    run = dtrain(
        "-m", "experiment=speed", "model=mlp", "trainer.steps_per_epoch=20",
        "hardware.intra_op_threads=1,2", "hardware.jit_compile=false", "hardware.onednn=true",
        "hardware.precision=float32", "trainer.early_stopping=3",
    )  # fmt: skip
    assert run.code == 0, run.output
    record = told()
    assert (record["objective"], record["objective_mode"]) == ("examples_per_second", "max")
    speeds = [job["objective"] for job in record["jobs"]]
    assert len(speeds) == 2 and min(speeds) > 0
    best = speeds.index(max(speeds))
    assert f"best: {best}, examples_per_second" in run.output
