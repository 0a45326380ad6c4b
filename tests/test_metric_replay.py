"""Metrics whose states do not add up: what they are given comes back from the replicas, in order.

The referee is the metric itself, updated by hand with the predictions of the whole model, batch
after batch; ``tests/test_zoo.py`` has Keras' fit.
"""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.data.sources import Source
from tests.sampled import sampled
from tests.test_parameter_server import servers
from tests.test_steps import BATCH, prepare, settings
from tests.test_strategies import together

HELD = 21
KINDS = ["order", "ids", "masked", "flat", "weights", "half", "twice"]


class Tokens(Source):
    """Sequences of three tokens, 0 standing for none; ids beyond 2**53, which float64 has not."""

    in_graph = True

    def __init__(self, first: int, rows: int):
        import numpy as np

        generator = np.random.Generator(np.random.Philox(11))
        self.x = generator.integers(0, 5, (100, 3))[first : first + rows]
        self.y = (2**53 + generator.integers(0, 10**6, (100, 1)))[first : first + rows]
        self.weight = generator.uniform(0.5, 2.0, 100).astype(np.float32)[first : first + rows]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, indices: Any) -> tuple[Any, ...]:
        return tuple(part[indices] for part in (self.x, self.y, self.weight))

    def gather(self, indices: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        return tuple(tf.gather(tf.constant(p), indices) for p in (self.x, self.y, self.weight))


def tokens(held: bool = True) -> Any:
    from dtrain.data.sources import Splits

    return Splits(Tokens(0, 50), Tokens(50, HELD) if held else None)


def hashed(kind: str) -> Any:
    """Return a metric that depends on every value and on the order of the batches."""
    import keras
    from keras import ops

    class Hash(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="hash")
            self.value = self.add_weight(shape=(2,), initializer="zeros", name="value")
            self.greatest = self.add_weight(
                shape=(), initializer="zeros", dtype="int64", name="greatest"
            )

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            mask = getattr(y_pred, "_keras_mask", None)
            values = ops.cast(y_pred, "float32")
            places = ops.arange(1, 1 + ops.prod(ops.shape(values)), dtype="float32")
            found = ops.mean(ops.sin(ops.reshape(values, [-1]) * 7 + places))
            if kind == "masked":
                assert mask is not None, "the mask of the embedding"
                found = found + ops.mean(ops.cast(mask, "float32")) * 3
            if sample_weight is not None:
                found = found * ops.sum(sample_weight)
            self.value.assign(ops.stack([self.value[0] * 0.5 + found, self.value[1] + 1]))
            self.greatest.assign(ops.maximum(self.greatest, ops.max(y_true)))

        def result(self) -> Any:
            low = ops.cast(self.greatest - 2**53, "float32")
            return {"order": self.value[0] * 1, "batches": self.value[1] * 1, "low": low}

    return Hash()


def network(input_shape: Any, classes: Any, kind: str) -> Any:
    """Return a model whose steps give the metric its numbers in the way of ``kind``."""
    import keras
    from keras import layers, ops

    class Own(keras.Model):
        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            [own] = [metric for metric in self.metrics if metric.name == "hash"]
            if kind == "flat":
                own.update_state(y, ops.reshape(y_pred, [-1]))
            elif kind == "weights":
                own.update_state(y_true=y, y_pred=y_pred, sample_weight=sample_weight)
            elif kind == "half":
                own.update_state(y, ops.cast(y_pred, "bfloat16"))
            else:
                own.update_state(y, y_pred)
            if kind == "twice":
                own.update_state(y[:, 0], y_pred * 2)
            return self.get_metrics_result()

        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
            training: bool = True,
        ) -> Any:  # fmt: skip
            return ops.mean(ops.square(y_pred - 0.3))

    inputs = keras.Input(input_shape, dtype="int64")
    x = layers.Embedding(5, 4, mask_zero=kind == "masked")(inputs)
    x = layers.Dense(2, "tanh", name="out")(x)
    made = Own(inputs, x)
    made.own = hashed(kind)
    made.compile(keras.optimizers.SGD(0.1), loss=None)
    return made


def config(kind: str, **trainer: Any) -> Any:
    return settings(
        model={"_target_": "tests.test_metric_replay.network", "kind": kind},
        dataset={"_target_": "tests.test_metric_replay.tokens"},
        trainer={"loss": None, "metrics": [], **trainer},
    )


