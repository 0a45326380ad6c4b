"""Norms of steps (``trainer.log``): by hand, and the same under every strategy."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.run.cluster import Cluster, Task
from tests import warm
from tests.sampled import sampled
from tests.test_parameter_server import servers, strategy_of
from tests.test_steps import in_order, prepare, settings
from tests.test_strategies import together

LOG = ["gradient_norm", "weight_norm", "update_ratio"]
STEPS = 4


def tables(input_shape: Any, classes: int) -> Any:
    """A model with a lookup, whose gradient is rows, and a layer."""
    import keras

    inputs = keras.Input(input_shape)
    ids = keras.ops.cast(keras.ops.abs(inputs) * 3, "int32") % 7
    hidden = keras.layers.Flatten()(keras.layers.Embedding(7, 8)(ids))
    hidden = keras.layers.Dense(32, activation="tanh")(keras.layers.Concatenate()([hidden, inputs]))
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(hidden))


def config(name: str = "SGD", rate: float = 0.5, model: str = "tables", **more: Any) -> Any:
    trainer = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], "log": LOG}
    return settings(
        model={"_target_": f"tests.test_norms.{model}"}, trainer=trainer,
        optimizer={"_target_": f"keras.optimizers.{name}", "learning_rate": rate, **more},
    )  # fmt: skip


def logged(kind: str = "", devices: int = 1, strategy: Any = None, chosen: Any = None) -> Any:
    """Return the norms of some steps, and whether any is in the numbers of a validation."""
    import keras

    keras.utils.clear_session()
    _, _, steps, _ = prepare(kind, devices, chosen or config(), strategy=strategy)
    numbers = steps.results(steps.train(STEPS))
    assert not set(LOG) & set(steps.results(steps.evaluate(1, 3), training=False))
    return [numbers[name] for name in LOG]


def served(cluster: Cluster, task: Task, devices: list[str], update: str) -> Any:
    return logged(strategy=strategy_of(cluster, task, update))


@pytest.mark.task
def test_norms_are_those_of_the_definition() -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    def norm(arrays: Any) -> float:
        return float(np.sqrt(sum(np.sum(np.square(np.asarray(a, np.float64))) for a in arrays)))

    keras.utils.clear_session()
    model, _, _, splits = prepare("OneDevice", 1, config("Adam", 0.01))
    x, y = (part.reshape(STEPS, -1, *part.shape[1:]) for part in in_order(splits.train, STEPS))
    rows = []
    for inputs, targets in zip(x, y, strict=True):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(y=targets, y_pred=model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        before = [variable.numpy() for variable in model.trainable_variables]
        model.optimizer.apply(gradients)
        changes = [v.numpy() - a for v, a in zip(model.trainable_variables, before, strict=True)]
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        rows.append([norm(dense), norm(before), norm(changes) / norm(before)])
    norms = logged("OneDevice", chosen=config("Adam", 0.01))
    assert norms == pytest.approx(np.mean(rows, 0), rel=1e-5)


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("kind", sampled(["Mirrored", "CentralStorage"], "Mirrored"))
def test_norms_are_the_same_under_every_strategy_of_a_process(kind: str) -> None:
    assert logged(kind, 2) == pytest.approx(logged("Default"), rel=1e-5)


@pytest.mark.parametrize(("update", "workers"), [("sync", 2), ("async", 1)])
def test_norms_are_those_of_what_parameter_servers_apply(update: str, workers: int) -> None:
    [norms] = together(served, servers(workers, 1), replicas=workers, update=update)
    assert norms == pytest.approx(warm.call(logged, 1, {"kind": "Default"}), rel=1e-5)


def branched(input_shape: Any, classes: int) -> Any:
    """A model that updates in a branch."""
    import keras
    import tensorflow as tf

    class Branched(keras.Model):
        def train_step(self, data: Any) -> Any:
            return tf.cond(tf.shape(data[0])[0] > 0, lambda: super(Branched, self).train_step(data),
                           lambda: {"loss": 0.0})  # fmt: skip

    inputs = keras.Input(input_shape)
    return Branched(inputs, keras.layers.Dense(classes, activation="softmax")(inputs))


@pytest.mark.task(devices=2)
def test_norms_with_accumulated_and_with_scaled_gradients_and_in_a_branch() -> None:
    import keras

    from dtrain.errors import UsageError

    def each(steps: Any, count: int = 2) -> list[list[float]]:
        points = [steps.results(steps.train(1)) for _ in range(count)]
        return [[numbers[name] for name in LOG] for numbers in points]

    keras.utils.clear_session()
    first, second = each(prepare("Mirrored", 2, config(gradient_accumulation_steps=2))[2])
    assert first[2] == 0
    assert min(*first[:2], *second) > 0
    keras.utils.clear_session()
    keras.config.set_dtype_policy("mixed_float16")
    model, _, steps, _ = prepare("Mirrored", 2, config())
    [scaled] = each(steps, 1)
    assert scaled[:2] == pytest.approx(first[:2], rel=0.02)
    model.optimizer.dynamic_scale.assign(1e30)
    [skipped] = each(steps, 1)
    assert (skipped[0], skipped[2]) == (0, 0)
    keras.config.set_dtype_policy("float32")
    with pytest.raises(UsageError, match=r"applies gradients inside tf\.cond"):
        prepare("OneDevice", 1, config(model="branched"))[2].train(1)


def test_the_norms_of_a_run(dtrain: Any, quick: tuple[str, ...]) -> None:
    monitor = "trainer.early_stopping={monitor: gradient_norm, patience: 9}"
    run = dtrain(*quick, "trainer.log=[update_ratio,gradient_norm]", monitor)
    assert run.code == 0, run.output
    for name in ("gradient_norm", "update_ratio"):
        assert min(run.points(name).values()) > 0
        assert len(run.points(name)) == 8
    assert next(iter(run.result["metrics"])) == "loss"
    assert not run.points("weight_norm") | run.points("val_gradient_norm")
    wrong = dtrain(*quick, "trainer.log=[gradient_norms]")
    assert wrong.code == 2
    assert "gradient_norm, weight_norm, update_ratio" in wrong.output
