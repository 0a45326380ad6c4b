"""A mesh of logical CPU devices: variables in parts, whole batches, the numbers of one device."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.sampled import sampled
from tests.test_steps import BATCH, BINARY, PLAIN, in_order, prepare, settings

pytestmark = pytest.mark.task(devices=4)
CONF = Path(__file__).parent.parent / "conf"


def mesh(batch: int = 2, model: int = 2, rules: Any = "auto") -> Any:
    from dtrain.run.cluster import Cluster, Task
    from dtrain.task.strategies import Mesh

    devices = batch * model
    cluster = Cluster((Task("chief", 0, devices),), "cpu", batch, {})
    return Mesh([f"CPU:{i}" for i in range(devices)], cluster, rules)


def wide(input_shape: Any, classes: int) -> Any:
    from dtrain import models

    return models.mlp(input_shape, classes, (64, 32))


def made(strategy: Any, config: Any, start: int = 0) -> tuple[Any, Any, Any, Any]:
    """Return (model, strategy, steps, splits), the layers named as in a process of their own."""
    import keras

    keras.utils.clear_session()
    return prepare("Default", 1, config, start, strategy=strategy)


WIDE = {"model": {"_target_": "tests.test_dtensor.wide"}}
SPLIT = [{"path": "^dense/", "split": -1}, {"path": "^dense_1/kernel", "split": 0}]


def numbers(strategy: Any, config: Any, rest: int = 5) -> Any:
    """Return (metrics of six steps, of the validation, weights, the model)."""
    model, _, steps, _ = made(strategy, config)
    sums = steps.train(1)
    sums.add(steps.train(5))
    assert (sums.examples, sums.steps) == (6 * BATCH, 6)
    held = steps.evaluate(2, rest)
    assert held.examples == 2 * BATCH + rest
    return steps.results(sums), steps.results(held), model.get_weights(), model


def agree(strategy: Any, config: Any, rest: int = 5) -> Any:
    """Assert that a mesh gives the numbers of one device; return the model on the mesh."""
    import numpy as np

    metrics, held, weights, _ = numbers(None, config, rest)
    ours = numbers(strategy, config, rest)
    assert ours[0] == pytest.approx(metrics, rel=1e-5)
    assert ours[1] == pytest.approx(held, rel=1e-5)
    for found, expected in zip(ours[2], weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    return ours[3]


def test_a_variable_in_parts() -> None:
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.layouts import Placement
    from dtrain.task.backends.tensorflow.dtensor.strategy import MeshVariable

    whole = np.arange(12, dtype=np.float32).reshape(2, 6)
    on = mesh(rules=[]).mesh
    for gathered in (False, True):
        variable = MeshVariable(tf.constant(whole), mesh=on, placement=Placement(1, gathered))
        parts = [part.numpy().tolist() for part in variable.parts()]
        assert parts == [whole[:, :3].tolist(), whole[:, 3:].tolist()] * 2
        np.testing.assert_array_equal(np.asarray(variable), whole)
        np.testing.assert_array_equal(tf.convert_to_tensor(variable), whole)

        variable.assign(2 * whole)
        variable.assign_add(tf.constant(whole))
        variable.assign_sub(variable)
        variable.assign_add(np.ones((2, 6)))
        np.testing.assert_array_equal(variable.numpy(), np.ones((2, 6)))

        @tf.function(autograph=False)
        def step(variable: Any, rows: Any) -> list[Any]:
            # Written and read in turn, with a reduction over the batch between.
            seen = []
            for _ in range(3):
                with tf.GradientTape() as tape:
                    total = tf.reduce_sum(rows) * tf.reduce_sum(variable * variable)
                variable.assign_add(tape.gradient(total, variable))
                seen.append(tf.reduce_sum(variable.read_value()))
            return seen

        rows = mesh(rules=[]).pack(tf.ones([4, 1]), divided=True)
        # The sum of the rows is 4, so the gradient of each element is 8 times itself.
        assert [float(value) for value in step(variable, rows)] == [12.0 * 9**i for i in (1, 2, 3)]


@pytest.mark.parametrize(("batch", "model"), sampled([(2, 2), (1, 4), (4, 1)], (2, 2)))
def test_training_is_that_of_one_device(batch: int, model: int) -> None:
    from dtrain.task.backends.tensorflow.dtensor.strategy import MeshVariable

    rules = SPLIT if batch == 2 else "auto"
    built = agree(mesh(batch, model, rules), settings(**WIDE))
    kernel, bias, second, *_ = (v._value for v in built.variables)
    if batch == 2:
        assert [tuple(part.shape) for part in kernel.parts()] == [(4, 32)] * 4
        assert [tuple(part.shape) for part in bias.parts()] == [(32,)] * 4
    assert tuple(second.parts()[0].shape) == {1: (64, 32), 2: (32, 32), 4: (16, 32)}[model]
    # Every slot lies as its variable does.
    found = {v.path.removeprefix("adam/"): v._value for v in built.optimizer.variables}
    assert len(found) == 2 + 2 * len(built.trainable_variables)
    assert all(isinstance(value, MeshVariable) for value in found.values())
    for variable in built.trainable_variables:
        for slot in ("momentum", "velocity"):
            name = f"{variable.path.replace('/', '_')}_{slot}"
            assert found[name].placement == variable._value.placement, name


OPTIMIZERS = {
    "averages": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2},
    "clipped": {"global_clipnorm": 0.1, "weight_decay": 0.1, "gradient_accumulation_steps": 4},
    "schedule": {"schedule": {"_target_": "dtrain.schedules.cosine"}},
    "momentum": {"_target_": "keras.optimizers.SGD", "momentum": 0.9, "nesterov": True},
}


@pytest.mark.parametrize("name", sampled(OPTIMIZERS, "clipped"))
def test_optimizers(name: str) -> None:
    base = {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01}
    built = agree(mesh(rules=SPLIT), settings(**WIDE, optimizer={**base, **OPTIMIZERS[name]}))
    for held in (v for v in built.optimizer.variables if v.path.endswith("_accumulator")):
        split = held.path.removeprefix("adam/").startswith(("dense_kernel", "dense_bias"))
        assert (held._value.placement.axis is not None) == (split or "dense_1_kernel" in held.path)


def test_weighted_examples_and_metrics_with_curves() -> None:
    agree(mesh(), settings(**BINARY), rest=1)


def test_plain_tensors_are_of_the_whole_batch() -> None:
    model, _, steps, splits = made(mesh(), settings(**PLAIN))
    x = in_order(splits.train, 6)[0]
    results = steps.results(steps.train(6))
    assert results["mean"] == pytest.approx(x[:, 0].mean(), rel=1e-5)
    assert results["rows"] == BATCH
    traces = model.traces
    assert steps.train(3).examples == 3 * BATCH
    assert model.traces == traces
    held = splits.validation.x[:, 0]
    assert steps.results(steps.evaluate(2, 5))["mean"] == pytest.approx(held.mean(), rel=1e-5)


def bundle(input_shape: Any, classes: int) -> Any:
    """A person's own model, of layers inside layers, indexed as people do."""
    import keras
    import tensorflow as tf

    class Attention(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], 24), name="qkv")

        def call(self, x: Any) -> Any:
            parts = tf.reshape(tf.matmul(x, self.kernel), [-1, 4, 3, 2, 4])
            q, k, v = (tf.transpose(parts, [2, 0, 3, 1, 4])[i] for i in range(3))
            y = tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True)), v)
            return y[:, 0][..., -1, :] + y[:, 1, None][:, 0, 0]

    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.Dense(16, "gelu")
            self.attention = Attention()

        def call(self, x: Any) -> Any:
            return self.attention(self.inner(x[:, None] * tf.ones([1, 4, 1])))

    layers = keras.layers
    inputs = keras.Input(input_shape)
    image = layers.Reshape((2, 2, 1))(layers.Dense(4)(inputs))
    image = layers.DepthwiseConv2D(2, padding="same", depth_multiplier=128)(image)
    image = layers.SeparableConv2D(16, 2, padding="same")(image)
    image = layers.Flatten()(layers.AveragePooling2D(2)(image))
    words = layers.Embedding(8, 128)(layers.Lambda(lambda x: tf.cast(x > 0, tf.int32))(inputs))
    joined = layers.Concatenate()([image, Block()(inputs), layers.GlobalAveragePooling1D()(words)])
    return keras.Model(inputs, layers.Dense(classes, activation="softmax")(joined))


