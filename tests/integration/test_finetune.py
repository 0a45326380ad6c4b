"""``init`` and ``finetune`` in whole runs: a table, frozen bits, a resume across an unfreezing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dtrain.run import evaluations
from tests.conftest import QUICK
from tests.integration.test_fork import arrays, differing
from tests.test_evaluate import here

TUNED = (
    *QUICK,
    "init.weights=before",
    'init.rules=[{path: "^dense_1/", skip: true}]',
    'finetune.freeze=["^dense/"]',
    'finetune.unfreeze={3:["kernel"]}',
    'finetune.learning_rates=[{path: "^dense/", factor: 0.1}]',
    "model.classes=7",
    "model.l2=0.1",
    "optimizer=adamw",
    "optimizer.use_ema=true",
    "checkpoint.keep=9",
)


def test_a_run_is_tuned_and_resumed_across_an_unfreezing(dtrain) -> None:
    first = dtrain(*QUICK, "trainer.epochs=1", "hydra.run.dir=before")
    assert first.code == 0, first.output
    first.rundir = None  # it is not below outputs/
    begin = np.asarray(_kernel(Path("before/checkpoints/4")))

    whole = dtrain(*TUNED, "trainer.epochs=4")
    assert whole.code == 0, whole.output
    assert "2 of 4 weights are loaded from" in whole.output
    assert "  dense_1/kernel  16 x 7  left out (init.rules)\n" in whole.output
    assert "  dense_1/kernel           16 x 4\n" in whole.output  # left over
    assert "from epoch 3 on frozen weights: dense/bias\n" in whole.output
    changed = {step: differing(arrays(whole, 4), arrays(whole, step)) for step in (8, 12, 16)}
    own = [f"{kind}dense_{name}" for kind in ("", "optimizer/adam_w/") for name in ("bias",)]
    for step, names in changed.items():
        weights = [n for n in names if n.startswith(("model/dense/", *own)) or "/dense_kern" in n]
        assert bool(weights) == (step > 8), (step, weights)
    assert np.array_equal(begin, arrays(whole, 8)["model/dense/kernel"])
    average = arrays(whole, 8)["optimizer/adam_w/dense_kernel_average"]
    assert np.array_equal(begin, average)

    half = dtrain(*TUNED, "trainer.epochs=2")
    assert half.code == 0, half.output
    resumed = dtrain(f"resume={half.rundir.path}", "trainer.epochs=4")
    assert resumed.code == 0, resumed.output
    assert differing(arrays(whole, 16), arrays(resumed, 16)) == []
    assert resumed.points("loss") == whole.points("loss")
    assert resumed.points("val_loss") == whole.points("val_loss")

    # A penalty of frozen weights is in no loss, in an evaluation of a checkpoint neither.
    assert here("evaluate", str(whole.rundir.path), "checkpoint=all") == 0
    found = {e["step"]: e["metrics"]["loss"] for e in evaluations.read(whole.rundir)}
    assert found == whole.points("val_loss")

    for words, problem in (
        (("init.weights=other",), "init.weights=other: would change the numbers of a run"),
        (("finetune.freeze=[a]",), "would change the numbers of a run that is resumed (finetune)"),
    ):
        refused = dtrain(f"resume={half.rundir.path}", *words)
        assert refused.code == 2 and problem in refused.output, refused.output


def _kernel(path: Path) -> np.ndarray:
    from dtrain.run import checkpoint

    return checkpoint.load(path).arrays["model/dense/kernel"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("init.weights=nothing",), "init.weights=nothing: is not there; accepted: a run folder"),
        (('init.rules=[{path: "a", skip: true}]',), "are of init.weights, which is null"),
    ],
)
def test_refused_before_anything_is_started(words, problem: str, dtrain) -> None:
    refused = dtrain(*QUICK, *words)
    assert (refused.code, refused.rundir) == (2, None)
    assert problem in refused.output
