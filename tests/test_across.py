"""Losses that are others on replicas than on one device are told of before training."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from dtrain.run.cluster import Cluster, Task
from tests.conftest import QUICK
from tests.sampled import sampled
from tests.test_parameter_server import servers, strategy_of
from tests.test_steps import BATCH, settings
from tests.test_strategies import together
from tests.test_zoo import NAMES, configured

#: By kind and devices: TensorFlow allows one group of the same devices in a process.
_strategies: dict[tuple[str, int], Any] = {}


def made(kind: str, devices: int, config: Any, strategy: Any = None) -> tuple[Any, ...]:
    """Build a model; return what :func:`across.notice` takes."""
    import os

    import keras

    from dtrain.task import strategies
    from dtrain.task.data import dataset
    from dtrain.task.model import build

    os.environ["DTRAIN_TRUST"] = "tests"
    keras.utils.clear_session()
    if strategy is None:
        if (kind, devices) not in _strategies:
            names = [f"CPU:{i}" for i in range(devices)]
            _strategies[kind, devices] = getattr(strategies, kind)(names)
        strategy = _strategies[kind, devices]
    strategy.gradient_reduction = config.trainer.gradient_reduction
    splits = dataset.load(config).splits
    return build.model(config, splits, strategy, 16, 4), strategy, splits.train, BATCH, config.seed


def notice_of(kind: str, devices: int, config: Any) -> str | None:
    from dtrain.task.backends.tensorflow.rehearsal import across

    return across.notice(*made(kind, devices, config))


PARTS = {
    "few": ["gan", "masked_tokens", "batch_hard", "weighted_mean"],
    **{str(p): NAMES[p::4] for p in range(4)},
}


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("part", sampled(PARTS, "few"))
def test_models_that_are_exact_are_tried_and_not_told_of(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dtrain.task.backends.tensorflow.rehearsal import across, step
    from dtrain.task.model import train_state

    seen: list[Any] = []
    original = step.Step.run

    def run(self: Any, batch: Any) -> Any:
        numbers, kept = original(self, batch)
        seen.extend(numbers)
        return numbers, kept

    monkeypatch.setattr(step.Step, "run", run)
    monkeypatch.setattr("dtrain.task.backends.across.is_known", lambda model: False)
    for kind, devices in (("Mirrored", 4), ("CentralStorage", 2)):
        for name in PARTS[part]:
            if "mirrored 4" in getattr(importlib.import_module(f"tests.zoo.{name}"), "REFUSED", {}):
                continue
            arguments = made(kind, devices, configured(name))
            before = train_state.snapshot(*arguments[:2])
            seen.clear()
            assert across.notice(*arguments) is None, name
            assert seen, name
            after = train_state.snapshot(*arguments[:2])
            assert all((after[key] == before[key]).all() for key in before), "nothing changed"


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("name", ["batch_dice", "batch_hard", "simclr"])
def test_what_looks_across_the_examples_is_told_of(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(name)
    of = importlib.import_module(f"tests.zoo.{name}")
    monkeypatch.setattr(of, "gather", lambda x: x)
    for kind, devices in (("Mirrored", 4), ("CentralStorage", 2)):
        notice = notice_of(kind, devices, config)
        assert notice is not None and notice.startswith(
            f"on {devices} replicas the loss is not that"
        )
        assert notice.endswith(
            "and where it looks across the examples, dtrain.replicas.gather does"
        )
    for kind in ("OneDevice", "Default"):
        assert notice_of(kind, 1, config) is None


@pytest.mark.task(devices=4)
def test_what_gathers_wrongly_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from keras import ops

    of = importlib.import_module("tests.zoo.batch_hard")
    config = configured("batch_hard")
    assert notice_of("Mirrored", 2, config) is None

    def some(self: Any, y: Any, p: Any) -> Any:
        return ops.mean(of.gather(p)) + ops.mean(ops.square(p - ops.mean(p, axis=0)))

    monkeypatch.setattr(of.BatchHard, "call", some)
    notice = notice_of("Mirrored", 2, config) or ""
    assert notice.endswith("all that it compares has to come from dtrain.replicas.gather")

    def reduced(self: Any, y: Any, p: Any) -> Any:  # a value for each example of all replicas
        self.reduction = "sum"
        return ops.sum(ops.square(of.gather(p) - 0.1), axis=1)

    monkeypatch.setattr(of.BatchHard, "call", reduced)
    notice = notice_of("Mirrored", 2, config) or ""
    assert notice.endswith("it adds up what was gathered, once on each replica (reduction=mean)")
    config.trainer.gradient_reduction = "sum"
    monkeypatch.undo()
    notice = notice_of("Mirrored", 2, config) or ""
    assert notice.endswith("it is a mean over its examples (trainer.gradient_reduction=mean)")


def stepping(input_shape: Any, classes: int, loss: str = "mean") -> Any:
    """A model with a ``train_step`` of its own, which returns nothing, and another loss."""
    import keras
    import tensorflow as tf
    from keras import layers, ops

    # What a module that imported it early has.
    held = getattr(tf.nn.compute_average_loss, "__wrapped__", tf.nn.compute_average_loss)

    class Stepping(keras.Model):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            if loss == "counted":
                self.seen = tf.Variable(0, dtype=tf.int32)
            self.noise = layers.GaussianNoise(1.0, seed=1)

        def losses_of(self, x: Any, y: Any) -> Any:
            p = self(x, training=True)
            each = keras.losses.sparse_categorical_crossentropy(y, p)
            mean = ops.mean(each)
            context = tf.distribute.get_replica_context()
            return {
                "mean": lambda: mean,
                **dict.fromkeys(("each", "factors"), lambda: each),
                "divided": lambda: ops.sum(each) / BATCH,
                "by tensorflow": lambda: tf.nn.compute_average_loss(each, global_batch_size=BATCH),
                "by replicas": lambda: tf.nn.compute_average_loss(each),
                "held": lambda: held(each, global_batch_size=BATCH),
                "held by replicas": lambda: held(each),
                "over replicas": lambda: mean / tf.distribute.get_strategy().num_replicas_in_sync,
                "spread": lambda: ops.std(each),
                "noisy": lambda: mean + ops.mean(self.noise(x, training=True)),
                "drawn": lambda: mean * tf.reduce_mean(tf.random.normal([3])),
                "met": lambda: context.all_reduce("MEAN", ops.std(each)),
                "counted": lambda: ops.std(each) + tf.cast(self.seen.assign_add(1), tf.float32),
                "python": lambda: tf.py_function(lambda v: v, [ops.std(each)], tf.float32),
                "failing": lambda: ops.reshape(ops.std(each), [7]),
                "not finite": lambda: ops.log(ops.std(each) - 1e9),
                "nothing": lambda: ops.std(each),
                "tasks": lambda: ops.stack([ops.mean(each**n) for n in (1, 2, 3, 4)]),
            }[loss]()

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                value = self.losses_of(x, y)
            if loss != "nothing":
                weights = self.trainable_variables
                factors = ops.ones_like(value) / x.shape[0] if loss == "factors" else None
                self.optimizer.apply(tape.gradient(value, weights, factors), weights)
            return {}

    inputs = keras.Input(input_shape)
    return Stepping(inputs, layers.Dense(classes, activation="softmax")(inputs))


def stepping_with(loss: str, reduction: str = "mean") -> Any:
    return settings(
        model={"_target_": "tests.test_across.stepping", "loss": loss},
        trainer={"loss": None, "metrics": [], "gradient_reduction": reduction},
    )


@pytest.mark.faults
@pytest.mark.task(devices=4)
def test_what_a_step_of_its_own_wants_gradients_of() -> None:
    same = ("mean", "each", "by tensorflow", "by replicas", "noisy")
    unknown, untried = ("not finite", "nothing"), "those of strategy=one_device"
    by_hand = "it is divided by all examples (trainer.gradient_reduction=sum)"
    endings = {
        **dict.fromkeys((*same, *unknown)),
        "failing": untried,
        "drawn": "keras.random with a keras.random.SeedGenerator draws the same",
        **dict.fromkeys(("divided", "over replicas", "held", "held by replicas"), by_hand),
        **dict.fromkeys(
            ("spread", "met", "python", "counted"), "the examples, dtrain.replicas.gather does"
        ),
    }
    for loss, ending in endings.items():
        notice = notice_of("Mirrored", 4, stepping_with(loss))
        assert notice is None if ending is None else (notice or "").endswith(ending), (loss, notice)

    same = ("each", "divided", "by tensorflow", "by replicas", "over replicas", "held",
            "held by replicas")  # fmt: skip
    mean = "it is a mean over its examples (trainer.gradient_reduction=mean)"
    endings = {**dict.fromkeys((*same, *unknown)), "mean": mean, "failing": untried}
    for loss, ending in endings.items():
        notice = notice_of("Mirrored", 4, stepping_with(loss, "sum"))
        assert notice is None if ending is None else (notice or "").endswith(ending), (loss, notice)


@pytest.mark.task(devices=2)
def test_losses_of_as_many_tasks_as_a_replica_has_examples_are_means() -> None:
    assert notice_of("Mirrored", 2, stepping_with("tasks")) is None
    notice = notice_of("Mirrored", 2, stepping_with("factors")) or ""
    assert notice.endswith("or divide output_gradients by all examples"), notice
    notice = notice_of("Mirrored", 2, stepping_with("divided")) or ""
    assert notice.endswith("it is divided by all examples (trainer.gradient_reduction=sum)")


def tracking(input_shape: Any, classes: int, named: str, given: str) -> Any:
    """A model whose loss is divided by hand; what it tells of it, and under which name."""
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class Tracking(keras.Model):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.tracker = keras.metrics.Mean(name=named)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                each = keras.losses.sparse_categorical_crossentropy(y, self(x, training=True))
                loss = ops.sum(each) / BATCH
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            what, where = given.split()
            value = {"part": loss, "mean": ops.mean(each), "each": each}[what]
            if where == "returned":
                return {named: value}
            self.tracker.update_state(value)
            return {"other": self.tracker.result()}

    inputs = keras.Input(input_shape)
    return Tracking(inputs, layers.Dense(classes, activation="softmax")(inputs))


@pytest.mark.task(devices=2)
def test_numbers_under_other_names_than_losses_are_told_of() -> None:
    right = {("a_loss", "part"), ("kl", "mean"), ("kl", "each"), ("a_loss", "each")}
    for named in ("a_loss", "kl"):
        for given in ("part returned", "mean returned", "part tracked", "mean tracked",
                      "each tracked"):  # fmt: skip
            node = {"_target_": "tests.test_across.tracking", "named": named, "given": given}
            trainer = {"loss": None, "metrics": [], "gradient_reduction": "sum"}
            notice = notice_of("Mirrored", 2, settings(model=node, trainer=trainer))
            if (named, given.split()[0]) in right:
                assert notice is None, (named, given, notice)
            else:
                assert (notice or "").startswith(f"on 2 replicas {named} is not that of one device")
                assert (notice or "").endswith("has the word loss, and averaged elsewhere")


def padded(examples: int = 48) -> Any:
    """Sequences of which the first ones have as many tokens that count, and others none."""
    import numpy as np

    from dtrain.data.sources import Arrays, Splits

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, examples, 6)).astype(np.float32)
    y[:8, 4:] = 0
    for row in range(8, examples):
        y[row, rng.integers(0, 6) * (row % 3 > 0) :] = 0
    return Splits(Arrays(x, y), Arrays(x[:21], y[:21]), classes=None)


def regression(input_shape: Any, classes: Any, stepping: bool = False) -> Any:
    import keras
    import tensorflow as tf

    class Stepping(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = masked(y, p)
            weights = self.trainable_weights
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"r2": r2(y, p)}

    inputs = keras.Input(input_shape)
    outputs = keras.layers.Dense(6)(keras.layers.Dense(5, activation="tanh")(inputs))
    return (Stepping if stepping else keras.Model)(inputs, outputs)


def masked(y: Any, p: Any, advised: bool = False, guarded: bool = True) -> Any:
    from keras import ops

    from dtrain import replicas

    mask = ops.cast(y != 0, "float32")
    number = ops.sum(mask)
    if advised:
        number = replicas.mean(number)
    return ops.sum(ops.square(y - p) * mask) / (number + 1e-6 * guarded)


def r2(y: Any, p: Any, advised: bool = False) -> Any:
    from keras import ops

    from dtrain import replicas

    if advised:
        centre = replicas.mean(ops.mean(y))
        rest, all_ = (replicas.sum(ops.sum(ops.square(v))) for v in (y - p, y - centre))
        return 1 - rest / all_
    return 1 - ops.sum(ops.square(y - p)) / ops.sum(ops.square(y - ops.mean(y)))


def of_padded(stepping: bool = False, r2: Any = None, **loss: Any) -> Any:
    of = {"_target_": "tests.test_across.masked", **loss}
    metric = {"_target_": "tests.test_across.r2", **(r2 or {})}
    return settings(
        dataset={"_target_": "tests.test_across.padded"},
        model={"_target_": "tests.test_across.regression", "stepping": stepping},
        optimizer={"_target_": "keras.optimizers.SGD", "learning_rate": 0.1},
        trainer={"batch_size": BATCH, "loss": of, "metrics": [metric]},
    )


@pytest.mark.task(devices=4)
def test_a_mean_over_what_counts_is_told_of_and_exact_by_the_advice() -> None:
    import keras

    from tests.test_steps import prepare

    notice = notice_of("Mirrored", 4, of_padded()) or ""
    assert notice.startswith("on 4 replicas the loss is not that of one device (nor r2): ")
    assert "dtrain.replicas.mean(NUMBER) makes it exact" in notice
    notice = notice_of("Mirrored", 4, of_padded(guarded=False)) or ""
    assert "the mean of their parts' is nan; " in notice and "may be 0 on a replica" in notice
    assert (notice_of("Mirrored", 4, of_padded(stepping=True)) or "").count("(nor r2)") == 1
    known = of_padded()
    known.trainer.loss = "mse"  # beside which the metric is a function of the user's
    for config in (of_padded(advised=True), known):
        notice = notice_of("Mirrored", 4, config) or ""
        assert notice.startswith("on 4 replicas r2 is not that of one device: ")

    right = of_padded(advised=True, r2={"advised": True})
    found = []
    for kind, devices in (("OneDevice", 1), ("Mirrored", 4), ("CentralStorage", 2)):
        assert notice_of(kind, devices, right) is None
        keras.utils.clear_session()
        _, _, steps, _ = prepare(kind, devices, right, strategy=_strategies[kind, devices])
        found.append([steps.results(steps.train(1)) for _ in range(5)])
    for one, *others in zip(*found, strict=True):
        assert one.keys() == {"loss", "r2"}
        assert all(each == pytest.approx(one, rel=1e-5, abs=1e-5) for each in others)


def drawing(input_shape: Any, classes: int, how: str) -> Any:
    import keras
    import tensorflow as tf
    from keras import layers, ops

    class Drawing(layers.Layer):
        def build(self, shape: Any) -> None:
            self.calls = 0
            self.seeds = keras.random.SeedGenerator(1)
            self.generator = tf.random.Generator.from_seed(1)
            self.kernel = self.add_weight(shape=(shape[-1], 4), name="kernel")

        def call(self, x: Any) -> Any:
            size = [4, 4]  # weights, of which there are as many rows as examples in a part
            noise: Any = {
                "weights": lambda: keras.random.normal(size, seed=self.seeds),
                "an int": lambda: keras.random.truncated_normal(size, seed=3),
                "normal": lambda: tf.random.normal(size),
                "generator": lambda: self.generator.normal(size),
                "stateless": lambda: tf.random.stateless_truncated_normal(size, [1, 2]),
                "counter": lambda: self.count(),
            }[how]()
            self.add_loss(1e-3 * ops.sum(ops.square(self.kernel)))
            return x @ (self.kernel + noise)

        def count(self) -> float:
            self.calls += 1
            return 0.1 * self.calls

    inputs = keras.Input(input_shape)
    hidden = Drawing(name="drawing")(inputs)
    return keras.Model(inputs, layers.Dense(classes, activation="softmax")(hidden))


@pytest.mark.task(devices=2)
def test_noise_and_counters_are_named_and_draws_of_keras_are_the_same() -> None:
    for how, words in {
        "weights": None,
        "an int": None,
        "normal": "draws random numbers by tf.random (RandomStandardNormal)",
        "generator": "draws random numbers by tf.random (StatelessRandomNormalV2)",
        "stateless": "draws random numbers by tf.random (StatelessTruncatedNormalV2)",
        "counter": "Drawing drawing changes self.calls in Python",
    }.items():
        node = {"_target_": "tests.test_across.drawing", "how": how}
        notice = notice_of("Mirrored", 2, settings(model=node))
        assert notice is None if words is None else words in (notice or ""), (how, notice)
        assert "is not that of one device" not in (notice or ""), notice


def noisy_labels(input_shape: Any, classes: int, at_once: bool) -> Any:
    """A GAN's discriminator, whose labels have noise: two rows an example."""
    import keras
    from keras import layers, ops

    class Discriminator(keras.Model):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.seeds = keras.random.SeedGenerator(1)

        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
            training: bool = True,
        ) -> Any:  # fmt: skip
            rows = ops.shape(x)[0]
            both = ops.concatenate([y_pred, self(-x, training=True)])
            sizes = [2 * rows] if at_once else [rows, rows]
            noise = [keras.random.uniform((n, 1), seed=self.seeds) for n in sizes]
            labels = ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))])
            return keras.losses.binary_crossentropy(labels + ops.concatenate(noise), both)

    inputs = keras.Input(input_shape)
    return Discriminator(inputs, layers.Dense(1, activation="sigmoid")(inputs))


