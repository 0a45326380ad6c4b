"""The evaluator of a job: what the plan gives it, what is refused, and what its death does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from dtrain.controller import evaluator
from dtrain.controller.beside import Beside
from dtrain.controller.launchers import Inline, Local
from dtrain.controller.plan import plan, sizes
from dtrain.controller.resources.devices import Machine
from dtrain.controller.sweep.resources import Slot, place
from dtrain.controller.terminal import report
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir, write_json
from dtrain.run.sidecar import NOTICE, Points, Sidecar
from tests.test_schema import composed
from tests.test_supervisor import Story, Watched

SIDECAR = "sidecar.evaluate=true"
FOUR = Machine(0, 4)


def planned(*words: str, machine: Machine = FOUR) -> Cluster:
    config = composed(SIDECAR, *words)
    return plan(config, sizes(config), machine).cluster


def beside(cluster: Cluster) -> Task:
    assert cluster.evaluator is not None
    return cluster.evaluator


#: (overrides, machine, cores of each training task, those of the evaluator, devices of it)
PLANS: list[tuple[list[str], Machine, list[tuple[int, ...]], tuple[int, ...], int]] = [
    (["strategy=one_device"], FOUR, [(0, 1, 2)], (3,), 1),
    (["strategy=mirrored", "hardware.devices=2"], Machine(0, 2), [(0,)], (1,), 2),
    (["strategy=multiworker", "hardware.evaluator_cores=2"], FOUR, [(0,), (1,)], (2, 3), 1),
    (["strategy=ps", "strategy.workers=2"], Machine(0, 5), [(), (0, 1), (2, 3), ()], (4,), 1),
    (["hardware.devices=1"], Machine(2, 4), [()], (3,), 1),
    (["hardware.devices=2", "strategy=mirrored"], Machine(2, 4), [()], (3,), 0),
    (["strategy=one_device"], Machine(0, 1, shared=False), [()], (), 1),
]


@pytest.mark.parametrize(("words", "machine", "training", "own", "devices"), PLANS)
def test_it_has_cores_of_its_own(
    words: list[str], machine: Machine, training: list[Any], own: tuple[int, ...], devices: int
) -> None:
    cluster = planned(*words, machine=machine)
    task = beside(cluster)
    assert [each.cores for each in cluster.tasks] == training
    assert (task.cores, task.threads, task.devices) == (own, len(own) or None, devices)
    assert cluster.of(task).tasks == (task,) and cluster.of(cluster.chief) == cluster
    assert cluster.is_alike(cluster.chief)
    assert cluster.is_alike(task) == (len(training) == 1 and devices == cluster.chief.devices)
    assert Cluster.from_json(cluster.to_json()) == cluster
    assert "evaluator-0  follows the checkpoints" in report.drawing(cluster)[-1]
    plain = composed(*words)
    without = plan(plain, sizes(plain), machine).cluster
    assert without.evaluator is None and without.processes == without.tasks
    assert Cluster.from_json({k: v for k, v in without.to_json().items() if k != "evaluator"})


def test_a_job_of_a_sweep_has_it_in_its_slot() -> None:
    cluster = planned("strategy=one_device", machine=Machine(0, 2))
    found = place(cluster, Slot((2, 3), ()), FOUR)
    assert (found.chief.cores, beside(found).cores) == ((2,), (3,))


REFUSED = [
    ([SIDECAR, "strategy=one_device"], Machine(0, 1), "hardware.evaluator_cores=1: of the 1 core"),
    ([SIDECAR, "hardware.evaluator_cores=4"], FOUR, "hardware.evaluator_cores=4: of the 4 cores"),
    ([SIDECAR, "strategy=tpu", "hardware=tpu"], FOUR, "sidecar.evaluate=true: the host of a TPU"),
    (["sidecar.export=true", "strategy=tpu", "hardware=tpu"], FOUR, "sidecar.export=true: the h"),
    ([SIDECAR, "dataset=synthetic", "dataset.validation_examples=0"], FOUR,
     "sidecar.evaluate=true: the dataset has no validation"),
    ([SIDECAR, "trainer.callbacks=[{_target_: keras.callbacks.EarlyStopping, "
               "restore_best_weights: true}]"], FOUR,
     r"trainer.callbacks\[0\].restore_best_weights=true: EarlyStopping sees a validation when"),
    ([SIDECAR, "trainer.callbacks=[{_target_: keras.callbacks.ModelCheckpoint, filepath: a.keras, "
               "monitor: val_accuracy, save_best_only: true}]"], FOUR,
     r"trainer.callbacks\[0\].save_best_only=true: ModelCheckpoint"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "machine", "message"), REFUSED)
def test_what_cannot_be_is_refused_by_name(
    words: list[str], machine: Machine, message: str
) -> None:
    config = composed(*words)
    with pytest.raises(UsageError, match=message):
        plan(config, sizes(config), machine)


def test_callbacks_that_keep_nothing_and_launchers() -> None:
    stop = "keras.callbacks.EarlyStopping"
    for node in (
        "{_target_: keras.callbacks.ModelCheckpoint, filepath: a.keras}",
        f"{{_target_: {stop}, monitor: loss, restore_best_weights: true}}",
    ):
        planned(f"trainer.callbacks=[{node}]")
    options: dict[str, Any] = {"grace_seconds": 1, "start_timeout": 1, "stall_timeout": 1}
    config = composed(SIDECAR)
    evaluator.check_launcher(config, Local(**options, max_restarts=0))
    evaluator.check_launcher(composed(), Inline(**options, max_restarts=0))
    with pytest.raises(
        UsageError, match=r"sidecar\.evaluate=true: Inline starts no process beside"
    ):
        evaluator.check_launcher(config, Inline(**options, max_restarts=0))


# --- its death

CLUSTER = Cluster(
    (Task("chief", 0, 1),), "cpu", 1, {}, evaluator=Task("evaluator", 0, 1, alone=True)
)
AGAIN = "evaluator-0 ended by SIGKILL: it is started again"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    rundir = RunDir(tmp_path)
    Sidecar(rundir).begin()
    rundir.logs.mkdir()
    return rundir


def watched(story: Story, run: RunDir, monkeypatch: pytest.MonkeyPatch, most: int = 2) -> Watched:
    from dtrain.controller import supervisor

    monkeypatch.setattr(supervisor, "time", story)
    found = Watched(story, CLUSTER, run)
    found._supervisor._beside = Beside(
        run, beside(CLUSTER), lambda: story.start_again("evaluator-0"), most, found.said.append
    )
    return found


def test_its_deaths_end_nothing(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(run).come("chief-0", "evaluator-0")
    die = story.end_with(-9, "evaluator-0")
    found = watched(story.at(10, die).at(20, die).at(30, die), run, monkeypatch)
    story.at(40, story.end_with(0, "chief-0"))
    assert found() is None
    assert found.said[:2] == [AGAIN] * 2 and len(found.said) == 3
    assert "evaluator-0 ended by SIGKILL (log: " in found.said[2]
    assert "; training continues, and resume= evaluates the rest" in found.said[2]
    assert Sidecar(run).given_up and found.seconds == pytest.approx(40, abs=1)


def test_deaths_are_counted_from_what_it_did_last(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, points = Story(run).come("chief-0", "evaluator-0"), Points(Sidecar(run))
    for at in range(10, 100, 10):
        story.at(at, lambda: points.write(NOTICE, message="exported"))
        story.at(at + 1, story.end_with(-9, "evaluator-0"))
    found = watched(story.at(200, story.end_with(0, "chief-0", "evaluator-0")), run, monkeypatch)
    assert found() is None and found.said.count(AGAIN) == found.said.count("exported") == 9


def test_the_command_waits_for_it_when_training_is_done(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(run).come("chief-0", "evaluator-0")
    story.at(20, story.end_with(0, "chief-0")).at(500, story.end_with(0, "evaluator-0"))
    found = watched(story, run, monkeypatch)
    assert found() is None and found.seconds == pytest.approx(500, abs=1) and not found.said


def test_what_ends_it_before_the_training_begins_is_for_the_training_to_say(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(run)
    story.at(10, story.end_with(2, "evaluator-0")).at(12, story.end_with(2, "chief-0"))
    found = watched(story, run, monkeypatch)
    failure = found()
    assert failure is not None and failure.task == "chief-0" and not found.said


def test_a_job_without_anything_to_do_ends(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(run)
    story.at(10, story.end_with(0, "evaluator-0")).at(12, story.end_with(0, "chief-0"))
    found = watched(story, run, monkeypatch)
    assert found() is None and found.seconds == pytest.approx(12, abs=1) and not found.said


@pytest.mark.parametrize(("code", "sentence"), [
    (2, "evaluator-0 it is no model \\(log: "), (1, "it is started again"),
])  # fmt: skip
def test_how_it_ends_by_itself(
    code: int, sentence: str, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.log("evaluator-0").write_text("before\nit is no model\n")
    story = Story(run).come("chief-0", "evaluator-0")
    story.at(20, story.end_with(code, "evaluator-0")).at(40, story.end_with(0, "chief-0"))
    story.at(60, story.end_with(0, "evaluator-0"))
    found = watched(story, run, monkeypatch)
    assert found() is None
    assert re.search(sentence, "\n".join(found.said)), found.said
    assert Sidecar(run).given_up == (code == 2)


def test_one_that_is_stopped_or_does_not_move_is_ended(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(run, stall=100.0).come("chief-0", "evaluator-0")
    story.at(10, lambda: story.stopped.add("evaluator-0"))

    def wait() -> None:  # the chief says so a few times a second
        write_json(run.progress, {"step": 4, "waiting": 1, "time": round(story.now)})

    for at in range(30, 250):
        story.at(at, wait)
    story.at(250, story.end_with(0, "chief-0", "evaluator-0"))
    found = watched(story, run, monkeypatch, most=9)
    assert found() is None
    ended = [at for at, what in story.asked if what == "end evaluator-0"]
    assert ended == pytest.approx([15, 130, 230], abs=2)
    assert len([what for _, what in story.asked if what == "start evaluator-0 again"]) == 3


def test_another_commands_is_lost(run: RunDir) -> None:
    said: list[str] = []
    found = Beside(run, beside(CLUSTER), None, 5, said.append)
    found.lost("is gone: its command has ended")
    assert Sidecar(run).given_up and not found.is_alive
    assert said == [
        "evaluator-0 is gone: its command has ended; training continues, and resume= evaluates the "
        "rest"
    ]
    assert dataclasses.asdict(CLUSTER)["evaluator"]["role"] == "evaluator"
