"""States of metrics as tensors of a training step: the bits of variables, or variables."""

from __future__ import annotations

from typing import Any

import pytest

from tests.test_steps import BATCH, BINARY, prepare, settings


def trained(kind: str, devices: int, config: Any) -> tuple[list[bytes], Any]:
    import keras

    keras.utils.set_random_seed(0)
    _, _, steps, _ = prepare(kind, devices, config)
    sums = steps.train(2)
    sums.append(steps.train(3))
    return [state.tobytes() for state in sums.states], steps


@pytest.mark.task(devices=2)
def test_the_bits_are_those_of_variables() -> None:
    from dtrain.task.backends.tensorflow import rows

    ours, steps = trained("Mirrored", 2, settings(**BINARY))
    held = steps._rows.held
    assert not held.others and len(held.positions) == len(steps._rows.variables) > 8
    rows._of_keras = lambda metric: False
    theirs, steps = trained("Mirrored", 2, settings(**BINARY))
    assert ours == theirs and not steps._rows.held.positions


def branching(input_shape: Any, classes: int) -> Any:
    """A model whose step updates a metric in a branch, where no tensor comes out."""
    import keras
    import tensorflow as tf

    class Branching(keras.Model):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.seen = keras.metrics.Sum("seen")

        def train_step(self, data: Any) -> Any:
            logs = super().train_step(data)
            rows = tf.cast(tf.shape(data[0])[0], tf.float32)

            def count() -> Any:
                self.seen.update_state(rows)
                return rows

            tf.cond(rows > 1, count, lambda: rows)
            return {**logs, "seen": self.seen.result()}

    inputs = keras.Input(input_shape)
    return Branching(inputs, keras.layers.Dense(classes, activation="softmax")(inputs))


@pytest.mark.task(devices=2)
def test_a_metric_in_a_branch_stays_in_variables() -> None:
    config = settings(model={"_target_": "tests.test_held_states.branching"})
    _, steps = trained("Mirrored", 2, config)
    assert not steps._rows.held.positions
    assert steps.results(steps.train(2))["seen"] == 2 * BATCH


def doubled() -> Any:
    import keras

    class Own(keras.metrics.Sum):
        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.total.assign_add(2.0)

    return Own("doubled")


@pytest.mark.task
def test_a_metric_of_the_users_own_stays_in_variables() -> None:
    metrics = ["accuracy", {"_target_": "tests.test_held_states.doubled"}]
    trainer = {"loss": "sparse_categorical_crossentropy", "metrics": metrics}
    _, steps = trained("OneDevice", 1, settings(trainer=trainer))
    held = steps._rows.held
    assert held.others and len(held.positions) == 2  # the loss is Keras' own
    found = steps.results(steps.train(3))
    assert found["doubled"] == 6.0 and 0 < found["accuracy"] <= 1
