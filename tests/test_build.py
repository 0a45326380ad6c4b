from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.test_steps import prepare, settings


def compiled(input_shape: Any, classes: int) -> Any:
    """A model that its own function compiles."""
    import keras

    model = keras.Sequential([keras.Input(input_shape), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.25), "mse", metrics=["mae"])
    return model


def scalar_loss(y_true: Any, y_pred: Any, factor: float = 1.0) -> Any:
    import keras

    return factor * keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y_true, y_pred))


def add_one(x: Any, seed: Any, amount: float) -> Any:
    return x + amount


def nothing(**_: Any) -> str:
    return "a text"


def one_hot(**_: Any) -> Any:
    import numpy as np

    return np.ones((8, 4), "float32"), np.eye(3, dtype="float32")[np.arange(8) % 3]


def two_outputs(input_shape: Any, classes: int, kind: str = "plain") -> Any:
    """A model that no single loss fits, with steps of its own or inherited ones or Keras'."""
    import keras

    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return {"loss": keras.ops.mean(self(data[0], training=True)[0])}

    class Inherits(Own):
        pass

    inputs = keras.Input(input_shape)
    outputs = [keras.layers.Dense(2)(inputs), keras.layers.Dense(3)(inputs)]
    return {"plain": keras.Model, "own": Own, "inherits": Inherits}[kind](inputs, outputs)


def highest_first() -> Any:
    """Data whose first label is the highest."""
    import numpy as np

    from dtrain.data.sources import Arrays, Splits

    source = Arrays(np.zeros((3, 4), np.float32), np.array([2, 0, 1]))
    return Splits(source, source, classes=3)


def build_model(**changed: Any) -> tuple[Any, Any]:
    """Return (model, splits) of the default strategy."""
    model, _, _, splits = prepare("Default", 1, settings(**changed))
    return model, splits


def rate(optimizer: Any, step: int) -> float:
    optimizer.iterations.assign(step)
    return float(optimizer.learning_rate.numpy())


@pytest.mark.task
def test_shape_and_classes_come_from_the_data() -> None:
    model, splits = build_model()
    assert (model.input_shape, model.output_shape) == ((None, 4), (None, 3))
    assert (len(splits.train), len(splits.validation)) == (50, 21)
    # Everything is made: nothing is left for the first step.
    assert model.optimizer.built
    assert {m.name for m in model.metrics} == {"loss", "compile_metrics"}
    assert [v for m in model.metrics for v in m.variables]
    assert all(not v.numpy().any() for m in model.metrics for v in m.variables)
    # What a user gives is not overwritten, and the seed decides about the rest.
    given, _ = build_model(model={"_target_": "dtrain.models.mlp", "units": [5], "classes": 7})
    assert given.output_shape == (None, 7)


@pytest.mark.task
def test_the_seed_decides_about_the_weights() -> None:
    first, again, other = (build_model(seed=seed)[0].get_weights()[0] for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).all()


@pytest.mark.faults
@pytest.mark.task
def test_a_model_of_keras_applications() -> None:
    model, _ = build_model(
        model={
            "_target_": "keras.applications.MobileNetV2",
            "weights": None,
            "alpha": 0.35,
            "input_shape": None,
        },
        dataset={
            "_target_": "dtrain.datasets.synthetic",
            "examples": 8,
            "validation_examples": 4,
            "shape": [32, 32, 3],
            "classes": 5,
        },
    )
    assert (model.input_shape, model.output_shape) == ((None, 32, 32, 3), (None, 5))
    assert model.compiled


def for_vectors(classes: int) -> Any:
    import keras

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(classes)])


def without_return() -> None:
    pass


@pytest.mark.task
def test_a_model_for_other_inputs_and_none() -> None:
    from dtrain.errors import UsageError

    given = (
        r"takes inputs of shape \(None, 3\), and the dataset has \(None, .*\); .*hint: keras.Input"
    )
    with pytest.raises(UsageError, match=given):
        prepare("Default", 1, settings(model={"_target_": "tests.test_build.for_vectors"}))
    with pytest.raises(UsageError, match=r"returned NoneType; .*; hint: the model behind `return`"):
        prepare("Default", 1, settings(model={"_target_": "tests.test_build.without_return"}))


