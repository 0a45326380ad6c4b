"""Which of the evaluator's points a training takes in, at first and when it is resumed."""

from __future__ import annotations

import dataclasses

import pytest

from dtrain.run import checkpoint, journal
from dtrain.run.folder import RunDir
from dtrain.run.sidecar import Points, Sidecar
from tests.test_sidecar import evaluated, run, saved

__all__ = ["run"]


def taken(points: object, count: int) -> list[tuple[int, bool]]:
    from dtrain.task.train.sidecar import EvaluatorPoints

    assert isinstance(points, EvaluatorPoints) and points.ready() == count
    made = [points.pop() for _ in range(count)]
    return [(point.step, point.recorded) for point in made if point is not None]


@pytest.mark.task
def test_points_are_taken_in_once(run: RunDir) -> None:
    from dtrain.task.train import sidecar as points

    points.LOOK = 0.0
    sidecar, written = Sidecar(run), Points(Sidecar(run))
    chief = points.EvaluatorPoints(run, None, alone=False)
    for step in (4, 8):
        chief.add(saved(run, step))
    assert (chief.ready(), chief.waiting()) == (0, 2)
    path = sidecar.take(written.done)
    assert path is not None
    evaluated(written, path, logs={"loss": 2}, examples=50)
    assert chief.ready() == chief.ready() == 1 and chief.waiting() == 1
    point = chief.pop()
    assert point == points.Point(4, {"val_accuracy": 0.5}, {"loss": 2.0}, 50)
    rating = chief.rating(4, 0.5)
    assert rating is not None and rating.held == path
    rating.done()
    assert chief.waiting() == 1 and list(sidecar.items()) == [8]
    sidecar.give_up()
    assert chief.waiting() == 0  # nobody would end that


@pytest.mark.task
def test_what_a_resumed_run_takes_in(run: RunDir) -> None:
    from dtrain.task.train import sidecar as points

    sidecar, written = Sidecar(run), Points(Sidecar(run))
    log = journal.Journal(run.journal)
    for step in (4, 8, 12, 16, 20):
        sidecar.add(saved(run, step), alone=False)
        path = sidecar.take(written.done)
        if path is not None and path.name != "16":
            evaluated(written, path)
    for step in (4, 8):
        log.write("metrics", step=step, epoch=1, kind="validation", metrics={"val_accuracy": 0.5})
        sidecar.remove(step) if step == 4 else None
    # A metric of the training of such a name is no point of the evaluator.
    log.write("metrics", step=12, epoch=1, kind="interval", metrics={"val_gap": 0.5})
    # 4: recorded and let go of; 8: recorded; 12: found; 16: to be evaluated; 20: of a future that
    # is gone. The checkpoint of 16 was saved when the callbacks had seen 4.
    past = checkpoint.load(run.checkpoints / "16")
    chief = points.EvaluatorPoints(run, past, alone=False)
    assert list(sidecar.items()) == [8, 12, 16]
    chief.restore(4)
    assert taken(chief, 2) == [(8, True), (12, False)]
    chief = points.EvaluatorPoints(run, past, alone=False)
    chief.restore(8)
    assert list(sidecar.items()) == [12, 16], "8 is recorded, and seen"
    assert taken(chief, 1) == [(12, False)]

    # It was killed between its last save and the queue.
    sidecar.remove(16)
    past = dataclasses.replace(past, meta={checkpoint.EVALUATES: True})
    points.EvaluatorPoints(run, past, alone=False)
    assert 16 in sidecar.items()
    # The run begins anew: nothing of it holds.
    chief = points.EvaluatorPoints(run, None, alone=False)
    assert not sidecar.items() and chief.ready() == 0
