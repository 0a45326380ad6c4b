"""What a training step keeps by hand is right on several replicas, or refused before training."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.sampled import sampled
from tests.test_steps import BATCH, prepare, settings

#: What a layer keeps, and whether several replicas keep the same: the mean of theirs.
KEPT = {
    "mean": True, "steps": True, "whole steps": True, "plain": True, "spread": True, "draws": True,
    "examples": False, "whole examples": False, "maximum": False, "variance": False, "rare": False,
}  # fmt: skip


def model(input_shape: Any, classes: int, kept: str) -> Any:
    import keras
    import tensorflow as tf
    from keras import ops

    class Keeps(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.seeds = keras.random.SeedGenerator(7)
            if kept == "plain":
                self.state = tf.Variable(tf.zeros([4]), trainable=False)
            else:
                dtype = "int64" if kept.startswith(("whole", "rare")) else "float32"
                self.state = self.add_weight(
                    shape=[4], dtype=dtype, trainable=False, initializer="zeros", name="state"
                )

        def drawn(self, shape: Any) -> Any:
            own = keras.random.normal(shape, seed=self.seeds)
            return ops.mean(own, 0) + keras.random.uniform([4], seed=self.seeds)

        def following(self, x: Any) -> Any:
            """Return the next state, of ``x [b, 4]``."""
            old, rows = ops.convert_to_tensor(self.state), ops.cast(ops.shape(x)[0], "float32")
            mean, one = ops.mean(x, 0), ops.ones([4])
            return {
                "mean": lambda: 0.9 * old + 0.1 * mean,
                "plain": lambda: 0.9 * old + 0.1 * mean,
                "steps": lambda: old + one,
                "whole steps": lambda: old + ops.cast(one, "int64"),
                "spread": lambda: 0.9 * old + 0.1 * ops.mean(ops.abs(x - old), 0),
                "draws": lambda: old + self.drawn(ops.shape(x)),
                "examples": lambda: old + rows * one,
                "whole examples": lambda: old + ops.cast(rows * one, "int64"),
                "maximum": lambda: ops.maximum(old, ops.max(x, 0)),
                "variance": lambda: 0.9 * old + 0.1 * ops.var(x, 0),
                "rare": lambda: old + ops.cast(ops.sum(ops.cast(x > 1.8, "float32"), 0), "int64"),
            }[kept]()  # fmt: skip

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.state.assign(self.following(x))
            return x - 0.01 * ops.cast(ops.convert_to_tensor(self.state), x.dtype)

    inputs = keras.Input(input_shape)
    hidden = Keeps(name="keeps")(inputs)
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(hidden))


def trained(kept: str, strategy: Any) -> tuple[list[float], dict[str, Any]]:
    """Return the losses of some steps, and what is left."""
    import keras

    from dtrain.task.model import train_state

    keras.utils.clear_session()
    config = settings(model={"_target_": "tests.test_rehearsal.model", "kept": kept})
    made, _, steps, _ = prepare("", 0, config, strategy=strategy)
    losses = [steps.results(steps.train(1))["loss"] for _ in range(5)]
    return losses, train_state.snapshot(made, strategy)


@pytest.mark.task(devices=4)
@pytest.mark.parametrize(
    ("kind", "devices"),
    sampled([("Mirrored", 2), ("Mirrored", 4), ("CentralStorage", 2)], ("Mirrored", 2)),
)
def test_what_is_kept_is_that_of_one_device_or_refused(kind: str, devices: int) -> None:
    import numpy as np

    from dtrain.errors import UsageError
    from dtrain.task import strategies

    one = strategies.OneDevice(["CPU:0"])
    several = getattr(strategies, kind)([f"CPU:{i}" for i in range(devices)])
    for kept, right in KEPT.items():
        if not right:
            with pytest.raises(UsageError, match="model=keeps/state: the training step"):
                trained(kept, several)
            continue
        losses, left = trained(kept, one)
        assert np.abs(left["model/keeps/state"]).max() > 0, kept
        found, values = trained(kept, several)
        np.testing.assert_allclose(found, losses, rtol=1e-5, err_msg=kept)
        for name, value in left.items():
            np.testing.assert_allclose(values[name], value, 1e-4, 1e-5, err_msg=kept)


@pytest.mark.task(devices=2)
def test_a_rehearsal_changes_nothing() -> None:
    import keras
    import numpy as np

    from dtrain.task.model import train_state

    for kept in ("plain", "draws"):
        keras.utils.clear_session()
        config = settings(model={"_target_": "tests.test_rehearsal.model", "kept": kept})
        made, strategy, _, splits = prepare("Mirrored", 2, config)
        before, drawn = train_state.snapshot(made, strategy), (random.random(), np.random.rand())
        random.seed(1), np.random.seed(1)
        expected = random.random(), np.random.rand()
        random.seed(1), np.random.seed(1)
        applies = made.optimizer.apply  # of short_adam
        assert not any(strategy.notices(made, splits, None, BATCH, 0))
        assert (random.random(), np.random.rand()) == expected != drawn
        after = train_state.snapshot(made, strategy)
        assert all((after[name] == before[name]).all() for name in before)
        assert made.optimizer.apply is applies
        made.train_step = lambda data: 1 / 0
        said = [each for each in strategy.notices(made, splits, None, BATCH, 0) if each]
        assert len(said) == 1 and "could not be tried" in said[0]


def by_chunks(input_shape: Any, classes: int, rows: int, clipped: bool) -> Any:
    """A model that takes a gradient for each few examples of its batch."""
    import keras
    import tensorflow as tf

    class Chunks(keras.Model):
        def train_step(self, data: Any) -> Any:
            losses, gradients = [], []
            for i in range(0, data[0].shape[0], rows):
                x, y = (part[i : i + rows] for part in data)
                with tf.GradientTape() as tape:
                    losses.append(self.compute_loss(x=x, y=y, y_pred=self(x, training=True)))
                own = tape.gradient(losses[-1], self.trainable_variables)
                gradients.append(tf.clip_by_global_norm(own, 0.1)[0] if clipped else own)
            means = [sum(each) / len(losses) for each in zip(*gradients, strict=True)]
            self.optimizer.apply_gradients(zip(means, self.trainable_variables, strict=True))
            return {"loss": sum(losses) / len(losses)}

    inputs = keras.Input(input_shape)
    return Chunks(inputs, keras.layers.Dense(classes, activation="softmax")(inputs))


@pytest.mark.task(devices=2)
def test_gradients_of_examples_are_for_sums_alone() -> None:
    from dtrain.errors import UsageError

    def losses(kind: str, rows: int, clipped: bool) -> list[float]:
        model = {"_target_": "tests.test_rehearsal.by_chunks", "rows": rows, "clipped": clipped}
        steps = prepare(kind, 2 if kind == "Mirrored" else 1, settings(model=model))[2]
        return [steps.results(steps.train(1))["loss"] for _ in range(3)]

    assert losses("Mirrored", 2, False) == pytest.approx(losses("OneDevice", 2, False), rel=1e-5)
    with pytest.raises(UsageError, match=r"Chunks\.train_step: takes gradients of single examples"):
        losses("Mirrored", 1, True)
