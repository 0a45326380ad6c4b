from __future__ import annotations

import pytest

#: model: (shapes of one example, arguments that keep it small)
MODELS = {
    "mlp": ([(8,), (4, 3, 2), ()], {"units": (6, 5)}),
    "cnn": ([(8, 9), (9, 8, 3)], {"filters": (4, 6), "units": 5}),
    "resnet": ([(8, 9), (9, 8, 3)], {"filters": (4, 6, 8), "blocks": 2}),
}


@pytest.mark.task
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_probabilities_in_float32(name: str, policy: str) -> None:
    import keras
    import numpy as np

    from dtrain import models

    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(0)
    shapes, arguments = MODELS[name]
    for shape in shapes:
        model = getattr(models, name)(input_shape=list(shape), classes=7, **arguments)
        assert not model.compiled
        assert model.input_shape == (None, *shape)
        assert model.output_shape == (None, 7)
        assert {v.dtype for v in model.trainable_variables} == {"float32"}
        x = np.random.default_rng(0).standard_normal((5, *shape)).astype(np.float32)
        y = model(x)
        assert keras.backend.standardize_dtype(y.dtype) == "float32"
        y = np.asarray(y)
        np.testing.assert_allclose(y.sum(1), 1, atol=1e-5)
        assert y.min() >= 0 and np.ptp(y, axis=0).max() > 0, "the input has no effect"


@pytest.mark.task
@pytest.mark.parametrize("name", MODELS)
def test_without_classes_outputs_are_numbers(name: str) -> None:
    import keras
    import numpy as np

    from dtrain import models
    from dtrain.errors import UsageError

    keras.config.set_dtype_policy("mixed_bfloat16")
    shapes, arguments = MODELS[name]
    made = getattr(models, name)(input_shape=list(shapes[0]), outputs=2, **arguments)
    y = made(np.random.default_rng(0).standard_normal((5, *shapes[0])).astype(np.float32))
    assert y.shape == (5, 2) and keras.backend.standardize_dtype(y.dtype) == "float32"
    assert made.layers[-1].activation is keras.activations.linear
    with pytest.raises(UsageError, match="no classes that can be counted"):
        getattr(models, name)(input_shape=list(shapes[0]), **arguments)


@pytest.mark.task
def test_arguments_have_their_effect() -> None:
    import keras
    import numpy as np

    from dtrain import models

    def kernels(model: keras.Model) -> list[keras.Layer]:
        return [v for v in model.trainable_variables if v.name == "kernel"]

    assert [v.shape[-1] for v in kernels(models.mlp([4], 3, units=[7, 6]))] == [7, 6, 3]
    assert len(kernels(models.mlp([4], 3, units=[]))) == 1
    cnn = models.cnn([8, 8], 3, filters=[2, 4], units=5)
    assert [tuple(v.shape) for v in kernels(cnn)] == [
        (3, 3, 1, 2), (3, 3, 2, 4), (2 * 2 * 4, 5), (5, 3)
    ]  # fmt: skip

    for make in (models.mlp, models.cnn):
        assert make([8, 8], 3, dropout=0.0, l2=0.0).losses == []
        regularized = make([8, 8], 3, l2=0.5)
        squares = sum(float(np.sum(np.square(v))) for v in kernels(regularized))
        np.testing.assert_allclose(sum(map(float, regularized.losses)), squares / 2, rtol=1e-5)
        assert len(regularized.losses) == len(kernels(regularized))

        x = np.ones((4, 8, 8), np.float32)
        for rate in (0.0, 0.5):
            model = make([8, 8], 3, dropout=rate)
            assert np.array_equal(model(x), model(x))
            assert np.array_equal(model(x, training=True), model(x)) == (rate == 0)

    resnet = models.resnet([8, 8], 3, filters=[2, 4, 6], blocks=2)
    norms = [n for n in resnet.layers if isinstance(n, keras.layers.BatchNormalization)]
    # The first, two a block, and one in each of the two shortcuts that change shape.
    assert len(norms) == 1 + 2 * 2 * 3 + 2
    assert all(norm.synchronized for norm in norms)
    assert [n.output.shape[1:] for n in resnet.layers if isinstance(n, keras.layers.Add)] == [
        (8, 8, 2), (8, 8, 2), (4, 4, 4), (4, 4, 4), (2, 2, 6), (2, 2, 6)
    ]  # fmt: skip


@pytest.mark.task
def test_examples_that_are_no_images_are_refused() -> None:
    from dtrain import models
    from dtrain.errors import UsageError

    for make in (models.cnn, models.resnet):
        for shape in ((8,), (8, 8, 3, 1), ()):
            with pytest.raises(UsageError) as caught:
                make(shape, 10)
            message = str(caught.value)
            assert message.startswith("model=a convolutional model: "), message
            assert str(shape) in message
            assert message.endswith("hint: model=mlp, or model=transformer for text"), message


@pytest.mark.task
def test_a_transformer_sees_what_came_before() -> None:
    import keras
    import numpy as np

    from dtrain import models
    from dtrain.errors import UsageError

    keras.utils.set_random_seed(0)
    model = models.transformer([6], 11, width=8, blocks=2, heads=2, dropout=0.3)
    assert model.output_shape == (None, 6, 11)
    # Embedding and positions, two norms and 12 n^2 + ... a block, a norm; none for the output.
    block = 2 * 16 + 4 * (64 + 8) + (8 * 32 + 32) + (32 * 8 + 8)
    assert model.count_params() == 11 * 8 + 6 * 8 + 2 * block + 16
    x = np.random.default_rng(0).integers(0, 11, (3, 6))
    changed = x.copy()
    changed[:, 3] = (x[:, 3] + 1) % 11
    y, other = np.asarray(model(x)), np.asarray(model(changed))
    np.testing.assert_allclose(y.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(y[:, :3], other[:, :3], atol=1e-6)
    assert (np.abs(y - other)[:, 3:].max(axis=(0, 2)) > 1e-6).all(), "of all that came before"
    swapped = x.copy()
    swapped[:, [0, 1]] = x[:, [1, 0]]
    assert np.abs(y - np.asarray(model(swapped)))[:, 2:].max() > 1e-6, "positions count"
    assert np.abs(np.asarray(model(x, training=True)) - y).max() > 1e-4, "dropout"
    with pytest.raises(UsageError, match=r"\[4, 4\].*\[length\]"):
        models.transformer([4, 4], 11)

    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    again.set_weights(model.get_weights())
    np.testing.assert_allclose(np.asarray(again(x)), y, atol=1e-6)


#: model, arguments for which no machine has the memory, and the key that is at fault
TOO_LARGE = [
    ("mlp", [28, 28], {"units": [2**24, 2**24]}, "model.units"),
    ("mlp", [2**24], {"units": [2**24]}, "model.units"),
    ("cnn", [28, 28, 1], {"filters": [2**24, 2**24]}, "model.filters"),
    ("cnn", [4096, 4096], {"filters": [64], "units": 2**24}, "model.filters"),
    ("resnet", [8, 8], {"filters": [2**24]}, "model.filters"),
    ("transformer", [64], {"width": 2**24}, "model.width"),
]


@pytest.mark.task
@pytest.mark.parametrize(("name", "shape", "arguments", "key"), TOO_LARGE)
def test_models_that_no_memory_holds(name: str, shape: list, arguments: dict, key: str) -> None:
    from dtrain import models
    from dtrain.errors import UsageError

    with pytest.raises(UsageError, match=f"^{key}=.* GiB of memory to train"):
        getattr(models, name)(input_shape=shape, classes=10, **arguments)