def by_hand(kind: str, batch: int, training: int = 0) -> dict[str, float]:
    """Return the metric after the validation, or the first steps of a training at rate 0."""
    import numpy as np
    import tensorflow as tf

    from tests.test_steps import in_order

    model, _, _, splits = prepare("Default", 1, config(kind))
    own = hashed(kind)
    whole = in_order(splits.train, training) if training else splits.validation[range(HELD)]
    rows = len(whole[0])
    for begin in range(0, rows, batch):
        x, y, weight = (tf.convert_to_tensor(p)[begin : begin + batch] for p in whole)
        predicted = model(x, training=False)
        if kind == "flat":
            predicted = tf.reshape(predicted, [-1])
        if kind == "half":
            predicted = tf.cast(predicted, tf.bfloat16)
        own.update_state(y, predicted, weight if kind == "weights" else None)
        if kind == "twice":
            own.update_state(y[:, 0], predicted * 2)
    return {name: float(np.asarray(value)) for name, value in own.result().items()}


def wrong(kind: str, name: str, devices: int, strategy: Any = None) -> list[Any]:
    """Return where a strategy finds something else in a validation, or in training."""
    import keras
    import pytest

    differ: list[Any] = []
    for batch in (BATCH, 2):
        keras.utils.clear_session()
        _, _, steps, _ = prepare(
            name, devices, config(kind, validation_batch_size=batch), strategy=strategy
        )
        expected = by_hand(kind, batch)
        for _ in range(2):
            found = steps.results(steps.evaluate(*divmod(HELD, steps.evaluation_examples)))
            found = {key: found[key] for key in expected}
            if found != pytest.approx(expected, rel=1e-5, abs=1e-6):
                differ.append((kind, name, devices, batch, found, expected))
        if batch == 2:
            found = steps.results(steps.train(1))  # of the weights as they were made
            expected = by_hand(kind, BATCH, training=1)
            found = {key: found[key] for key in expected}
            if found != pytest.approx(expected, rel=1e-5, abs=1e-6):
                differ.append((kind, name, devices, "training", found, expected))
    return differ


@pytest.mark.task(devices=4)
@pytest.mark.parametrize(
    ("kind", "name", "devices"),
    sampled(
        [
            (kind, *on)
            for kind in KINDS
            for on in (("OneDevice", 1), ("Mirrored", 2), ("Mirrored", 4))
        ],
        ("ids", "OneDevice", 1),
        ("masked", "Mirrored", 2),
    ),
)
def test_what_comes_back_is_what_one_device_gives(kind: str, name: str, devices: int) -> None:
    assert not wrong(kind, name, devices)


@pytest.mark.faults
@pytest.mark.task(devices=4)
def test_on_a_mesh() -> None:
    from tests.test_dtensor import mesh

    strategy = mesh()
    assert not [each for kind in ("ids", "masked") for each in wrong(kind, "", 1, strategy)]


@pytest.mark.task(devices=4)
def test_without_a_validation() -> None:
    from tests.test_dtensor import mesh

    alone = config("ids")
    alone.dataset = alone.dataset.replaced(held=False)
    for strategy in (None, mesh()):
        steps = prepare("OneDevice", 1, alone, strategy=strategy)[2]
        assert steps.results(steps.train(2))["batches"] == 2


def _cluster(cluster: Any, task: Any, devices: list[str], update: str) -> Any:
    from tests.test_parameter_server import strategy_of

    strategy = strategy_of(cluster, task, update)
    return [each for kind in ("ids", "masked") for each in wrong(kind, "", 1, strategy)]


@pytest.mark.parametrize("update", sampled(["sync", "async"]))
def test_by_parameter_servers(update: str) -> None:
    [found] = together(_cluster, servers(2, 1), 2 if update == "sync" else 1, update=update)
    assert not found


@pytest.mark.task
def test_steps_of_one_call_are_those_of_many() -> None:
    """Split at the points of the journal, or saved and taken up again in between."""
    import numpy as np

    from dtrain.task import train_state
    from dtrain.task.metric_sums import Sums

    def steps() -> Any:
        return prepare("OneDevice", 1, config("ids"))[2]

    first, second = steps(), steps()
    whole = first.train(6)
    one = Sums()
    for _ in range(3):
        one.add(second.train(1))
    arrays, meta = train_state.pack_sums(epoch=one)
    again = train_state.unpack_sums("epoch", arrays, meta["epoch"])
    again.add(second.train(3))
    assert second.results(again) == first.results(whole)
    parts = list(whole.split([2, 4]))
    joined = Sums()
    for part in parts:
        assert first.results(part)["batches"] == 2
        joined.add(part)
    assert first.results(joined) == first.results(whole)
    for a, b in zip(joined.states, whole.states, strict=True):
        np.testing.assert_array_equal(a, b)
    appended = parts[0]
    appended.append(parts[1])
    assert [first.results(p)["batches"] for p in appended.split([1, 3])] == [1, 2, 1]


