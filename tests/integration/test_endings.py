"""Runs that end before their last epoch: by ``trainer.early_stopping`` and ``trainer.max_time``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from dtrain.config import objective
from dtrain.config.node import seconds
from dtrain.config.schema.training import Duration, Stopping
from dtrain.run import checkpoint
from tests.conftest import Commands, Run
from tests.sampled import sampled


def arrays(run: Run, step: int) -> dict[str, bytes]:
    assert run.rundir is not None
    found = checkpoint.load(run.rundir.checkpoints / str(step)).arrays
    return {name: array.tobytes() for name, array in found.items()}


def test_early_stopping_ends_a_run_and_a_resumed_one_at_the_same_epoch(
    dtrain: Commands, quick: tuple[str, ...]
) -> None:
    """No epoch is better by 100, so the first is the best, and two more are waited for."""
    stop = "trainer.early_stopping={patience: 2, min_delta: 100, restore_best: true}"
    words = [*quick, stop, "objective=val_loss", "checkpoint.keep=9"]
    whole = dtrain(*words, "trainer.epochs=9")
    assert whole.code == 0 and whole.result["step"] == 12, whole.output + whole.log
    why = "stopped early at epoch 3 of 9: val_loss has not improved by 100 for 2 epochs"
    assert whole.result["ended"] == why
    best = whole.result["best_epoch"]
    assert f"{why}; best val_loss {best['objective']:.4f} at epoch " in whole.output
    first = dtrain(*words, "trainer.epochs=2")
    again = dtrain(f"resume={first.rundir.path}", "trainer.epochs=9")
    assert again.code == 0 and again.result["step"] == 12, again.output + again.log
    assert arrays(again, 12) == arrays(whole, 12)
    assert whole.rundir.model.read_bytes() != b""
    for is_whole in (True, False):  # then as if it had died before its model was saved
        if not is_whole:
            whole.rundir.model.unlink()
        ended = dtrain(f"resume={whole.rundir.path}", "trainer.epochs=20")
        assert ended.code == 0 and ended.result["step"] == 12, ended.output + ended.log
        assert why in ended.output and whole.rundir.model.exists()
    assert arrays(ended, 12) == arrays(again, 12)
    more = dtrain(f"fork={whole.rundir.path}", "trainer.early_stopping=null", "trainer.epochs=4")
    assert more.code == 0 and more.result["step"] == 16, more.output + more.log
    assert "epoch 1 of 1 is epoch 4 of trainer.epochs=4" in more.output
    assert [line[:11] for line in lines_of_epochs(more)] == ["epoch 1/1  "]
    longer = dtrain(f"resume={more.rundir.path}", "trainer.epochs=5")
    assert [line[:11] for line in lines_of_epochs(longer)] == ["epoch 2/2  "], longer.output
    refused = dtrain(f"resume={first.rundir.path}", "trainer.early_stopping=3")
    assert refused.code == 2 and "would change the numbers" in refused.output


@pytest.mark.parametrize("backend", sampled(["jax", "torch"], "torch"))
def test_a_callback_of_keras_ends_a_run_for_good(
    backend: str, quick: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    dtrain = request.getfixturevalue(f"on_{backend}")
    callback = "{_target_: keras.callbacks.EarlyStopping, patience: 1, min_delta: 100}"
    words = [*quick, f"backend={backend}", f"trainer.callbacks=[{callback}]", "trainer.epochs=2"]
    words += ["hydra.run.dir=one", "resume=auto"]
    whole = dtrain(*words)
    assert whole.code == 0, whole.output + whole.log
    assert [line[:11] for line in lines_of_epochs(whole)] == ["epoch 1/2  ", "epoch 2/2  "]
    command = whole.output.splitlines()[-1].removeprefix("train on: python -m dtrain ")
    assert command == "fork=one 'trainer.callbacks=[]' trainer.epochs=4"
    for again in (words, ["resume=one"]):
        ended = dtrain(*again)
        assert ended.code == 0, ended.output
        assert f"nothing is left to do; to train on: python -m dtrain {command}" in ended.output
    assert dtrain(*shlex.split(command)).result["step"] == 16


def lines_of_epochs(run: Run) -> list[str]:
    return [line for line in run.output.splitlines() if re.match(r"epoch +\d+/\d+  loss", line)]


def test_a_folder_that_is_removed_again_is_not_named(
    dtrain: Commands, quick: tuple[str, ...], tmp_path: Path
) -> None:
    refused = dtrain(*quick, "objective=val_acc", "hydra.run.dir=one")
    assert refused.code == 2 and "objective=val_acc" in refused.output
    assert "run folder" not in refused.output and not (tmp_path / "one").exists()


def test_a_run_whose_time_is_over_is_saved_evaluated_and_can_be_resumed(
    dtrain: Commands, quick: tuple[str, ...]
) -> None:
    whole = dtrain(*quick, "strategy=mirrored", "hardware.devices=2")
    short = dtrain(*quick, "strategy=mirrored", "hardware.devices=2", "trainer.max_time=0.001")
    assert short.code == 0 and short.result["status"] == "FINISHED", short.output + short.log
    assert short.result["step"] == 1 and list(short.points("val_loss")) == [1]
    assert "trainer.max_time=0.001 is over: the run ends at step 1 of 8" in short.output
    again = dtrain(f"resume={short.rundir.path}", "trainer.max_time=null")
    assert again.code == 0 and again.result["step"] == 8, again.output + again.log
    assert arrays(again, 8) == arrays(whole, 8)


@pytest.mark.parametrize(
    ("value", "length"),
    [("2h", 7200), ("90m", 5400), ("1h30m", 5400), (3600, 3600), ("1d", 86400), ("1.5h", 5400)],
)
def test_lengths_of_time(value: object, length: float) -> None:
    adapter: TypeAdapter[object] = TypeAdapter(Duration)
    assert seconds(value) == length and adapter.validate_python(value) == value
    for wrong in ("", "2 hours", "h", "30m1h", True, [1], 0, "0s", "9999d"):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)


def test_what_early_stopping_takes() -> None:
    adapter: TypeAdapter[object] = TypeAdapter(Stopping)
    for right in (3, {"patience": 1, "monitor": "val_f1", "mode": "max"}):
        adapter.validate_python(right)
    for wrong in (0, True, "3", {}, {"patience": 3, "min_dela": 1}, {"patience": 3, "mode": "up"}):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
    found = objective.stopping({"patience": 2, "monitor": "val_f1"}, "val_loss", "min")
    assert (found["monitor"], found["mode"]) == ("val_f1", "max")
    found = objective.stopping(2, "val_loss", "min")
    assert (found["monitor"], found["mode"], found["patience"]) == ("val_loss", "min", 2)
