"""What a step takes and returns."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.task
def test_batches_and_numbers() -> None:
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends import step_logs
    from dtrain.task.backends.step_metrics import scalars

    assert step_logs.unwrapped((3,)) == 3 and step_logs.unwrapped((3, 4)) == (3, 4)
    logs = {"a": 1, "b": {"c": {"d": tf.constant(2.0)}}, "e": None, "f": tf.ones([2]), "g": "text"}
    assert [name for name, _ in step_logs.flattened(logs)] == ["a", "d", "e", "f", "g"]
    assert list(step_logs.flattened(None)) == []
    assert {k: float(v) for k, v in scalars(logs).items()} == {"a": 1, "d": 2}
    result = {"x": tf.constant(1.0), "y": tf.constant([[2.0, 3.0]]), "z": np.float32(4)}
    values = {k: float(v) for k, v in step_logs.named("m", result)}
    assert values == {"x": 1, "y_0": 2, "y_1": 3, "z": 4}


@pytest.mark.task
def test_results_of_metrics_under_other_names() -> None:
    import keras

    from dtrain.task.backends.step_metrics import Returned
    from dtrain.task.backends.tracing import tracing

    model = keras.Model()
    model.total = total = keras.metrics.Mean(name="total")
    returned = Returned(model)
    total.update_state(3.0)
    with tracing(results=[]):
        logs = {"loss": total.result(), "total": total.result(), "other": keras.ops.ones([])}
        values = returned.values(logs, training=True)
    assert {k: float(v) for k, v in values.items()} == {"other": 1}
    assert returned.names == {True: {"total": {"loss", "total"}}, False: None}


@pytest.mark.task
def test_trackers_of_losses_have_the_sum_of_the_parts() -> None:
    import keras
    import tensorflow as tf

    from dtrain.task.backends import step_logs
    from dtrain.task.backends.step_metrics import wrap
    from dtrain.task.backends.tensorflow.replica.gradients import Step
    from dtrain.task.backends.tracing import tracing

    losses = ["loss", "My_Loss", "d_loss", "TotalLoss", "loss_1", "KL/losses", "KLLoss"]
    assert all(map(step_logs.is_loss, losses))
    assert not any(map(step_logs.is_loss, ["lossless", "gloss", "floss_share", "accuracy"]))
    model = keras.Model()
    model.one = loss = keras.metrics.Mean(name="My_Loss")
    model.two = other = keras.metrics.Mean(name="glossy")
    model.three = error = keras.metrics.MeanSquaredError(name="loss_of_squares")  # of examples
    wrap(model)
    with tracing(step=Step(4, summed=True)):
        loss.update_state(tf.constant(2.0), sample_weight=3)
        loss.update_state(1, 1)
        assert float(loss.result()) == (4 * 2 * 3 + 4 * 1) / 4
        loss.reset_state()
        loss.update_state(tf.constant([2.0, 4.0]))  # of each example
        other.update_state(5.0)
        error.update_state([1.0], [3.0])
        assert [float(m.result()) for m in (loss, other, error)] == [3, 5, 4]
    other.update_state(5.0)
    loss.reset_state()
    loss.update_state(7.0)
    assert [float(m.result()) for m in (loss, other)] == [7, 5]


def _compiled(kind: str) -> Any:
    import keras

    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return {}

    class Tested(Own):
        def test_step(self, data: Any) -> Any:
            return {}

    class Computed(Own):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return 0.0

    inputs = keras.Input([2])
    kernel = "l2" if kind == "regularized" else None
    outputs = keras.layers.Dense(1, kernel_regularizer=kernel)(inputs)
    model = {"tested": Tested, "computed": Computed}.get(kind, Own)(inputs, outputs)
    model.compile(loss="mse" if kind == "loss" else None)
    return model


@pytest.mark.task
def test_what_there_is_to_evaluate_by() -> None:
    from dtrain.task.backends.step_logs import evaluates

    kinds = ("loss", "regularized", "tested", "computed", "none")
    assert [evaluates(_compiled(kind)) for kind in kinds] == [True, True, True, True, False]


def hooked(input_shape: Any, classes: int) -> Any:
    """A model whose hooks say what Keras' steps return."""
    import keras

    class Hooked(keras.Model):
        def get_metrics_result(self) -> Any:
            logs = super().get_metrics_result()
            precision, recall = logs["precision"], logs.pop("recall")
            return {**logs, "f1": 2 * precision * recall / (precision + recall + 1e-7)}

        def compute_metrics(self, *args: Any, **kwargs: Any) -> Any:
            logs = super().compute_metrics(*args, **kwargs)
            del logs["accuracy"]
            return {**logs, "renamed": logs["f1"], "score": logs["precision"], "one": 1.0}

    inputs = keras.Input(input_shape)
    return Hooked(inputs, keras.layers.Dense(1, "sigmoid")(inputs))


def sized(input_shape: Any, classes: int) -> Any:
    """A model with a metric that its ``test_step`` neither updates nor returns."""
    import keras

    class Tested(keras.Model):
        def train_step(self, data: Any) -> Any:
            logs = super().train_step(data)
            self.size.update_state(keras.ops.abs(self.trainable_variables[0]))
            return {**logs, "size": self.size.result()}

        def test_step(self, data: Any) -> Any:
            logs = super().test_step(data)
            return {name: value for name, value in logs.items() if name != "size"}

    inputs = keras.Input(input_shape)
    made = Tested(inputs, keras.layers.Dense(1, "sigmoid")(inputs))
    made.size = keras.metrics.Mean(name="size")
    return made


@pytest.mark.task(devices=2)
def test_hooks_of_keras_steps_say_what_is_recorded() -> None:
    import keras
    import numpy as np

    from tests.test_steps import BATCH, in_order, prepare, settings

    def config(model: str) -> Any:
        return settings(
            model={"_target_": f"tests.test_step_logs.{model}"},
            dataset={"_target_": "tests.test_steps.weighted", "train": 48, "held": 21},
            optimizer={"_target_": "keras.optimizers.SGD", "learning_rate": 0.1},
            trainer={
                "loss": "binary_crossentropy",
                "metrics": ["accuracy", "precision", "recall"],
            },
        )

    fitted: dict[str, list[float]] = {}
    for kind in ("OneDevice", "Mirrored"):
        keras.utils.clear_session()
        model, _, steps, splits = prepare(kind, 2, config("hooked"))
        if not fitted:
            plain = hooked((4,), 1)
            names = ["accuracy", "precision", "recall"]
            plain.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=names)
            plain.set_weights(model.get_weights())
            x, y, weight = in_order(splits.train, 6)
            held = [np.asarray(part) for part in splits.validation[np.arange(21)]]
            fitted = plain.fit(
                x, y, BATCH, sample_weight=weight, shuffle=False, verbose=0,
                validation_data=tuple(held), validation_batch_size=7,
            ).history  # fmt: skip
        found = steps.results(steps.train(6))
        held_out = steps.evaluate(*divmod(21, steps.evaluation_examples))
        results = steps.results(held_out, training=False)
        found |= {f"val_{name}": value for name, value in results.items()}
        assert found.keys() == fitted.keys(), kind
        assert "f1" in found and not {"accuracy", "recall"} & found.keys()
        for name, [value] in fitted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=f"{kind} {name}")
    keras.utils.clear_session()
    _, _, steps, _ = prepare("OneDevice", 1, config("sized"))
    assert steps.results(steps.train(2))["size"] > 0
    assert "size" not in steps.results(steps.evaluate(2, 0), training=False)