def without_optimizer(input_shape: Any, classes: int, own: bool = True) -> Any:
    """A model whose step moves its weights itself."""
    import keras

    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            for variable in self.trainable_variables:
                variable.assign(variable * 0.5)
            return {"loss": keras.ops.mean(self(data[0], training=True))}

    inputs = keras.Input(input_shape)
    model = (Own if own else keras.Model)(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer=None, loss="mse")
    return model


@pytest.mark.task(devices=2)
def test_a_model_without_an_optimizer() -> None:
    from dtrain.errors import UsageError
    from dtrain.task import strategies
    from dtrain.task.model import train_state

    node = {"_target_": "tests.test_build.without_optimizer"}
    loss = {"loss": "mse", "metrics": []}
    model, strategy, steps, _ = prepare("Mirrored", 2, settings(model=node, trainer=loss))
    before = train_state.snapshot(model, strategy)
    assert steps.spans_points and all(name.startswith("model/") for name in before)
    steps.train(2)
    after = train_state.snapshot(model, strategy)
    assert all((after[name] == before[name] / 4).all() for name in before)
    placed = strategies.LayerPlacement(["CPU:0", "CPU:1"], "auto")
    for made, own in ((None, False), (placed, True)):
        with pytest.raises(UsageError, match="compiled without an optimizer"):
            chosen = settings(model={**node, "own": own}, trainer=loss)
            prepare("Default", 2, chosen, strategy=made)


def with_method(input_shape: Any, classes: int, method: str) -> Any:
    """A model with a method that Keras' fit calls."""
    import keras

    kind = type("Own", (keras.Model,), {method: lambda self, *_, **__: 1 / 0})
    inputs = keras.Input(input_shape)
    return kind(inputs, keras.layers.Dense(classes, "softmax")(inputs))


@pytest.mark.task
def test_methods_that_are_never_called_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrain.after import predict
    from dtrain.errors import UsageError
    from dtrain.task import strategies
    from dtrain.task.data import dataset

    def config(method: str) -> Any:
        return settings(model={"_target_": "tests.test_build.with_method", "method": method})

    for method in ("fit", "make_train_function", "evaluate", "make_test_function"):
        with pytest.raises(UsageError, match=rf"model=Own\.{method}: .* never be called"):
            prepare("OneDevice", 1, config(method))
    chosen, action = config("predict"), object.__new__(predict.Predict)
    action._rundir = SimpleNamespace(config=None)
    monkeypatch.setattr(predict.inputs.tree, "read", lambda path: chosen)
    schedule = SimpleNamespace(total_steps=4, steps_per_epoch=4)
    monkeypatch.setattr("dtrain.task.train.session.make_schedule", lambda *_: schedule)
    data, strategy = dataset.load(chosen), strategies.OneDevice(["CPU:0"])
    with pytest.raises(UsageError, match="hint: what predict does, in a predict_step of the class"):
        action._model(chosen, strategy, None, data, data.splits.train)


@pytest.mark.task
def test_a_compiled_model_is_left_alone() -> None:
    model, _ = build_model(model={"_target_": "tests.test_build.compiled"})
    assert (model.loss, type(model.optimizer).__name__) == ("mse", "SGD")
    assert float(model.optimizer.learning_rate.numpy()) == 0.25
    assert list(model.get_metrics_result()) == ["loss", "mae"]
    assert model.optimizer.built


