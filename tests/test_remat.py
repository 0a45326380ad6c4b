"""Layers that are computed twice: the same numbers, the operations twice, less memory."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from tests.sampled import sampled
from tests.test_steps import prepare, settings


def block(width: int, name: str, lossy: bool = False) -> Any:
    """A layer of layers with all that has a state, which learn of ``training`` from outside."""
    import keras

    layers = keras.layers

    class Block(layers.Layer):
        def __init__(self) -> None:
            super().__init__(name=name)
            everywhere = keras.backend.backend() == "tensorflow"
            self.up = layers.Dense(2 * width, activation="tanh", kernel_regularizer="l2")
            self.norm = layers.BatchNormalization(momentum=0.5, synchronized=everywhere)
            self.drop = layers.Dropout(0.3)
            self.down = layers.Dense(width)

        def build(self, shape: Any) -> None:
            self.up.build(shape)
            self.norm.build((None, 2 * width))
            self.down.build((None, 2 * width))

        def call(self, x: Any) -> Any:
            if lossy:
                self.add_loss(keras.ops.mean(keras.ops.cast(x, "float32")) ** 2)
            return x + self.down(self.drop(self.norm(self.up(x))))

    return Block()


def blocks(input_shape: Any, classes: int, lossy: bool = False) -> Any:
    import keras

    inputs = keras.Input(input_shape)
    x = keras.layers.Dense(8)(inputs)
    for i in range(2):
        x = block(8, f"block_{i}", lossy)(x)
    x = keras.layers.Dense(classes, activation="softmax", dtype="float32")(x)
    return keras.Model(inputs, x)


def sentences(input_shape: Any, classes: int) -> Any:
    """Masks go into layers and come out of them; the arguments of layers have names."""
    import keras

    layers = keras.layers
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Dropout(0.2)(layers.Embedding(9, 8, mask_zero=True)(tokens))
    inner = keras.Model(tokens, x, name="words")
    inputs = keras.Input(input_shape)
    x = inner(layers.Lambda(lambda x: keras.ops.cast(9 * (x % 1), "int32"))(inputs))
    x = layers.MultiHeadAttention(2, 4, dropout=0.3, name="attention")(x, x, use_causal_mask=True)
    x = layers.LSTM(8, dropout=0.1, name="memory")(x)
    x = layers.Dense(classes, activation="softmax", dtype="float32")(x)
    return keras.Model(inputs, x)


WORDS = {
    "model": {"_target_": "tests.test_remat.sentences"},
    "dataset": {
        "_target_": "dtrain.datasets.synthetic",
        "examples": 50,
        "validation_examples": 21,
        "shape": [6],
        "classes": 3,
    },
}
BLOCKS = {"model": {"_target_": "tests.test_remat.blocks"}}
LOSSY = {"model": {**BLOCKS["model"], "lossy": True}}
SGD = {"_target_": "keras.optimizers.SGD", "learning_rate": 0.05, "momentum": 0.9}


def after(kind: str, devices: int, remat: list[str], jit: bool = False, **changed: Any) -> Any:
    """Train five steps; return (loss, all arrays)."""
    import keras

    from dtrain.task.backends.tensorflow import keras_internals
    from dtrain.task.model import train_state

    keras_internals.keep_order()
    policy = keras.config.dtype_policy()
    keras.utils.clear_session()
    keras.config.set_dtype_policy(policy)
    config = settings(**{"optimizer": SGD, "hardware": {"remat": remat}, **changed})
    model, strategy, steps, _ = prepare(kind, devices, config, jit_compile=jit)
    sums = steps.train(2)
    sums.add(steps.train(3))
    return steps.results(sums)["loss"], train_state.snapshot(model, strategy)


def equal(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    import numpy as np

    assert found[0] == pytest.approx(expected[0], rel=10 * tolerance)
    assert found[1].keys() == expected[1].keys()
    for name, array in expected[1].items():
        np.testing.assert_allclose(
            found[1][name], array, rtol=10 * tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.task
@pytest.mark.parametrize(
    ("changed", "remat"),
    [(LOSSY, ["^block"]), (WORDS, ["words", "attention", "^memory$"])],
    ids=["layers of layers", "masks"],
)
def test_the_same_numbers(changed: dict[str, Any], remat: list[str]) -> None:
    equal(after("OneDevice", 1, remat, **changed), after("OneDevice", 1, [], **changed))


@pytest.mark.task
@pytest.mark.parametrize("jit", sampled([False, True], False))
def test_the_same_numbers_in_mixed_precision(jit: bool) -> None:
    import keras

    keras.config.set_dtype_policy("mixed_bfloat16")
    whole = after("OneDevice", 1, [], jit, **BLOCKS)
    equal(after("OneDevice", 1, ["^block"], jit, **BLOCKS), whole)


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("kind", sampled(["Mirrored", "CentralStorage"], "Mirrored"))
def test_the_same_numbers_on_two_replicas(kind: str) -> None:
    """Each recomputes its own rows' masks, and meets the other for the statistics once more."""
    whole = after("OneDevice", 1, [], **BLOCKS)
    equal(after(kind, 2, ["^block"], **BLOCKS), whole)


