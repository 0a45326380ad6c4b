"""A run that changes its number of replicas and its strategy in mid-epoch: the same numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.sampled import sampled

EXAMPLES = 120
USER = '''
import json
import os
import pathlib
import signal

import keras
import numpy as np
from keras import ops

from dtrain.data.sources import Arrays, Splits

EXAMPLES = 120


def data():
    """Images whose label is their index: the loss takes it modulo 4."""
    generator = np.random.default_rng(0)
    index = np.arange(EXAMPLES)
    x = generator.standard_normal((EXAMPLES, 8, 8, 1)).astype(np.float32)
    x += (index % 4 - 1.5).reshape(-1, 1, 1, 1).astype(np.float32) / 4
    source = Arrays(x, index.astype(np.int32))
    return Splits(source, Arrays(x[:30], index[:30].astype(np.int32)), 4)


def loss(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true % 4, y_pred)


@keras.saving.register_keras_serializable()
class Seen(keras.metrics.Metric):
    """Which examples there were: one value for each, how often it was there."""

    def __init__(self, name="seen", **kwargs):
        super().__init__(name=name, **kwargs)
        self.count = self.add_variable((EXAMPLES,), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        index = ops.cast(ops.reshape(y_true, [-1]), "int32")
        self.count.assign(self.count + ops.sum(ops.one_hot(index, EXAMPLES), 0))

    def result(self):
        return {f"seen_{i}": self.count[i] for i in range(EXAMPLES)}


class StopAt(keras.callbacks.Callback):
    """Asks its task to stop, as a scheduler does, after the step that ``stop`` names."""

    def on_train_batch_end(self, batch, logs=None):
        stop = pathlib.Path("stop")
        if stop.exists() and self.params["steps"]:
            self._seen = getattr(self, "_seen", 0) + 1  # not saved: steps of this life
            if self._seen == int(stop.read_text()):
                os.kill(os.getpid(), signal.SIGTERM)
'''
BASE = (
    "tracking=none",
    "model=cnn",
    "model.filters=[4]",
    "model.units=8",
    "model.dropout=0.3",
    "dataset=custom",
    "dataset._target_=mine.data",
    "+dataset.augment={_target_:dtrain.augment.shift_flip,pixels:1,flip:true}",
    "trainer.batch_size=24",
    "trainer.epochs=4",
    "trainer.log_every_steps=1",
    "trainer.loss={_target_:mine.loss}",
    "trainer.metrics=[{_target_:mine.Seen}]",
    "trainer.callbacks=[{_target_:mine.StopAt}]",
    "objective=val_loss",
    "objective_mode=min",
    "checkpoint.every_epochs=null",
    "launcher.stall_timeout=120",
)
ONE = ("strategy=one_device",)
MIRRORED_2 = ("strategy=mirrored", "hardware.devices=2")
MIRRORED_4 = ("strategy=mirrored", "hardware.devices=4")
HOSTS_3 = ("strategy=multiworker", "hardware.hosts=3", "hardware.devices=null")
HYBRID = ("strategy=hybrid", "hardware.hosts=null", "hardware.devices=4")
MODEL_PARALLEL = ("strategy=model_parallel", "hardware.devices=2")
PS = ("strategy=ps", "strategy.update=sync", "strategy.workers=2", "hardware.hosts=null",
      "hardware.devices=null")  # fmt: skip
LAYERS = ("strategy=layer_placement", "hardware.devices=2")
CHAINS = {
    "1 to 2 to 4 to 1": (ONE, MIRRORED_2, MIRRORED_4, ONE),
    "mirrored to 3 hosts to ps to one_device": (MIRRORED_2, HOSTS_3, PS, ONE),
    "one_device to layer_placement to one_device to mirrored": (ONE, LAYERS, ONE, MIRRORED_2),
}
ON_JAX = {
    "hybrid to mirrored to hybrid to model_parallel": (HYBRID, MIRRORED_2, HYBRID, MODEL_PARALLEL),
    "hybrid to one_device": (HYBRID, ONE),
}


def order(run: Run) -> dict[int, list[int]]:
    """Return the examples of each step."""
    return {
        e["step"]: [i for i in range(EXAMPLES) for _ in range(round(e["metrics"][f"seen_{i}"]))]
        for e in run.events("metrics")
        if "seen_0" in e["metrics"]
    }


@pytest.mark.parametrize("chain", sampled({**CHAINS, **ON_JAX}))
def test_another_number_of_replicas_in_mid_epoch(
    chain: str, dtrain, on_jax, user_code, tmp_path: Path
) -> None:
    user_code(USER)
    arguments: tuple[str, ...] = BASE
    if chain in ON_JAX:
        dtrain, arguments = on_jax, (*BASE, "backend=jax")
    whole = dtrain(*arguments, *ONE)
    assert whole.code == 0, whole.output + whole.log
    # Steps until the stop: at steps 3, 7 and 12 of epochs of 5 steps.
    strategies = {**CHAINS, **ON_JAX}[chain]
    stops = [*[3, 4, 5][: len(strategies) - 1], None]
    for overrides, steps in zip(strategies, stops, strict=True):
        Path("stop").unlink(missing_ok=True)
        if steps is not None:
            Path("stop").write_text(str(steps))
        run = dtrain(*arguments, *overrides)
        assert run.code == (0 if steps is None else 75), run.output + run.log
        arguments = (f"resume={run.rundir.path}",)
    assert [e["step"] for e in run.events("start")] == [0, 3, 7, 12][: len(stops)]
    assert len({json.dumps(e["replicas"]) for e in run.events("start")}) >= 2

    expected, found = order(whole), order(run)
    assert list(expected) == list(range(1, 21))
    assert found == expected
    for epoch in range(4):
        seen = [index for step in range(1, 6) for index in found[5 * epoch + step]]
        assert sorted(seen) == list(range(EXAMPLES)), "each example once"
    assert found[1] != found[6], "in another order each time"

    for name in ("loss", "val_loss"):
        points = whole.points(name), run.points(name)
        assert points[0].keys() == points[1].keys()
        for step, value in points[0].items():
            assert math.isclose(points[1][step], value, rel_tol=1e-5), (name, step, points)
    for result in (whole.result, run.result):
        assert (result["examples"], result["epoch_examples"]) == (480, [120] * 4)
