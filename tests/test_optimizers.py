"""Several optimizers in one model: found, saved, restored, and right on replicas, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.config import schema
from tests import warm
from tests.conftest import Commands
from tests.sampled import sampled
from tests.test_steps import prepare, settings

#: Options of the group ``optimizer``.
OPTIMIZERS = [*schema.SCHEMAS["optimizer"], "custom"]

GAN = {
    "model": {"_target_": "tests.test_optimizers.gan"},
    "trainer": {"loss": "mse", "metrics": []},
}


def gan(input_shape: Any, classes: int, ema: bool = False) -> Any:
    """Keras' own example of a GAN, in small, with a call."""
    import keras
    from keras import layers, ops

    class GAN(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            width = input_shape[0]
            self.discriminator = keras.Sequential(
                [keras.Input((width,)), layers.Dense(8, "relu"), layers.Dense(1)]
            )
            self.generator = keras.Sequential(
                [keras.Input((3,)), layers.Dense(8, "relu"), layers.Dense(width)]
            )
            self.seeds = keras.random.SeedGenerator(7)

        def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
            super().compile()
            self.d_optimizer = d_optimizer
            self.parts = {"generator": [g_optimizer]}
            self.loss_fn = loss_fn

        def call(self, x: Any, training: bool = False) -> Any:
            return self.discriminator(x, training=training)

        def train_step(self, data: Any) -> Any:
            import tensorflow as tf

            real = data[0]
            rows = ops.shape(real)[0]
            ones, zeros = ops.ones((rows, 1)), ops.zeros((rows, 1))
            noise = keras.random.normal((rows, 3), seed=self.seeds)
            made = self.generator(noise)
            with tf.GradientTape() as tape:
                d_loss = self.loss_fn(ones, self.discriminator(real))
                d_loss += self.loss_fn(zeros, self.discriminator(made))
            weights = self.discriminator.trainable_weights
            self.d_optimizer.apply_gradients(
                zip(tape.gradient(d_loss, weights), weights, strict=True)
            )
            with tf.GradientTape() as tape:
                g_loss = self.loss_fn(ones, self.discriminator(self.generator(noise)))
            weights = self.generator.trainable_weights
            self.parts["generator"][0].apply(tape.gradient(g_loss, weights), weights)
            return {"d_loss": d_loss, "g_loss": g_loss, "loss": d_loss + g_loss}

        def test_step(self, data: Any) -> Any:
            loss = self.loss_fn(ops.ones((ops.shape(data[0])[0], 1)), self.discriminator(data[0]))
            return {"loss": loss}

    model = GAN()
    model.compile(
        keras.optimizers.Adam(0.01, use_ema=ema),
        keras.optimizers.SGD(0.02, momentum=0.9, clipnorm=0.1),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


@pytest.mark.task
def test_all_are_found_each_once() -> None:
    import keras

    from dtrain.task.model import optimizers

    made = [keras.optimizers.SGD() for _ in range(5)]

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.part = keras.Sequential([keras.layers.Dense(2)])
            self.part.compile(made[1])
            self._hidden = made[2]
            self.many = {"a": [made[3], (made[0], 1)], "b": self}
            self.again = made[3]

    model = Own()
    model.compile(made[0])
    assert optimizers.named(model) == {
        "optimizer": made[0], "again": made[3], "part/optimizer": made[1], "_hidden": made[2],
    }  # fmt: skip
    functional = keras.Sequential([keras.Input((2,)), model.part])
    functional.compile(optimizer=None)
    assert list(optimizers.named(functional).values()) == [made[1]]


def train(kind: str, devices: int) -> tuple[Any, Any]:
    """Return the state after 3 steps and after 6."""
    from dtrain.task.model import train_state

    model, strategy, steps, _ = prepare(kind, devices, settings(**GAN))
    steps.train(3)
    saved = train_state.snapshot(model, strategy)
    steps.train(3)
    return saved, train_state.snapshot(model, strategy)


def resume(kind: str, devices: int, saved: Any) -> tuple[Any, Any]:
    """Go on from step 3; return the state that was restored and the last one."""
    from dtrain.task.model import train_state

    model, strategy, steps, _ = prepare(kind, devices, settings(**GAN), start=3)
    train_state.restore(model, strategy, saved)
    restored = train_state.snapshot(model, strategy)
    steps.train(3)
    return restored, train_state.snapshot(model, strategy)


def test_a_gan_goes_on_where_another_process_stopped() -> None:
    import numpy as np

    saved, expected = warm.call(train, 1, {"kind": "OneDevice", "devices": 1})
    arguments = {"kind": "OneDevice", "devices": 1, "saved": saved}
    restored, found = warm.call(resume, 1, arguments)
    assert restored.keys() == saved.keys() == found.keys() == expected.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(restored[name], array, err_msg=name)
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    slots = [name for name in saved if "momentum" in name or "velocity" in name]
    assert sum("optimizer/d_optimizer/" in name for name in slots) == 8  # two of each variable
    assert sum("optimizer/parts/generator/0/" in name for name in slots) == 4
    changed = [n for n in slots if not np.array_equal(saved[n], expected[n])]
    assert len([n for n in changed if "rmsprop" not in n]) == 12

    twice = {"kind": "Mirrored", "devices": 2}
    replicas, _ = warm.call(train, 2, twice)
    assert replicas.keys() == saved.keys()
    for name, array in saved.items():
        np.testing.assert_allclose(replicas[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.task(devices=2)
def test_where_it_would_not_be_right_it_is_refused() -> None:
    from dtrain.errors import UsageError
    from dtrain.task import strategies

    made = strategies.LayerPlacement(["CPU:0", "CPU:1"], "auto")
    with pytest.raises(UsageError, match=r"strategy=layers: .*d_optimizer, parts/generator/0"):
        config = settings(**GAN, strategy={"name": "layers"})
        prepare("LayerPlacement", 2, config, strategy=made)


@pytest.mark.task
def test_a_fork_with_another_second_optimizer() -> None:
    """What has no array begins as it was made; averages begin with the weights."""
    import numpy as np

    from dtrain.task.model import train_state

    other = {**GAN, "model": {**GAN["model"], "ema": True}}
    model, strategy, _, _ = prepare("OneDevice", 1, settings(**other))
    saved = train_state.snapshot(model, strategy)
    arrays = {n: a + 1 for n, a in saved.items() if "d_optimizer" not in n}
    train_state.restore(model, strategy, arrays, forked=True)
    found = train_state.snapshot(model, strategy)
    averages = [n for n in found if n.endswith("_average")]
    assert len(averages) == 4 and all("d_optimizer" in name for name in averages)
    weights = [w.numpy() for w in model.discriminator.trainable_weights]
    for name, weight in zip(averages, weights, strict=True):
        np.testing.assert_array_equal(found[name], weight)


@pytest.mark.faults
def test_a_run_of_a_gan(dtrain: Commands, quick: tuple[str, ...], monkeypatch: Any) -> None:
    from dtrain.run import checkpoint

    monkeypatch.setenv("DTRAIN_TRUST", "tests")
    words = [
        *(word for word in quick if not word.startswith(("model", "trainer.epochs"))),
        "model=custom", "model._target_=tests.test_optimizers.gan", "trainer.metrics=[]",
        "trainer.loss=mse", "objective=loss", "strategy=one_device", "checkpoint.keep=9",
    ]  # fmt: skip
    whole = dtrain(*words, "trainer.epochs=2")
    assert whole.code == 0, whole.output + whole.log
    first = dtrain(*words, "trainer.epochs=1")
    again = dtrain(f"resume={first.rundir.path}", "trainer.epochs=2")
    assert again.code == 0, again.output + again.log
    one, two = (checkpoint.load(run.rundir.checkpoints / "8").arrays for run in (whole, again))
    assert one.keys() == two.keys() and any("d_optimizer/adam" in name for name in one)
    for name, array in one.items():
        assert (array == two[name]).all(), name
    refused = dtrain(*words, "trainer.epochs=1", "strategy=layer_placement")
    assert refused.code == 2
    assert "strategy=layer_placement: the model has more than one optimizer (d_" in refused.output
    assert refused.rundir is None


@pytest.mark.task
def test_optimizers_inside_another_are_saved_and_restored() -> None:
    import keras
    import numpy as np

    from dtrain.task.model import optimizers, train_state
    from tests.test_zoo import configured

    keras.utils.clear_session()
    config = configured("grouped_optimizers")
    model, strategy, steps, _ = prepare("OneDevice", 1, config)
    assert list(optimizers.held(model.optimizer)) == ["groups/0/1", "groups/1/1"]
    steps.train(3)
    arrays = train_state.snapshot(model, strategy)
    for place in ("groups/0/1", "groups/1/1"):
        own = {k: v for k, v in arrays.items() if k.startswith(f"optimizer/{place}/")}
        assert sum("momentum" in name for name in own) == 2, sorted(arrays)
        assert all(np.any(array) for array in own.values()), own
    steps.train(2)
    expected = train_state.snapshot(model, strategy)
    keras.utils.clear_session()  # in another process Keras gives the same names
    other, strategy, steps, _ = prepare("OneDevice", 1, config, start=3)
    train_state.restore(other, strategy, arrays)
    steps.train(2)
    found = train_state.snapshot(other, strategy)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, name)


@pytest.mark.task
def test_a_loss_scale_optimizer_is_saved_once() -> None:
    from dtrain.task.model import optimizers, train_state
    from tests.test_zoo import configured

    model, _, _, _ = prepare("OneDevice", 1, configured("loss_scaled"))
    assert list(optimizers.held(model.optimizer)) == ["inner_optimizer"]
    found = [id(variable) for variable in train_state.variables(model).values()]
    assert len(found) == len({*found})
    assert {id(v) for v in model.optimizer.inner_optimizer.variables} <= {*found}


@pytest.mark.task
def test_workers_that_do_not_wait_may_share_no_optimizers_inside_another() -> None:
    import keras

    from dtrain.errors import UsageError
    from dtrain.task.strategies import ParameterServer
    from tests.zoo.grouped_optimizers import Grouped

    strategy = ParameterServer.__new__(ParameterServer)
    optimizer = Grouped([("", keras.optimizers.SGD())])
    strategy._update = "async"
    with pytest.raises(UsageError, match=r"has others inside \(groups/0/1\).*update=sync"):
        strategy.prepare(optimizer)
    strategy._update = "sync"
    strategy.prepare(optimizer)


MLP = {"_target_": "dtrain.models.mlp"}


def trained(name: str, kind: str, devices: int) -> dict[str, Any]:
    """Return the variables after some steps with an optimizer of the configuration."""
    import keras

    from dtrain.config import targets
    from dtrain.task.model import train_state
    from tests.test_schema import GIVEN, node

    keras.utils.clear_session()  # each model's variables have the same names
    preset = targets.plain(node(f"optimizer={name}", *GIVEN.get(f"optimizer={name}", [])).optimizer)
    changed = {"optimizer": {**preset, "schedule": None}, "model": {**MLP, "units": [64, 32]}}
    model, strategy, steps, _ = prepare(kind, devices, settings(**changed))
    steps.train(4)
    return train_state.snapshot(model, strategy)


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("name", sampled(OPTIMIZERS, "muon", "adafactor", "nadam"))
def test_every_optimizer_updates_replicas_as_one_device(name: str) -> None:
    import numpy as np

    one, two = trained(name, "OneDevice", 1), trained(name, "Mirrored", 2)
    assert one.keys() == two.keys()
    for key, array in one.items():
        np.testing.assert_allclose(two[key], array, rtol=1e-5, atol=1e-6, err_msg=key)
    assert all(np.isfinite(array).all() for array in one.values())


@pytest.mark.task
def test_options_and_their_parameters_are_those_of_keras() -> None:
    import inspect

    import keras

    space = keras.optimizers
    #: They update by others, which are arguments: `optimizer=custom`.
    holders = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
    kinds = {
        n for n, k in vars(space).items() if inspect.isclass(k) and issubclass(k, space.Optimizer)
    }
    named = {schema.target_of(kind) for kind in schema.SCHEMAS["optimizer"].values()}
    assert named == {f"keras.optimizers.{name}" for name in kinds - holders}


def test_a_parameter_that_an_optimizer_or_a_schedule_lacks_is_refused(dtrain: Commands) -> None:
    for words, problem in (
        (["optimizer=lion", "+optimizer.rho=1"], "optimizer.rho=1: there is no such key"),
        (["optimizer=lion", "optimizer.epsilon=1"], "optimizer=adadelta"),
        (["optimizer=custom", "optimizer._target_=keras.optimizers.Lamb", "+optimizer.beta1=0.5"],
         "type: +optimizer.beta_1=0.5"),
        (["optimizer.schedule={_target_: keras.optimizers.schedules.CosineDecay, steps: 3}"],
         "CosineDecay does not take these arguments"),
    ):  # fmt: skip
        run = dtrain(*words, "tracking=none")
        assert (run.code, run.rundir) == (2, None) and problem in run.output, run.output


#: Schedules of Keras', what has to be said of each, and the rates at the steps 0, 8 and 16 of 16.
SCHEDULES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "ExponentialDecay": ({"decay_rate": 0.25}, [0.8, 0.4, 0.2]),
    "PiecewiseConstantDecay": ({"boundaries": [4, 9], "values": [3.0, 2.0, 1.0]}, [3, 2, 1]),
    "PolynomialDecay": ({"end_learning_rate": 0.2}, [0.8, 0.5, 0.2]),
    "InverseTimeDecay": ({"decay_rate": 1.0}, [0.8, 0.8 / 1.5, 0.4]),
    "CosineDecay": ({"alpha": 0.25}, [0.8, 0.5, 0.2]),
    "CosineDecayRestarts": ({"first_decay_steps": 8}, [0.8, 0.8, 0.4]),
}


@pytest.mark.task
def test_schedules_of_keras_begin_with_the_rate_and_last_as_long_as_the_run() -> None:
    import keras
    import numpy as np

    from dtrain.task.model import build

    space = keras.optimizers.schedules
    names = {name for name in vars(space) if name[0].isupper()} - {"LearningRateSchedule"}
    assert names == SCHEDULES.keys()
    for name, (arguments, expected) in SCHEDULES.items():
        schedule = {"_target_": f"keras.optimizers.schedules.{name}", **arguments}
        node = {"_target_": "keras.optimizers.SGD", "learning_rate": 0.8, "schedule": schedule}
        made = build.optimizer(node, 16, 4)
        found = [float(made._learning_rate(step)) for step in (0, 8, 16)]
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)


@pytest.mark.task
def test_schedule_free_begins_with_the_weights_that_a_run_begins_with() -> None:
    import numpy as np

    from dtrain.task.model import train_state

    node = {"_target_": "keras.optimizers.ScheduleFreeAdamW"}
    model, strategy, _, _ = prepare("OneDevice", 1, settings(optimizer=node))
    arrays = train_state.snapshot(model, strategy)
    others = {n: array + 1 for n, array in arrays.items() if n.startswith("model/")}
    train_state.restore(model, strategy, others, forked=True)
    copies = [v for v in model.optimizer.variables if v.path.endswith("_momentum")]
    for copy, weight in zip(copies, model.trainable_weights, strict=True):
        np.testing.assert_array_equal(copy.numpy(), weight.numpy())