@pytest.mark.faults
@pytest.mark.task
def test_xla_gives_the_same() -> None:
    found = []
    for jit_compile in (False, True):
        steps = prepare("OneDevice", 1, config("ids"), jit_compile=jit_compile)[2]
        found.append(steps.results(steps.train(4)))
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def odd(input_shape: Any, classes: Any, kind: str) -> Any:
    """Return a model whose metric cannot be updated away from it."""
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class Last(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="last")
            self.value = self.add_weight(shape=(), initializer="zeros", name="value")

        def update_state(self, values: Any, *others: Any) -> None:
            last = ops.mean(values)
            if kind == "reads":
                last = last + ops.sum(made.layers[-1].kernel)
            self.value.assign(last)

        def result(self) -> Any:
            return self.value * 1

    class Odd(keras.Model):
        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            if kind == "branch":
                tf.cond(
                    ops.mean(y_pred) > 0,
                    lambda: self.last.update_state(y_pred),
                    lambda: self.last.update_state(-y_pred),
                )
            elif kind == "chosen":
                self.last.update_state(tf.boolean_mask(y_pred, y_pred[:, 0] > 0.3))
            elif kind == "columns":
                self.last.update_state(ops.transpose(y_pred))
            elif kind == "text":
                self.last.update_state(y_pred, tf.constant("a"))
            elif kind == "replicas":
                self.last.update_state(y_pred, ops.shape(y_pred)[0])
            elif kind == "large":
                self.last.update_state(ops.repeat(y_pred, 2_000_000, axis=1))
            else:
                self.last.update_state(y_pred if kind == "reads" else ops.mean(y_pred))
            return self.get_metrics_result()

    inputs = keras.Input(input_shape)
    made = Odd(inputs, layers.Dense(3, "softmax")(inputs))
    made.last = Last()
    made.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return made


def odd_config(kind: str) -> Any:
    return settings(model={"_target_": "tests.test_metric_replay.odd", "kind": kind})


@pytest.mark.task(devices=2)
@pytest.mark.parametrize(
    ("kind", "problem"),
    sampled([
        ("branch", "is updated inside tf.cond"),
        ("reads", "reads variables other than its own"),
        ("chosen", "whose rows are not those of the 4 examples"),
        ("columns", "whose rows are not those of the 4 examples"),
        ("text", "is given a "),
        ("replicas", "is given the number of examples of a replica"),
        ("large", "is given 0.4 GiB in a step of 8 examples"),
    ], ("branch", "is updated inside tf.cond"), ("reads", "reads variables other than its own")),
)  # fmt: skip
def test_what_cannot_be_recorded_is_refused(kind: str, problem: str) -> None:
    from dtrain.errors import UsageError, behind

    with pytest.raises(Exception, match=problem) as caught:
        prepare("Mirrored", 2, odd_config(kind))
    refused = behind(caught.value)
    assert isinstance(refused, UsageError), refused
    assert "Last" in str(refused)


@pytest.mark.task(devices=2)
def test_a_mean_over_the_replicas_is_told() -> None:
    from dtrain.task.rehearsal import metrics

    model, strategy, steps, splits = prepare("Mirrored", 2, odd_config("scalar"))
    replay = steps._replay
    assert replay.notices == [
        "last: what it is given in training is no value of each example, and is the mean over the "
        "replicas; in a validation it is what one device has"
    ]
    assert metrics.replayed(model, splits, strategy).notices == []  # before it has learnt of them


@pytest.mark.task
def test_another_keras_that_keeps_masks_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrain.errors import TrainingError
    from dtrain.task.keras_internals import losses

    for name in ("keras.src.backend.common.gone", "keras.src.backend.common.variables"):
        monkeypatch.setattr(losses, "MASKING", name)
        with pytest.raises(TrainingError, match="keeps the masks of tensors in a way that dtrain"):
            prepare("OneDevice", 1, config("masked"))


@pytest.mark.task
def test_a_tpu_refuses_them() -> None:
    from dtrain.errors import UsageError
    from dtrain.task.rehearsal import metrics
    from dtrain.task.strategies import TPU

    model, strategy, _, splits = prepare("OneDevice", 1, odd_config("scalar"))
    replay = metrics.replayed(model, splits, strategy)
    with pytest.raises(UsageError, match="Last: its state is no sum over the examples"):
        TPU.steps(object.__new__(TPU), model, None, False, replay)  # type: ignore[arg-type]
