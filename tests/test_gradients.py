"""What an optimizer does with gradients, it does with their sum over all replicas."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sampled import sampled
from tests.test_steps import BATCH, prepare, settings

ADAM = {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01}
OPTIMIZERS = {
    "clipped": {"global_clipnorm": 0.02, "weight_decay": 0.1},
    "accumulated": {"gradient_accumulation_steps": 3, "clipnorm": 0.01},
    "averaged": {
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 2,
        "gradient_accumulation_steps": 2,
    },
}


def after(kind: str, devices: int, steps: int, **changed: Any) -> tuple[Any, dict[str, Any]]:
    """Train; return the model and its arrays, the layers named as in a process of their own."""
    import keras

    from dtrain.task import state

    keras.utils.clear_session()
    model, strategy, made, _ = prepare(kind, devices, settings(**changed))
    made.train(1)
    made.train(steps - 1)
    return model, state.snapshot(model, strategy)


def equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    import numpy as np

    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("name", sampled(OPTIMIZERS, "clipped", "accumulated"))
def test_two_replicas_are_one(name: str) -> None:
    optimizer = {**ADAM, **OPTIMIZERS[name]}
    _, whole = after("OneDevice", 1, 5, optimizer=optimizer)
    for kind in ("Mirrored", "CentralStorage"):
        equal(after(kind, 2, 5, optimizer=optimizer)[1], whole)


@pytest.mark.task
def test_mirrored_on_a_single_device() -> None:
    optimizer = {**ADAM, "gradient_accumulation_steps": 2}
    _, whole = after("OneDevice", 1, 5, optimizer=optimizer)
    equal(after("Mirrored", 1, 5, optimizer=optimizer)[1], whole)


def embedded(input_shape: Any, classes: int) -> Any:
    import keras

    inputs = keras.Input(input_shape, dtype="int32")
    x = keras.layers.Flatten()(keras.layers.Embedding(6, 4)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(x))


def words() -> Any:
    import numpy as np

    from dtrain.sources import Arrays, Splits

    x = np.random.default_rng(0).integers(0, 6, (48, 5)).astype(np.int32)
    return Splits(Arrays(x, x[:, 0] % 3), None, classes=3)


@pytest.mark.task(devices=2)
def test_rows_that_were_looked_up() -> None:
    """Their gradients are lists of rows, which are brought together from the replicas."""
    changed = {
        "model": {"_target_": "tests.test_gradients.embedded"},
        "dataset": {"_target_": "tests.test_gradients.words"},
        "trainer": {"loss": "sparse_categorical_crossentropy", "metrics": []},
        "optimizer": {**ADAM, "gradient_accumulation_steps": 3, "global_clipnorm": 0.1},
    }
    _, whole = after("OneDevice", 1, 8, **changed)
    equal(after("Mirrored", 2, 8, **changed)[1], whole)
    held = whole["optimizer/adam/embedding_embeddings_gradient_accumulator"]
    assert held.any(), "8 steps are two updates, and two steps that wait"


@pytest.mark.task
def test_a_schedule_counts_steps_and_adam_updates() -> None:
    """As Keras has it: so the schedule ends with the run."""
    schedule = {"_target_": "dtrain.schedules.cosine"}
    optimizer = {**ADAM, "gradient_accumulation_steps": 4, "schedule": schedule}
    model, arrays = after("Default", 1, 8, optimizer=optimizer)
    assert arrays["optimizer/adam/iteration"] == 8
    assert int(model.optimizer.iterations) == 2
    assert float(model.optimizer.learning_rate) == pytest.approx(0.005), "half of 16 steps"


def far_off(broken: int) -> Any:
    """Data of which the example at ``broken`` has no finite gradient; in order of the training."""
    import numpy as np

    from dtrain.sources import Arrays, Splits
    from tests.test_steps import in_order

    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    order = in_order(Arrays(np.arange(64), np.arange(64)), 8)[0]
    x[order[broken]] = np.inf
    return Splits(Arrays(x, (np.arange(64) % 3).astype(np.int32)), None, classes=3)


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("kind", ["OneDevice", "Mirrored", "CentralStorage"])
def test_a_gradient_that_one_replica_has_not_is_nobodys(kind: str) -> None:
    """Loss scaling drops the step, and halves the scale: Keras asks the first replica alone."""
    import keras
    import numpy as np

    keras.config.set_dtype_policy("mixed_float16")
    second = 2 * BATCH + BATCH - 1  # the third step, the last row of the last replica
    model, _, steps, _ = prepare(
        kind,
        2,
        settings(
            dataset={"_target_": "tests.test_gradients.far_off", "broken": second},
            optimizer={**ADAM, "gradient_accumulation_steps": 2},
        ),
    )
    scale = float(np.asarray(model.optimizer.dynamic_scale))
    steps.train(2)
    weights = model.get_weights()
    steps.train(1)
    assert all((a == b).all() for a, b in zip(model.get_weights(), weights, strict=True))
    assert float(np.asarray(model.optimizer.dynamic_scale)) == scale / 2
    steps.train(2)
    assert int(model.optimizer.iterations) == 2, "of four good gradients"
    moved = [abs(a - b).max() for a, b in zip(model.get_weights(), weights, strict=True)]
    assert all(0 < each < 0.1 for each in moved)


@pytest.mark.task
def test_workers_that_do_not_wait_cannot_accumulate() -> None:
    import keras

    from dtrain.errors import UsageError
    from dtrain.task.strategies import ParameterServer

    strategy = object.__new__(ParameterServer)  # without its cluster
    strategy._update = "async"
    inner = keras.optimizers.SGD(gradient_accumulation_steps=2)
    for optimizer in (inner, keras.optimizers.LossScaleOptimizer(inner)):
        with pytest.raises(UsageError) as caught:
            strategy.prepare(optimizer)
        assert str(caught.value).startswith("strategy.update=async: the model's optimizer accum")
        assert str(caught.value).endswith("type: strategy.update=sync")
    strategy.prepare(keras.optimizers.SGD())


@pytest.mark.task
def test_another_keras_is_refused() -> None:
    from types import SimpleNamespace

    from dtrain.errors import TrainingError
    from dtrain.task import gradients

    with pytest.raises(TrainingError, match=r"Keras 3\S+ sums gradients in a way .*one replica"):
        gradients.are_sums(SimpleNamespace())
