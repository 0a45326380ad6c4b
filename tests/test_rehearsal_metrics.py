"""Metrics whose states do not add up are found on a few examples before training."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sampled import sampled
from tests.test_parameter_server import servers
from tests.test_steps import BATCH, in_order, prepare, settings
from tests.test_strategies import together


def metric(kind: str) -> Any:
    import keras
    from keras import ops

    class Own(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="own")
            self.state = self.add_weight(shape=(), initializer="zeros", name="state")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            error = ops.abs(ops.max(y_pred, axis=-1) - 0.2)
            if kind == "maximum":
                self.state.assign(ops.maximum(self.state, ops.max(error)))
            elif kind == "root":
                self.state.assign(ops.sqrt(ops.square(self.state) + ops.sum(error)))
            elif kind == "rare":  # a greatest number of something that is not there at first
                self.state.assign(ops.maximum(self.state, ops.sum(ops.cast(error > 5, "float32"))))
            elif kind == "last":
                self.state.assign(error[-1])
            else:
                self.state.assign_add(ops.sum(error))

        def result(self) -> Any:
            return self.state

    class Doubled(keras.metrics.SparseCategoricalAccuracy):  # its state is that of Keras' own
        def result(self) -> Any:
            return 2 * super().result()

    made = Doubled() if kind == "subclass" else Own()
    if kind == "declared":
        made.adds_up = True
    return made


def sampling(input_shape: Any, classes: int) -> Any:
    """A model that draws in its evaluation: that must not be taken for a state."""
    import keras

    inputs = keras.Input(input_shape)
    noisy = keras.layers.GaussianNoise(1.0)

    class Sampling(keras.Model):
        def test_step(self, data: Any) -> Any:
            x, y = data
            return self.compute_metrics(x, y, self(noisy(x, training=True), training=False))

    return Sampling(inputs, keras.layers.Dense(classes, activation="softmax")(inputs))


def trainer(*metrics: Any) -> Any:
    return {"loss": "sparse_categorical_crossentropy", "metrics": list(metrics)}


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("kind", sampled(["maximum", "root", "rare", "last"], "root"))
def test_what_does_not_add_up_is_named_in_a_notice(kind: str) -> None:
    own = {"_target_": "tests.test_rehearsal_metrics.metric", "kind": kind}
    for name, devices in (("OneDevice", 1), ("Mirrored", 2)):
        config = settings(trainer=trainer("accuracy", own))
        model, strategy, _, splits = prepare(name, devices, config)
        [notice] = strategy.notices(model, splits, None, None, 0)
        assert notice is not None
        assert notice.startswith(
            "own: its state does not add up over batches, as far as the first examples show, so "
            "what is reported is the mean of its results over "
        )
        assert ("replica" in notice) == (devices > 1)


@pytest.mark.task(devices=2)
def test_what_adds_up_is_not() -> None:
    from dtrain.task.model import train_state

    own = {"_target_": "tests.test_rehearsal_metrics.metric"}
    for kind, model_of in (
        ("sum", {}), ("declared", {}), ("subclass", {}),
        ("sum", {"model": {"_target_": "tests.test_rehearsal_metrics.sampling"}}),
    ):  # fmt: skip
        config = settings(trainer=trainer({**own, "kind": kind}, "accuracy"), **model_of)
        model, strategy, _, splits = prepare("Mirrored", 2, config)
        before = train_state.snapshot(model, strategy)
        assert strategy.notices(model, splits, None, None, 0) == [None]
        after = train_state.snapshot(model, strategy)
        assert all((after[name] == before[name]).all() for name in before), "nothing changed"


def averaged(kind: str, name: str, devices: int, strategy: Any = None) -> list[Any]:
    """Return where a strategy's metric is not the mean of its results over its batches."""
    import keras
    import numpy as np

    parts = 2 if name == "Mirrored" or kind == "workers" else 1
    config = settings(
        model={"_target_": "tests.test_rehearsal_metrics.extremes", "own": kind == "own"},
        trainer={"loss": None, "metrics": []},
    )
    keras.utils.clear_session()
    _, _, steps, splits = prepare(name, devices, config, strategy=strategy)
    differ = []
    for training in (True, False):
        if training:
            examples, batch, rows = in_order(splits.train, 2)[0], BATCH // parts, 2 * BATCH
        else:
            examples, batch, rows = splits.validation[np.arange(21)][0], BATCH, 21
        results = []
        for begin in range(0, rows, batch):
            # Of inputs: training does not change it.
            own, part = extreme(), examples[begin : begin + batch]
            own.update_state(None, keras.ops.convert_to_tensor(part))
            results.append([len(part) * float(each) for each in own.result().values()])
        expected = np.sum(results, 0) / rows
        if training:
            values = steps.results(steps.train(1))
            more = steps.train(1)
            values = {n: (v + steps.results(more)[n]) / 2 for n, v in values.items()}
        else:
            sums = steps.evaluate(*divmod(21, steps.evaluation_examples))
            values = steps.results(sums, training=False)
        names = ["top", "bottom"] if kind == "own" and training else ["greatest", "least"]
        found = [values.get(each) for each in names]
        if found != pytest.approx(expected, rel=1e-5) or "extreme" in values:
            differ.append((kind, name, training, found, expected, values))
    return differ


