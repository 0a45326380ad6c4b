"""RandomIndexShuffle in NumPy: the operation's own permutations, and at their edges."""

from __future__ import annotations

import numpy as np
import pytest

#: Of few examples, and about the sizes at which the cipher's words become longer.
SIZES = (1, 2, 24, 1797, 65536, 65537, 65538, 2**18 + 1, 2**24 + 3, 2**33 + 1)


@pytest.mark.task
def test_the_permutations_are_the_operations() -> None:
    import tensorflow as tf

    from dtrain.data.index_shuffle import IndexShuffle

    generator = np.random.default_rng(0)
    for examples in SIZES:
        for key in ([3, 5, 9], [123456, 77, 2**31]):
            some = np.append(generator.integers(0, examples, 30), [0, examples - 1])
            expected = tf.raw_ops.RandomIndexShuffle(
                index=some, seed=np.array([key] * 32), max_index=np.full(32, examples - 1),
                rounds=16,
            )  # fmt: skip
            found = IndexShuffle(examples, key, 16)(some)
            assert found.tolist() == expected.numpy().tolist(), examples


def test_a_pass_has_each_example_once() -> None:
    from dtrain.data.index_shuffle import IndexShuffle

    for examples in (3, 50, 1797, 65536):
        found = IndexShuffle(examples, [0, 1, 2], 16)(np.arange(examples))
        assert sorted(found.tolist()) == list(range(examples))


@pytest.mark.parametrize("examples", [65_536, 65_537])
def test_an_order_has_each_example_once_a_pass(examples: int) -> None:
    """Of 4^k + 1 numbers the operation drops a bit of the last one."""
    from dtrain.data.order import Shuffled

    order = Shuffled(examples, 3)
    for begin in (0, 5 * examples):
        found = order(np.arange(begin, begin + examples))
        assert sorted(found.tolist()) == list(range(examples))
