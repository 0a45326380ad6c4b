"""Whole runs of strategy=tpu: with a stand-in for TensorFlow's part, and without any TPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_parity import BASE, MODEL, MODELS, SHARED_BY_ALL, agree

STAND_IN = '''
import json
import pathlib

import tensorflow as tf

import dtrain.task.strategies
from tests.test_tpu import mirrored, pretend


class TPU(dtrain.task.strategies.TPU):
    """The real one, where TensorFlow's functions find as many CPUs in the place of cores."""

    def __init__(self, devices, tpu, zone, project):
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration() for _ in devices],
        )
        calls = pretend(len(devices), mirrored(len(devices)))
        super().__init__(devices, tpu, zone, project)
        pathlib.Path("calls").write_text(json.dumps(calls))
'''
CASE = (*BASE, SHARED_BY_ALL, *MODELS["regularized"])
ON_IT = ("strategy=tpu", "strategy._target_=standin.TPU", "hardware.devices=4")


@pytest.mark.faults
def test_a_stand_in_gives_the_numbers_of_one_device(dtrain, user_code, monkeypatch) -> None:
    user_code(MODEL)
    user_code(STAND_IN, "standin")
    monkeypatch.setenv("DTRAIN_TRUST", "mine,standin")
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    reference = dtrain(*CASE, "strategy=one_device")
    run = dtrain(*CASE, *ON_IT)
    assert run.code == 0, run.output + run.log
    assert len(run.points("loss")) == 50
    agree(reference, run, ["loss", "accuracy", "val_loss", "val_accuracy"], 1e-5, "tpu")
    # 359 examples: 7 batches of 48, 5 for each of the 4 replicas, and one for 3 of them.
    for key in ("evaluated_examples", "examples", "step"):
        assert run.result[key] == reference.result[key]
    assert (run.result["replicas"], run.result["evaluated_examples"]) == (4, 359)
    assert Path("calls").read_text() == (
        '[["resolver", "local", null, null], ["connect"], ["initialise"], ["strategy"]]'
    )
    # And goes on elsewhere.
    more = dtrain(f"resume={run.rundir.path}", "trainer.epochs=3", "strategy=mirrored")
    assert (more.code, more.result["step"]) == (0, 75), more.output


def test_the_plan_says_that_it_is_untried(dtrain) -> None:
    run = dtrain("strategy=tpu", "hardware=tpu", "hardware.devices=4", "dry_run=true")
    assert run.code == 0, run.output
    lines = [line.strip() for line in run.output.splitlines()]
    assert "replicas             4" in lines
    assert "per-replica batch    16 examples" in lines
    assert "precision            mixed_bfloat16" in lines
    assert "untried              strategy=tpu has not yet run on a TPU" in lines
    assert any("TPU:0, TPU:1, TPU:2, TPU:3" in line for line in lines)
    assert not list(Path().iterdir())