@pytest.mark.task
def test_optimizers_from_nodes() -> None:
    from dtrain.task.model.build import optimizer

    adam = {"_target_": "keras.optimizers.Adam", "learning_rate": 0.5}
    plain = optimizer({**adam, "schedule": None, "clipnorm": 2.0, "use_ema": True}, 100, 10)
    assert (plain.clipnorm, plain.use_ema, plain.name) == (2.0, True, "adam")
    assert float(plain.learning_rate.numpy()) == 0.5

    cosine = optimizer({**adam, "schedule": {"_target_": "dtrain.schedules.cosine"}}, 100, 10)
    assert [rate(cosine, step) for step in (0, 50, 100)] == pytest.approx([0.5, 0.25, 0.0])
    schedule = {"_target_": "dtrain.schedules.warmup", "warmup_epochs": 2}
    warmup = optimizer({**adam, "schedule": schedule}, 100, 10)
    assert [rate(warmup, step) for step in (0, 10, 20, 99)] == pytest.approx([0, 0.25, 0.5, 0.5])
    node = {
        "_target_": "keras.optimizers.schedules.ExponentialDecay",
        "initial_learning_rate": 1.0,
        "decay_steps": 2,
        "decay_rate": 0.5,
    }
    keras_own = optimizer({**adam, "learning_rate": node}, 100, 10)
    assert [rate(keras_own, step) for step in (0, 2, 4)] == [1.0, 0.5, 0.25]


@pytest.mark.task
def test_clipping_and_accumulation_work_in_training() -> None:
    import numpy as np

    sgd = {
        "_target_": "keras.optimizers.SGD",
        "learning_rate": 1.0,
        "global_clipnorm": 0.125,
        "gradient_accumulation_steps": 2,
    }
    model, _, steps, _ = prepare("Default", 1, settings(optimizer=sgd))
    weights = [model.get_weights()]
    for _ in range(2):
        steps.train(1)
        weights.append(model.get_weights())
    moved = [
        np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(new, old, strict=True)))
        for old, new in itertools.pairwise(weights)
    ]
    assert moved[0] == 0.0
    assert moved[1] == pytest.approx(0.125, rel=1e-4)


@pytest.mark.task
def test_a_function_as_the_loss_is_saved_with_the_model(tmp_path: Path) -> None:
    """A partial of it could not be: the run would leave weights alone."""

    import keras

    loss = {"_target_": "tests.test_build.scalar_loss"}
    model, *_ = prepare("OneDevice", 1, settings(trainer={"loss": loss, "metrics": []}))
    assert model.loss is scalar_loss
    model.save(tmp_path / "model.keras")
    names = {"scalar_loss": scalar_loss}
    assert keras.models.load_model(tmp_path / "model.keras", names).loss is scalar_loss


@pytest.mark.task(devices=2)
def test_a_scalar_loss_has_the_same_gradients_on_two_replicas() -> None:
    import numpy as np

    loss = {"_target_": "tests.test_build.scalar_loss", "factor": 2.0}
    changed = {
        "optimizer": {"_target_": "keras.optimizers.SGD", "learning_rate": 0.5},
        "trainer": {"loss": loss, "metrics": []},
    }
    weights, losses = [], []
    for kind, replicas in (("OneDevice", 1), ("Mirrored", 2)):
        model, _, steps, _ = prepare(kind, replicas, settings(**changed))
        start = model.get_weights()[0]
        losses.append(steps.results(steps.train(1))["loss"])
        weights.append(model.get_weights()[0] - start)
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-4, atol=1e-7)

    # And they are those of the loss that gives one value an example.
    changed["trainer"] = {"loss": "sparse_categorical_crossentropy", "metrics": []}
    model, _, steps, _ = prepare("OneDevice", 1, settings(**changed))
    start = model.get_weights()[0]
    assert 2 * steps.results(steps.train(1))["loss"] == pytest.approx(losses[0], rel=1e-6)
    np.testing.assert_allclose(
        2 * (model.get_weights()[0] - start), weights[0], rtol=1e-4, atol=1e-7
    )


def largest(y_true: Any, y_pred: Any) -> Any:
    import keras

    return keras.ops.max(y_pred, axis=-1)


