"""Every augmentation layer of Keras inside a model: on several replicas as on one device."""

from __future__ import annotations

import inspect
import itertools
import random
from typing import Any

import pytest

from tests.sampled import sampled
from tests.test_steps import prepare, settings

#: Where processors compute the last numbers of a vector in another way, a last bit may differ,
#: which becomes a shade of 255 where a layer rounds: of 16 rows there are no last numbers.
ROWS, STEPS, SHAPE = 64, 3, (8, 8, 3)
#: Arguments by name, where a layer has them, and what single layers take instead.
GIVEN = {
    "height_factor": 0.3, "width_factor": 0.3, "x_factor": 0.3, "y_factor": 0.3, "height": 6,
    "width": 6, "value_range": (0, 255), "addition_factor": 0.3, "brightness_factor": 0.3,
    "contrast_factor": 0.3, "saturation_factor": 0.3, "hue_factor": 0.3, "factor": 0.5,
    "max_number": 3, "seed": 3,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "RandomColorJitter": {"factor": None},
    "RandomElasticTransform": {"factor": (0.9, 1.0), "scale": (0.5, 1.0)},
    "RandomGaussianBlur": {"factor": (0.9, 1.0), "sigma": (0.5, 2.0)},
    "RandomInvert": {"factor": (0.5, 0.9)},
    "RandomPerspective": {"factor": (0.5, 0.9)},
    "RandomPosterization": {"factor": (2, 6)},
    "RandomErasing": {"factor": (0.5, 0.9)},
    "CutMix": {"factor": (0.5, 0.9)},
}
#: They mix the examples of a batch, of which each replica has its part.
MIXING = {"CutMix", "MixUp"}
#: These take bounding boxes, and draw nothing.
BOXES = {"MaxNumBoundingBoxes"}
#: They change a picture by a histogram of the whole batch, or may call one that does.
BATCHED = {"AugMix", "Equalization", "RandAugment"}
#: These draw nothing.
FIXED = {"AutoContrast", "CenterCrop", "ContrastLimitedAdaptiveHistogramEqualization", "Resizing"}
PARTS = 4


def kinds() -> list[str]:
    """Return the names of Keras' layers that augment, or prepare, images one by one."""
    import keras

    base = keras.layers.RandomFlip.__mro__[1]
    assert base.__name__ == "BaseImagePreprocessingLayer"
    found = vars(keras.layers).items()
    names = {n for n, kind in found if isinstance(kind, type) and issubclass(kind, base)}
    assert len(names) > 25
    return sorted(names - BOXES - BATCHED)


def made(kind: str, **more: Any) -> Any:
    import keras

    of = getattr(keras.layers, kind)
    parameters = inspect.signature(of.__init__).parameters
    given = {k: v for k, v in {**GIVEN, **OWN.get(kind, {}), **more}.items() if k in parameters}
    return of(**{k: v for k, v in given.items() if v is not None})


def pictures(rows: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).uniform(0, 255, (rows, *SHAPE)).astype(np.float32)


def changed(kind: str, strategy: Any, replicas: int) -> list[Any]:
    """Return what becomes of the pictures in some steps, each replica with its part of them."""
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica import random_draws
    from dtrain.task.backends.tracing import tracing

    with strategy.scope():
        layer = made(kind)
    rows, records = ROWS // replicas, [random_draws.Record(), random_draws.Record()]
    for record, size in zip(records, (ROWS, ROWS // 2), strict=True):
        random.seed(0)
        function = tf.function(lambda x: layer(x, training=True), autograph=False)
        with random_draws.watched(record):
            function.get_concrete_function(tf.TensorSpec((size, *SHAPE)))
    draws = random_draws.per_example(*records)
    assert kind in FIXED or draws, "it draws"

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        def replica() -> Any:
            random.seed(0)  # as a step has it: AugMix chooses by Python's own
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = tf.ensure_shape(x[index * rows : (index + 1) * rows], (rows, *SHAPE))
            with tracing(draws=random_draws.part(index, replicas, rows, draws)):
                return layer(own, training=True)

        return tf.concat(strategy.experimental_local_results(strategy.run(replica)), 0)

    return [np.asarray(step(tf.constant(pictures(ROWS)))) for _ in range(STEPS)]


@pytest.mark.task(devices=4)
@pytest.mark.parametrize(
    ("part", "count"),
    # The others take three times as long, each.
    sampled(itertools.product(range(PARTS), (2, 4)), (0, 2)),
)
def test_pictures_change_as_on_one_device(part: int, count: int) -> None:
    import numpy as np
    import tensorflow as tf

    from dtrain.errors import UsageError, behind

    one = tf.distribute.OneDeviceStrategy("CPU:0")
    several = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    for kind in kinds()[part::PARTS]:
        whole = changed(kind, one, 1)
        if kind not in FIXED:
            assert np.abs(whole[0] - whole[1]).max() > 1, kind
        if kind in MIXING:
            with pytest.raises(Exception) as error:
                changed(kind, several, count)
            refused = behind(error.value)
            assert isinstance(refused, UsageError)
            assert "MixUp and CutMix call it" in str(refused)
            continue
        for found, expected in zip(changed(kind, several, count), whole, strict=True):
            np.testing.assert_allclose(found / 255, expected / 255, atol=1e-5, err_msg=kind)


def model(input_shape: Any, classes: int, kind: str) -> Any:
    import keras

    layers = keras.layers

    class Augmented(keras.Model):
        """Not functional: there Keras leaves ``Equalization`` out."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = [
                made(kind, seed=None),
                layers.Rescaling(1 / 255),
                layers.Flatten(),
                layers.Dense(classes, activation="softmax"),
            ]

        def call(self, x: Any, training: bool = False) -> Any:
            x = self.parts[0](x, training=training)
            for part in self.parts[1:]:
                x = part(x)
            return x

    return Augmented()


def losses(kind: str, strategy: Any, seed: int = 0) -> list[float]:
    import keras

    keras.utils.clear_session()
    config = settings(
        model={"_target_": "tests.test_augmentation.model", "kind": kind},
        dataset={"_target_": "tests.zoo.data.photos"},
        optimizer={"_target_": "keras.optimizers.SGD", "learning_rate": 0.01},
    )
    config.seed = seed
    _, _, steps, _ = prepare("", 0, config, strategy=strategy)
    return [steps.results(steps.train(1))["loss"] for _ in range(4)]


@pytest.mark.faults
@pytest.mark.task(devices=4)
def test_models_that_augment_train_as_on_one_device() -> None:
    """With two examples on each replica: layers draw two numbers for a batch as well."""
    import numpy as np

    from dtrain.errors import UsageError
    from dtrain.task.strategies import Mirrored, OneDevice

    one, four = OneDevice(["CPU:0"]), Mirrored([f"CPU:{i}" for i in range(4)])
    for kind in ("RandomGaussianBlur", "RandomElasticTransform"):
        np.testing.assert_allclose(losses(kind, four), losses(kind, one), atol=1e-5, err_msg=kind)
    for kind, problem in (
        ("MixUp", "changes each example by others of its batch"),
        ("Equalization", "changes each example by others of its batch"),
        ("RandAugment", "changes each example by others of its batch"),
    ):
        with pytest.raises(UsageError, match=problem):
            losses(kind, four)
        assert np.isfinite(losses(kind, one)).all()
