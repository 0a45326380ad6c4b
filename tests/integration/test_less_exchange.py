"""Tasks that exchange less than their gradients: with the same bits when they are resumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dtrain.run import checkpoint
from tests.conftest import QUICK, Run

USER = '''
import os
import signal

import keras


class Nothing(keras.callbacks.Callback):
    pass


class Batches(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


class DieOnce(keras.callbacks.Callback):
    """Kills the chief at the begin of its third epoch, the first time."""

    def on_epoch_begin(self, epoch, logs=None):
        chief = "worker" not in os.environ.get("TF_CONFIG", "").partition("task")[2]
        if epoch == 2 and chief and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
'''
RUN = (*QUICK, "strategy=multiworker", "hardware.hosts=2", "trainer.epochs=4")
DIES = "trainer.callbacks=[{_target_:mine.DieOnce}]"
LIVES = "trainer.callbacks=[{_target_:mine.Nothing}]"


def ends(run: Run) -> dict[str, Any]:
    """Return all arrays of a run's last checkpoint."""
    assert run.code == 0, run.output
    return checkpoint.load(run.rundir.checkpoints / "16").arrays


def same(one: Run, other: Run) -> None:
    """Assert that two runs have the same bits."""
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert one.points(name) == other.points(name) != {}
    found = ends(one), ends(other)
    assert found[0].keys() == found[1].keys()
    for name, array in found[0].items():
        assert np.array_equal(array, found[1][name]), name


@pytest.mark.parametrize("key", ["strategy.compress=bfloat16", "strategy.sync_every=3"])
def test_a_killed_run_ends_with_the_same_bits(key: str, dtrain, user_code) -> None:
    user_code(USER)
    whole = dtrain(*RUN, key, LIVES)
    assert whole.code == 0, whole.output
    assert "hardware.hosts=2: all 2 processes are on this machine; to start" in whole.output
    killed = dtrain(*RUN, key, DIES)
    assert killed.code == 1, killed.output
    assert checkpoint.steps(killed.rundir.checkpoints)[-1] in (4, 8)
    name = key.partition("=")[0]
    plain = "null" if "compress" in name else "1"
    refused = dtrain(f"resume={killed.rundir.path}", f"{name}={plain}")
    assert refused.code == 2 and "would change the numbers" in refused.output
    other = dtrain(f"resume={killed.rundir.path}", "strategy=one_device")
    assert other.code == 2, other.output
    assert f"strategy=one_device: would change the numbers of a run that is resumed ({name})" in (
        other.output
    )
    same(whole, dtrain(f"resume={killed.rundir.path}"))


def test_gradients_in_fewer_bytes_train_as_well(dtrain) -> None:
    exact = dtrain(*RUN)
    expected = exact.points("loss")
    compressed = dtrain(*RUN, "strategy.compress=bfloat16").points("loss")
    assert expected != compressed and expected.keys() == compressed.keys()
    np.testing.assert_allclose([*compressed.values()], [*expected.values()], rtol=0.02)


def test_averages_train_as_well(dtrain, user_code) -> None:
    user_code(USER)
    exact, found = dtrain(*RUN), dtrain(*RUN, "strategy.sync_every=2")
    assert ends(exact).keys() == ends(found).keys()
    expected, losses = exact.points("loss"), found.points("loss")
    assert expected != losses and expected.keys() == losses.keys()
    np.testing.assert_allclose([*losses.values()], [*expected.values()], rtol=0.1)
    assert found.result["examples"] == 512
    looks = dtrain(*RUN, "strategy.sync_every=2", "trainer.callbacks=[{_target_:mine.Batches}]")
    assert looks.code == 2, looks.output
    assert "strategy.sync_every=2: a callback of trainer.callbacks is called for each batch" in (
        looks.output
    )