def share(y_true: Any, y_pred: Any, over: float) -> Any:
    import keras

    return keras.ops.mean(y_pred > over, axis=-1)


def made(name: str) -> Any:
    import keras

    return keras.metrics.SparseCategoricalAccuracy(name)


@pytest.mark.task
def test_losses_and_metrics_from_nodes() -> None:
    from dtrain.task.data import dataset

    trainer = {
        "loss": {"_target_": "keras.losses.SparseCategoricalCrossentropy", "ignore_class": 2},
        "metrics": [
            "accuracy",
            {"_target_": "keras.metrics.SparseTopKCategoricalAccuracy", "k": 2, "name": "top2"},
            {"_target_": "tests.test_build.largest"},
            {"_target_": "tests.test_build.share", "over": 0.5},
            {"_target_": "tests.test_build.made", "name": "top1"},
        ],
    }
    model, _ = build_model(trainer=trainer)
    assert model.loss.get_config()["ignore_class"] == 2
    names = ["loss", "accuracy", "top2", "largest", "share", "top1"]
    assert list(model.get_metrics_result()) == names

    node = {**settings().dataset, "augment": {"_target_": "tests.test_build.add_one", "amount": 2}}
    data = dataset.load(settings(dataset=node))
    splits, augment = data.splits, data.augment
    assert len(splits.train) == 50
    assert augment(1.0, seed=None) == 3.0


@pytest.mark.task
def test_too_few_classes_are_refused_whichever_label_comes_first() -> None:
    from dtrain.errors import UsageError

    with pytest.raises(UsageError, match=r"model\.classes=3"):
        build_model(
            model={"_target_": "dtrain.models.mlp", "classes": 2},
            dataset={"_target_": "tests.test_build.highest_first"},
        )


def measured(whole: bool = False) -> Any:
    """Data whose targets are numbers, the first of them a whole one."""
    import numpy as np

    y = np.arange(8) % 2 if whole else np.linspace(0, 0.9, 8)
    return np.ones((8, 4), "float32"), y.astype("float32")


@pytest.mark.task
def test_numbers_are_no_classes() -> None:
    """Keras takes the whole numbers below them: here all are of class 0."""
    from dtrain.errors import UsageError

    numbers = {"dataset": {"_target_": "tests.test_build.measured"}}
    mlp = {"_target_": "dtrain.models.mlp", "classes": 2}
    with pytest.raises(UsageError, match=r"numbers such as 0\.1286;.*trainer\.loss=mse"):
        build_model(**numbers, model=mlp)
    one = {"_target_": "tests.test_steps.logistic", "classes": 1}
    build_model(**numbers, model=one, trainer={"loss": "mse", "metrics": []})
    own = {"_target_": "tests.test_build.two_outputs", "kind": "own"}
    build_model(**numbers, model=own)  # its step does not ask for trainer.loss
    build_model(dataset={**numbers["dataset"], "whole": True}, model=mlp)


def labelled(labels: list[int], held: list[int] | None = None, stream: bool = False) -> Any:
    import numpy as np
    import tensorflow as tf

    def split(of: list[int] | None) -> Any:
        return of and (np.ones((len(of), 4), "float32"), np.array(of))

    if stream:
        return tf.data.Dataset.from_tensor_slices(split(labels)).batch(2)
    return (split(labels), split(held)) if held else split(labels)


def three_outputs(input_shape: Any) -> Any:
    import keras

    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(3, "softmax")])


def one_output(input_shape: Any) -> Any:
    import keras

    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(1, "sigmoid")])


@pytest.mark.task
def test_more_classes_than_outputs_are_answered_for_the_model_at_hand() -> None:
    from dtrain.errors import UsageError

    for name, labels, hint in (
        ("one_output", [0, 1, 1], "type: trainer.loss=binary_crossentropy"),
        ("three_outputs", [0, 4, 1], "hint: 5 in the last layer, or classes, an argument of tests"),
    ):
        with pytest.raises(UsageError, match=hint):
            build_model(
                model={"_target_": f"tests.test_build.{name}"},
                dataset={"_target_": "tests.test_build.labelled", "labels": labels},
                trainer={"loss": "sparse_categorical_crossentropy", "metrics": [],
                         "steps_per_epoch": 1},
            )  # fmt: skip


