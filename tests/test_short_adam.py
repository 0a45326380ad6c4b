"""Keras' Adam by fewer operations: the same bits, and what is left to Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

STEPS = 12


def updated(kind: str, short: bool, **options: Any) -> list[bytes]:
    """Return weights and slots after some updates of two weights, one after the other."""
    import keras
    import tensorflow as tf

    from dtrain.task.backends.tensorflow import short_adam

    generator = np.random.default_rng(0)
    values = [generator.standard_normal(shape).astype("float32") for shape in ((37, 11), (5,))]
    weights = [keras.Variable(value) for value in values]
    optimizer = getattr(keras.optimizers, kind)(**options)
    optimizer.build(weights)
    if short:
        short_adam.shorten(optimizer)
    gradients = [tf.constant(generator.standard_normal((STEPS, *v.shape)) / 9) for v in weights]

    @tf.function(autograph=False)
    def train() -> None:
        def body(i: tf.Tensor) -> list[tf.Tensor]:
            for weight, gradient in zip(weights, gradients, strict=True):
                optimizer.apply([tf.cast(gradient[i], tf.float32)], [weight])
            return [i + 1]

        tf.while_loop(lambda i: i < STEPS, body, [0], parallel_iterations=1)

    train()
    return [variable.numpy().tobytes() for variable in (*weights, *optimizer.variables)]


@pytest.mark.task
def test_the_bits_are_keras_own() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("Adam", {"beta_1": 0.8, "beta_2": 0.97, "epsilon": 1e-4, "global_clipnorm": 0.5}),
        ("Adam", {"gradient_accumulation_steps": 2}),
        ("AdamW", {"weight_decay": 0.1, "use_ema": True}),
    ]
    for kind, options in cases:
        assert updated(kind, True, **options) == updated(kind, False, **options), options


@pytest.mark.task
def test_what_is_left_to_keras() -> None:
    import keras
    import tensorflow as tf

    from dtrain.task.backends.tensorflow import short_adam

    class Own(keras.optimizers.Adam):
        """May do anything in its update."""

    for optimizer in (keras.optimizers.SGD(), keras.optimizers.Adam(amsgrad=True), Own()):
        short_adam.shorten(optimizer)
        assert "update_step" not in vars(optimizer)
    table = keras.Variable(np.ones((4, 2), np.float32))
    adam = keras.optimizers.Adam(0.5)
    adam.build([table])
    short_adam.shorten(adam)
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([4, 2]))
    adam.apply([rows], [table])
    assert table.numpy()[1, 0] < 1 == table.numpy()[0, 0]


@pytest.mark.task
def test_it_is_three_operations_a_weight() -> None:
    import keras
    import tensorflow as tf

    from dtrain.task.backends.tensorflow import short_adam

    weights = [keras.Variable(np.ones(3, np.float32)) for _ in range(2)]
    adam = keras.optimizers.Adam(0.5)
    adam.build(weights)
    short_adam.shorten(adam)
    step = tf.function(lambda: adam.apply([tf.ones(3)] * 2, weights), autograph=False)
    kinds = [op.type for op in step.get_concrete_function().graph.get_operations()]
    found = [kinds.count(f"ResourceApply{kind}") for kind in ("GradientDescent", "AdagradV2")]
    assert found == [4, 2] and kinds.count("Pow") == 2