def operations(remat: list[str]) -> collections.Counter[str]:
    """Count the operations of a training step, by type."""
    import tensorflow as tf

    model, *_ = prepare("Default", 1, settings(**BLOCKS, hardware={"remat": remat}))
    data = tf.zeros([8, 4]), tf.zeros([8], tf.int32)
    graph = tf.function(model.train_step, autograph=False).get_concrete_function(data).graph
    return collections.Counter(operation.type for operation in graph.get_operations())


@pytest.mark.task
def test_each_operation_inside_is_there_twice() -> None:
    plain, both, one = operations([]), operations(["^block"]), operations(["^block_1$"])
    assert plain["Tanh"] == 2
    assert (both["Tanh"], one["Tanh"]) == (4, 3)
    # Of the four products of two blocks; those of the first and the last layer stay.
    assert both["MatMul"] == plain["MatMul"] + 4
    kind = "StatelessRandomUniformV2"
    assert (plain[kind], both[kind]) == (2, 4), "masks are drawn again, not kept"
    assigned = [n for n in both if n.startswith("Assign")]
    assert {n: both[n] for n in assigned} == {n: plain[n] for n in assigned}, "but nothing changes"


def deep(input_shape: Any, classes: int) -> Any:
    """Six layers that keep 16 MB each for their gradients, and have six times that inside."""
    import keras

    class Deep(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            for _ in range(6):
                x = keras.ops.tanh(x)
            return x

    inputs = keras.Input(input_shape)
    x = keras.layers.Dense(2048)(inputs)
    for i in range(6):
        x = Deep(name=f"deep_{i}")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(x))


def peak(remat: list[str]) -> int:
    """Return by how many bytes a step raises the most that this process has had."""
    import resource

    import tensorflow as tf

    config = settings(model={"_target_": "tests.test_remat.deep"}, hardware={"remat": remat})
    model, *_ = prepare("Default", 1, config)
    data = tf.zeros([2048, 4]), tf.zeros([2048], tf.int32)
    step = tf.function(model.train_step, autograph=False)
    step.get_concrete_function(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(data)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def test_memory() -> None:
    from tests import warm

    plain, less = (warm.call(peak, 1, {"remat": remat}) for remat in ([], ["deep"]))
    assert plain > 36 * 2**24, "all that is inside"
    assert less < plain / 2, (less, plain)


@pytest.mark.task
def test_what_is_chosen() -> None:
    import keras

    from dtrain.task.model.finetune import rematerialize

    def changed(*patterns: str) -> list[str]:
        keras.utils.clear_session()
        shared = keras.layers.Dense(4, name="shared")
        inputs = keras.Input((4,), name="input")
        inner = keras.Sequential([keras.Input((4,)), shared, keras.layers.ReLU(name="relu")])
        outer = keras.Model(inputs, shared(block(4, "block")(inner(inputs))))
        inner.name = "inner"
        rematerialize(outer, patterns)
        return sorted(each.name for each in outer._flatten_layers(False) if "call" in vars(each))

    assert changed() == []
    assert changed("relu", "^block$") == ["block", "relu"]
    assert changed("^inner", "relu") == ["inner"], "which has its relu inside"
    assert changed("shared") == ["shared"]
    assert changed("dropout") == ["dropout"]
    assert changed("") == ["block", "inner", "shared"]


def stray(input_shape: Any, classes: int) -> Any:
    """A model with a layer that counts its calls outside of itself."""
    import keras

    outside = keras.Variable(0.0, trainable=False)

    class Stray(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            outside.assign_add(1.0)
            return keras.ops.tanh(x)

    inputs = keras.Input(input_shape)
    x = Stray(name="stray")(keras.layers.Dense(4)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes)(x))


@pytest.mark.task
def test_what_cannot_be_computed_twice() -> None:
    from dtrain.errors import UsageError

    made = {"_target_": "tests.test_remat.stray"}
    with pytest.raises(UsageError, match=r"hardware\.remat=stray: changes variables that are not"):
        after("Default", 1, ["stray"], model=made)
    after("Default", 1, ["^dense"], model=made)


@pytest.mark.task
def test_a_name_that_is_not_there() -> None:
    from dtrain.errors import UsageError

    layers = ", block_0, block_1, dense"
    for pattern, problem, accepted in (
        ("^blok", "no layer of this model has such a name", layers),
        ("block_(", "is no regular expression (missing ), unterminated subpattern", "Python's"),
        ("input", "no layer of this model has such a name", layers),
    ):
        with pytest.raises(UsageError) as caught:
            prepare("Default", 1, settings(**BLOCKS, hardware={"remat": ["block_0", pattern]}))
        assert str(caught.value).startswith(f"hardware.remat={pattern}: {problem}")
        assert accepted in str(caught.value)
        assert "; type: 'hardware.remat=[]'" in str(caught.value)
