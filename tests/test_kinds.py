"""What is public in Keras can be named, if it is of the kind that its place is for."""

from __future__ import annotations

import pytest

from dtrain.config import targets, trust
from dtrain.errors import UsageError


@pytest.mark.parametrize(
    ("key", "argument", "accepted"),
    [
        ("model", False, ["dtrain.models.*, keras.applications.*, keras.Model, keras.Sequential"]),
        ("dataset.augment", False, ["dtrain.augment.*, keras.layers.*"]),
        ("dataset.members.a", False, ["dtrain.datasets.*"]),
        ("trainer.metrics[3]", False, ["keras.metrics.*", "torchmetrics.*"]),
        ("trainer.loss.out", False, ["keras.losses.*", "torch.nn.*Loss, torch.nn.functional.*"]),
        ("model.x", False, []), ("", False, []), ("hydra.callbacks.x", False, []),
        ("trainer", False, []), ("strategy.plan", True, ["dtrain.task.strategies.plans.*"]),
        ("model.layers[0]", True, [kind.accepted for kind in trust.ARGUMENTS]),
    ],
)  # fmt: skip
def test_places(key: str, argument: bool, accepted: list[str]) -> None:
    assert [kind.accepted for kind in trust.at(key, argument)] == accepted


def located(name: str) -> bool:
    """Whether something may be named at some place."""
    try:
        trust.locate(name, "key._target_")
    except UsageError:
        return False
    return True


@pytest.mark.task
def test_the_public_names_of_keras() -> None:
    import inspect

    import keras

    bases = {
        "layers": keras.layers.Layer, "losses": keras.losses.Loss, "metrics": keras.metrics.Metric,
        "optimizers": keras.optimizers.Optimizer, "initializers": keras.initializers.Initializer,
        "regularizers": keras.regularizers.Regularizer, "constraints": keras.constraints.Constraint,
        "optimizers.schedules": keras.optimizers.schedules.LearningRateSchedule,
    }  # fmt: skip
    code = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "FlaxLayer", "JaxLayer"}
    for group, base in bases.items():
        module = keras
        for part in group.split("."):
            module = getattr(module, part)
        names = [n for n in dir(module) if not n.startswith("_") and n not in code]
        for name in names:
            found = getattr(module, name)
            right = inspect.isclass(found) and issubclass(found, base)
            if right and name[0].isupper():
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
        "losses.get", "losses.deserialize", "losses.serialize", "activations.get",
        "activations.deserialize", "applications.mobilenet_v2.preprocess_input",
        "applications.mobilenet_v2.decode_predictions", "initializers.get", "metrics.get",
        "layers.deserialize", "layers.add", "layers.InputSpec", "callbacks.CallbackList",
        "callbacks.RemoteMonitor", "models.load_model", "random.normal", "ops.map",
        "utils.get_file", "saving.load_model", "config.set_backend", "optimizers.get",
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