@pytest.mark.task
def test_labels_that_are_no_classes_are_refused() -> None:
    import tensorflow as tf

    from dtrain.errors import UsageError
    from dtrain.task.model import checks

    def build(loss: Any = "sparse_categorical_crossentropy", **data: Any) -> None:
        build_model(
            model={"_target_": "tests.test_build.three_outputs"},
            dataset={"_target_": "tests.test_build.labelled", **data},
            trainer={"loss": loss, "metrics": [], "steps_per_epoch": 1},
        )

    ignoring = {"_target_": "keras.losses.SparseCategoricalCrossentropy", "ignore_class": -1}
    for labels in ([0, 2, 1, 0], [2, 1, 1, 2]):
        with pytest.raises(UsageError, match="labels are 1 to 3"):
            build(labels=labels, held=[1, 3, 2])
    for given, found in (
        ({"labels": [1, 2, 3]}, "1 to 3"), ({"labels": [0, -1, 2]}, "-1 to 2"),
        ({"labels": [3, 1, 2, 2], "stream": True}, "1 to 3"),
        ({"labels": [1, 2, 3, -1], "loss": ignoring}, "1 to 3"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=f"labels are {found}; classes count from 0"):
            build(**given)
    # Of a later batch of a stream, where a step finds it.
    with (
        pytest.raises(UsageError, match="a label 7; classes count from 0; accepted: 0 to 2"),
        checks.naming_bad_labels(),
    ):
        tf.nn.sparse_softmax_cross_entropy_with_logits([7], tf.ones([1, 3]))


@pytest.mark.task
def test_one_loss_for_two_outputs_is_refused() -> None:
    from dtrain.errors import UsageError

    with pytest.raises(UsageError, match=r"trainer\.loss"):
        build_model(model={"_target_": "tests.test_build.two_outputs"})


@pytest.mark.task
@pytest.mark.parametrize("kind", ["own", "inherits"])
def test_a_step_of_its_own_need_not_fit_the_compiled_loss(kind: str) -> None:
    model, _ = build_model(model={"_target_": "tests.test_build.two_outputs", "kind": kind})
    assert model.built


@pytest.mark.task
def test_what_does_not_fit_is_refused_with_its_key() -> None:
    from dtrain.errors import UsageError

    mlp = {"_target_": "dtrain.models.mlp"}
    adam = {"_target_": "keras.optimizers.Adam", "learning_rate": 0.1}
    cases = [
        ({"dataset": {"_target_": "tests.test_build.nothing"}}, "dataset._target_"),
        ({"dataset": {"_target_": "dtrain.datasets.synthetic", "exmples": 3}}, "dataset.exmples"),
        ({"model": {"_target_": "tests.test_build.nothing"}}, "model._target_"),
        ({"model": {**mlp, "unit": [3]}}, "model.unit"),
        ({"model": {"_target_": "os.system"}}, "model._target_"),
        ({"model": {**mlp, "classes": 2}}, "model"),
        ({"optimizer": {**adam, "clipnorm": 1.0, "clipvalue": 1.0}}, "optimizer"),
        ({"optimizer": {**adam, "beta": 1.0}}, "optimizer"),
        (
            {"optimizer": {**adam, "schedule": {"_target_": "dtrain.schedules.cosine", "a": 1}}},
            "optimizer.schedule.a",
        ),
        ({"trainer": {"loss": "sparse", "metrics": []}}, "trainer.loss"),
        ({"trainer": {"loss": "categorical_crossentropy", "metrics": []}}, "trainer.loss"),
        ({"trainer": {"loss": "mse", "metrics": ["acuracy"]}}, "trainer.metrics"),
        (
            {"trainer": {"loss": "mse", "metrics": [{"_target_": "keras.metrics.Nothing"}]}},
            "trainer.metrics[0]._target_",
        ),
    ]
    for changed, key in cases:
        with pytest.raises(UsageError) as caught:
            build_model(**changed)
        assert caught.value.key == key, str(caught.value)
    # Of one example a label and the outputs go together, and no batch does.
    for loss in ("mse", "hinge", "mae", {"_target_": "keras.losses.Huber"}, "poisson"):
        with pytest.raises(
            UsageError, match=r"targets are int\d+, outputs float32 \[3\]"
        ) as caught:
            build_model(trainer={"loss": loss, "metrics": []})
        assert caught.value.key == "trainer.loss" and len(str(caught.value)) < 500
    one_hot = {"dataset": {"_target_": "tests.test_build.one_hot"}}
    with pytest.raises(UsageError, match="loss=categorical_crossentropy of one-hot targets"):
        build_model(**one_hot, model={**mlp, "classes": 3})


def counting(input_shape: Any, classes: int) -> Any:
    """A model that draws, and counts, in each of its calls."""
    import keras
    from keras import layers

    class Counting(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seeds = keras.random.SeedGenerator(3)
            self.calls = self.add_weight(dtype="int32", initializer="zeros", trainable=False)

        def call(self, x: Any) -> Any:
            self.calls.assign_add(1)
            return x + keras.random.normal((x.shape[-1],), seed=self.seeds)

    inputs = keras.Input(input_shape)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(Counting()(inputs)))


@pytest.mark.task
def test_seeds_and_counters_begin_as_under_fit() -> None:
    from tests.test_steps import prepare, settings

    model, _, steps, _ = prepare(
        "OneDevice", 1, settings(model={"_target_": "tests.test_build.counting"})
    )
    layer = next(layer for layer in model.layers if hasattr(layer, "calls"))
    assert (int(layer.calls), layer.seeds.state.numpy().tolist()) == (0, [3, 0])
    steps.train(2)
    assert (int(layer.calls), layer.seeds.state.numpy().tolist()) == (2, [3, 2])


def stateful(input_shape: Any, classes: int, rows: int | None = 8) -> Any:
    import keras

    inputs = keras.Input(batch_shape=(rows, *input_shape))
    hidden = keras.layers.GRU(3, stateful=True)(keras.layers.Reshape((-1, 1))(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(hidden))


def fixed(input_shape: Any, classes: int) -> Any:
    """A model whose layers know how many examples a batch has."""
    import keras

    inputs = keras.Input(batch_shape=(8, *input_shape))
    flat = keras.layers.Lambda(lambda x: keras.ops.reshape(x, (8, input_shape[0])))(inputs)
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(flat))


def with_rows(model: str, held: int, batch: int = 8, **arguments: Any) -> Any:
    config = settings(
        model={"_target_": f"tests.test_build.{model}", **arguments},
        trainer={"loss": "sparse_categorical_crossentropy", "metrics": [], "batch_size": batch},
    )
    config.dataset = config.dataset.replaced(validation_examples=held)
    return config


@pytest.mark.task(devices=2)
def test_a_state_of_a_batch_is_refused_where_it_is_not_that_of_fit() -> None:
    from dtrain.errors import UsageError

    for kind, devices, config, problem in (
        ("Mirrored", 2, with_rows("stateful", 16), "strategy=one_device"),
        ("OneDevice", 1, with_rows("stateful", 16, 16), "trainer.batch_size=8"),
        ("OneDevice", 1, with_rows("stateful", 21), "21 validation examples: are no multiple of 8"),
    ):
        with pytest.raises(UsageError, match=problem) as error:
            prepare(kind, devices, config)
        assert " is stateful" in str(error.value)


@pytest.mark.task
def test_models_of_batches_of_one_size_train() -> None:
    import numpy as np

    for model in ("stateful", "fixed"):
        _, _, steps, _ = prepare("OneDevice", 1, with_rows(model, 16))
        first = steps.results(steps.train(2))["loss"]
        assert steps.results(steps.train(30))["loss"] < first, model
        assert np.isfinite(steps.results(steps.evaluate(2, 0))["loss"])


def scalar(input_shape: Any, classes: int, compute: bool = False) -> Any:
    """Its call returns its loss, which ``trainer.loss`` or its ``compute_loss`` hands on."""
    import keras

    class Scalar(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(classes)

        def call(self, x: Any) -> Any:
            return keras.ops.mean(keras.ops.square(self.dense(x)))

    class Computes(Scalar):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, *more: Any, **named: Any) -> Any:
            return y_pred

    return Computes() if compute else Scalar()


def itself(y: Any, p: Any) -> Any:
    return p


def stepped(input_shape: Any, classes: int, call: str) -> Any:
    """A model whose step never calls it as it is called with examples."""
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class Conditional(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.Sequential([layers.Dense(5), layers.Dense(classes)])
            self.tracker = keras.metrics.Mean(name="distance")

        def call(self, inputs: Any) -> Any:
            noise, labels = inputs
            return self.inner(noise) + labels

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                p = self.inner(ops.concatenate([x, ops.one_hot(y, classes)], -1), training=True)
                loss = ops.mean(ops.square(p))
            weights = self.trainable_weights
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            self.tracker.update_state(loss)
            return {"distance": self.tracker.result()}

    class Pairs(keras.Model):
        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                one, other = (self(data[0][i : i + 1, None], training=True) for i in (0, 1))
                loss = ops.mean(ops.square(one - other))
            weights = self.trainable_weights
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"distance": loss}

    if call == "conditional":
        return Conditional()
    inputs = keras.Input([1, *input_shape])
    return Pairs(inputs, layers.Dense(3)(layers.Flatten()(inputs)))


def clearing(input_shape: Any, classes: int) -> Any:
    import keras

    keras.backend.clear_session()
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(inputs))


