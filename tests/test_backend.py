"""``backend``: which strategies and keys it has, and what its framework needs before a start."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dtrain.config import schema, targets
from dtrain.config.help import values_of
from dtrain.config.schema import strategies
from dtrain.errors import UsageError
from dtrain.host import forkserver
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.job import early_import, plan
from dtrain.job.early_import import begun, task_environment
from dtrain.run import strategy_plan
from dtrain.run.devices import Machine
from tests.test_plan import composed, planned

JAX = "backend=jax"


def refused(*overrides: str, gpus: int = 0) -> str:
    with pytest.raises(UsageError) as error:
        planned(*overrides, on=Machine(gpus, 8))
    return str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy=ps"], "strategy=ps: is one of TensorFlow, and not of JAX; accepted: "
         "those of docs/backends.md, or backend=tensorflow; type: backend=tensorflow"),
        (["strategy=central_storage"], "strategy=central_storage: is one of TensorFlow"),
        (["strategy=layer_placement"], "strategy=layer_placement: is one of TensorFlow"),
        (["hardware.inter_op_threads=2"], "type: hardware.inter_op_threads=null"),
        (["hardware.onednn=false"], "onednn=false: is for backend=tensorflow and backend=torch: "),
        (["hardware.jit_compile=true"], "type: hardware.jit_compile=false"),
        (["strategy=multiworker", "strategy.communication=ring"], "type: strategy.communication="),
        (["strategy=tpu", "strategy.tpu=null"], "strategy.tpu=null: is for backend=tensorflow"),
        (["strategy=tpu", "strategy.zone=eu"], "type: strategy.zone=null"),
    ],
)  # fmt: skip
def test_what_jax_has_not(overrides: list[str], message: str) -> None:
    planned(*overrides)  # TensorFlow has it
    assert message in refused(JAX, *overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy=ps"], "strategy=ps: is one of TensorFlow, and not of PyTorch"),
        (["strategy=hybrid"], "strategy=hybrid: is one of JAX, and not of PyTorch"),
        (["strategy=model_parallel"], "is one of JAX, and not of PyTorch"),
        (["hardware.jit_compile=true"], "is for backend=tensorflow: PyTorch has torch.compile"),
        (["strategy=multiworker", "strategy.communication=ring"], "type: strategy.communication="),
        (["strategy=fsdp", "strategy.rules=[{path: x, split: 0}]"], "is for backend=jax: fully_sh"),
    ],
)  # fmt: skip
def test_what_torch_has_not(overrides: list[str], message: str) -> None:
    planned(*overrides)  # another backend has it
    assert message in refused("backend=torch", *overrides)


@pytest.mark.parametrize("overrides", [["backend=tensorflow"], [JAX], ["strategy=ps"]])
def test_torch_compiles_models(overrides: list[str]) -> None:
    assert "trainer.compile=true: is for " in refused(*overrides, "trainer.compile=true")
    planned("backend=torch", "trainer.compile=true", "hardware.onednn=false",
            "hardware.inter_op_threads=2")  # fmt: skip


def test_what_tensorflow_has_not() -> None:
    message = refused("strategy=hybrid", "backend=tensorflow")
    assert message.startswith("strategy=hybrid: is one of JAX, and not of TensorFlow")
    assert "is one of JAX and PyTorch" in refused("strategy=fsdp", "backend=tensorflow")
    assert message.endswith("type: backend=jax")
    cluster = planned("strategy=fsdp", "hardware.devices=4").cluster  # it chooses JAX by itself
    assert (cluster.chief.devices, cluster.replicas, len(cluster.tasks)) == (4, 4, 1)
    assert cluster.environment["KERAS_BACKEND"] == "jax"


def test_registries_and_files_of_strategies_agree() -> None:
    having: dict[str, set[str]] = {}
    paths = list((schema.folder("conf") / "strategy").glob("*.yaml"))
    for path in paths:
        config = composed(f"strategy={path.stem}")
        for name in strategies.backends(config.strategy["_target_"]):
            having.setdefault(name, set()).add(config.strategy["_target_"].rpartition(".")[2])
    assert {path.stem for path in paths if composed(f"strategy={path.stem}").backend == "jax"
            } == set(early_import.OF_JAX)  # fmt: skip
    for name in FRAMEWORKS:
        assert set(strategies.registry(name)) - {"Strategy"} == having[name]
    assert set(values_of("backend")) == {*FRAMEWORKS, "auto"}
    assert not {"tensorflow", "jax", "torch"} & sys.modules.keys()


def test_a_framework_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = planned(JAX).cluster
    monkeypatch.setattr(plan, "version", lambda name: None if name == "jaxlib" else "1")
    with pytest.raises(UsageError) as error:
        plan.check_framework(cluster)
    assert str(error.value) == (
        "backend=jax: JAX is not installed; accepted: tensorflow, jax, torch, auto; type: "
        "pip install 'dtrain[jax]'"
    )
    plan.check_framework(planned().cluster)
    monkeypatch.setattr(plan, "version", lambda name: "1")
    on_gpu = planned(JAX, on=Machine(1, 8)).cluster
    with pytest.raises(UsageError, match=r"type: pip install 'jax\[cuda12\]'"):
        plan.check_framework(on_gpu)
    monkeypatch.setattr(plan, "installed", lambda: ({"jax-cuda12-plugin": "1"}, []))
    plan.check_framework(on_gpu)
    torch = [planned("backend=torch", on=Machine(gpus, 8)).cluster for gpus in (0, 1)]
    monkeypatch.setattr(plan, "version", lambda name: "2.13.0+cpu")
    plan.check_framework(torch[0])
    with pytest.raises(UsageError, match=r"hardware=gpu: PyTorch 2.13.0\+cpu is a build for CPUs"):
        plan.check_framework(torch[1])
    monkeypatch.setattr(plan, "version", lambda name: None)
    with pytest.raises(UsageError, match=r"PyTorch is not .* type: pip install 'dtrain\[torch\]'"):
        plan.check_framework(torch[0])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("XLA_FLAGS", "--xla_dump_to=/tmp --xla_force_host_platform_device_count=8",
         "XLA_FLAGS=--xla_force_host_platform_device_count=8: the run has 2 CPU devices "),
        ("XLA_FLAGS", "--xla_dump_to=/tmp --xla_force_host_platform_device_count=2", None),
        ("JAX_NUM_CPU_DEVICES", "8", "type: hardware.devices=8"),
        ("JAX_PLATFORMS", "cuda", "JAX_PLATFORMS=cuda: the run computes on cpu"),
        ("JAX_PLATFORMS", "cuda,cpu", None),
        ("JAX_ENABLE_X64", "True", "JAX_ENABLE_X64=True: types of 64 bits"),
        ("JAX_ENABLE_X64", "0", None),
    ],
)  # fmt: skip
def test_variables_of_the_user(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str | None
) -> None:
    monkeypatch.setattr(plan, "version", lambda name: "1")
    monkeypatch.setenv(name, value)
    cluster = planned(JAX, "strategy=mirrored").cluster
    plan.check_framework(planned("strategy=mirrored").cluster)  # they are not TensorFlow's
    if message is None:
        plan.check_framework(cluster)
        return
    with pytest.raises(UsageError) as error:
        plan.check_framework(cluster)
    assert message in str(error.value)


def test_the_import_of_the_right_framework_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    guesses: list[dict[str, str]] = []
    monkeypatch.setattr(forkserver, "guess", guesses.append)
    for words in ("strategy=ps", "backend=tensorflow strategy=fsdp", "backend=jax seed=1",
                  "backend=tensorflow +backend=jax", "strategy=hybrid", "backend=x",
                  "backend=torch strategy=fsdp",
                  "-m backend=tensorflow,jax", "~backend"):  # fmt: skip
        with begun(words.split()):
            pass
    frameworks = ["tensorflow"] * 2 + ["jax"] * 3 + ["torch"]
    assert guesses == [task_environment(backend=name) for name in frameworks]
    assert planned("backend=torch").cluster.environment == guesses[-1]
    assert guesses[0] != guesses[2] and planned(JAX).cluster.environment == guesses[2]


@pytest.mark.parametrize("name", ["fsdp", "hybrid"])
@pytest.mark.task(devices=4, backend="jax")
def test_a_dry_run_has_the_bytes_that_devices_have(name: str) -> None:
    """It builds the model on one device; a run lays it out on four."""
    import keras

    from dtrain.inspection.report import describe
    from dtrain.task.data import dataset
    from dtrain.task.model import build

    words = (JAX, f"strategy={name}", "model=mlp", "hardware.devices=4")
    config, cluster = composed(*words), planned(*words).cluster
    *_, weights, slots = (line.split() for line in describe(config, cluster))
    keras.backend.clear_session()
    devices = [f"cpu:{index}" for index in range(4)]
    options = strategy_plan.options(config)
    strategy = targets.instantiate(options, "strategy", devices=devices, cluster=cluster)
    model = build.model(config, dataset.load(config).splits, strategy, 1, 1)
    for variables, row in ((model.variables, weights), (model.optimizer.variables, slots)):
        assert row[-1] == f"{sum(map(on_one, variables)):,}"


def on_one(variable: Any) -> int:
    return int(variable.value.addressable_shards[1].data.nbytes)


def test_a_dry_run_shows_layouts(dtrain) -> None:
    run = dtrain(JAX, "strategy=fsdp", "model=mlp", "hardware.devices=4", "dry_run=true",
                 "tracking=none")  # fmt: skip
    assert run.code == 0, run.output
    assert "shards               4 (parameters, optimizer state, gradients)" in run.output
    assert "dense/kernel    64 x 128  split 1           32,768           8,192" in run.output
