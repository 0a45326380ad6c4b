"""Weights of classes: the same training as Keras' fit with ``class_weight``, on any replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dtrain.data.sources import Arrays, Source, Splits
from dtrain.data.transforms import weighted
from dtrain.errors import UsageError
from dtrain.run.cluster import Task
from tests.sampled import sampled
from tests.test_parameter_server import servers
from tests.test_steps import BATCH, in_order, prepare, settings
from tests.test_strategies import together

WEIGHTS = {0: 0.25, 2: 5.0}  # and class 1 weighs 1
STEPS = 12


class InPython(Source):
    """A source of its own, read by NumPy, with weights of examples or without."""

    def __init__(self, *parts: Any):
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, indices: Any) -> tuple[Any, ...]:
        return tuple(part[indices] for part in self.parts)


def data(kind: str) -> Splits:
    """Return 50 examples of three classes, the targets and their reading by ``kind``."""
    generator = np.random.Generator(np.random.Philox(3))
    x = generator.standard_normal((71, 4)).astype(np.float32)
    y: Any = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    weight = generator.uniform(0.1, 3.0, 71).astype(np.float32)
    if kind == "one-hot":
        y = np.eye(3, dtype=np.float32)[y]
    elif kind == "column":
        y = y[:, None].astype(np.float32)
    if kind in ("python", "weighted"):
        parts = (x, y, weight) if kind == "weighted" else (x, y)
        return Splits(InPython(*(p[:50] for p in parts)), InPython(*(p[50:] for p in parts)), 3)
    return Splits(Arrays(x[:50], y[:50]), Arrays(x[50:], y[50:]), 3)


KINDS = ["whole", "one-hot", "column", "python", "weighted"]


def config(kind: str, weights: Any, **changed: Any) -> Any:
    loss = "categorical_crossentropy" if kind == "one-hot" else "sparse_categorical_crossentropy"
    return settings(
        dataset={"_target_": "tests.test_class_weights.data", "kind": kind},
        optimizer={"_target_": "keras.optimizers.SGD", "learning_rate": 0.1, "momentum": 0.9},
        trainer={"loss": loss, "metrics": ["accuracy"], "class_weight": weights},
        **changed,
    )


def wrong(kinds: list[str], strategy: str, devices: int, engine: Any = None) -> list[Any]:
    """Return where training, or the validation after it, differs from fit with class_weight."""
    import keras

    differ: list[Any] = []
    for kind in kinds:
        keras.utils.clear_session()
        steps = prepare(strategy, devices, config(kind, WEIGHTS), strategy=engine)[2]
        found = [steps.results(steps.train(1)) for _ in range(STEPS)]
        held = steps.results(steps.evaluate(*divmod(21, steps.evaluation_examples)))
        keras.utils.clear_session()
        reference = prepare("Default", 1, config(kind, None))[0]
        plain = data(kind)
        x, y, *own = in_order(plain.train, STEPS)
        given: dict[str, Any] = {"class_weight": WEIGHTS}
        if own:  # which fit takes one of
            given = {"sample_weight": own[0] * np.array([0.25, 1.0, 5.0], np.float32)[y]}
        seen: list[dict[str, Any]] = []

        class Each(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                self.model.reset_metrics()

            def on_train_batch_end(self, batch: int, logs: Any = None, seen: Any = seen) -> None:
                seen.append(dict(logs or {}))

        reference.fit(x, y, BATCH, shuffle=False, verbose=0, callbacks=[Each()], **given)
        assert plain.validation is not None
        xs, ys, *ws = plain.validation[np.arange(21)]
        expected = reference.evaluate(
            np.asarray(xs), np.asarray(ys), BATCH, verbose=0, return_dict=True,
            sample_weight=ws[0] if ws else None,
        )  # fmt: skip
        for ours, theirs in zip([*found, held], [*seen, expected], strict=True):
            if ours != pytest.approx(theirs, rel=1e-5, abs=1e-6):
                differ.append((kind, strategy, devices, ours, theirs))
                break
    return differ


@pytest.mark.task(devices=4)
@pytest.mark.parametrize(
    ("strategy", "devices"),
    sampled(
        [("OneDevice", 1), ("Mirrored", 2), ("Mirrored", 4), ("CentralStorage", 2)],
        ("Mirrored", 4),
    ),
)
def test_training_is_that_of_fit(strategy: str, devices: int) -> None:
    assert not wrong(KINDS if devices < 4 else KINDS[-1:], strategy, devices)


def _cluster(cluster: Any, task: Any, devices: list[str], servers: bool) -> Any:
    from dtrain.task.strategies import MultiWorker
    from tests.test_parameter_server import strategy_of

    if servers:
        return wrong(KINDS, "ParameterServer", 1, strategy_of(cluster, task, "sync"))
    return wrong(KINDS, "MultiWorker", 1, MultiWorker(devices, cluster, task, "auto"))


@pytest.mark.faults
def test_on_hosts() -> None:
    tasks = [Task("chief", 0, 1), Task("worker", 0, 1)]
    assert not any(together(_cluster, tasks, 2, servers=False))


@pytest.mark.faults
def test_by_parameter_servers() -> None:
    [found] = together(_cluster, servers(2, 1), 2, servers=True)
    assert not found


@pytest.mark.task
def test_weights_are_those_of_keras() -> None:
    """Of targets of all forms, by Keras' own two ways: of arrays, and of a tf.data.Dataset."""
    import tensorflow as tf
    from keras.src.trainers.data_adapters import data_adapter_utils, tf_dataset_adapter

    from dtrain.task.backends.tensorflow.reading import take
    from dtrain.task.data import reading

    labels = np.array([0, 2, 1, 2, 0, 1, 1, 0])
    soft = np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.2, 0.5, 0.3], [0.0, 0.0, 1.0]])
    targets = [
        labels, labels.astype(np.float32), labels[:, None], labels.astype(np.uint8),
        np.eye(3)[labels], np.eye(3, dtype=np.int64)[labels], soft.astype(np.float32),
        np.eye(3, dtype=bool)[labels],
    ]  # fmt: skip
    for y in targets:
        expected = data_adapter_utils.class_weight_to_sample_weights(y, WEIGHTS)
        for kind in (InPython, Arrays):
            source = weighted(Splits(kind(np.zeros(len(y)), y)), WEIGHTS, reading.first)
            _, _, weights = take(source, tf.constant(np.arange(len(y))))
            np.testing.assert_array_equal(weights, expected)
            assert weights.dtype == np.float32
    # A weight for each pixel, which Keras has of a dataset alone.
    pixels = np.eye(3, dtype=np.float32)[np.arange(24).reshape(2, 3, 4) % 3]
    place = tf_dataset_adapter.make_class_weight_map_fn(WEIGHTS)
    _, _, expected = place(tf.zeros(2), tf.constant(pixels))
    source = weighted(Splits(InPython(np.zeros(2), pixels)), WEIGHTS, reading.first)
    np.testing.assert_array_equal(take(source, tf.constant(np.arange(2)))[2], expected)


