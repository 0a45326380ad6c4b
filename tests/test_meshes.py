"""Meshes of logical CPU devices: variables in parts, whole batches, the numbers of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sampled import sampled
from tests.test_steps import BATCH, prepare, settings

pytestmark = pytest.mark.task(devices=4, backend="jax")
RULES = Path(__file__).parent.parent / "conf" / "strategy" / "rules"
#: Its first layer is split by columns, the second by rows.
SPLIT = [{"path": "^dense/", "split": -1}, {"path": "^dense_1/kernel", "split": 0}]
MODEL = "tests.test_meshes.smooth"


def mesh(batch: int = 2, model: int = 2, rules: Any = "auto") -> Any:
    from dtrain.run.cluster import Cluster, Task
    from dtrain.task.strategies import Mesh

    devices = batch * model
    cluster = Cluster((Task("chief", 0, devices),), "cpu", batch, {})
    return Mesh([f"cpu:{i}" for i in range(devices)], cluster, rules)


def one_device() -> Any:
    from dtrain.task.strategies import OneDevice

    return OneDevice(["cpu:0"])


def smooth(input_shape: Any, classes: int, name: str = "mlp", **options: Any) -> Any:
    """A model without kinks, on which rounding would decide: two runs would part by chance."""
    import keras
    from keras import layers

    from dtrain import models

    if name == "recurrent":
        return keras.Sequential(
            [
                keras.Input(input_shape),
                layers.LSTM(32, return_sequences=True),
                layers.Bidirectional(layers.GRU(16)),
                layers.Dense(classes, "softmax"),
            ]
        )
    if name == "noisy":
        return keras.Sequential(
            [
                keras.Input(input_shape),
                layers.GaussianNoise(0.3),
                layers.Dense(64, "tanh"),
                layers.Dropout(0.5),
                layers.Dense(32, "gelu"),
                layers.Dense(classes, "softmax"),
            ]
        )
    kinds = {"ReLU": lambda: layers.Activation("gelu"),
             "MaxPooling2D": lambda: layers.AveragePooling2D(2)}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for kind, other in kinds.items():
            patch.setattr(layers, kind, other)
        model = getattr(models, name)(input_shape, classes, **options)
    for layer in model.layers:
        if getattr(layer, "activation", None) is keras.activations.relu:
            layer.activation = keras.activations.tanh
    return model


IMAGES = {"dataset": {"_target_": "dtrain.datasets.synthetic", "shape": [8, 8], "classes": 4,
                      "examples": 50, "validation_examples": 21}}  # fmt: skip
TEXT = {"dataset": {"_target_": "dtrain.datasets.text", "length": 12, "validation_split": 0.005}}
MODELS: dict[str, dict[str, Any]] = {
    "mlp": IMAGES,
    "cnn": {**IMAGES, "model": {"filters": [8, 8], "dropout": 0.0, "l2": 1e-3}},
    "resnet": {**IMAGES, "model": {"filters": [8, 16]}},
    "transformer": {**TEXT, "model": {"blocks": 1}},
    "recurrent": IMAGES,
    "noisy": {},
}


def configured(name: str = "mlp", **changed: Any) -> Any:
    case = MODELS[name]
    options = {"_target_": MODEL, "name": name, **case.get("model", {})}
    return settings(**{**case, "model": options, **changed})


def made(strategy: Any, config: Any, start: int = 0) -> tuple[Any, Any, Any, Any]:
    """Return (model, strategy, steps, splits), the layers named as in a process of their own."""
    import keras

    keras.utils.clear_session()
    return prepare("", 0, config, start, strategy=strategy or one_device())


def trained(strategy: Any, config: Any, count: int = 25) -> tuple[Any, Any]:
    """Return the numbers of steps, and of a validation with an odd rest; and the model."""
    model, _, steps, splits = made(strategy, config)
    numbers = [steps.results(steps.train(1)) for _ in range(count)]
    full, rest = divmod(len(splits.validation), BATCH)
    assert rest % 2 == 1
    return [*numbers, steps.results(steps.evaluate(full, rest), training=False)], model


def agree(strategy: Any, config: Any, expected: Any = None) -> Any:
    """Assert that a mesh has the numbers of one device; return the model on the mesh."""
    expected = expected or trained(None, config)[0]
    found, model = trained(strategy, config)
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6), step
    return model


def held(variables: Any) -> list[int]:
    """Return the bytes that each device has."""
    parts = [[part.data.nbytes for part in v.value.addressable_shards] for v in variables]
    return [sum(each) for each in zip(*parts, strict=True)]


def part(variable: Any) -> tuple[int, ...]:
    """Return the shape of what a device has."""
    return tuple(variable.value.addressable_shards[0].data.shape)


@pytest.mark.parametrize("name", sampled(MODELS, "transformer"))
def test_steps_are_those_of_one_device(name: str) -> None:
    config = configured(name)
    shipped = RULES / f"{name}.yaml"
    rules = yaml.safe_load(shipped.read_text())["rules"] if shipped.exists() else "auto"
    expected, alone = trained(None, config)
    model = agree(mesh(1, 4, rules), config, expected)
    [whole] = held([*alone.variables, *alone.optimizer.variables])
    assert max(held([*model.variables, *model.optimizer.variables])) <= 0.5 * whole
    agree(mesh(), config, expected)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "averages": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2},
    "clipped": {"global_clipnorm": 0.1, "weight_decay": 0.1, "gradient_accumulation_steps": 4},
    "momentum": {"_target_": "keras.optimizers.SGD", "momentum": 0.9, "nesterov": True},
    # Its slots are norms of rows and of columns, which the rule has no part in.
    "rows": {"_target_": "keras.optimizers.Adafactor"},
}


@pytest.mark.parametrize("name", sampled(OPTIMIZERS, "clipped", "rows"))
def test_slots_lie_as_their_variables(name: str) -> None:
    base = {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01}
    rules = [{"path": "kernel", "split": 1}, *SPLIT[:1]]
    options = {"_target_": MODEL, "units": [64, 32]}
    config = configured(model=options, optimizer={**base, **OPTIMIZERS[name]})
    model = agree(mesh(rules=rules), config)
    owners = {v.path.replace("/", "_"): v for v in model.trainable_variables}
    assert part(owners["dense_kernel"]) == (64, 32)
    for slot in model.optimizer.variables:
        path = slot.path.partition("/")[2]
        owner = max((n for n in owners if path.startswith(f"{n}_")), key=len, default=None)
        alike = owner is not None and slot.shape == owners[owner].shape
        assert part(slot) == (part(owners[owner]) if alike else tuple(slot.shape)), slot.path


def test_a_snapshot_is_whole_and_can_be_restored_anywhere() -> None:
    import numpy as np

    from dtrain.task.model import train_state

    config = configured()
    model, strategy, steps, _ = made(mesh(rules=SPLIT), config)
    steps.train(2)
    arrays = train_state.snapshot(model, strategy)
    assert arrays["model/dense/kernel"].shape == (64, 128)
    assert arrays["optimizer/adam/dense_kernel_momentum"].shape == (64, 128)
    expected = steps.results(steps.train(2))
    for other in (None, mesh(1, 4)):
        again, engine, onward, _ = made(other, config, start=2)
        train_state.restore(again, engine, arrays)
        restored = train_state.snapshot(again, engine)
        assert restored.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(restored[name], array, err_msg=name)
        assert onward.results(onward.train(2)) == pytest.approx(expected, rel=1e-5)


def test_rules_are_checked_before_training() -> None:
    from dtrain.errors import UsageError

    for rule, message in (
        ({"path": "nothing", "split": 0}, r"strategy\.rules=nothing: no variable"),
        ({"path": "dense_2/bias", "split": 0}, r"of shape \[3\], cannot be split in 2"),
    ):
        with pytest.raises(UsageError, match=message):
            made(mesh(rules=[rule]), settings(model={"_target_": "dtrain.models.mlp"}))
