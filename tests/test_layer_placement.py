"""Layers on devices: where their variables and operations are, and what they compute."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dtrain.errors import UsageError
from tests.sampled import sampled
from tests.test_steps import BATCH, prepare, settings

OPTIMIZER = {
    "_target_": "keras.optimizers.Adam",
    "learning_rate": 0.01,
    "weight_decay": 0.01,
    "use_ema": True,
    "global_clipnorm": 1.0,
}


def functional(input_shape: Any, classes: int) -> Any:
    import keras

    layers = keras.layers
    inputs = keras.Input(input_shape)
    x = layers.Dense(8, activation="relu", kernel_regularizer="l2", name="alpha")(inputs)
    y = layers.Dense(8, activation="silu", kernel_regularizer="l2", name="beta")(x)
    y = layers.Dropout(0.3, name="gamma")(y)
    x = layers.Add(name="delta")([x, y])
    return keras.Model(inputs, layers.Dense(classes, activation="softmax", name="omega")(x))


def nested(input_shape: Any, classes: int) -> Any:
    """A class whose layers have layers, one of them twice, and a variable of its own."""
    import keras

    layers = keras.layers

    class Block(layers.Layer):
        def __init__(self, shared: Any, **kwargs: Any):
            super().__init__(**kwargs)
            self.inner = layers.Dense(4, name="inner")
            self.shared = shared

        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(name="scale", shape=(4,), initializer="ones")
            super().build(shape)

        def call(self, x: Any) -> Any:
            return x + self.scale * self.shared(self.inner(x))

    class Whole(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.shared = layers.Dense(4, activation="tanh", name="shared")
            self.first = Block(self.shared, name="first")
            self.second = Block(self.shared, name="second")
            self.head = keras.Sequential([layers.Dense(classes), layers.Softmax()], name="head")
            self.bias = self.add_weight(name="own", shape=(4,))

        def call(self, x: Any) -> Any:
            return self.head(self.second(self.first(x)) + self.bias)

    return Whole()


def recurrent(input_shape: Any, classes: int) -> Any:
    import keras

    layers = keras.layers
    inputs = keras.Input(input_shape)
    x = layers.LSTM(6, return_sequences=True, name="alpha")(inputs)
    x = layers.MultiHeadAttention(2, 3, name="beta")(x, x)
    x = layers.GlobalAveragePooling1D(name="gamma")(x)
    return keras.Model(inputs, layers.Dense(classes, activation="softmax", name="omega")(x))


def given(model: str, shape: list[int] | None = None) -> Any:
    config = settings(model={"_target_": f"tests.test_layer_placement.{model}"})
    config.optimizer = OPTIMIZER
    config.dataset = config.dataset.replaced(shape=shape or [4])
    return config


def place(config: Any, rules: Any, devices: int = 3) -> Any:
    from dtrain.task.strategies import LayerPlacement

    strategy = LayerPlacement([f"CPU:{i}" for i in range(devices)], rules)
    model, _, steps, _ = prepare("", devices, config, strategy=strategy)
    return model, strategy, steps


def homes(variables: Any) -> dict[str, int]:
    return {v.path: int(v.value.device.rpartition(":")[2]) for v in variables}


RULES = [{"layer": "alpha|gamma", "device": 1}, {"layer": "beta", "device": 2}]


@pytest.mark.task(devices=3)
def test_variables_and_slots_lie_with_their_layer() -> None:
    model, strategy, steps = place(given("functional"), RULES)
    of_layers = {"alpha": 1, "beta": 2, "gamma": 1, "delta": 0, "omega": 0}
    assert {path: index for path, index, _ in strategy.placed} == of_layers
    assert {path: size for path, _, size in strategy.placed} == {
        "alpha": 160, "beta": 288, "gamma": 16, "delta": 0, "omega": 108,
    }  # fmt: skip
    steps.train(2)
    assert homes(model.variables) == {
        "alpha/kernel": 1, "alpha/bias": 1, "beta/kernel": 2, "beta/bias": 2,
        "seed_generator/seed_generator_state": 1, "omega/kernel": 0, "omega/bias": 0,
    }  # fmt: skip
    slots = homes(model.optimizer.variables)
    assert len(slots) == 2 + 3 * 6
    for path, home in slots.items():
        owner = re.search("alpha|beta|omega", path)
        assert home == (of_layers[owner.group()] if owner else 0), path


@pytest.mark.task(devices=3)
@pytest.mark.parametrize("model", ["functional", "recurrent"])
def test_operations_and_their_gradients_run_with_their_layer(model: str) -> None:
    from tensorflow.python.framework.func_graph import FuncGraph

    config = given(model, [5, 4] if model == "recurrent" else None)
    _, strategy, steps = place(config, RULES)
    found: list[Any] = []
    create = FuncGraph._create_op_internal

    def created(*args: Any, **kwargs: Any) -> Any:
        found.append(create(*args, **kwargs))
        return found[-1]

    FuncGraph._create_op_internal = created
    steps._train.get_concrete_function()
    expected = {path: f"/device:CPU:{i}" for path, i, _ in strategy.placed if "/" not in path}
    products = set()
    for op in found:
        layer = re.search(rf"/({'|'.join(expected)})(_\d+)?(/|$)", op.name)
        # Reads lie with their variable, which TensorFlow sees when it runs the graph. What a loop
        # hands in and out is of the loop.
        if layer is None or op.type in ("ReadVariableOp", "Placeholder", "NoOp"):
            continue
        assert op.device == expected[layer.group(1)], (op.name, op.type)
        if op.type in ("MatMul", "Einsum"):
            products.add((layer.group(1), "gradient_tape" in op.name))
    layers = {"alpha", "beta", "omega"}
    assert products == {(name, backwards) for name in layers for backwards in (False, True)}
    if model == "functional":  # the gradients of two kernels and those of their L2 are added there
        sums = [op.device[-1] for op in found if op.type == "AddN" and len(op.inputs[0].shape) == 2]
        shapes = [tuple(op.inputs[0].shape) for op in found if op.type == "AddN"]
        assert dict(zip(shapes, sums, strict=True)) == {(BATCH, 8): "2", (4, 8): "1", (8, 8): "2"}


@pytest.mark.task(devices=3)
@pytest.mark.parametrize("model", sampled(["functional", "nested", "recurrent"], "functional"))
def test_the_same_numbers_as_one_device(model: str) -> None:
    config = given(model, [5, 4] if model == "recurrent" else None)
    rules = "auto" if model == "nested" else RULES
    ours, strategy, steps = place(config, rules)
    assert {index for _, index, _ in strategy.placed} == {0, 1, 2}
    reference, _, other, _ = prepare("OneDevice", 1, config)
    for _ in range(2):
        found, expected = steps.train(5), other.train(5)
        assert found.examples == expected.examples == 5 * BATCH
        assert steps.results(found) == pytest.approx(other.results(expected), rel=1e-5)
        assert steps.results(steps.evaluate(2, 5)) == pytest.approx(
            other.results(other.evaluate(2, 5)), rel=1e-5
        )
    for mine, theirs in zip(ours.variables, reference.variables, strict=True):
        assert mine.path.rpartition("/")[2] == theirs.path.rpartition("/")[2]
        assert mine.numpy() == pytest.approx(theirs.numpy(), rel=1e-4, abs=1e-6)


@pytest.mark.task(devices=3)
def test_layers_in_layers() -> None:
    rules = [{"layer": "second/inner", "device": 2}, {"layer": "^(second|head)", "device": 1}]
    model, strategy, _ = place(given("nested"), rules)
    assert [(path, index) for path, index, _ in strategy.placed] == [
        ("shared", 0), ("first", 0), ("first/inner", 0), ("second", 1), ("second/inner", 2),
        ("head", 1), ("head/dense", 1), ("head/softmax", 1),
    ]  # fmt: skip
    found = {path.partition("/")[2]: home for path, home in homes(model.variables).items()}
    assert found == {
        "first/scale": 0, "first/inner/kernel": 0, "first/inner/bias": 0, "first/shared/kernel": 0,
        "first/shared/bias": 0, "second/scale": 1, "second/inner/kernel": 2,
        "second/inner/bias": 2, "head/dense/kernel": 1, "head/dense/bias": 1, "own": 0,
    }  # fmt: skip


@pytest.mark.task(devices=2)
def test_rules_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match=r"=omicron: no layer .* accepted: alpha, beta, gamma"):
        place(given("functional"), [{"layer": "omicron", "device": 1}], 2)
    with pytest.raises(UsageError, match=r"=beta: there is no device 2: the run has 2"):
        place(given("functional"), RULES, 2)
