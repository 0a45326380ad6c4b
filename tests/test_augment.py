from __future__ import annotations

import pytest


@pytest.mark.task
def test_shift_flip_draws_every_shift_and_only_from_the_seed() -> None:
    import numpy as np
    import tensorflow as tf

    from dtrain.augment import shift_flip

    height, width, pixels, draws = 5, 6, 1, 300
    x = np.arange(1, height * width * 2 + 1, dtype=np.float32).reshape(height, width, 2)
    padded = np.pad(x, [(pixels, pixels), (pixels, pixels), (0, 0)])
    shifts = {
        (dy, dx): padded[dy : dy + height, dx : dx + width] for dy in range(3) for dx in range(3)
    }
    seeds = tf.stack([tf.fill([draws], 7), tf.range(draws)], 1)

    for flip in (False, True):
        expected = {(*at, 0): image for at, image in shifts.items()}
        if flip:
            expected |= {(*at, 1): image[:, ::-1] for at, image in shifts.items()}
        # As the input pipeline calls it, and one by one.
        batch = tf.vectorized_map(
            lambda s, flip=flip: shift_flip(tf.constant(x), s, pixels, flip), seeds
        ).numpy()
        counts = dict.fromkeys(expected, 0)
        for image in batch:
            (found,) = (at for at, wanted in expected.items() if np.array_equal(image, wanted))
            counts[found] += 1
        even = draws / len(expected)
        assert all(even / 3 < count < even * 2 for count in counts.values()), counts
        for row in (0, 1, 17):
            alone = shift_flip(tf.constant(x), seed=seeds[row], pixels=pixels, flip=flip)
            np.testing.assert_array_equal(alone, batch[row])
    batch = [shift_flip(tf.constant(x), tf.constant([n, 0]), pixels, flip) for n in range(7, 15)]
    assert not all(np.array_equal(image, batch[0]) for image in batch)


@pytest.mark.task
def test_shift_flip_keeps_shape_and_dtype() -> None:
    import numpy as np
    import tensorflow as tf

    from dtrain.augment import shift_flip

    for shape, dtype in (((8, 8, 1), tf.float32), ((3, 5, 3), tf.uint8), ((1, 1, 1), tf.float16)):
        x = tf.cast(tf.fill(shape, 9), dtype)
        for pixels in (0, 1, 4):
            y = shift_flip(x, seed=tf.constant([0, pixels]), pixels=pixels)
            assert y.shape == shape and y.dtype == dtype
            assert pixels or np.array_equal(x, y)
            assert set(np.unique(y)) <= {0, 9}
