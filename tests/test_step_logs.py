"""What a step takes and returns."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.task
def test_the_word_loss_in_a_name() -> None:
    from dtrain.task.backends.step_logs import is_loss

    losses = ["loss", "My_Loss", "d_loss", "TotalLoss", "loss_1", "KL/losses", "KLLoss"]
    assert all(map(is_loss, losses))
    assert not any(map(is_loss, ["lossless", "gloss", "floss_share", "accuracy"]))


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
            trainer={"loss": "binary_crossentropy", "metrics": ["accuracy", "precision", "recall"]},
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
