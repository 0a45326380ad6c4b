"""Draws of batches that are evaluated side by side, beside those of one after the other."""

from __future__ import annotations

import pytest


@pytest.mark.task
def test_batches_side_by_side_draw_as_one_after_the_other() -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica import random_draws

    def step(generator: keras.random.SeedGenerator) -> list[tf.Tensor]:
        return [keras.random.normal([3], seed=generator) for _ in range(2)]

    one, other = (keras.random.SeedGenerator(7) for _ in range(2))
    expected = [step(one) for _ in range(5)]
    draws = random_draws.EvaluationDraws()
    with random_draws.evaluating(0, draws):
        step(other)
    assert draws.of(other) == 2 and draws.of(one) == 0
    for batch in (4, 0, 3, 1, 2):
        with random_draws.evaluating(tf.constant(batch, tf.int64), draws):
            found = step(other)
        np.testing.assert_array_equal(found, expected[batch])
    assert other.state.numpy()[1] == 0, "nothing was assigned"
    draws.advance(5)
    np.testing.assert_array_equal(other.state.numpy(), one.state.numpy())
    np.testing.assert_array_equal(step(other), step(one))
