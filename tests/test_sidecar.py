"""What the chief and the evaluator share, and how a checkpoint comes to its objective late."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.run import checkpoint
from dtrain.run.checkpoint import Rating
from dtrain.run.folder import RunDir
from dtrain.run.sidecar import EVALUATED, NOTICE, Points, Sidecar, digest_of
from tests.test_checkpoint_writer import writer


def saved(rundir: RunDir, step: int, value: float = 0.0) -> Path:
    return checkpoint.save(rundir.checkpoints, step, {"a": np.full(3, step + value)}, {})


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    rundir = RunDir(tmp_path)
    Sidecar(rundir).begin()
    return rundir


def evaluated(points: Points, path: Path, **fields: Any) -> None:
    points.write(
        EVALUATED, step=int(path.name), digest=digest_of(path), metrics={"accuracy": 0.5}, **fields
    )


def test_nothing_is_missed_whatever_the_training_removes(run: RunDir) -> None:
    sidecar, points = Sidecar(run), Points(Sidecar(run))
    for step in (8, 4):
        sidecar.add(saved(run, step), alone=False)
        shutil.rmtree(run.checkpoints / str(step))
    assert list(sidecar.items()) == [4, 8] and sidecar.waiting(points.done) == 2
    taken = sidecar.take(points.done)
    assert taken is not None and checkpoint.load(taken).arrays["a"].tolist() == [4] * 3
    # Killed here, it begins with the same one; and what was found counts as soon as it is written.
    assert sidecar.take(points.done) == taken
    evaluated(points, taken)
    points = Points(sidecar)
    again = sidecar.take(points.done)
    assert again is not None and again.name == "8"
    sidecar.remove(4)
    assert list(sidecar.items()) == [8] and [p.name for p in taken.parent.iterdir()] == ["8"]


def test_the_newest_alone_waits_and_what_is_begun_is_finished(run: RunDir) -> None:
    sidecar = Sidecar(run)
    sidecar.add(saved(run, 4), alone=True)
    begun = sidecar.take(set())
    for step in (8, 12):
        sidecar.add(saved(run, step), alone=True)
    assert list(sidecar.items()) == [4, 12] and sidecar.take(set()) == begun


def test_a_step_that_is_trained_again_is_evaluated_again(run: RunDir) -> None:
    sidecar, points = Sidecar(run), Points(Sidecar(run))
    path = saved(run, 4)
    sidecar.add(path, alone=False)
    taken = sidecar.take(points.done)
    assert taken is not None
    evaluated(points, taken)
    sidecar.add(path, alone=False)  # the same bits
    assert sidecar.take(points.done) is None
    sidecar.add(saved(run, 4, value=0.5), alone=False)
    taken = sidecar.take(points.done)
    assert taken is not None and checkpoint.load(taken).arrays["a"].tolist() == [4.5] * 3


def test_what_is_damaged_is_taken_and_what_goes_is_passed_over(run: RunDir) -> None:
    sidecar = Sidecar(run)
    for step in (4, 8):
        sidecar.add(saved(run, step), alone=False)
    (sidecar.items()[4] / "manifest.json").unlink()
    taken = sidecar.take(set())
    assert taken is not None and taken.name == "4" and sidecar.waiting(set()) == 1
    sidecar.remove(4)
    assert taken.parent.is_dir() and sidecar.take(set()) == taken.parent / "8"


def test_reports_and_ends(run: RunDir) -> None:
    sidecar, points = Sidecar(run), Points(Sidecar(run))
    follower, deeds = sidecar.notices(), sidecar.deeds()
    points.write(NOTICE, message="exported")
    assert [event["message"] for event in follower.new()] == ["exported"]
    assert sidecar.deeds() > deeds
    assert not (sidecar.finished or sidecar.given_up)
    sidecar.end()
    sidecar.give_up()
    assert sidecar.finished and sidecar.given_up
    sidecar.begin()  # of a command that resumes the run
    assert not (sidecar.finished or sidecar.given_up) and Points(sidecar).done == set()


#: (objectives of steps 1, 2, ..., in the order in which they come; keep; what stays)
LATE = [
    ([(1, 0.9), (2, 0.5), (3, 0.6)], 1, [1, 3]),
    ([(1, 0.1), (2, 0.9), (3, 0.6)], 1, [2, 3]),
    ([(1, 0.1), (2, None), (3, 0.6)], 1, [3]),
    ([(2, 0.9), (1, 0.9), (3, 0.6)], 2, [1, 2, 3]),
]


@pytest.mark.parametrize(("found", "keep", "stay"), LATE)
def test_the_best_comes_back_when_it_is_known(
    run: RunDir, found: list[tuple[int, float | None]], keep: int, stay: list[int]
) -> None:
    sidecar = Sidecar(run)
    log = writer(
        run.checkpoints, keep=keep, best=True,
        evaluates=functools.partial(sidecar.add, alone=False),
    )  # fmt: skip
    for step, _ in found:
        log.submit(step, {"a": np.array(step)}, {"objective": None, checkpoint.EVALUATES: True})
    for step in sorted(step for step, _ in found)[:-1]:
        log.wait()
        assert step in sidecar.items()
    for step, value in found:
        held = sidecar.items()[step]
        log.rate(Rating(step, value, held, functools.partial(sidecar.remove, step)))
    log.wait()
    assert checkpoint.steps(run.checkpoints) == stay and not sidecar.items()
    known = {step: value for step, value in found if value is not None}
    best = checkpoint.choose(run.checkpoints, "best", "max")
    assert [path.name for path in best] == [str(max(known, key=lambda s: (known[s], -s)))]
    again = writer(run.checkpoints, keep=keep, best=True)
    assert again.objectives == {s: known[s] for s in stay if s in known}
    assert [checkpoint.load(run.checkpoints / str(s)).arrays["a"] for s in stay] == stay
