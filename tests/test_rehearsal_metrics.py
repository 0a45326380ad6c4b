"""Metrics whose states do not add up are found on a few examples before training."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sampled import sampled
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
            elif kind == "rare":  # a greatest number of something that is not there at first
                self.state.assign(ops.maximum(self.state, ops.sum(ops.cast(error > 5, "float32"))))
            elif kind == "last":
                self.state.assign(error[-1])
            else:
                self.state.assign_add(ops.sum(error))

        def result(self) -> Any:
            return self.state

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
@pytest.mark.parametrize("kind", sampled(["maximum", "root", "rare", "last"], "root"))
def test_what_does_not_add_up_is_found(kind: str) -> None:
    from dtrain.task.rehearsal import metrics as probe

    own = {"_target_": "tests.test_rehearsal_metrics.metric", "kind": kind}
    for name, devices in (("OneDevice", 1), ("Mirrored", 2)):
        config = settings(trainer=trainer("accuracy", own))
        model, strategy, _, splits = prepare(name, devices, config)
        found = probe.replayed(model, splits, strategy)
        assert found is not None
        assert found.positions == [4], "after those of the loss and of the accuracy"


@pytest.mark.task(devices=2)
def test_what_adds_up_is_not() -> None:
    from dtrain.task import train_state
    from dtrain.task.rehearsal import metrics as probe

    own = {"_target_": "tests.test_rehearsal_metrics.metric", "kind": "sum"}
    for model_of in ({}, {"model": {"_target_": "tests.test_rehearsal_metrics.sampling"}}):
        config = settings(trainer=trainer(own, "accuracy"), **model_of)
        model, strategy, _, splits = prepare("Mirrored", 2, config)
        before = train_state.snapshot(model, strategy)
        assert probe.replayed(model, splits, strategy) is None
        after = train_state.snapshot(model, strategy)
        assert all((after[name] == before[name]).all() for name in before), "nothing changed"


@pytest.mark.task
def test_a_result_may_be_the_variable_itself() -> None:
    """Whose value between two steps is 0."""
    own = {"_target_": "tests.test_rehearsal_metrics.metric", "kind": "sum"}
    steps = prepare("OneDevice", 1, settings(trainer=trainer(own)))[2]
    sums = steps.train(2)
    assert steps.results(sums)["own"] == pytest.approx(float(sums.states[2]))
    assert sums.states[2] > 0


@pytest.mark.task
def test_metrics_of_keras_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrain.task.rehearsal import metrics as probe

    model, strategy, _, splits = prepare("OneDevice", 1, settings())
    monkeypatch.setattr(probe, "_tried", None)  # is not called
    assert probe.replayed(model, splits, strategy) is None


@pytest.mark.task
def test_states_of_all_metrics_of_keras_add_up() -> None:
    """The probe passes over them: here each is tried, as one of a user's own would be."""
    import inspect

    import keras
    import numpy as np
    import tensorflow as tf

    needs: dict[str, dict[str, Any]] = {
        "MeanIoU": {"num_classes": 2}, "IoU": {"num_classes": 2, "target_class_ids": [0]},
        "OneHotMeanIoU": {"num_classes": 3},
        "OneHotIoU": {"num_classes": 3, "target_class_ids": [0]},
        "SensitivityAtSpecificity": {"specificity": 0.5}, "PrecisionAtRecall": {"recall": 0.5},
        "SpecificityAtSensitivity": {"sensitivity": 0.5}, "RecallAtPrecision": {"precision": 0.5},
        "MeanMetricWrapper": {"fn": keras.losses.mean_squared_error},
    }  # fmt: skip
    generator = np.random.Generator(np.random.Philox(5))
    tried = 0
    for name, kind in sorted(vars(keras.metrics).items()):
        if not (inspect.isclass(kind) and issubclass(kind, keras.metrics.Metric)):
            continue
        if kind is keras.metrics.Metric or kind.__module__.endswith("_test"):
            continue
        made = kind(**needs.get(name, {}))
        parts = []
        for rows in (6, 4):
            y = np.eye(3, dtype=np.float32)[generator.integers(0, 3, rows)]
            p = generator.dirichlet([1.0, 1.0, 1.0], rows).astype(np.float32)
            if name.startswith("Sparse"):
                parts.append((y.argmax(1), p))
            elif name in ("Mean", "Sum"):
                parts.append((p,))
            elif name in ("MeanIoU", "IoU", "BinaryIoU"):
                parts.append((y[:, 0], (p[:, 0] > 0.5).astype(np.float32)))
            else:
                parts.append((y, p))
        states = []
        for batches in (parts[:1], parts[1:], parts):
            made.reset_state()
            for batch in batches:
                made.update_state(*batch)
            states.append([np.asarray(tf.convert_to_tensor(v), float) for v in made.variables])
        for a, b, both in zip(*states, strict=True):
            np.testing.assert_allclose(a + b, both, rtol=1e-5, err_msg=name)
        tried += 1
    assert tried > 40