@pytest.mark.faults
def test_a_model_of_many_operations() -> None:
    # Adam, otherwise, takes the rows of a lookup one by one: see docs/strategies.md.
    optimizer = {"_target_": "keras.optimizers.SGD", "learning_rate": 0.1}
    config = settings(model={"_target_": "tests.test_dtensor.bundle"}, optimizer=optimizer)
    built = agree(mesh(), config)
    split = [v.path for v in built.variables if v._value.placement.axis is not None]
    assert sorted(path.split("/")[-1] for path in split) == ["embeddings", "pointwise_kernel"]


def noisy(input_shape: Any, classes: int) -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.GaussianNoise(0.3),
            layers.Dense(64, "relu"),
            layers.Dropout(0.5),
            layers.Dense(32, "relu"),
            layers.GaussianDropout(0.2),
            layers.Dense(classes, "softmax"),
        ]
    )


@pytest.mark.parametrize(("batch", "model"), sampled([(2, 2), (1, 4)], (2, 2)))
def test_layers_draw_as_on_one_device(batch: int, model: int) -> None:
    config = settings(model={"_target_": "tests.test_dtensor.noisy"})
    rules = [{**rule, "path": rule["path"].replace("^", "/")} for rule in SPLIT]
    built = agree(mesh(batch, model, rules), config)
    seeds = [v.numpy()[1] for v in built.variables if "seed" in v.path]
    assert seeds == [6, 6, 6], "a draw a step"


