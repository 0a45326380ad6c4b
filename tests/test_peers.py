"""Losses beside those of Lightning's ``Trainer`` on the same batches (``make test-peers``)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dtrain.data.order import Shuffled

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="make test-peers"),
]

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "DTRAIN_TRUST": "tests"}
EXAMPLES, BATCH, STEPS, CLOSE = 100, 16, 12, 1e-6
#: Modules, with the optimizers that train them.
MODELS: dict[str, tuple[str, dict[str, float]]] = {
    "perceptron": ("SGD", {"lr": 0.05, "momentum": 0.9}),
    "convolutions": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "Recurrent": ("RMSprop", {"lr": 0.01}),
}


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_lightning(name: str, tmp_path: Path) -> None:
    theirs = of_lightning(name, tmp_path)  # ORDER: it saves the weights that both begin with
    ours = of_dtrain(name, tmp_path)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=CLOSE)
    assert ours[-1] < ours[0]


def of_dtrain(name: str, folder: Path) -> list[float]:
    """Train by a command; return the losses of its steps."""
    kind, arguments = MODELS[name]
    values = {"learning_rate": arguments["lr"], **arguments}
    del values["lr"]
    subprocess.run(
        [sys.executable, "-m", "dtrain", "backend=torch", "strategy=one_device", "model=custom",
         f"model._target_=tests.peer_models.{name}", "dataset=custom",
         "dataset._target_=tests.peer_models.data", "init.weights=begun.safetensors",
         "optimizer=custom", f"optimizer._target_=torch.optim.{kind}",
         *(f"++optimizer.{key}={value}" for key, value in values.items()),
         "trainer.loss=torch.nn.CrossEntropyLoss", f"trainer.batch_size={BATCH}",
         f"trainer.steps_per_epoch={STEPS}", "trainer.epochs=1", "trainer.log_every_steps=1",
         "tracking=none", "hydra.run.dir=run"],
        check=True, cwd=folder, env=ENVIRONMENT,
    )  # fmt: skip
    events = map(json.loads, (folder / "run" / "journal.jsonl").read_text().splitlines())
    points = [e for e in events if e["event"] == "metrics" and e["kind"] == "interval"]
    return [point["metrics"]["loss"] for point in points]


def of_lightning(name: str, folder: Path) -> list[float]:
    """Train on the batches that dtrain has had; return the losses of the steps."""
    rows = Shuffled(EXAMPLES, 0)(np.arange(STEPS * BATCH)).reshape(STEPS, BATCH)
    order = json.dumps([name, *MODELS[name], rows.tolist()])
    run = [sys.executable, "-m", "tests.peer_models", order]
    output = subprocess.run(run, check=True, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE)
    losses: list[float] = json.loads(output.stdout.splitlines()[-1])
    return losses
