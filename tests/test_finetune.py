"""Which weights are trained, and how fast: the numbers of plain Keras, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.errors import UsageError
from tests.test_steps import BATCH, in_order, prepare, settings

ADAM = {
    "_target_": "keras.optimizers.AdamW", "learning_rate": 0.01, "weight_decay": 0.05,
    "use_ema": True, "ema_momentum": 0.9,
}  # fmt: skip
SGD = {
    "_target_": "keras.optimizers.SGD", "learning_rate": 0.05, "momentum": 0.9,
    "weight_decay": 0.05, "global_clipnorm": 0.5,
}  # fmt: skip


def nested(input_shape: Any, classes: int) -> Any:
    """A backbone with statistics and penalties, and a head."""
    import keras
    from keras import layers

    inside = [
        keras.Input(input_shape),
        layers.Dense(6, use_bias=False, kernel_regularizer="l2", name="a"),
    ]
    inside += [layers.BatchNormalization(name="bn"), layers.Dense(5, "relu", name="b")]
    backbone = keras.Sequential(inside, name="backbone")
    inputs = keras.Input(input_shape)
    last = layers.Dense(classes, activation="softmax", name="head")
    return keras.Model(inputs, last(backbone(inputs)))


def assigning(input_shape: Any, classes: int) -> Any:
    """A model with a layer that counts in training, whether it is trainable or not."""
    import keras
    from keras import layers

    class Counting(layers.Layer):
        def build(self, _: Any) -> None:
            self.sum = self.add_weight(shape=(), initializer="zeros", trainable=False, name="sum")

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.sum.assign_add(1.0)
            return x

    parts = [keras.Input(input_shape), Counting(name="counting")]
    return keras.Sequential([*parts, layers.Dense(classes, activation="softmax", name="head")])


def of(optimizer: Any, model: str = "nested", **finetune: Any) -> Any:
    return settings(
        model={"_target_": f"tests.test_finetune.{model}"},
        optimizer=optimizer,
        finetune=finetune,
        strategy={"name": "one_device"},
    )


def begun(config: Any, kind: str, devices: int) -> tuple[Any, Any, Any, Any]:
    """Return (model, steps, batches, stages), as where a training begins."""
    from dtrain.task.model import finetune

    model, strategy, steps, splits = prepare(kind, devices, config)
    finetune.begin(model, config, strategy, 0, 4)
    x, y = in_order(splits.train, 4)
    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]
    return model, steps, batches, finetune.schedule_of(model)


def plain(optimizer: Any, model: Any, lora: int = 0) -> tuple[Any, Any]:
    """Return Keras' own model with the weights of ``model``, and its optimizer, compiled."""
    import keras

    other = nested((4,), 3)
    if lora:
        other.get_layer("head").enable_lora(lora)
    for own, variable in zip(other.variables, model.variables, strict=True):
        own.assign(variable.value)
    values = {name: value for name, value in optimizer.items() if name != "_target_"}
    kind = getattr(keras.optimizers, optimizer["_target_"].rpartition(".")[2])
    return other, kind(**values)


def values(variables: Any) -> list[Any]:
    import tensorflow as tf

    return [tf.convert_to_tensor(variable.value).numpy().copy() for variable in variables]


def compare(model: Any, other: Any, rtol: float = 1e-5) -> None:
    import numpy as np

    for own, variable in zip(model.variables, other.variables, strict=True):
        np.testing.assert_allclose(own, variable, rtol=rtol, atol=1e-6, err_msg=own.path)


@pytest.mark.parametrize(("kind", "devices"), [("OneDevice", 1), ("Mirrored", 2)])
@pytest.mark.task(devices=2)
def test_frozen_and_unfrozen_as_in_keras(kind: str, devices: int) -> None:
    import numpy as np

    frozen = {"freeze": ["^backbone/"], "unfreeze": {2: ["^backbone/bn/", "^backbone/b/"]}}
    model, steps, batches, stages = begun(of(ADAM, **frozen), kind, devices)
    other, optimizer = plain(ADAM, model)
    backbone = other.get_layer("backbone")
    before = values(model.layers[1].variables)

    backbone.get_layer("a").trainable = False
    optimizer.build(other.trainable_variables)  # as dtrain: slots of what is trained at any time
    backbone.trainable = False
    other.compile(optimizer, "sparse_categorical_crossentropy")
    assert len(model.trainable_variables) == 2
    steps.train(2)
    for x, y in batches[:2]:
        other.train_on_batch(x, y)
    assert all(map(np.array_equal, before, values(model.layers[1].variables)))
    [average] = [v for v in model.optimizer.variables if "b_kernel_average" in v.path]
    assert np.array_equal(*values([average, model.layers[1].get_layer("b").kernel]))

    assert steps.enter(2) == ["backbone/a/kernel"]
    assert steps.enter(2) == []
    backbone.trainable = True
    backbone.get_layer("a").trainable = False
    other.make_train_function(force=True)
    steps.train(2)
    for x, y in batches[2:]:
        other.train_on_batch(x, y)
    if kind == "OneDevice":  # replicas have statistics of their parts
        compare(model, other)
    now = values(model.layers[1].variables)
    assert [*map(np.array_equal, before, now)] == [True, *[False] * 6]  # with the statistics
    stages.check()


