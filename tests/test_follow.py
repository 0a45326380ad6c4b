"""The evaluator's own process: what it cannot evaluate, and what it has exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtrain.config.settle import settle
from dtrain.errors import UsageError
from dtrain.run import checkpoint
from dtrain.run.folder import RunDir
from dtrain.run.journal import Journal
from dtrain.run.sidecar import NOTICE, Points, Sidecar
from tests import warm
from tests.test_schema import node
from tests.test_sidecar import run, saved

__all__ = ["run"]

#: In the place of the command: (what it does, what is reported of it).
COMMANDS = [
    ("print('exported')", "exported: {run}/exports/mine/8"),
    ("print('begins'); print('error: it differs'); print('end'); raise SystemExit(1)",
     "step 8 is not exported: it differs"),
    ("raise SystemExit(2)", "step 8 is not exported: it has said nothing"),
    ("raise SystemExit('no such thing')", "step 8 is not exported: no such thing"),
]  # fmt: skip


def notices(sidecar: Sidecar) -> list[str]:
    return [e["message"] for e in sidecar.notices().new() if e["event"] == NOTICE]


@pytest.mark.parametrize(("command", "message"), COMMANDS)
def test_exports_are_reported_and_tried_once(command: str, message: str, run: RunDir) -> None:
    config = settle(node("sidecar.export=true", "name=mine"))
    warm.call(turns, 1, {"path": str(run.path), "config": config, "command": command})
    assert notices(Sidecar(run)) == [message.format(run=run.path)]


def turns(path: str, config: Any, command: str) -> None:
    from dtrain.after import sidecar as module

    run = RunDir(path)
    for step, value in ((4, 0.5), (8, 0.9), (12, 0.7)):
        checkpoint.save(run.checkpoints, step, {}, {"objective": value})
    module._COMMAND = command
    exporter = module.Exporter(config, run, Points(Sidecar(run)))
    exporter.turn(over=False)
    assert exporter.busy
    while exporter.busy:
        exporter.turn(over=False)
    exporter.turn(over=True)
    assert not exporter.busy
    exporter.close()
    config.sidecar.export = False
    off = module.Exporter(config, run, Points(Sidecar(run)))
    off.turn(over=True)
    assert not off.busy


@pytest.mark.task
def test_without_an_objective_the_last_is_exported_when_the_run_is_over(run: RunDir) -> None:
    from dtrain.after import sidecar as module

    config = settle(node("sidecar.export=true", "name=mine"))
    exporter = module.Exporter(config, run, Points(Sidecar(run)))
    assert exporter._next(over=True) is None
    for step in (4, 8):
        saved(run, step)
    assert (exporter._next(over=False), exporter._next(over=True)) == (None, 8)
    made = run.path / "exports" / "mine" / "8" / "export.json"
    made.parent.mkdir(parents=True)
    made.write_text("{}")
    assert exporter._next(over=True) is None, "it is there"


@pytest.mark.task
def test_what_is_damaged_is_passed_over_and_what_cannot_be_read_is_not(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dtrain.after import sidecar as module
    from dtrain.errors import CheckpointError

    sidecar, points, session = Sidecar(run), Points(Sidecar(run)), None
    followed: Any = module.Follow(run)
    for step in (4, 8):
        sidecar.add(saved(run, step), alone=False)
    path = sidecar.take(points.done)
    assert path is not None
    (path / "state.safetensors").write_bytes(b"?")
    followed._evaluate(session, path, points)
    assert list(sidecar.items()) == [8]
    [message] = notices(sidecar)
    assert message.startswith("checkpoint 4 is not evaluated: ") and "state.safetensors" in message
    followed._evaluate(session, path, points)  # the chief has removed it
    assert len(notices(sidecar)) == 1

    def broken(path: Path) -> Any:
        raise CheckpointError("it cannot be read") from OSError(5, "Input/output error")

    monkeypatch.setattr(module.checkpoint, "load", broken)
    with pytest.raises(CheckpointError, match="it cannot be read"):
        followed._evaluate(session, sidecar.items()[8], points)
    assert list(sidecar.items()) == [8]


@pytest.mark.task
def test_nothing_to_evaluate_is_refused_by_name() -> None:
    from dtrain.after.sidecar import Follow
    from dtrain.task.train.step_schedule import make_schedule
    from dtrain.task.train.train import Train

    config = settle(node("sidecar.evaluate=true"))
    schedule = make_schedule(config, 100, 0)
    for action in (Follow(RunDir("x")), Train()):
        with pytest.raises(UsageError, match=r"sidecar\.evaluate=true: the dataset has no valid"):
            action.check(config, None, schedule)  # type: ignore[arg-type]  # not looked at


@pytest.mark.task
def test_other_examples_than_those_of_the_chief_are_refused(run: RunDir) -> None:
    import types

    from dtrain.after.sidecar import Follow

    def session(digest: str) -> Any:
        data = types.SimpleNamespace(identity={"validation": {"digest": digest}})
        dataset = {"_target_": "mine.data"}
        return types.SimpleNamespace(data=data, config=types.SimpleNamespace(dataset=dataset))

    followed: Any = Follow(run)
    followed._compare(session("b"))  # the chief has not said yet
    log = Journal(run.journal)
    log.write("data", train={"digest": "t"}, validation={"digest": "a"})
    with pytest.raises(UsageError, match=r"dataset=mine.data: gives the evaluator other examples"):
        followed._compare(session("b"))
    followed = Follow(run)
    followed._compare(session("a"))
    followed._compare(session("a"))
