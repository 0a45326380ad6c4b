"""From configuration to processes: a pure function."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dtrain.config.node import Node
from dtrain.data.prepare import check_batch
from dtrain.datasets import Arrays, Splits
from dtrain.errors import UsageError
from dtrain.job.plan import plan, sizes
from dtrain.run import strategy_plan
from dtrain.run.cluster import Cluster, Task
from dtrain.run.devices import Machine, machine
from dtrain.tracking.chosen import make_tracker
from tests.test_schema import CONF, checked, composed, node


class Nothing:
    """Fits no seam."""


#: A machine without GPUs.
PLAIN = Machine(gpus=0, cores=8)


def made(n: int, held: int = 7) -> Splits:
    def part(size: int) -> Arrays:
        return Arrays(np.zeros((size, 2), np.float32), np.zeros(size, np.int64))

    return Splits(part(n), part(held), 2)


def planned(*overrides: str, on: Machine = PLAIN, splits: Splits | None = None) -> Any:
    checked(node(*overrides))
    config = composed(*overrides)
    return plan(config, splits, on)


@pytest.mark.parametrize(
    ("overrides", "gpus", "kind", "devices", "replicas"),
    [
        ([], 0, "cpu", 1, 1),
        (["strategy=one_device", "hardware.devices=3"], 0, "cpu", 3, 1),
        (["strategy=mirrored"], 0, "cpu", 2, 2),
        (["strategy=mirrored"], 4, "gpu", 4, 4),
        (["strategy=mirrored", "hardware=cpu"], 4, "cpu", 2, 2),
        (["strategy=mirrored", "hardware.devices=8"], 0, "cpu", 8, 8),
        (["strategy=central_storage", "hardware=gpu", "hardware.devices=1"], 2, "gpu", 1, 1),
        (["strategy=default"], 2, "gpu", 1, 1),
        (["strategy=layer_placement"], 0, "cpu", 2, 1),
        (["strategy=layer_placement", "hardware.devices=3"], 0, "cpu", 3, 1),
        (["strategy=layer_placement"], 4, "gpu", 4, 1),
        (["strategy=tpu"], 0, "tpu", 8, 8),
        (["strategy=tpu", "hardware=tpu", "hardware.devices=4"], 2, "tpu", 4, 4),
        (["strategy=model_parallel"], 0, "cpu", 2, 1),
        (["strategy=model_parallel", "hardware.devices=4"], 0, "cpu", 4, 1),
        (["strategy=model_parallel"], 4, "gpu", 4, 1),
        (["strategy=hybrid"], 0, "cpu", 4, 2),
        (["strategy=hybrid", "strategy.mesh.model=4"], 0, "cpu", 8, 2),
        (["strategy=hybrid", "strategy.mesh.model=null", "strategy.mesh.batch=4"], 0, "cpu", 8, 4),
        (["strategy=hybrid", "hardware.devices=8"], 0, "cpu", 8, 4),
        (["strategy=hybrid"], 8, "gpu", 8, 4),
        (["strategy=hybrid", "strategy.mesh.batch=2"], 4, "gpu", 4, 2),
    ],
)
def test_devices_and_replicas(
    overrides: list[str], gpus: int, kind: str, devices: int, replicas: int
) -> None:
    found = planned(*overrides, on=Machine(gpus, cores=8))
    [task] = found.cluster.tasks
    assert (found.cluster.device_kind, task.devices, found.cluster.replicas) == (
        kind, devices, replicas,
    )  # fmt: skip
    threads = 1 if kind == "cpu" and replicas == 8 else None  # each core has a replica
    assert (task.threads, task.serves, task.address) == (threads, False, None)
    assert found.steps_per_epoch is None


def test_a_mesh_must_multiply_out() -> None:
    def refused(*overrides: str, gpus: int = 0) -> str:
        with pytest.raises(UsageError) as error:
            planned("strategy=hybrid", *overrides, on=Machine(gpus, 8))
        return str(error.value)

    assert refused("hardware.devices=3") == (
        "strategy.mesh={batch: null, model: 2}: does not multiply out to the 3 devices of the run; "
        "accepted: batch x model = devices, null for the rest; type: hardware.devices=2"
    )
    more = refused("strategy.mesh.batch=2", "hardware.devices=8")
    assert "{batch: 2, model: 2}: does not multiply out to the 8 devices" in more
    assert "the 3 devices of the run" in refused(gpus=3)


def test_too_many_gpus() -> None:
    with pytest.raises(UsageError, match=r"hardware.devices=4.*2 GPUs.*hardware.devices=2"):
        planned("hardware=gpu", "hardware.devices=4", on=Machine(2, 8))


def test_steps_of_an_epoch() -> None:
    found = planned("trainer.batch_size=10", splits=made(105))
    assert (found.train_examples, found.validation_examples) == (105, 7)
    assert found.steps_per_epoch == 10
    assert planned("trainer.steps_per_epoch=3", splits=made(105)).steps_per_epoch == 3


def test_environment_follows_the_configuration() -> None:
    def of(*overrides: str) -> Any:
        return planned(*overrides).cluster.environment

    assert of()["TF_ENABLE_ONEDNN_OPTS"] == "1"
    assert of("hardware.onednn=false")["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert of()["KERAS_BACKEND"] == "tensorflow"


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtrain.run.devices.count_gpus", lambda: 3)
    assert machine().gpus == 3


def test_cores_are_those_that_we_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert machine().cores == 3


def test_sizes_of_shipped_and_own_datasets() -> None:
    splits = sizes(composed())
    assert splits is not None
    assert (len(splits.train), len(splits.validation)) == (1438, 359)
    assert isinstance(splits.train, range), "the numbers of examples, not the examples"
    own = composed("dataset=custom", "dataset._target_=mine.load")
    assert sizes(own) is None  # only the task calls a user's function


MULTIWORKER = "strategy=multiworker"
PS = "strategy=ps"


@pytest.mark.parametrize(
    ("overrides", "on", "kind", "devices", "replicas", "threads"),
    [
        # (task names are checked below) two hosts where the number is not given
        ([], PLAIN, "cpu", [1, 1], 2, 4),
        (["hardware.hosts=1"], PLAIN, "cpu", [1], 1, None),
        (["hardware.hosts=3", "hardware.devices=2"], PLAIN, "cpu", [2, 2, 2], 6, 2),
        # a machine of its own for each: nothing is divided
        (["hardware.hosts=3"], Machine(0, 8, shared=False), "cpu", [1, 1, 1], 3, None),
        (["hardware.hosts=3"], Machine(0, 2), "cpu", [1, 1, 1], 3, 1),
        (["hardware.intra_op_threads=5"], PLAIN, "cpu", [1, 1], 2, 5),
        ([], Machine(4, 8), "gpu", [2, 2], 4, None),
        (["hardware.hosts=3"], Machine(4, 8), "gpu", [1, 1, 1], 3, None),
        (["hardware.devices=1"], Machine(4, 8), "gpu", [1, 1], 2, None),
        (["hardware.hosts=3"], Machine(4, 8, shared=False), "gpu", [4, 4, 4], 12, None),
        (["hardware=cpu"], Machine(4, 8), "cpu", [1, 1], 2, 4),
    ],
)
def test_hosts(
    overrides: list[str], on: Machine, kind: str, devices: list[int], replicas: int, threads: int
) -> None:
    cluster = planned(MULTIWORKER, "trainer.batch_size=96", *overrides, on=on).cluster
    assert (cluster.device_kind, cluster.replicas) == (kind, replicas)
    assert [task.devices for task in cluster.tasks] == devices
    names = ["chief-0", *(f"worker-{index}" for index in range(len(devices) - 1))]
    assert [task.name for task in cluster.tasks] == names
    for task in cluster.tasks:
        assert (task.threads, task.serves, task.replaceable) == (threads, False, False)


@pytest.mark.parametrize(
    ("overrides", "on", "cores"),
    [
        ([], Machine(0, 2), [(0,), (1,)]),
        ([], Machine(0, 5), [(0, 1), (2, 3)]),
        (["hardware.intra_op_threads=1"], Machine(0, 4), [(0, 1), (2, 3)]),
        (["hardware.intra_op_threads=4"], Machine(0, 4), [(), ()]),
        (["hardware.hosts=3"], Machine(0, 2), [(), (), ()]),
        ([], Machine(0, 8, shared=False), [(), ()]),
        ([], Machine(2, 8), [(), ()]),
    ],
)
def test_each_task_has_cores_of_its_own(
    overrides: list[str], on: Machine, cores: list[tuple[int, ...]]
) -> None:
    """Where there are enough of them for its threads."""
    cluster = planned(MULTIWORKER, "trainer.batch_size=96", *overrides, on=on).cluster
    assert [task.cores for task in cluster.tasks] == cores


#: What one of four commands has of its host, as torchrun starts them.
COMMAND = Machine(0, 8, shared=False, hosts=4, one_task=True)


@pytest.mark.parametrize(
    ("overrides", "on", "devices", "cores"),
    [
        (["strategy=one_device"], Machine(4, 8), [0], []),
        (["strategy=one_device", "hardware.devices=2"], PLAIN, [0], []),
        (["strategy=mirrored"], PLAIN, [0, 1], [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (["strategy=mirrored"], Machine(4, 8), [0, 1, 2, 3], []),
        ([MULTIWORKER], PLAIN, [0, 0], [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ([MULTIWORKER], Machine(4, 8), [0, 1, 0, 1], []),
        ([MULTIWORKER], Machine(4, 8, shared=False), [0, 1, 2, 3] * 2, []),
        (["strategy=fsdp", "hardware.hosts=2", "hardware.devices=2"], PLAIN, [0, 1, 0, 1],
         [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (["strategy=mirrored"], COMMAND, [0, 1, 2, 3], []),
        ([MULTIWORKER], COMMAND, [0, 0, 0, 0], []),
        ([MULTIWORKER, "hardware.devices=2"], COMMAND, [0, 1, 0, 1], []),
        ([MULTIWORKER, "hardware.hosts=2"], dataclasses.replace(COMMAND, gpus=1), [0, 1, 0, 1], []),
    ],
)  # fmt: skip
def test_a_process_for_each_device(
    overrides: list[str], on: Machine, devices: list[int], cores: list[tuple[int, ...]]
) -> None:
    """So PyTorch computes, on any number of hosts: hosts in order, and the devices of each."""
    cluster = planned("backend=torch", *overrides, on=on).cluster
    assert [task.device for task in cluster.tasks] == devices
    assert cluster.replicas == len(devices) == sum(task.devices for task in cluster.tasks)
    assert [task.cores for task in cluster.tasks] == (cores or [()] * len(devices))
    assert [task.role for task in cluster.tasks] == ["chief"] + ["worker"] * (len(devices) - 1)
    assert Cluster.from_json(cluster.to_json()) == cluster


@pytest.mark.parametrize(
    ("overrides", "on", "message"),
    [
        (["strategy=mirrored", "hardware.devices=200", "trainer.batch_size=200"], PLAIN,
         "hardware.devices=200: is more processes than this machine of 8 cores can serve"),
        ([MULTIWORKER], dataclasses.replace(COMMAND, gpus=4), "hardware=gpu: this command has 4 "
         "GPUs, and a process of PyTorch has one"),
        ([MULTIWORKER, "hardware=gpu"], COMMAND, "this command has 0 GPUs"),
    ],
)  # fmt: skip
def test_processes_that_there_cannot_be(overrides: list[str], on: Machine, message: str) -> None:
    with pytest.raises(UsageError) as error:
        planned("backend=torch", *overrides, on=on)
    assert message in str(error.value)


def test_parameter_servers() -> None:
    cluster = planned(PS, "strategy.workers=3", "strategy.servers=2").cluster
    assert cluster.tasks == (
        Task("chief", 0, 0),
        *(
            Task("worker", i, 1, serves=True, replaceable=True, threads=2, cores=(2 * i, 2 * i + 1))
            for i in range(3)
        ),
        *(Task("ps", i, 0, serves=True) for i in range(2)),
    )
    assert (cluster.device_kind, cluster.replicas) == ("cpu", 1)
    assert cluster.chief == cluster.tasks[0]

    alone = planned(PS, "strategy.workers=1", on=Machine(0, 8)).cluster
    assert [(t.name, t.threads) for t in alone.tasks] == [
        ("chief-0", None), ("worker-0", None), ("ps-0", None),
    ]  # fmt: skip

    # Each worker of `sync` has a part of the global batch, those that are dropped too.
    sync = planned(PS, "strategy.update=sync", "strategy.workers=4", "strategy.backup_workers=1")
    assert sync.cluster.replicas == 4

    gpus = planned(PS, on=Machine(2, 8)).cluster
    assert [(t.name, t.devices, t.threads) for t in gpus.tasks] == [
        ("chief-0", 0, None), ("worker-0", 1, None), ("worker-1", 1, None), ("ps-0", 0, None),
    ]  # fmt: skip
    # On machines of their own, the workers need not share.
    assert planned(PS, "strategy.workers=9", on=Machine(1, 8, shared=False)).cluster


#: overrides, what the plan is made for, and parts of the message: key=value, why, what to type
REFUSED: list[tuple[list[str], Machine, int | None, tuple[str, str, str]]] = [
    (["hardware.hosts=2"], PLAIN, None, (
        "hardware.hosts=2", "strategy=default runs no process on each host",
        "strategy=multiworker")),
    ([PS, "hardware.hosts=4"], PLAIN, None, (
        "hardware.hosts=4", "strategy=ps runs no process on each host",
        "strategy=multiworker")),
    (["hardware=gpu"], PLAIN, None, (
        "hardware=gpu", "this machine has no GPU", "hardware=cpu")),
    ([MULTIWORKER, "hardware.devices=2"], Machine(3, 8), None, (
        "hardware.devices=2", "this machine has 3 GPUs, which 2 tasks share",
        "hardware.devices=1")),
    ([MULTIWORKER, "hardware.hosts=4"], Machine(2, 8), None, (
        "hardware.devices=1", "this machine has 2 GPUs, which 4 tasks share", "hardware=cpu")),
    ([PS, "strategy.workers=3"], Machine(2, 8), None, (
        "hardware.devices=1", "this machine has 2 GPUs, which 3 tasks share", "hardware=cpu")),
    ([PS, "strategy.update=sync", "strategy.max_staleness=2"], PLAIN, None, (
        "strategy.max_staleness=2", "never stale", "strategy.update=async")),
    ([PS, "strategy.backup_workers=1"], PLAIN, None, (
        "strategy.backup_workers=1", "asynchronous updates do not wait",
        "strategy.update=sync")),
    ([PS, "strategy.update=sync", "strategy.backup_workers=2"], PLAIN, None, (
        "strategy.backup_workers=2", "would drop the gradients of all 2 workers",
        "strategy.backup_workers=1")),
    (["strategy=mirrored", "hardware.jit_compile=true"], PLAIN, None, (
        "hardware.jit_compile=true", "XLA cannot compile a step of strategy=mirrored",
        "hardware.jit_compile=false")),
    ([PS, "hardware.jit_compile=true"], PLAIN, None, (
        "hardware.jit_compile=true", "XLA cannot compile a step of strategy=ps",
        "hardware.jit_compile=false")),
    ([PS, "optimizer.gradient_accumulation_steps=4"], PLAIN, None, (
        "optimizer.gradient_accumulation_steps=4", "asynchronous workers would add their gradients",
        "strategy.update=sync")),
    ([MULTIWORKER, "hardware.hosts=3", "trainer.batch_size=64"], PLAIN, None, (
        "trainer.batch_size=64", "3 replicas cannot share it evenly", "trainer.batch_size=66")),
    ([PS, "strategy.update=sync", "strategy.workers=3", "trainer.batch_size=2"], PLAIN, None, (
        "trainer.batch_size=2", "3 replicas cannot share it evenly", "trainer.batch_size=3")),
    ([MULTIWORKER, "hardware.hosts=3", "trainer.batch_size=96"], PLAIN, 50, (
        "trainer.batch_size=96", "the dataset has 50 training examples",
        "trainer.batch_size=48")),
    (["trainer.epochs=0"], PLAIN, None, (
        "trainer.epochs=0", "must be at least 1", "trainer.epochs=25")),
    ([MULTIWORKER, "hardware.hosts=0"], PLAIN, None, (
        "hardware.hosts=0", "must be at least 1", "hardware.hosts=null")),
    ([PS, "strategy.workers=0"], PLAIN, None, (
        "strategy.workers=0", "must be at least 1", "strategy.workers=2")),
    ([PS, "strategy.servers=0"], PLAIN, None, (
        "strategy.servers=0", "must be at least 1", "strategy.servers=1")),
    ([PS, "strategy.max_staleness=-1"], PLAIN, None, (
        "strategy.max_staleness=-1", "must be at least 0", "strategy.max_staleness=null")),
    ([PS, "strategy.backup_workers=-1"], PLAIN, None, (
        "strategy.backup_workers=-1", "must be at least 0", "strategy.backup_workers=0")),
    (["launcher.start_timeout=0"], PLAIN, None, (
        "launcher.start_timeout=0", "must be at least 1", "launcher.start_timeout=null")),
    (["launcher.stall_timeout=0"], PLAIN, None, (
        "launcher.stall_timeout=0", "must be at least 1", "launcher.stall_timeout=1800.0")),
    (["launcher.max_restarts=-1"], PLAIN, None, (
        "launcher.max_restarts=-1", "must be at least 0", "launcher.max_restarts=0")),
    (["seed=2147483648"], PLAIN, None, ("seed=2147483648", "must be at most 2147483647", "seed=0")),
    (["optimizer.learning_rate=0"], PLAIN, None, (
        "optimizer.learning_rate=0", "must be above 0", "optimizer.learning_rate=0.001")),
    (["tracking.profile_steps=[5,5]"], PLAIN, None, (
        "tracking.profile_steps=[5,5]", "is not a first and a later last step",
        "tracking.profile_steps=null")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "on", "examples", "parts"), REFUSED, ids=[r[3][0] for r in REFUSED]
)
def test_what_does_not_go_together(
    overrides: list[str], on: Machine, examples: int | None, parts: tuple[str, str, str]
) -> None:
    splits = None if examples is None else made(examples)
    with pytest.raises(UsageError) as caught:
        planned(*overrides, on=on, splits=splits)
    given, why, hint = parts
    message = str(caught.value)
    assert message.startswith(f"{given}: ")
    assert why in message
    assert re.split("; (?:type|hint): ", message)[1].strip("'") == hint
    # What it says to type goes.
    key = hint.partition("=")[0]
    others = [override for override in overrides if override.partition("=")[0] != key]
    if key == "hardware":  # a group is chosen before its keys
        others = [override for override in others if override != "hardware=gpu"]
    assert planned(*others, hint, on=on, splits=splits)


def test_a_worker_of_parameter_servers_has_one_device() -> None:
    with pytest.raises(UsageError) as caught:
        planned(PS, "strategy.workers=3", "hardware.devices=2")
    assert caught.value.key == "hardware.devices"
    assert "computes on one device" in str(caught.value)
    assert "strategy.workers=6" in str(caught.value)


def test_a_value_that_was_left_open() -> None:
    with pytest.raises(UsageError, match=r"dataset.path: has no value yet.*path=VALUE"):
        planned("dataset=csv")


def test_a_validation_of_some_batches() -> None:
    size, steps = "trainer.validation_batch_size=3", "trainer.validation_steps=2"
    assert planned(size, splits=made(100)).validation_examples == 7
    assert planned(size, steps, splits=made(100)).validation_examples == 6
    assert planned(size, "trainer.validation_steps=3", splits=made(100)).validation_examples == 7
    assert planned("trainer.validation_steps=1", splits=made(100)).validation_examples == 7
    for words, told in (
        ([size, "trainer.validation_steps=4"], "7 validation examples are 3 batches of 3"),
        ([steps], "7 validation examples are 1 batches of 64; accepted: up to 1"),
    ):
        with pytest.raises(UsageError, match=told):
            planned(*words, splits=made(100))
    with pytest.raises(UsageError, match="null, or a validation dataset"):
        planned(steps, splits=made(100, 0))
    with pytest.raises(UsageError, match="8 cores of a TPU cannot share it evenly"):
        planned("strategy=tpu", "trainer.validation_batch_size=12", splits=made(100))
    assert planned("strategy=mirrored", size, splits=made(100)).cluster.replicas == 2


@pytest.mark.parametrize(
    "given",
    ["3", "[1,2]", "{}", "{a:1}", "{-1:1}", "{true:1}", "{0:-1}", "{0:x}", "{0:nan}", "{0:null}",
     "{0:{1:2}}"],
)  # fmt: skip
def test_weights_of_classes_have_a_form(given: str) -> None:
    with pytest.raises(UsageError, match=r"^trainer\.class_weight"):
        checked(node(f"trainer.class_weight={given}"))
    checked(node("trainer.class_weight={0:1,5:0.0}"))


def test_plans_are_read_without_tensorflow() -> None:
    targets = [composed(f"strategy={path.stem}").strategy.plan["_target_"]
               for path in (CONF / "strategy").glob("*.yaml")]  # fmt: skip
    modules = sorted({target.rpartition(".")[0] for target in targets})
    code = f"import sys, {', '.join(modules)}; sys.exit('tensorflow' in sys.modules)"
    assert modules
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("key", "make"), [("strategy.plan", strategy_plan.of), ("tracking", make_tracker)]
)
def test_a_class_that_does_not_fit_its_seam(
    key: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tests")
    config = composed(f"{key}._target_=tests.test_plan.Nothing")
    problem = rf"{key}\._target_=tests\.test_plan\.Nothing: (makes|is) no"
    with pytest.raises(UsageError, match=problem):
        make(config)


@pytest.mark.parametrize("examples", [0, 1, 2, 3, 10, 64, 1000])
@pytest.mark.parametrize(("batch", "replicas"), [(64, 1), (64, 2), (1, 2), (65, 2), (3, 4), (8, 3)])
def test_what_is_said_of_a_batch_holds_when_it_is_typed(
    batch: int, replicas: int, examples: int
) -> None:
    try:
        check_batch(batch, replicas, examples)
    except UsageError as error:
        typed = re.search(r"(strategy=one_device )?trainer.batch_size=(\d+)$", str(error))
        assert bool(typed) == bool(examples), error
        if typed is not None:
            check_batch(int(typed[2]), 1 if typed[1] else replicas, examples)
    else:
        assert examples >= batch and batch % replicas == 0


def test_a_run_of_a_version_without_plans_is_refused() -> None:
    config = composed("strategy=mirrored")
    values = {key: value for key, value in config.strategy.items() if key != "plan"}
    config = config.replaced(strategy=Node(values))
    with pytest.raises(UsageError, match=r"^strategy\.plan"):
        strategy_plan.of(config)
