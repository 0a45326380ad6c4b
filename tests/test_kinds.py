"""What is public in Keras can be named, if it is of the kind that its place is for."""

from __future__ import annotations

import inspect
import operator

import pytest

from dtrain.config import targets, trust
from dtrain.errors import UsageError


def located(name: str) -> bool:
    """Whether something may be named at some place."""
    try:
        trust.locate(name, "key._target_")
    except UsageError:
        return False
    return True


@pytest.mark.task
def test_the_public_names_of_keras() -> None:
    import keras

    bases = {
        "layers": keras.layers.Layer, "losses": keras.losses.Loss, "metrics": keras.metrics.Metric,
        "optimizers": keras.optimizers.Optimizer, "initializers": keras.initializers.Initializer,
        "regularizers": keras.regularizers.Regularizer, "constraints": keras.constraints.Constraint,
        "optimizers.schedules": keras.optimizers.schedules.LearningRateSchedule,
    }  # fmt: skip
    code = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "FlaxLayer", "JaxLayer"}
    for group, base in bases.items():
        for name, found in vars(operator.attrgetter(group)(keras)).items():
            if name.startswith("_") or name in code:
                continue
            if inspect.isclass(found) and issubclass(found, base) and name[0].isupper():
                assert located(f"keras.{group}.{name}")
            elif not inspect.isclass(found) and group != "losses" and name != "Input":
                assert not located(f"keras.{group}.{name}"), name
    assert not any(located(f"keras.layers.{name}") for name in code)


@pytest.mark.task
def test_functions_of_keras() -> None:
    for name in (
        "losses.hinge", "activations.relu", "applications.MobileNetV2", "Input", "Sequential",
        "applications.mobilenet_v2.MobileNetV2", "models.Model",
    ):  # fmt: skip
        assert located(f"keras.{name}"), name
    for name in (
        "losses.get", "losses.deserialize", "losses.serialize", "activations.get", "layers.add",
        "activations.deserialize", "applications.mobilenet_v2.preprocess_input", "ops.map",
        "applications.mobilenet_v2.decode_predictions", "initializers.get", "metrics.get",
        "layers.InputSpec", "callbacks.CallbackList", "random.normal", "config.set_backend",
    ):  # fmt: skip
        assert not located(f"keras.{name}"), name
    for place in ("trainer.callbacks[0]", "optimizer", "trainer.loss", "trainer.metrics[0]"):
        with pytest.raises(UsageError):
            trust.locate("keras.layers.Dense", f"{place}._target_")


@pytest.mark.task
def test_arguments_of_each_kind() -> None:
    dense = {
        "_target_": "keras.layers.Dense", "units": 3, "dtype": "float32",
        "activation": {"_target_": "keras.activations.relu", "_partial_": True, "max_value": 1},
        "kernel_initializer": {"_target_": "keras.initializers.HeNormal", "seed": 1},
        "kernel_regularizer": {"_target_": "keras.regularizers.l2", "l2": 0.5},
        "kernel_constraint": {"_target_": "keras.constraints.MaxNorm"},
    }  # fmt: skip
    layers = [{"_target_": "keras.Input", "shape": [2]}, dense]
    model = targets.instantiate({"_target_": "keras.Sequential", "layers": layers}, "model")
    assert model.output_shape == (None, 3)
    assert float(model.layers[0].kernel_regularizer.l2) == 0.5


def test_a_launcher_is_one_of_the_schema() -> None:
    for name in ("auto", "Env", "Inline", "Kubernetes", "Local", "Ray", "Ssh", "slurm.choose"):
        trust.check({"launcher": {"_target_": f"dtrain.launchers.{name}"}})
    for name in ("Launcher", "Elsewhere", "local.Local", "local.Ports", "slurm.Slurm", "run_of"):
        with pytest.raises(UsageError, match="is no launcher"):
            trust.check({"launcher": {"_target_": f"dtrain.launchers.{name}"}})