@pytest.mark.parametrize("node", [SGD, {**ADAM, "use_ema": False}], ids=["SGD", "AdamW"])
@pytest.mark.task(devices=2)
def test_rates_as_two_optimizers(node: Any) -> None:
    import tensorflow as tf

    rates = [{"path": "^backbone/b/", "factor": 4.0}, {"path": "^backbone/", "factor": 0.25}]
    node = {name: value for name, value in node.items() if name != "global_clipnorm"}
    model, steps, batches, _ = begun(of(node, learning_rates=rates), "OneDevice", 1)
    other, fast = plain(node, model)
    _, slow = plain({**node, "learning_rate": node["learning_rate"] * 0.25}, model)
    _, most = plain({**node, "learning_rate": node["learning_rate"] * 4.0}, model)
    groups = [(fast, "head"), (slow, "backbone/a"), (slow, "backbone/bn"), (most, "backbone/b/")]
    other.compile(loss="sparse_categorical_crossentropy")
    steps.train(4)
    for x, y in batches:
        with tf.GradientTape() as tape:
            loss = other.compute_loss(x, y, other(x, training=True))
        weights = other.trainable_variables
        pairs = list(zip(tape.gradient(loss, weights), weights, strict=True))
        for optimizer in (fast, slow, most):
            own = [p for o, begin in groups if o is optimizer for p in pairs
                   if p[1].path.startswith(begin)]  # fmt: skip
            optimizer.apply(*map(list, zip(*own, strict=True)))
    compare(model, other)


@pytest.mark.task
def test_lora_as_in_keras() -> None:
    import numpy as np

    lora = {"lora": [{"path": "^head$", "rank": 2}], "freeze": ["^backbone/", "^head/"]}
    model, steps, batches, _ = begun(of(SGD, **lora), "OneDevice", 1)
    trained = [v.name for v in model.trainable_variables]
    assert trained == ["lora_kernel_a", "lora_kernel_b"]
    other, optimizer = plain(SGD, model, lora=2)
    other.get_layer("backbone").trainable = False
    other.get_layer("head").bias.trainable = False
    before = np.array(model.get_layer("head").kernel)
    other.compile(optimizer, "sparse_categorical_crossentropy")
    steps.train(4)
    for x, y in batches:
        other.train_on_batch(x, y)
    compare(model, other)
    assert not np.array_equal(before, model.get_layer("head").kernel)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"freeze": ["^bone"]}, "finetune.freeze=^bone: no weight of this model has such a path"),
    ({"freeze": ["."]}, "leaves nothing to be trained"),
    ({"freeze": ["moving_mean"]}, "backbone/bn/moving_mean: is no weight, and stays"),
    ({"freeze": ["head"], "unfreeze": {2: ["/a/"]}}, "finetune.unfreeze=/a/: no weight"),
    ({"unfreeze": {2: ["/a/"]}}, "unfreezes what nothing has frozen"),
    ({"freeze": ["/bn/"], "unfreeze": {2: ["gamma"]}}, "bn/moving_mean: is no weight"),
    ({"learning_rates": [{"path": "foo", "factor": 2}]}, "no weight that is trained of this"),
    (
        {"freeze": ["/a/"], "learning_rates": [{"path": "/a/", "factor": 2}]},
        "=/a/: no weight that is trained of this model has such a path",
    ),
    ({"lora": [{"path": "bn", "rank": 2}]}, "accepted: backbone/a, backbone/b, head"),
]


@pytest.mark.task
def test_what_cannot_be() -> None:
    for keys, words in REFUSED:
        with pytest.raises(UsageError) as caught:
            begun(of(SGD, **keys), "OneDevice", 1)
        assert words in str(caught.value), (keys, str(caught.value))


@pytest.mark.task
def test_a_step_that_changes_what_is_frozen_is_refused() -> None:
    config = of(SGD, "assigning", freeze=["^counting/"])
    _, steps, _, stages = begun(config, "OneDevice", 1)
    steps.train(1)
    with pytest.raises(UsageError, match="counting/sum: is frozen, and the model's own step"):
        stages.check()


@pytest.mark.task
def test_where_unfreezing_is_refused() -> None:
    unfrozen = {"freeze": ["^backbone/"], "unfreeze": {2: ["/b/"]}}
    with pytest.raises(UsageError, match="the 4 steps before epoch 2, which unfreezes weights"):
        begun(of({**SGD, "gradient_accumulation_steps": 3}, **unfrozen), "OneDevice", 1)

    from dtrain.task import strategies
    from dtrain.task.backends.base import Abilities

    strategies.OneDevice.abilities = Abilities(retraces=False)
    with pytest.raises(UsageError, match="strategy=one_device: has steps that cannot be traced"):
        begun(of(SGD, **unfrozen), "OneDevice", 1)