@pytest.mark.task
def test_weights_of_examples_are_multiplied() -> None:
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.reading import take
    from dtrain.task.data import reading

    labels = np.array([0, 2, 1, 2])
    own = np.array([1.0, 2.0, 3.0, 0.0])
    product = np.array([0.25, 10.0, 3.0, 0.0], np.float32)
    for given in (own, own[:, None], own.astype(np.int32)):
        source = weighted(Splits(InPython(np.zeros(4), labels, given)), WEIGHTS, reading.first)
        weights = take(source, tf.constant(np.arange(4)))[2]
        np.testing.assert_array_equal(weights.numpy().reshape(-1), product)
        assert weights.shape == given.shape
    pixels = np.eye(3, dtype=np.float32)[np.array([[0, 2], [1, 2]])]
    source = weighted(Splits(InPython(np.zeros(2), pixels, own[1:3])), WEIGHTS, reading.first)
    np.testing.assert_array_equal(
        take(source, tf.constant(np.arange(2)))[2], [[0.5, 10.0], [3.0, 15.0]]
    )


def first(source: Any, count: int) -> Any:
    return source[np.arange(min(count, len(source)))]


@pytest.mark.parametrize(
    ("parts", "weights", "problem"),
    [
        ((np.zeros(4),), WEIGHTS, "the examples have no targets"),
        ((np.zeros(4), np.array([0.1, 0.5, 1.2, 2.0])), WEIGHTS, "no whole numbers"),
        ((np.zeros(4), np.array([0.1, np.nan, 1.2, 2.0])), WEIGHTS, "no whole numbers"),
        ((np.zeros(4), np.array(["a", "b", "c", "d"])), WEIGHTS, "no whole numbers"),
        ((np.zeros(2), np.array([[1, 2, 0], [0, 2, 1]])), WEIGHTS, "do not add up to 1"),
        ((np.zeros(2), np.array([[1, 1, 0], [0, 0, 1]])), WEIGHTS, "do not add up to 1"),
        ((np.zeros(2), np.eye(2)), WEIGHTS, "classes of the dataset go up to 1"),
        ((np.zeros(4), np.array([0, 1, 2, 1])), {3: 1.0}, "classes of the dataset go up to 2"),
    ],
)
def test_what_is_refused(parts: Any, weights: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        weighted(Splits(InPython(*parts), None, 3), weights, first)
    assert str(caught.value).startswith("trainer.class_weight={")


def test_several_targets_are_refused() -> None:
    class Two(InPython):
        def __getitem__(self, indices: Any) -> tuple[Any, ...]:
            return self.parts[0][indices], {"a": self.parts[1][indices]}

    with pytest.raises(UsageError, match="several targets"):
        weighted(Splits(Two(np.zeros(4), np.zeros(4))), WEIGHTS, first)


@pytest.mark.task
def test_two_classes_of_one_output() -> None:
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.reading import take
    from dtrain.task.data import reading

    y = np.array([[0.0], [1.0]])
    source = weighted(Splits(InPython(np.zeros(2), y), None, 1), {1: 3.0}, reading.first)
    np.testing.assert_array_equal(take(source, tf.constant(np.arange(2)))[2], [1.0, 3.0])
