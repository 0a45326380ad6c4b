from __future__ import annotations

from typing import Any

import pytest

from tests import warm
from tests.sampled import sampled
from tests.test_steps import prepare, settings

KINDS = [("OneDevice", 1), ("Mirrored", 2), ("CentralStorage", 2)]


def everything(input_shape: Any, classes: int) -> Any:
    """A model with every kind of state: weights, moving statistics, a seed."""
    import keras
    from keras import layers

    inputs = keras.Input(input_shape)
    x = layers.BatchNormalization()(layers.Dense(6)(inputs))
    x = layers.Dropout(0.3)(x)
    return keras.Model(inputs, layers.Dense(classes, activation="softmax")(x))


def recurrent(input_shape: Any, classes: int) -> Any:
    """A model whose state is carried from batch to batch: Keras has it in no list of variables."""
    import keras
    from keras import layers

    class Lazy(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Bidirectional(layers.LSTM(3, stateful=True))
            self.last = layers.Dense(classes, activation="softmax")

        def call(self, x: Any) -> Any:
            return self.last(self.first(keras.ops.expand_dims(x, -1)))

    return Lazy()


STATEFUL = {
    "model": {"_target_": "tests.test_train_state.everything"},
    "optimizer": {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01, "use_ema": True},
}


def train(kind: str, devices: int) -> tuple[Any, Any]:
    """Return the state after 3 steps and after 6."""
    from dtrain.task.model import train_state as state

    model, strategy, steps, _ = prepare(kind, devices, settings(**STATEFUL))
    steps.train(3)
    saved = state.snapshot(model, strategy)
    copied = {name: array.copy() for name, array in saved.items()}
    steps.train(3)
    for name, array in saved.items():
        assert (array == copied[name]).all(), f"training continues in the snapshot of {name}"
    return saved, state.snapshot(model, strategy)


def resume(kind: str, devices: int, saved: Any) -> tuple[Any, Any]:
    """Go on from step 3; return the state that was restored and the last one."""
    from dtrain.task.model import train_state as state

    model, strategy, steps, _ = prepare(kind, devices, settings(**STATEFUL), start=3)
    state.restore(model, strategy, {**saved, "callbacks/0/0": None})
    restored = state.snapshot(model, strategy)
    steps.train(3)
    return restored, state.snapshot(model, strategy)


@pytest.mark.parametrize(("kind", "devices"), sampled(KINDS, *KINDS[:2]))
def test_a_new_process_goes_on_where_another_stopped(kind: str, devices: int) -> None:
    import numpy as np

    saved, expected = warm.call(train, devices, {"kind": kind, "devices": devices})
    others = [(kind, devices)] + ([("OneDevice", 1)] if kind == "Mirrored" else [])
    for then, count in others:
        arguments = {"kind": then, "devices": count, "saved": saved}
        restored, found = warm.call(resume, count, arguments)
        assert restored.keys() == saved.keys() == found.keys()
        for name, array in saved.items():
            assert restored[name].dtype == array.dtype
            np.testing.assert_array_equal(restored[name], array, err_msg=name)
            if then == kind:  # replicas draw their own dropout masks, so no other would do
                np.testing.assert_allclose(
                    found[name], expected[name], rtol=1e-5, atol=1e-7, err_msg=name
                )

    # Training changed all of it, and every kind of state is there.
    still = [name for name, array in saved.items() if np.array_equal(array, expected[name])]
    assert still == ["optimizer/adam/learning_rate"]
    for part in (
        "gamma",
        "moving_mean",
        "seed_generator_state",
        "iteration",
        "momentum",
        "average",
    ):
        assert any(part in name for name in saved), (part, list(saved))
    seed = next(array for name, array in saved.items() if "seed_generator_state" in name)
    assert seed[1] == 3, "one draw a step"


@pytest.mark.task(devices=2)
def test_a_restored_model_evaluates_as_before() -> None:
    # Each replica evaluates with its own copy of the moving statistics.
    from dtrain.task.model import train_state as state

    model, strategy, steps, _ = prepare("Mirrored", 2, settings(**STATEFUL))
    steps.train(3)
    before = steps.results(steps.evaluate(*divmod(21, steps.evaluation_examples)))
    saved = state.snapshot(model, strategy)
    steps.train(3)
    state.restore(model, strategy, saved)
    assert steps.results(steps.evaluate(*divmod(21, steps.evaluation_examples))) == pytest.approx(
        before, rel=1e-6
    )


@pytest.mark.task
def test_what_does_not_fit_is_refused() -> None:
    import numpy as np

    from dtrain.errors import CheckpointError
    from dtrain.task.model import train_state as state

    model, strategy, _, _ = prepare("Default", 1)
    saved = state.snapshot(model, strategy)
    name = next(n for n in saved if n.endswith("kernel"))
    less = {n: array for n, array in saved.items() if n != name}
    with pytest.raises(CheckpointError, match=f"no {name}"):
        state.restore(model, strategy, less)
    with pytest.raises(CheckpointError, match=r"\(4, 5\).*\(4, 6\)"):
        state.restore(model, strategy, {**saved, name: np.zeros((4, 6), np.float32)})


@pytest.mark.task
def test_variables_of_one_path_keep_apart() -> None:
    import keras
    import numpy as np

    from dtrain.task.model import train_state as state
    from dtrain.task.strategies import Default

    class Twins(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [keras.layers.Dense(2, name="same") for _ in range(3)]

        def call(self, x: Any) -> Any:
            for part in self.parts:
                x = part(x)
            return x

    model, strategy = Twins(), Default([])
    model.compile(optimizer=None)
    model(np.zeros((1, 2), np.float32))
    assert len({v.path for v in model.variables}) < 6
    saved = state.snapshot(model, strategy)
    assert len(saved) == 6
    weights = model.get_weights()
    model.set_weights([w + 1 for w in weights])
    state.restore(model, strategy, saved)
    for found, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(found, expected)


def recurring(start: int, saved: Any = None) -> tuple[Any, Any]:
    """Return the state after 3 steps, and the numbers of those and of a validation."""
    from dtrain.task.model import train_state as state

    config = settings(
        model={"_target_": "tests.test_train_state.recurrent"},
        trainer={"loss": "sparse_categorical_crossentropy", "metrics": [], "batch_size": 8},
    )
    config.dataset = config.dataset.replaced(validation_examples=16)
    model, strategy, steps, _ = prepare("OneDevice", 1, config, start=start)
    if saved is not None:
        state.restore(model, strategy, saved)
    found = [steps.results(steps.train(1)) for _ in range(3)]
    found.append(steps.results(steps.evaluate(2, 0)))
    return state.snapshot(model, strategy), found


@pytest.mark.faults
def test_the_state_of_a_recurrence_is_saved() -> None:
    saved, _ = warm.call(recurring, 1, {"start": 0})
    states = [name for name in saved if "rnn_state" in name]
    assert len(states) == 4, "of two layers, two each"
    assert all(saved[name].shape == (8, 3) and saved[name].any() for name in states)
    expected, numbers = warm.call(recurring, 1, {"start": 3, "saved": saved})
    again, same = warm.call(recurring, 1, {"start": 3, "saved": saved})
    forgotten = {k: v * (k not in states) for k, v in saved.items()}
    _, other = warm.call(recurring, 1, {"start": 3, "saved": forgotten})
    assert numbers == same != other
    assert all((expected[name] == again[name]).all() for name in expected)


def plain_state(input_shape: Any, classes: int) -> Any:
    """A model that keeps a number in a variable of TensorFlow's own."""
    import keras
    import tensorflow as tf

    class Counting(keras.Model):
        def __init__(self) -> None:
            inputs = keras.Input(input_shape)
            outputs = keras.layers.Dense(classes, activation="softmax")(inputs)
            super().__init__(inputs, outputs, name="counting")
            self.count = tf.Variable(0.0)

        def train_step(self, data: Any) -> Any:
            self.count.assign_add(1.0)
            return super().train_step(data)

    return Counting()


@pytest.mark.task(devices=2)
@pytest.mark.parametrize(("kind", "devices"), KINDS)
def test_variables_of_tensorflow_are_saved_too(kind: str, devices: int) -> None:
    from dtrain.task.model import train_state as state

    config = settings(model={"_target_": "tests.test_train_state.plain_state"})
    model, strategy, steps, _ = prepare(kind, devices, config)
    steps.train(3)
    saved = state.snapshot(model, strategy)
    assert saved["model/counting/count"] == 3.0
    steps.train(2)
    assert state.snapshot(model, strategy)["model/counting/count"] == 5.0
    state.restore(model, strategy, saved)
    steps.train(1)
    assert state.snapshot(model, strategy)["model/counting/count"] == 4.0


def elsewhere(input_shape: Any, classes: int) -> Any:
    """A layer whose state is where Keras does not look: in a plain object, in a generator."""
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class Counter:
        def __init__(self) -> None:
            self.count = keras.Variable(0.0, trainable=False)

    counter = keras.Variable(0.0, trainable=False, name="of_the_module")

    class Noisy(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.counters = {"calls": [Counter()]}
            self.generator = tf.random.Generator.from_seed(3)

        def call(self, x: Any, training: bool = False) -> Any:
            count = self.counters["calls"][0].count
            if training:
                count.assign_add(1.0)
                counter.assign_add(1.0)
                x = x + 0.1 * self.generator.normal([4])
            return x * ops.tanh(count)

    inputs = keras.Input(input_shape)
    hidden = Noisy()(inputs)
    return keras.Model(inputs, layers.Dense(classes, activation="softmax")(hidden))


@pytest.mark.task(devices=2)
@pytest.mark.parametrize(("kind", "devices"), [("OneDevice", 1), ("Mirrored", 2)])
def test_state_that_keras_does_not_know_is_saved_or_named(kind: str, devices: int) -> None:
    import keras

    from dtrain.task.model import train_state

    config = settings(model={"_target_": "tests.test_train_state.elsewhere"})
    found, saved = [], {}
    for start in (0, 3):
        keras.utils.clear_session()
        model, strategy, steps, _ = prepare(kind, devices, config, start=start)
        if start:
            train_state.restore(model, strategy, saved)
        else:
            steps.train(3)
            saved = train_state.snapshot(model, strategy)
        found.append([steps.results(steps.train(1)) for _ in range(3)])
    assert found[0] == found[1]
    assert steps.unsaved() == ["of_the_module"]
