"""``debug=NAME``: checks in the place of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtrain.config import schema
from dtrain.run.folder import read_json
from tests import strategies
from tests.conftest import Commands
from tests.sampled import sampled

MODELS = """
import keras

@keras.saving.register_keras_serializable()
class Logarithm(keras.layers.Layer):
    def call(self, x):
        return keras.ops.log(x - keras.ops.mean(x))

@keras.saving.register_keras_serializable()
class Stop(keras.layers.Layer):
    def call(self, x):
        return keras.ops.stop_gradient(0.0 * x)

def with_a(layer, input_shape, classes):
    inner = keras.Sequential(
        [keras.layers.Dense(8), layer, keras.layers.Dense(8, activation="relu")], name="inner")
    outputs = keras.layers.Dense(classes, activation="softmax")
    return keras.Sequential([keras.Input(input_shape), inner, outputs])

def planted(input_shape, classes):
    return with_a(Logarithm(name="planted"), input_shape, classes)

def dead(input_shape, classes):
    return with_a(Stop(), input_shape, classes)

def noisy(input_shape, classes):
    return with_a(keras.layers.Dropout(0.5, name="drop"), input_shape, classes)
"""


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("debug=nan", "strategy=ps"), "strategy=ps: computes a step where debug=nan cannot"),
        (("debug=overfit", "debug.examples=7", "strategy=mirrored"), "type: debug.examples=8"),
        (("debug=nan", "debug.examples=7"), "debug.examples=7"),
        (("debug=overfitt",), "type: debug=overfit"),
        (("-m", "debug=nan,overfit"), "checks one training, and a sweep has several"),
    ],
)
def test_what_does_not_go_together_is_refused(
    given: tuple[str, ...], text: str, quick: tuple[str, ...], dtrain: Commands
) -> None:
    run = dtrain(*given[:1], *quick, *given[1:])  # an option of Hydra stands first
    assert (run.code, run.rundir) == (2, None)
    assert text in run.output


def test_an_option_whose_name_is_a_number_of_hydras_is_put_in_quotes() -> None:
    quoted = schema.option_as_text
    assert quoted("debug=nan") == "debug='nan'"
    same = ["debug=overfit", "trainer.batch_size=nan", "model=nan", "seed=inf", "-m", "~debug"]
    assert list(map(quoted, same)) == same


def test_nan_names_a_planted_layer(
    quick: tuple[str, ...], dtrain: Commands, user_code: Any, tmp_path: Path
) -> None:
    user_code(MODELS)
    run = dtrain(
        *[word for word in quick if not word.startswith("model")], "strategy=mirrored", "debug=nan",
        "model=custom", "model._target_=mine.planted",
    )  # fmt: skip
    assert run.code == 1 and run.rundir is not None
    error = run.error
    assert "layer inner/planted (Logarithm) computes a value that is not finite (Log) " in error
    assert "return keras.ops.log(x - keras.ops.mean(x)) at step 1" in error
    debug = run.result["debug"]
    assert (debug["path"], debug["step"], debug["kind"]) == ("inner/planted", 1, "value")
    assert debug["line"].startswith("mine.py:")
    # It is no run: not tracked, below a folder of its own, and taken for none by other commands.
    assert "outputs/debug/" in str(run.rundir.path)
    from dtrain.compare import load
    from dtrain.errors import UsageError

    with pytest.raises(UsageError, match="holds no run folder"):
        load.of_folders([tmp_path / "outputs"])
    assert dtrain(f"resume={run.rundir.path}").code == 2
    assert "is not a run" in dtrain(f"fork={run.rundir.path}").output


def test_overfit_fails_what_cannot_learn_and_judges_by_an_evaluation(
    quick: tuple[str, ...], dtrain: Commands, user_code: Any
) -> None:
    user_code(MODELS)
    words = [word for word in quick if not word.startswith("model")]
    words += ["debug=overfit", "model=custom", "optimizer.learning_rate=0.03"]
    run = dtrain(*words, "model._target_=mine.dead", "debug.steps=40")
    assert run.code == 1
    assert "the model does not learn 8 examples by heart: 40 steps" in run.error
    assert run.result["debug"]["losses"][-1] > 0.05
    run = dtrain(*words, "model._target_=mine.noisy")
    assert run.code == 0, run.output
    assert "after the last: near 0" in run.output


@pytest.mark.parametrize("strategy", sampled(strategies.chosen(), "default"))
def test_one_batch_goes_through_all_stages(
    strategy: str, quick: tuple[str, ...], dtrain: Commands
) -> None:
    run = dtrain(*quick, "debug=one_batch", f"strategy={strategy}")
    assert run.code == 0, run.output
    for done in ("trained a step", "same bits", "trained on from there", "exported (savedmodel"):
        assert done in run.result["debug"]["summary"]
    assert run.rundir is not None and read_json(run.rundir.result) is not None


def test_what_every_run_records_of_its_time(quick: tuple[str, ...], dtrain: Commands) -> None:
    run = dtrain(*quick)
    assert run.code == 0, run.output
    shares = run.result["time_shares"]
    assert set(shares) == {"step", "input", "host"}
    assert sum(shares.values()) == pytest.approx(1, abs=0.01)


@pytest.mark.task
def test_checks_name_layers_gradients_and_the_users_lines() -> None:
    import keras
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.numerics import first_not_finite

    class Root(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return keras.ops.sqrt(keras.ops.relu(x))  # its derivative at 0 is infinite

    class Own(keras.Model):
        """Computes between its layers, and has a step of its own."""

        def __init__(self, between: Any, layer: Any, loss: Any):
            super().__init__(name="own")
            self.a, self.layer, self.b = keras.layers.Dense(4), layer, keras.layers.Dense(3)
            self.between, self.lost = between, loss

        def call(self, x: Any) -> Any:
            return self.b(self.between(self.layer(self.a(x))))

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.lost(y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    def same(x: Any) -> Any:
        return x

    def squares(y: Any, p: Any) -> Any:
        return tf.reduce_mean((y - p) ** 2)

    def logarithm(y: Any, p: Any) -> Any:
        return tf.reduce_mean(tf.math.log(0 * p))

    x, y = tf.ones([4, 6, 2]), tf.ones([4, 6, 3])
    lstm = keras.layers.LSTM(4, return_sequences=True, unroll=False)
    relu = keras.layers.ReLU
    cases: list[tuple[Any, Any, Any, Any, Any]] = [
        (same, lstm, squares, x, None),
        (lambda v: v / 0.0, relu(), squares, x, ("RealDiv", "own (Own)", False, "v / 0.0")),
        (same, Root(name="root"), squares, 0 * x,
         ("SqrtGrad", "", True, "ops.sqrt(keras.ops.relu(x))")),
        (same, relu(), logarithm, x, ("Log", "", False, "tf.math.log(0 * p)")),
        (keras.layers.Rescaling(float("inf"), name="scaled"), lstm, squares, x,
         ("Const", "scaled (Rescaling)", False, "self.b(self.between(")),
    ]  # fmt: skip
    original = keras.Operation.__call__
    for between, layer, loss, inputs, expected in cases:
        model = Own(between, layer, loss)
        model(inputs)
        model.compile(optimizer=keras.optimizers.SGD(0.1))
        model.optimizer.build(model.trainable_variables)
        before = [v.numpy() for v in model.variables]
        finding = first_not_finite(model, (inputs, y))
        assert all((v.numpy() == b).all() for v, b in zip(model.variables, before, strict=True))
        if expected is None:
            assert finding is None
            continue
        operation, path, backward, code = expected
        assert finding is not None, expected
        assert (finding.layer, finding.backward) == (path, backward), finding
        assert finding.operation == operation
        assert code in finding.line and "test_debugging.py:" in finding.line, finding
    assert keras.Operation.__call__ is original


def test_a_training_has_none_and_its_plain_values_are_read_back(
    quick: tuple[str, ...], dtrain: Commands
) -> None:
    # The model is built in a process of its own, which gets the configuration as plain values.
    run = dtrain(*quick, "strategy=layer_placement", "dry_run=true")
    assert run.code == 0 and "all variables" in run.output
