"""From configuration to processes: a pure function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dtrain.controller.plan import gpus, plan, sizes
from dtrain.datasets import Arrays, Splits
from dtrain.errors import UsageError
from tests.test_schema import composed


def made(n: int, held: int = 7) -> Splits:
    def part(size: int) -> Arrays:
        return Arrays(np.zeros((size, 2), np.float32), np.zeros(size, np.int64))

    return Splits(part(n), part(held), 2)


@pytest.mark.parametrize(
    ("overrides", "machine", "kind", "devices", "replicas"),
    [
        ([], 0, "cpu", 1, 1),
        (["strategy=one_device", "hardware.devices=3"], 0, "cpu", 3, 1),
        (["strategy=mirrored"], 0, "cpu", 2, 2),
        (["strategy=mirrored"], 4, "gpu", 4, 4),
        (["strategy=mirrored", "hardware=cpu"], 4, "cpu", 2, 2),
        (["strategy=mirrored", "hardware.devices=8"], 0, "cpu", 8, 8),
        (["strategy=central_storage", "hardware=gpu", "hardware.devices=1"], 2, "gpu", 1, 1),
        (["strategy=default"], 2, "gpu", 1, 1),
    ],
)
def test_devices_and_replicas(
    overrides: list[str], machine: int, kind: str, devices: int, replicas: int
) -> None:
    planned = plan(composed(*overrides), None, machine)
    [task] = planned.cluster.tasks
    assert (planned.cluster.device_kind, task.devices, planned.cluster.replicas) == (
        kind, devices, replicas,
    )  # fmt: skip
    assert planned.steps_per_epoch is None


def test_too_many_gpus() -> None:
    with pytest.raises(UsageError, match=r"hardware.devices=4.*2 GPUs.*hardware.devices=2"):
        plan(composed("hardware=gpu", "hardware.devices=4"), None, 2)


def test_steps_of_an_epoch() -> None:
    planned = plan(composed("trainer.batch_size=10"), made(105), 0)
    assert (planned.train_examples, planned.validation_examples) == (105, 7)
    assert planned.steps_per_epoch == 10
    assert plan(composed("trainer.steps_per_epoch=3"), made(105), 0).steps_per_epoch == 3


def test_environment_follows_the_configuration() -> None:
    def of(*overrides: str) -> Any:
        return plan(composed(*overrides), None, 0).cluster.environment

    assert of()["TF_ENABLE_ONEDNN_OPTS"] == "1"
    assert of("hardware.onednn=false")["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert of()["KERAS_BACKEND"] == "tensorflow"


def test_gpus_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert gpus() == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus() == 0


def test_sizes_of_shipped_and_own_datasets() -> None:
    splits = sizes(composed())
    assert splits is not None
    assert (len(splits.train), splits.classes) == (1438, 10)
    own = composed("dataset=custom", "dataset._target_=mine.load")
    assert sizes(own) is None  # only the task calls a person's function