@pytest.mark.task(devices=2)
def test_noise_of_two_rows_an_example_is_told_of() -> None:
    for at_once in (True, False):
        node = {"_target_": "tests.test_across.noisy_labels", "at_once": at_once}
        notice = notice_of(
            "Mirrored", 2, settings(model=node, trainer={"loss": None, "metrics": []})
        )
        assert bool(notice) == at_once, notice
        assert not at_once or "one draw for each is exact" in (notice or "")


def normalised(input_shape: Any, classes: int, how: str) -> Any:
    import keras
    from keras import layers, ops

    class Own(layers.Layer):
        def call(self, x: Any, training: bool = False) -> Any:
            return (x - ops.mean(x, axis=0)) if training else x

    layer = layers.BatchNormalization(synchronized=how == "synchronized")
    inputs = keras.Input(input_shape)
    x = layers.Dense(8, activation="relu")(inputs)
    x = Own()(x) if how == "own" else layer(layers.Dropout(0.5)(x))
    return keras.Model(inputs, layers.Dense(classes, activation="softmax")(x))


@pytest.mark.task(devices=2)
def test_batch_normalisation_is_no_loss_that_looks_across() -> None:
    for how in ("plain", "synchronized", "own"):
        node = {"_target_": "tests.test_across.normalised", "how": how}
        notice = notice_of("Mirrored", 2, settings(model=node))
        begins = {"plain": "batch normalisation (batch_normalization", "own": "on 2 replicas the"}
        assert (notice or "").startswith(begins.get(how, "")) and bool(notice) == (how in begins), (
            notice
        )
        assert how != "plain" or "the loss" not in (notice or "")