def compiled(input_shape: Any, classes: int) -> Any:
    """A model that compiles itself."""
    model = wide(input_shape, classes)
    model.compile(
        "adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False
    )
    return model


def test_a_model_that_compiled_itself() -> None:
    agree(mesh(), settings(model={"_target_": "tests.test_dtensor.compiled"}))


def test_a_snapshot_is_whole_and_can_be_restored() -> None:
    import numpy as np

    from dtrain.task.model import train_state

    model, strategy, steps, _ = made(mesh(rules=SPLIT), settings(**WIDE))
    steps.train(2)
    arrays = train_state.snapshot(model, strategy)
    assert arrays["model/dense/kernel"].shape == (4, 64)
    assert arrays["optimizer/adam/dense_kernel_momentum"].shape == (4, 64)
    expected = steps.results(steps.train(2))
    # Under one device, and on another mesh.
    for other in (None, mesh(1, 4)):
        again, _, onward, _ = made(other, settings(**WIDE), start=2)
        train_state.restore(again, other or strategy, arrays)
        restored = train_state.snapshot(again, other or strategy)
        assert restored.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(restored[name], array, err_msg=name)
        assert onward.results(onward.train(2)) == pytest.approx(expected, rel=1e-5)


def rolling(input_shape: Any, classes: int) -> Any:
    import keras
    import tensorflow as tf

    layer = keras.layers.Lambda(lambda x: tf.roll(x, 1, 1))
    return keras.Sequential([keras.Input(input_shape), layer, keras.layers.Dense(classes)])


def deceiving(input_shape: Any, classes: int) -> Any:
    """It computes something else in a graph: so DTensor does with some operations."""
    import keras
    import tensorflow as tf

    layer = keras.layers.Lambda(lambda x: x if tf.executing_eagerly() else 2 * x)
    out = keras.layers.Dense(classes, activation="softmax")
    return keras.Sequential([keras.Input(input_shape), layer, out])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("rolling", ["strategy.mesh=2 x 2: DTensor cannot lay this model out (Roll)"]),
        ("deceiving", ["DTensor computes an operation of this model wrongly (a loss of"]),
    ],
)
def test_models_that_dtensor_cannot_compute(name: str, parts: list[str]) -> None:
    from dtrain.errors import UsageError

    with pytest.raises(UsageError) as error:
        made(mesh(), settings(model={"_target_": f"tests.test_dtensor.{name}"}))
    for part in [*parts, "accepted: ", "type: strategy=mirrored"]:
        assert part in str(error.value)


@pytest.mark.faults
def test_a_device_of_four_holds_a_quarter_of_a_transformer() -> None:
    from omegaconf import OmegaConf

    from dtrain.task.strategies import Mesh, OneDevice

    rules = OmegaConf.load(CONF / "strategy" / "rules" / "transformer.yaml").rules
    config = settings(
        model={"_target_": "dtrain.models.transformer"},
        dataset={"_target_": "dtrain.datasets.text"},
    )
    held = []
    for strategy in (OneDevice(["CPU:0"]), mesh(1, 4, OmegaConf.to_container(rules))):
        model, _, steps, _ = made(strategy, config)
        steps.train(1)
        sizes = [
            [part.dtype.size * math.prod(part.shape) for part in parts]
            for variable in (*model.variables, *model.optimizer.variables)
            for value in [variable._value]
            for parts in [value.parts() if isinstance(strategy, Mesh) else [value]]
        ]
        held.append([sum(each) for each in zip(*sizes, strict=True)])
    [[whole], devices] = held
    assert len(devices) == 4
    assert max(devices) <= 0.3 * whole, (whole, devices)


def test_rules_are_checked_before_training() -> None:
    from dtrain.errors import UsageError

    with pytest.raises(UsageError, match=r"strategy\.rules=nothing: no variable"):
        made(mesh(rules=[{"path": "nothing", "split": 0}]), settings(**WIDE))
