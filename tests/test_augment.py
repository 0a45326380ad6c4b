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


@pytest.mark.task
def test_every_augmentation_layer_of_keras_draws_from_the_seed_of_the_example() -> None:
    import numpy as np
    import tensorflow as tf

    from dtrain.task.data.dataset import Layer
    from tests.test_augmentation import BATCHED, FIXED, kinds, made, pictures

    x = tf.constant(pictures(1)[0])
    seeds = tf.stack([tf.fill([16], 7), tf.range(16)], 1)
    for kind in sorted({*kinds(), *BATCHED} - set(Layer.REFUSED)):
        one, other = (Layer(made(kind), "dataset.augment") for _ in range(2))
        images = [one(x, seed=seed).numpy() for seed in seeds]
        different = {image.tobytes() for image in images}
        assert (len(different) > 1) == (kind not in {*FIXED, "Equalization"}), kind
        again = [other(x, seed=seed).numpy() for seed in seeds[::-1]]  # by another object
        assert all(map(np.array_equal, images, again[::-1])), kind


def test_layers_in_turn_on_any_number_of_replicas(dtrain) -> None:
    layers = (
        "dataset.augment=[{_target_:keras.layers.RandomTranslation,height_factor:0.2,"
        "width_factor:0.2},{_target_:keras.layers.RandomFlip}]"
    )
    common = ["trainer.epochs=1", "tracking=none", "trainer.steps_per_epoch=4", "model=mlp"]
    two = ["strategy=mirrored", "hardware.devices=2"]
    runs = [dtrain(*common, *more) for more in ([], [layers], [layers, *two])]
    plain, one, other = (run.points("loss")[4] for run in runs)
    assert abs(one - other) < 1e-5 < abs(one - plain)
    for node, message in {
        "{_target_:keras.layers.RandomBrightness,factor:0.2}": "value_range: [0, 1]",
        "{_target_:keras.layers.MixUp}": "mixes the examples of a batch",
        "{_target_:keras.layers.Dense,units:3}": "other shape",
    }.items():
        refused = dtrain(*common, f"dataset.augment=[{node}]")
        assert refused.code == 2 and message in refused.output, refused.output