def on_servers(cluster: Cluster, task: Task, devices: list[str]) -> Any:
    from dtrain.errors import UsageError
    from dtrain.task.backends.tensorflow.rehearsal import across

    strategy = strategy_of(cluster, task, "sync")
    found = {}
    for loss in ("mean", "spread", "divided", "by replicas"):
        found[loss] = across.notice(*made("ps", 1, stepping_with(loss), strategy))
    found["regularized"] = across.notice(*made("ps", 1, configured("regularized"), strategy))
    for name in ("batch_hard", "masked_tokens", "codebook_everywhere"):
        expected = importlib.import_module(f"tests.zoo.{name}").REFUSED["ps"]
        with pytest.raises(UsageError, match=re.escape(expected)):
            across.notice(*made("ps", 1, configured(name), strategy))
    return found


def test_workers_that_compute_alone() -> None:
    [found] = together(on_servers, servers(2, 1), 2)
    assert found.pop("spread").endswith(
        "dtrain.replicas.gather does under a strategy whose replicas meet in a step "
        "(strategy=multiworker)"
    )
    assert found.pop("divided").endswith("(trainer.gradient_reduction=sum)")
    assert found == dict.fromkeys(found)


OWN = """
from keras import ops

def spread(y_true, y_pred):
    return ops.std(y_pred) + ops.mean(y_pred)

def divided(y_true, y_pred):
    return ops.sum(ops.square(y_pred)) / 32
"""