@pytest.mark.task(devices=2)
@pytest.mark.parametrize(("kind", "devices"), [("OneDevice", 1), ("Mirrored", 2)])
def test_models_that_keras_trains_are_built(kind: str, devices: int) -> None:
    import keras
    import numpy as np

    from dtrain.task import strategies

    strategy = getattr(strategies, kind)([f"CPU:{i}" for i in range(devices)])
    own = {"loss": {"_target_": "tests.test_build.itself"}, "metrics": []}
    usual = {"loss": "sparse_categorical_crossentropy", "metrics": []}
    for changed, name in (
        (
            {"model": {"_target_": "tests.test_build.scalar", "compute": True}, "trainer": usual},
            "loss",
        ),
        ({"model": {"_target_": "tests.test_build.scalar"}, "trainer": own}, "loss"),
        ({"model": {"_target_": "tests.test_build.stepped", "call": "conditional"}}, "distance"),
        ({"model": {"_target_": "tests.test_build.stepped", "call": "pairs"}}, "distance"),
        ({"model": {"_target_": "tests.test_build.clearing"}}, "loss"),
    ):
        keras.utils.clear_session()
        policy = "mixed_bfloat16" if name == "loss" else "float32"
        keras.config.set_dtype_policy(policy)
        model, _, steps, _ = prepare("", 0, settings(**changed), strategy=strategy)
        before = [np.asarray(v.value) for v in model.trainable_variables]
        assert before and np.isfinite(steps.results(steps.train(2))[name])
        after = [np.asarray(v.value) for v in model.trainable_variables]
        assert any((a != b).any() for a, b in zip(before, after, strict=True))
        assert keras.config.dtype_policy().name == policy


