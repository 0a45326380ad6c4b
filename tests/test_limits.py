"""What a machine can hold."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.errors import UsageError
from dtrain.host import usage
from dtrain.job.plan import plan
from dtrain.run.devices import DEVICES, PROCESSES, THREADS, Machine, check_synthetic
from tests.test_schema import composed

SMALL, LARGE = Machine(gpus=0, cores=2), Machine(gpus=0, cores=256)
BATCH = "trainer.batch_size=1000000"


@pytest.mark.parametrize(
    ("words", "key", "limit"),
    [
        ((), "hardware.intra_op_threads", THREADS),
        ((), "hardware.inter_op_threads", THREADS),
        (("strategy=one_device",), "hardware.devices", DEVICES),
        (("strategy=multiworker", BATCH), "hardware.hosts", PROCESSES),
    ],
)
def test_as_many_as_the_cores_can_serve(
    words: tuple[str, ...], key: str, limit: tuple[int, int]
) -> None:
    for machine in (SMALL, LARGE):
        most = max(limit[0] * machine.cores, limit[1])
        for count, taken in ((most, True), (most + 1, False)):
            config = composed(*words, f"{key}={count}", f"trainer.batch_size={count}")
            if taken:
                plan(config, None, machine)
                continue
            with pytest.raises(UsageError, match=f"^{key}={count}: .* of {machine.cores} cores"):
                plan(config, None, machine)


@pytest.mark.parametrize("key", ["strategy.workers", "strategy.servers"])
def test_parameter_servers_are_processes(key: str) -> None:
    with pytest.raises(UsageError, match=f"^{key}="):
        plan(composed("strategy=ps", f"{key}=40"), None, SMALL)


def test_machines_of_their_own_share_nothing() -> None:
    config = composed("strategy=multiworker", "hardware.hosts=1000", BATCH)
    assert plan(config, None, Machine(0, 2, shared=False)).cluster.replicas == 1000
    with pytest.raises(UsageError, match=r"^hardware\.hosts=1000"):
        plan(config, None, SMALL)


@pytest.mark.parametrize(
    ("node", "key"),
    [
        ({"examples": 1000}, None),
        ({"examples": 10_000_000}, "examples"),
        ({"shape": [4096, 4096]}, "shape"),
        ({"shape": [8], "examples": 1, "validation_examples": 10**9}, "examples"),
        ({"shape": [1000], "examples": 1, "validation_examples": 0, "classes": 10**7}, "examples"),
    ],
)
def test_examples_fit_into_the_memory(
    node: dict[str, Any], key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "available", lambda: 2**30)
    if key is None:
        check_synthetic(node)
        return
    with pytest.raises(UsageError, match=rf"^dataset\.{key}=.* 1\.0 GiB are free"):
        check_synthetic(node)


def test_lengths_that_no_position_counts() -> None:
    words = ["trainer.epochs=1000000000", "trainer.steps_per_epoch=1000000000"]
    with pytest.raises(UsageError, match=r"^trainer\.epochs=1000000000: makes a run of"):
        plan(composed(*words), None, SMALL)
