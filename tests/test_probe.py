"""Metrics whose states do not add up are refused before training."""

from __future__ import annotations

from typing import Any

import pytest

from tests.test_steps import prepare, settings


def metric(kind: str) -> Any:
    import keras
    from keras import ops

    class Own(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="own")
            self.state = self.add_weight(shape=(), initializer="zeros", name="state")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            error = ops.abs(ops.max(y_pred, axis=-1) - 0.2)
            if kind == "maximum":
                self.state.assign(ops.maximum(self.state, ops.max(error)))
            elif kind == "root":
                self.state.assign(ops.sqrt(ops.square(self.state) + ops.sum(error)))
            else:
                self.state.assign_add(ops.sum(error))

        def result(self) -> Any:
            return ops.sqrt(self.state)

    return Own()


def sampling(input_shape: Any, classes: int) -> Any:
    """A model that draws in its evaluation: the probe must not take that for a state."""
    import keras

    inputs = keras.Input(input_shape)
    noisy = keras.layers.GaussianNoise(1.0)

    class Sampling(keras.Model):
        def test_step(self, data: Any) -> Any:
            x, y = data
            return self.compute_metrics(x, y, self(noisy(x, training=True), training=False))

    return Sampling(inputs, keras.layers.Dense(classes, activation="softmax")(inputs))


def trainer(*metrics: Any) -> Any:
    return {"loss": "sparse_categorical_crossentropy", "metrics": list(metrics)}


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("kind", ["maximum", "root"])
def test_what_does_not_add_up_is_refused(kind: str) -> None:
    from dtrain.errors import UsageError
    from dtrain.task import probe

    own = {"_target_": "tests.test_probe.metric", "kind": kind}
    for strategy, devices in (("OneDevice", 1), ("Mirrored", 2)):
        made = prepare(strategy, devices, settings(trainer=trainer("accuracy", own)))
        model, _, _, splits = made
        with pytest.raises(UsageError, match="Own: its state state is no sum"):
            probe.check_metrics(model, splits.train)


@pytest.mark.task(devices=2)
def test_what_adds_up_is_not() -> None:
    from dtrain.task import probe, state

    own = {"_target_": "tests.test_probe.metric", "kind": "sum"}
    for model_of in ({}, {"model": {"_target_": "tests.test_probe.sampling"}}):
        config = settings(trainer=trainer(own, "accuracy"), **model_of)
        model, strategy, _, splits = prepare("Mirrored", 2, config)
        before = state.snapshot(model, strategy)
        probe.check_metrics(model, splits.train)
        after = state.snapshot(model, strategy)
        assert all((after[name] == before[name]).all() for name in before), "nothing changed"


@pytest.mark.task
def test_metrics_of_keras_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrain.task import probe

    model, _, _, splits = prepare("OneDevice", 1, settings())
    monkeypatch.setattr(probe, "_tried", None)  # is not called
    probe.check_metrics(model, splits.train)