def ending(input_shape: Any, classes: int, activation: Any, units: int, loss: Any = None) -> Any:
    import keras

    inputs = keras.Input(input_shape)
    model = keras.Model(inputs, keras.layers.Dense(units, activation=activation)(inputs))
    if loss is not None:
        model.compile("sgd", loss)
    return model


@pytest.mark.task
def test_outputs_that_are_no_probabilities_are_told_of() -> None:
    import keras

    from dtrain.task import strategies
    from dtrain.task.data import dataset
    from dtrain.task.model import build

    os.environ["DTRAIN_TRUST"] = "tests"
    strategy = strategies.OneDevice(["CPU:0"])
    sparse, binary = "sparse_categorical_crossentropy", "binary_crossentropy"
    logits = {"_target_": "keras.losses.SparseCategoricalCrossentropy", "from_logits": True}
    typed = "type 'trainer.loss={_target_:keras.losses."
    for activation, units, loss, words in (
        (None, 3, sparse, f"{typed}SparseCategoricalCrossentropy,from_logits:true}}' where"),
        ("sigmoid", 3, sparse, "those of an example add up to"),
        (None, 1, binary, f"{typed}BinaryCrossentropy,from_logits:true}}' where"),
        (None, 3, logits, None),
        ("softmax", 3, sparse, None),
        ("sigmoid", 1, binary, None),
        (None, 1, "mse", None),
    ):
        keras.utils.clear_session()
        model = {"_target_": "tests.test_build.ending", "activation": activation, "units": units}
        config = settings(model=model, trainer={"loss": loss, "metrics": []})
        said: list[Any] = []
        splits = dataset.load(config).splits
        build.model(config, splits, strategy, 16, 4, notice=said.append)
        assert not any(said) if words is None else words in said[0], (said, loss)