def notices(run: Any) -> list[str]:
    """Return what is said of losses; that such a model is not saved whole is another thing."""
    messages = [event["message"] for event in run.events("notice")]
    return [message for message in messages if "replicas" in message]


def test_a_run_says_it_once(dtrain: Any, user_code: Any) -> None:
    user_code(OWN)
    words = [*QUICK, "trainer.epochs=1", "trainer.loss={_target_:mine.spread}"]
    run = dtrain(*words, "strategy=mirrored", "hardware.devices=2")
    assert run.code == 0, run.output
    [message] = notices(run)
    assert "dtrain.replicas.gather does" in message
    assert run.output.count(message) == 1
    assert not notices(dtrain(*words, "strategy=one_device"))


@pytest.mark.faults
def test_losses_that_are_parts_of_a_sum(dtrain: Any, user_code: Any) -> None:
    user_code(OWN)
    words = [*QUICK, "trainer.epochs=1", "trainer.loss={_target_:mine.divided}"]
    one = dtrain(*words, "strategy=one_device")
    several = [*words, "strategy=mirrored", "hardware.devices=2"]
    [message] = notices(dtrain(*several))
    assert message.endswith("(trainer.gradient_reduction=sum)")
    summed = dtrain(*several, "trainer.gradient_reduction=sum")
    assert summed.code == 0, summed.output
    assert not notices(summed)
    for name in ("loss", "val_loss", "accuracy"):
        assert summed.points(name) == pytest.approx(one.points(name), rel=1e-5)
