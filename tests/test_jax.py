"""Numbers of ``backend=jax``: beside loops by hand, Keras' ``fit``, and other strategies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sampled import sampled
from tests.test_steps import BATCH, in_order, prepare, settings

CLOSE = 1e-5
STEPS = 50
#: Strategies on four devices, with what their constructors take beside these.
SEVERAL = {
    "Mirrored": {},
    "FullySharded": {},
    "Mesh 1": {"rules": "auto"},
    "Mesh 2": {"rules": [{"path": "a/kernel", "split": 1}, {"path": "b/kernel", "split": 0}]},
}


def smooth(input_shape: Any, classes: int, dropout: float = 0.0, normalized: bool = False) -> Any:
    """No activation has a kink, on which rounding would decide: runs would part by chance."""
    import keras
    from keras import layers

    model = keras.Sequential([keras.Input(input_shape), layers.Dense(8, "tanh", name="a")])
    if normalized:
        model.add(layers.BatchNormalization())
    if dropout:
        model.add(layers.Dropout(dropout, seed=3))
    model.add(layers.Dense(8, "gelu", name="b"))
    model.add(layers.Dense(classes, "softmax", name="head"))
    return model


def configured(optimizer: str = "Adam", **model: Any) -> Any:
    return settings(
        model={"_target_": "tests.test_jax.smooth", **model},
        optimizer={"_target_": f"keras.optimizers.{optimizer}", "learning_rate": 0.01},
    )


def strategy_of(kind: str, devices: int = 4) -> Any:
    from dtrain.run.cluster import Cluster, Task
    from dtrain.task import strategies

    name, _, rows = kind.partition(" ")
    options = dict(SEVERAL[kind])
    if rows:
        options["cluster"] = Cluster((Task("chief", 0, devices),), "cpu", int(rows), {})
    return getattr(strategies, name)([f"cpu:{i}" for i in range(devices)], **options)


def losses(steps: Any, count: int = STEPS) -> list[float]:
    return [steps.results(steps.train(1))["loss"] for _ in range(count)]


@pytest.mark.task(backend="jax")
@pytest.mark.parametrize("optimizer", sampled(["SGD", "Adam"], "SGD", "Adam"))
def test_one_device_has_the_losses_of_a_loop_by_hand(optimizer: str) -> None:
    """The referee is NumPy alone, in 64 bits."""
    import numpy as np

    model, _, steps, splits = prepare("OneDevice", 1, configured(optimizer))
    weights = [np.float64(weight.value) for weight in model.trainable_variables]
    x, y = in_order(splits.train, STEPS)
    firsts, seconds = ([np.zeros_like(w) for w in weights] for _ in range(2))
    expected = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        loss, gradients = by_hand(weights, np.float64(x[rows]), y[rows])
        expected.append(loss)
        for i, gradient in enumerate(gradients):
            if optimizer == "SGD":
                weights[i] -= 0.01 * gradient
                continue
            firsts[i] += (gradient - firsts[i]) * 0.1
            seconds[i] += (gradient**2 - seconds[i]) * 0.001
            rate = 0.01 * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
            weights[i] -= rate * firsts[i] / (np.sqrt(seconds[i]) + 1e-7)
    assert losses(steps) == pytest.approx(expected, abs=CLOSE)


def by_hand(weights: list[Any], x: Any, y: Any) -> tuple[float, list[Any]]:
    """Return loss and gradients of :func:`smooth`."""
    import numpy as np
    from scipy.special import erf

    first, first_bias, second, second_bias, last, last_bias = weights
    a = np.tanh(x @ first + first_bias)
    z = a @ second + second_bias
    area = (1 + erf(z / np.sqrt(2))) / 2
    b = z * area
    logits = b @ last + last_bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(y))
    loss = -np.log(p[rows, y]).mean()
    of_logits = (p - np.eye(p.shape[1])[y]) / len(y)
    of_z = (of_logits @ last.T) * (area + z * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))
    of_a = (of_z @ second.T) * (1 - a**2)
    return loss, [
        x.T @ of_a, of_a.sum(0), a.T @ of_z, of_z.sum(0), b.T @ of_logits, of_logits.sum(0),
    ]  # fmt: skip


@pytest.mark.task(backend="jax", devices=4)
def test_strategies_have_the_losses_of_one_device() -> None:
    """With dropout, whose bits are the same on any number of devices, and batch normalisation."""
    import keras

    config = configured(dropout=0.3, normalized=True)
    found = {}
    for kind in ("OneDevice", *SEVERAL):
        keras.utils.clear_session()
        strategy = None if kind == "OneDevice" else strategy_of(kind)
        _, _, steps, splits = prepare("OneDevice", 1, config, strategy=strategy)
        full, rest = divmod(len(splits.validation), steps.evaluation_examples)
        found[kind] = losses(steps), steps.results(steps.evaluate(full, rest), training=False)
    expected = found.pop("OneDevice")
    for kind, (each, held) in found.items():
        assert each == pytest.approx(expected[0], abs=CLOSE), kind
        assert held == pytest.approx(expected[1], abs=CLOSE), kind


@pytest.mark.task(backend="jax", devices=4)
@pytest.mark.parametrize("kind", ["FullySharded", "Mesh 1"])
def test_a_device_has_its_part_of_weights_and_slots(kind: str) -> None:
    import jax

    config = settings(model={"_target_": "dtrain.models.mlp", "units": [256, 256]})
    model, _, steps, _ = prepare("", 4, config, strategy=strategy_of(kind))
    steps.train(2)
    variables = [*model.trainable_variables, *model.optimizer.variables]
    whole = sum(variable.value.nbytes for variable in variables)
    held = dict.fromkeys(jax.devices(), 0)
    for variable in variables:
        for shard in variable.value.addressable_shards:
            held[shard.device] += shard.data.nbytes
    assert len(held) == 4 and max(held.values()) <= 0.35 * whole


@pytest.mark.task(backend="jax")
def test_layers_that_are_computed_twice_have_the_same_numbers() -> None:
    """With dropout, statistics of batches and a loss of the layer's own inside."""
    import keras

    found = []
    for remat in ([], ["block"]):
        keras.utils.clear_session()
        config = settings(
            model={"_target_": "tests.test_remat.blocks", "lossy": True}, hardware={"remat": remat}
        )
        model, _, steps, _ = prepare("OneDevice", 1, config)
        found.append([*losses(steps, 4), *(float(v.value.sum()) for v in model.variables)])
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def rooted(input_shape: Any, classes: int, zero: bool = False) -> Any:
    import keras

    class Root(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            if not zero:
                return keras.ops.log(x - 1e6)
            return x + keras.ops.sqrt(keras.ops.maximum(keras.ops.sum(x), 1e6) - 1e6)

    return keras.Sequential(
        [keras.Input(input_shape), keras.layers.Dense(4), Root(name="root"),
         keras.layers.Dense(classes, "softmax")]
    )  # fmt: skip


@pytest.mark.task(backend="jax")
@pytest.mark.parametrize(
    ("zero", "operation", "values"), [(False, "log", "NaN"), (True, "div", "+Inf")]
)
def test_the_line_of_what_is_not_finite(zero: bool, operation: str, values: str) -> None:
    from dtrain.task.backends.runtime import runtime

    config = settings(model={"_target_": "tests.test_jax.rooted", "zero": zero})
    model, _, _, splits = prepare("OneDevice", 1, config)
    checked = runtime().checked(model)
    finding = checked.first(in_order(splits.train, 1))
    assert finding is not None
    assert (finding.operation, finding.values) == (operation, values)
    assert finding.layer == "root (Root)" and not finding.backward
    assert "test_jax.py:" in finding.line and ("log(x" in finding.line or "sqrt(" in finding.line)
    prepared = prepare("OneDevice", 1, configured())
    assert runtime().checked(prepared[0]).first(in_order(splits.train, 1)) is None