@pytest.mark.task
def test_a_loss_that_does_not_fit_is_changed_where_it_is_written() -> None:
    import keras

    from dtrain.errors import UsageError

    node = {"_target_": "tests.test_build.ending", "activation": "softmax", "units": 3}
    problem = r": loss and metrics do not fit the model: .*; "
    for own, words in (
        (None, rf"^trainer\.loss=mse{problem}type: trainer\.loss=sparse_categorical_crossentropy "),
        ("mse", rf"^model=compile\(loss=mse\){problem}hint: loss='sparse_categorical_crossentropy'"
                r", metrics=\['accuracy'\] in the compile of the model's function$"),
    ):  # fmt: skip
        keras.utils.clear_session()
        config = settings(model={**node, "loss": own}, trainer={"loss": "mse", "metrics": []})
        with pytest.raises(UsageError, match=words):
            prepare("OneDevice", 1, config)


def losing(input_shape: Any, classes: int, kind: str, trainable: bool) -> Any:
    """A model with a loss whose own variables Keras gives to no optimizer."""
    import keras

    of_classes = keras.losses.sparse_categorical_crossentropy
    scale = keras.Variable(1.0, trainable=trainable, name="scale")
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    net.trainable = trainable

    class Own(keras.losses.Loss):
        def __init__(self) -> None:
            super().__init__()
            self.held = {"net": [net]} if kind == "net" else {"scale": scale}

        def call(self, y_true: Any, y_pred: Any) -> Any:
            return of_classes(y_true, y_pred)

    def closure(y_true: Any, y_pred: Any) -> Any:
        return scale * of_classes(y_true, y_pred)

    model = keras.Sequential([keras.Input(input_shape), keras.layers.Dense(classes)])
    model.compile("sgd", closure if kind == "closure" else Own())
    return model


@pytest.mark.task
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_loss_with_variables_that_nothing_trains_is_refused(backend: str) -> None:
    from dtrain.errors import UsageError

    for kind, name in {"held": "held/scale", "closure": "scale", "net": "held/net/0"}.items():
        node = {"_target_": "tests.test_build.losing", "kind": kind, "trainable": True}
        with pytest.raises(UsageError, match=f"model={name}.*optimizer is given those"):
            prepare("OneDevice", 1, settings(model=node))
        prepare("OneDevice", 1, settings(model={**node, "trainable": False}))
