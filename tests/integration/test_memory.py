"""What spares memory and changes no numbers, under every strategy.

Four batches of 16 whose gradients accumulate are one batch of 64; layers may be computed twice.
Mixed precision, which does change them, trains everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dtrain.run import checkpoint
from tests import strategies
from tests.conftest import QUICK, Run
from tests.integration import test_parity
from tests.integration.test_parity import MODEL
from tests.sampled import sampled

BASE = (
    "tracking=none",
    "model=mlp",
    "model.units=[32]",
    "model.l2=1e-3",
    "dataset=synthetic",
    "dataset.shape=[12]",
    "dataset.examples=448",
    "dataset.validation_examples=40",
    "dataset.classes=4",
    "optimizer.weight_decay=0.01",
    "optimizer.learning_rate=0.01",
    "optimizer.global_clipnorm=0.2",  # below the norms of most gradients
    "launcher.stall_timeout=120",
)
UPDATES = 7
WHOLE = ("trainer.batch_size=64", "trainer.epochs=1", "trainer.log_every_steps=1")
ACCUMULATED = (
    "trainer.batch_size=16",
    "trainer.epochs=1",
    "trainer.log_every_steps=4",
    "optimizer.gradient_accumulation_steps=4",
)
STRATEGIES = strategies.chosen()


def last(run: Run) -> dict[str, np.ndarray]:
    """Return the arrays of a run's last checkpoint, those of the model and the optimizer."""
    assert run.code == 0, run.output + run.log
    arrays = checkpoint.load(run.rundir.checkpoints / str(run.result["step"])).arrays
    return {n: a for n, a in arrays.items() if n.startswith(("model/", "optimizer/"))}


def equal(expected: dict[str, np.ndarray], found: dict[str, np.ndarray], about: str) -> None:
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-7, err_msg=(about, name))


@pytest.mark.parametrize("model", sampled(["mlp", "own train_step"]))
def test_four_of_16_are_one_of_64(model: str, dtrain, user_code) -> None:
    user_code(MODEL)
    base, chosen = BASE, dict(STRATEGIES)
    if model == "own train_step":
        base = (*(w for w in BASE if not w.startswith("model")), "model=custom",
                "model._target_=mine.Own")  # fmt: skip
        chosen = {name: STRATEGIES[name] for name in ("mirrored", "ps")}
    whole = dtrain(*base, *WHOLE, "strategy=one_device")
    expected, losses = last(whole), whole.points("loss")
    assert expected.pop("optimizer/adam/iteration") == len(losses) == UPDATES
    for name, words in chosen.items():
        run = dtrain(*base, *ACCUMULATED, *words)
        found = last(run)
        assert found.pop("optimizer/adam/iteration") == 4 * UPDATES, name
        held = [array for path, array in found.items() if path.endswith("_accumulator")]
        assert len(held) == 4, name
        assert not any(array.any() for array in held), name
        equal(expected, found, name)
        points = run.points("loss")
        assert list(points) == [4 * step for step in losses], name
        assert list(points.values()) == pytest.approx(list(losses.values()), rel=1e-5), name
        for metric in ("val_loss", "val_accuracy"):
            value = whole.result["metrics"][metric]
            assert run.result["metrics"][metric] == pytest.approx(value, rel=1e-5), (name, metric)
        assert run.result["examples"] == whole.result["examples"]


@pytest.mark.faults
def test_resumed_between_two_updates_under_another_strategy(dtrain) -> None:
    base = (*BASE, *ACCUMULATED, "trainer.steps_per_epoch=3", "trainer.log_every_steps=1")
    whole = dtrain(*base, "trainer.epochs=4", "strategy=one_device")
    expected = last(whole)

    run, words = None, base
    for epochs, name in enumerate(("mirrored", "multiworker", "ps", "mirrored"), 1):
        run = dtrain(*words, *STRATEGIES[name], f"trainer.epochs={epochs}")
        held = [a for path, a in last(run).items() if path.endswith("_accumulator")]
        assert all(array.any() for array in held) == (epochs < 4), "3, 6 and 9 steps; 12 are 3 x 4"
        words = (f"resume={run.rundir.path}",)
    equal(expected, last(run), "resumed")
    losses: Any = whole.points("loss"), run.points("loss")
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.faults
def test_resumed_between_two_updates_with_the_same_bits(dtrain) -> None:
    base = (*BASE, *ACCUMULATED, "trainer.steps_per_epoch=3", *STRATEGIES["multiworker"])
    whole = dtrain(*base, "trainer.epochs=4")
    part = dtrain(*base, "trainer.epochs=2")
    run = dtrain(f"resume={part.rundir.path}", "trainer.epochs=4")
    assert checkpoint.digest(last(run)) == checkpoint.digest(last(whole))


@pytest.mark.faults
def test_layers_are_computed_twice(dtrain, user_code) -> None:
    """With masks and regularizers; ``conv2d`` is found in ``conv2d_1`` as well."""
    user_code(MODEL)
    base = (*test_parity.BASE, *test_parity.MODELS["regularized"], "trainer.epochs=1")
    whole = dtrain(*base, "strategy=one_device")
    for name in ("multiworker", "ps"):
        run = dtrain(*base, *STRATEGIES[name], "hardware.remat=[conv2d, dropout, dense$]")
        assert run.code == 0, run.output + run.log
        test_parity.agree(whole, run, ["loss", "accuracy", "val_loss"], 1e-5, name)
        assert run.rundir.model.exists(), name


HALF = ("multiworker", "ps", "ps async")


@pytest.mark.parametrize("name", sampled(HALF))
def test_half_precision(name: str, dtrain) -> None:
    words = STRATEGIES.get(name, ["strategy=ps"])
    if "async" not in name:
        words = (*words, "optimizer.gradient_accumulation_steps=3")
    run = dtrain(
        *QUICK, *words, "hardware.precision=mixed_float16", "hardware.remat=[dense]",
        "trainer.epochs=12", "optimizer.learning_rate=0.1",
    )  # fmt: skip
    assert run.code == 0, run.output + run.log
    loss = run.points("loss")
    assert loss[max(loss)] < 0.7 * loss[1]
    assert last(run)["optimizer/loss_scale_optimizer/dynamic_scale"] == 2**15