def extreme() -> Any:
    """Return a metric whose state is neither a sum nor begins with zeros."""
    import keras
    from keras import ops

    class Extreme(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="extreme")
            self.greatest = self.add_weight(shape=(), initializer="zeros", name="greatest")
            self.least = self.add_weight(shape=(), initializer="ones", name="least")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.greatest.assign(ops.maximum(self.greatest, ops.max(y_pred)))
            self.least.assign(ops.minimum(self.least, ops.min(y_pred)))

        def reset_state(self) -> None:
            self.greatest.assign(0.0)
            self.least.assign(1.0)

        def result(self) -> Any:
            return {"greatest": self.greatest, "least": self.least * 1}

    return Extreme()


def extremes(input_shape: Any, classes: Any, own: bool) -> Any:
    """Return a model with such a metric of its inputs; a step of its own names results its way."""
    import keras

    class Extremes(keras.Model):
        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            self.metrics[-1].update_state(y, x)
            return self.get_metrics_result()

        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
            training: bool = True,
        ) -> Any:  # fmt: skip
            return keras.ops.mean(y_pred)

    class Own(Extremes):
        def train_step(self, data: Any) -> Any:
            logs = super().train_step(data)
            return {"loss": logs["loss"], "top": logs["greatest"], "bottom": logs["least"]}

    inputs = keras.Input(input_shape)
    made = (Own if own else Extremes)(inputs, keras.layers.Dense(1)(inputs))
    made.extreme = extreme()
    made.compile(keras.optimizers.SGD(0.1), loss=None)
    return made


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("kind", ["keras", "own"])
def test_the_mean_of_results_is_reported(kind: str) -> None:
    assert not averaged(kind, "OneDevice", 1)
    assert not averaged(kind, "Mirrored", 2)


def _cluster(cluster: Any, task: Any, devices: list[str]) -> Any:
    from tests.test_parameter_server import strategy_of

    return averaged("workers", "", 1, strategy_of(cluster, task, "sync"))


def test_the_mean_of_results_is_reported_by_parameter_servers() -> None:
    [differ] = together(_cluster, servers(2, 1), 2)
    assert not differ


@pytest.mark.task
def test_a_result_may_be_the_variable_itself() -> None:
    """Whose value between two steps is 0."""
    own = {"_target_": "tests.test_rehearsal_metrics.metric", "kind": "sum"}
    steps = prepare("OneDevice", 1, settings(trainer=trainer(own)))[2]
    sums = steps.train(2)
    assert steps.results(sums)["own"] == pytest.approx(float(sums.states[2]))
    assert sums.states[2] > 0


@pytest.mark.task
def test_states_of_all_metrics_of_keras_add_up() -> None:
    """The probe passes over them: here each is tried, as one of a user's own would be."""
    import inspect

    import keras
    import numpy as np
    import tensorflow as tf

    needs: dict[str, dict[str, Any]] = {
        "MeanIoU": {"num_classes": 2}, "IoU": {"num_classes": 2, "target_class_ids": [0]},
        "OneHotMeanIoU": {"num_classes": 3},
        "OneHotIoU": {"num_classes": 3, "target_class_ids": [0]},
        "SensitivityAtSpecificity": {"specificity": 0.5}, "PrecisionAtRecall": {"recall": 0.5},
        "SpecificityAtSensitivity": {"sensitivity": 0.5}, "RecallAtPrecision": {"precision": 0.5},
        "MeanMetricWrapper": {"fn": keras.losses.mean_squared_error},
    }  # fmt: skip
    generator = np.random.Generator(np.random.Philox(5))
    tried = 0
    for name, kind in sorted(vars(keras.metrics).items()):
        if not (inspect.isclass(kind) and issubclass(kind, keras.metrics.Metric)):
            continue
        if kind is keras.metrics.Metric or kind.__module__.endswith("_test"):
            continue
        made = kind(**needs.get(name, {}))
        parts = []
        for rows in (6, 4):
            y = np.eye(3, dtype=np.float32)[generator.integers(0, 3, rows)]
            p = generator.dirichlet([1.0, 1.0, 1.0], rows).astype(np.float32)
            if name.startswith("Sparse"):
                parts.append((y.argmax(1), p))
            elif name in ("Mean", "Sum"):
                parts.append((p,))
            elif name in ("MeanIoU", "IoU", "BinaryIoU"):
                parts.append((y[:, 0], (p[:, 0] > 0.5).astype(np.float32)))
            else:
                parts.append((y, p))
        states = []
        for batches in (parts[:1], parts[1:], parts):
            made.reset_state()
            for batch in batches:
                made.update_state(*batch)
            states.append([np.asarray(tf.convert_to_tensor(v), float) for v in made.variables])
        for a, b, both in zip(*states, strict=True):
            np.testing.assert_allclose(a + b, both, rtol=1e-5, err_msg=name)
        tried += 1
    assert tried > 40
