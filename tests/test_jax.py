"""Numbers of ``backend=jax``: beside loops by hand, Keras' ``fit``, and other strategies.

Those of PyTorch, too, where the referee is the same.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tests import warm
from tests.conftest import need
from tests.sampled import sampled
from tests.test_rehearsal_metrics import trainer
from tests.test_steps import BATCH, in_order, prepare, settings

CLOSE = 1e-5
STEPS = 50
#: Strategies on four devices, with what their constructors take beside these.
SEVERAL = {
    "Mirrored": {},
    "FullySharded": {},
    "Mesh 1": {"rules": "auto"},
    "Mesh 2": {"rules": [{"path": "a/kernel", "split": 1}, {"path": "b/kernel", "split": 0}]},
}


def smooth(input_shape: Any, classes: int, dropout: float = 0.0, normalized: bool = False) -> Any:
    """No activation has a kink, on which rounding would decide: runs would part by chance."""
    import keras
    from keras import layers

    model = keras.Sequential([keras.Input(input_shape), layers.Dense(8, "tanh", name="a")])
    if normalized:
        model.add(layers.BatchNormalization())
    if dropout:
        model.add(layers.Dropout(dropout, seed=3))
    model.add(layers.Dense(8, "gelu", name="b"))
    model.add(layers.Dense(classes, "softmax", name="head"))
    return model


def configured(optimizer: str = "Adam", **model: Any) -> Any:
    return settings(
        model={"_target_": "tests.test_jax.smooth", **model},
        optimizer={"_target_": f"keras.optimizers.{optimizer}", "learning_rate": 0.01},
    )


def strategy_of(kind: str, devices: int = 4) -> Any:
    from dtrain.run.cluster import Cluster, Task
    from dtrain.task import strategies

    name, _, rows = kind.partition(" ")
    options = dict(SEVERAL.get(kind, {}))
    if rows:
        options["cluster"] = Cluster((Task("chief", 0, devices),), "cpu", int(rows), {})
    return getattr(strategies, name)([f"cpu:{i}" for i in range(devices)], **options)


def to_numpy(variable: Any) -> Any:
    from dtrain.task.backends.runtime import runtime

    return runtime().to_numpy(variable)


def losses(steps: Any, count: int = STEPS) -> list[float]:
    return [steps.results(steps.train(1))["loss"] for _ in range(count)]


@pytest.mark.task
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_one_device_has_the_losses_of_a_loop_by_hand(optimizer: str, backend: str) -> None:
    """The referee is NumPy alone, in 64 bits."""
    import numpy as np

    model, _, steps, splits = prepare("OneDevice", 1, configured(optimizer))
    weights = [np.float64(to_numpy(weight)) for weight in model.trainable_variables]
    x, y = in_order(splits.train, STEPS)
    firsts, seconds = ([np.zeros_like(w) for w in weights] for _ in range(2))
    expected = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        loss, gradients = by_hand(weights, np.float64(x[rows]), y[rows])
        expected.append(loss)
        for i, gradient in enumerate(gradients):
            if optimizer == "SGD":
                weights[i] -= 0.01 * gradient
                continue
            firsts[i] += (gradient - firsts[i]) * 0.1
            seconds[i] += (gradient**2 - seconds[i]) * 0.001
            rate = 0.01 * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
            weights[i] -= rate * firsts[i] / (np.sqrt(seconds[i]) + 1e-7)
    assert losses(steps) == pytest.approx(expected, abs=CLOSE)


def by_hand(weights: list[Any], x: Any, y: Any) -> tuple[float, list[Any]]:
    """Return loss and gradients of :func:`smooth`."""
    import numpy as np
    from scipy.special import erf

    first, first_bias, second, second_bias, last, last_bias = weights
    a = np.tanh(x @ first + first_bias)
    z = a @ second + second_bias
    area = (1 + erf(z / np.sqrt(2))) / 2
    b = z * area
    logits = b @ last + last_bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(y))
    loss = -np.log(p[rows, y]).mean()
    of_logits = (p - np.eye(p.shape[1])[y]) / len(y)
    of_z = (of_logits @ last.T) * (area + z * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))
    of_a = (of_z @ second.T) * (1 - a**2)
    return loss, [
        x.T @ of_a, of_a.sum(0), a.T @ of_z, of_z.sum(0), b.T @ of_logits, of_logits.sum(0),
    ]  # fmt: skip


@pytest.mark.task(backend="jax", devices=4)
def test_strategies_have_the_losses_of_one_device() -> None:
    """With dropout, whose bits are the same on any number of devices, and batch normalisation."""
    import keras

    config = configured(dropout=0.3, normalized=True)
    losses_of = {}
    for kind in ("OneDevice", *SEVERAL):
        keras.utils.clear_session()
        strategy = None if kind == "OneDevice" else strategy_of(kind)
        _, _, steps, splits = prepare("OneDevice", 1, config, strategy=strategy)
        full, rest = divmod(len(splits.validation), steps.evaluation_examples)
        losses_of[kind] = losses(steps), steps.results(steps.evaluate(full, rest), training=False)
    expected = losses_of.pop("OneDevice")
    for kind, (each, held) in losses_of.items():
        assert each == pytest.approx(expected[0], abs=CLOSE), kind
        assert held == pytest.approx(expected[1], abs=CLOSE), kind


@pytest.mark.task(backend="jax", devices=4)
@pytest.mark.parametrize("kind", ["FullySharded", "Mesh 1"])
def test_a_device_has_its_part_of_weights_and_slots(kind: str) -> None:
    import jax

    config = settings(model={"_target_": "dtrain.models.mlp", "units": [256, 256]})
    model, _, steps, _ = prepare("", 4, config, strategy=strategy_of(kind))
    steps.train(2)
    variables = [*model.trainable_variables, *model.optimizer.variables]
    whole = sum(variable.value.nbytes for variable in variables)
    held = dict.fromkeys(jax.devices(), 0)
    for variable in variables:
        for shard in variable.value.addressable_shards:
            held[shard.device] += shard.data.nbytes
    assert len(held) == 4 and max(held.values()) <= 0.35 * whole


@pytest.mark.task
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layers_that_are_computed_twice_have_the_same_numbers(backend: str) -> None:
    """With dropout, statistics of batches and a loss of the layer's own inside."""
    import keras

    results = []
    for remat in ([], ["block"]):
        keras.utils.clear_session()
        config = settings(
            model={"_target_": "tests.test_remat.blocks", "lossy": True}, hardware={"remat": remat}
        )
        model, _, steps, _ = prepare("OneDevice", 1, config)
        results.append([*losses(steps, 4), *(float(to_numpy(v).sum()) for v in model.variables)])
    assert results[0] == pytest.approx(results[1], abs=1e-6)


def rooted(input_shape: Any, classes: int, zero: bool = False) -> Any:
    import keras

    class Root(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            if not zero:
                return keras.ops.log(x - 1e6)
            return x + keras.ops.sqrt(keras.ops.maximum(keras.ops.sum(x), 1e6) - 1e6)

    return keras.Sequential(
        [keras.Input(input_shape), keras.layers.Dense(4), Root(name="root"),
         keras.layers.Dense(classes, "softmax")]
    )  # fmt: skip


@pytest.mark.task
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize(("zero", "operation"), [(False, "log"), (True, "div")])
def test_the_line_of_what_is_not_finite(zero: bool, operation: str, backend: str) -> None:
    from dtrain.task.backends.runtime import runtime

    config = settings(model={"_target_": "tests.test_jax.rooted", "zero": zero})
    model, _, _, splits = prepare("OneDevice", 1, config)
    finding = runtime().first_not_finite(model, in_order(splits.train, 1))
    assert finding is not None and finding.operation == operation
    # The gradient of a root at 0 is computed with the root by JAX, and after all by PyTorch.
    assert finding.backward == (zero and backend == "torch")
    assert finding.layer == ("" if finding.backward else "root (Root)")
    assert "test_jax.py:" in finding.line and ("log(x" in finding.line or "sqrt(" in finding.line)
    prepared = prepare("OneDevice", 1, configured())
    assert runtime().first_not_finite(prepared[0], in_order(splits.train, 1)) is None


# --- beside TensorFlow, from the same weights

#: Models without draws, by their names in the zoo but for the first. The zoo's other models have
#: draws, steps of TensorFlow's, or a layer that assigns a weight which is trained.
BESIDE = {
    "few": ["adapted", "weights", "weights on two", "mlp", "cnn", "masked_activity",
            "grouped_optimizers"],
    "more": ["batch_normalized", "recurrent", "seq2seq", "own_optimizer", "loss_scaled", "muon",
             "masked_tokens", "synchronized_activity", "adamw_ema", "unet", "tied"],
}  # fmt: skip


def beside(case: str) -> Any:
    from tests import test_class_weights, test_finetune, test_zoo

    if case.startswith("weights"):  # of examples and of classes
        weights = test_class_weights.WEIGHTS
        model = {"_target_": "tests.test_jax.smooth"}
        return test_class_weights.config("weighted", weights, model=model)
    if case == "adapted":
        return test_finetune.of(test_finetune.SGD, lora=[{"path": "^head$", "rank": 2}])
    if case in ("mlp", "cnn"):
        return settings(
            model={"_target_": f"dtrain.models.{case}", "dropout": 0.0},
            dataset={"_target_": f"tests.zoo.data.{'points' if case == 'mlp' else 'images'}"},
        )
    return test_zoo.configured(case)


def epochs(begins: dict[str, Any], backend: str) -> Any:
    """Train an epoch of each case, and validate it.

    Args:
        begins: by case, the weights that it begins with; None: those that it has.
        backend: that this process has.

    Returns:
        By case: the weights that it begins with, and the results of each step and the validation.
    """
    import keras

    warnings.filterwarnings("ignore", "Explicitly requested dtype int64")  # of an Input's
    made = {}
    for case, weights in begins.items():
        keras.utils.clear_session()
        two = backend == "jax" and case.endswith("on two")
        strategy = strategy_of("Mirrored", 2) if two else None
        model, _, steps, splits = prepare("OneDevice", 1, beside(case), strategy=strategy)
        for variable, value in zip(model.weights, weights or (), strict=weights is not None):
            variable.assign(value)
        first = [to_numpy(variable) for variable in model.weights]
        numbers = [steps.results(steps.train(1)) for _ in range(12)]
        full, rest = divmod(len(splits.validation), steps.evaluation_examples)
        made[case] = first, [*numbers, steps.results(steps.evaluate(full, rest), training=False)]
    return made


@pytest.mark.parametrize("cases", sampled(BESIDE, "few"))
def test_an_epoch_is_that_of_tensorflow(cases: str) -> None:
    begins = dict.fromkeys(BESIDE[cases])
    expected = warm.call(epochs, 1, {"begins": begins, "backend": "tensorflow"})
    begins = {case: weights for case, (weights, _) in expected.items()}
    for backend, devices in (("jax", 2), ("torch", 1)):
        need(backend)
        arguments = {"begins": begins, "backend": backend}
        for case, (_, numbers) in warm.call(epochs, devices, arguments, backend=backend).items():
            limit = CLOSE if case.startswith("weights") else 1e-4
            for step, pair in enumerate(zip(numbers, expected[case][1], strict=True)):
                of = backend, case, step
                assert pair[0] == pytest.approx(pair[1], rel=limit, abs=1e-6), of


# --- a train_step of the user's


def adversaries(input_shape: Any, classes: int, written_for: str = "jax") -> Any:
    """A GAN: its generator is trained by compile's optimizer, its discriminator by one of its own.

    Args:
        input_shape, classes: of the data.
        written_for: the backend whose ``train_step`` it has.
    """
    import keras
    from keras import layers

    class Adversaries(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.generator = stack(2, input_shape[0])
            self.discriminator = stack(input_shape[0], 1)
            self.d_optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
            self.d_optimizer.build(self.discriminator.trainable_variables)

        def call(self, x: Any) -> Any:
            return self.discriminator(x)

    def stack(inputs: int, outputs: int) -> Any:
        return keras.Sequential(
            [keras.Input((inputs,)), layers.Dense(6, "tanh"), layers.Dense(outputs)]
        )

    def train_step(self: Any, state: Any, data: Any) -> Any:
        import jax

        weights, rest, slots, metrics = state
        g = len(self.generator.trainable_variables)
        d_loss, gradients = jax.value_and_grad(d_loss_of, argnums=1)(
            weights[:g], weights[g:], data[0]
        )
        self.d_optimizer.apply(gradients, self.discriminator.trainable_variables)
        g_loss, gradients = jax.value_and_grad(g_loss_of)(weights[:g], weights[g:], data[0])
        zeros = [keras.ops.zeros_like(weight) for weight in weights[g:]]
        moved, slots = self.optimizer.stateless_apply(slots, [*gradients, *zeros], weights)
        weights = [*moved[:g], *weights[g:]]  # those of the discriminator are assigned
        return {"d_loss": d_loss, "g_loss": g_loss}, (weights, rest, slots, metrics)

    def of_another(self: Any, data: Any) -> Any:
        raise AssertionError("is refused before it is called")

    Adversaries.train_step = train_step if written_for == "jax" else of_another
    model = Adversaries()
    model.compile(keras.optimizers.SGD(0.1))
    return model


def layered(weights: Any, x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.tanh(x @ weights[0] + weights[1]) @ weights[2] + weights[3]


def d_loss_of(generator: Any, discriminator: Any, x: Any) -> Any:
    from jax.nn import softplus

    made = layered(discriminator, layered(generator, x[:, :2]))
    return (softplus(made) + softplus(-layered(discriminator, x))).mean()


def g_loss_of(generator: Any, discriminator: Any, x: Any) -> Any:
    from jax.nn import softplus

    return softplus(-layered(discriminator, layered(generator, x[:, :2]))).mean()


@pytest.mark.task(backend="jax", devices=4)
def test_a_step_with_two_optimizers_is_as_one_by_hand() -> None:
    import jax
    import keras
    import numpy as np

    config = settings(model={"_target_": "tests.test_jax.adversaries"})
    for strategy in (None, strategy_of("Mirrored")):
        keras.utils.clear_session()
        model, _, steps, splits = prepare("OneDevice", 1, config, strategy=strategy)
        g = [np.asarray(weight.value) for weight in model.generator.trainable_variables]
        d = [np.asarray(weight.value) for weight in model.discriminator.trainable_variables]
        x, _ = in_order(splits.train, 20)
        momenta = [0.0] * 4
        for step in range(20):
            batch = x[step * BATCH : (step + 1) * BATCH]
            expected, gradients = jax.value_and_grad(d_loss_of, argnums=1)(g, d, batch)
            g_loss, g_gradients = jax.value_and_grad(g_loss_of)(g, d, batch)
            momenta = [0.5 * m - 0.1 * each for m, each in zip(momenta, gradients, strict=True)]
            d = [weight + m for weight, m in zip(d, momenta, strict=True)]
            g = [weight - 0.1 * each for weight, each in zip(g, g_gradients, strict=True)]
            results = steps.results(steps.train(1))
            assert results == pytest.approx(
                {"d_loss": float(expected), "g_loss": float(g_loss)}, abs=CLOSE
            ), step


@pytest.mark.task(backend="jax")
def test_a_step_of_another_backend_is_refused() -> None:
    from dtrain.errors import UsageError

    model = {"_target_": "tests.test_jax.adversaries", "written_for": "tensorflow"}
    with pytest.raises(UsageError) as error:
        prepare("OneDevice", 1, settings(model=model))
    assert str(error.value).startswith(
        "model=Adversaries.train_step: takes (data), as on another backend of Keras; "
        "accepted: train_step(self, state, data)"
    )


@pytest.mark.task
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_one_device_is_as_fit(backend: str) -> None:
    """The same batches in the same order, with batch normalisation, on JAX with dropout."""
    import keras

    from dtrain.task.backends.metric_sums import Sums

    dropout = 0.3 if backend == "jax" else 0.0
    config = configured(dropout=dropout, normalized=True)
    model, _, steps, splits = prepare("OneDevice", 1, config)
    x, y = in_order(splits.train, 3 * 6)
    other = smooth(x.shape[1:], 3, dropout=dropout, normalized=True)
    for variable, source in zip(other.variables, model.variables, strict=True):
        variable.assign(to_numpy(source))
    other.compile(
        keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    for epoch in range(3):
        rows = slice(epoch * 6 * BATCH, (epoch + 1) * 6 * BATCH)
        history = other.fit(x[rows], y[rows], BATCH, shuffle=False, verbose=0).history
        sums = Sums()
        for _ in range(6):
            sums.add(steps.train(1))
        expected = {name: values[0] for name, values in history.items()}
        assert steps.results(sums) == pytest.approx(expected, abs=CLOSE)


def followed(input_shape: Any, classes: int) -> Any:
    """A layer that begins with the weights of another, as a target network does."""
    import keras

    inputs = keras.Input(input_shape)
    one, other = (keras.layers.Dense(classes, trainable=each) for each in (True, False))
    outputs = keras.layers.Softmax()(one(inputs) + other(inputs))
    for variable, source in zip(other.weights, one.weights, strict=True):
        variable.assign(source)
    return keras.Model(inputs, outputs)


@pytest.mark.task(backend="jax", devices=2)
def test_variables_may_begin_with_the_value_of_others() -> None:
    for kind in ("OneDevice", "Mirrored"):
        config = settings(model={"_target_": "tests.test_jax.followed"})
        model, _, steps, _ = prepare("", 2, config, strategy=strategy_of(kind, 2))
        steps.train(2)
        kernel, _, target, _ = (variable.value for variable in model.variables)
        assert float(abs(kernel - target).max()) > 0


@pytest.mark.task
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("kind", ["sum", "maximum"])
def test_a_result_may_be_the_variable_itself(kind: str, backend: str) -> None:
    """Whose value between two steps is 0; that of a maximum is its mean over the steps."""
    own = {"_target_": "tests.test_rehearsal_metrics.metric", "kind": kind}
    _, _, steps, splits = prepare("OneDevice", 1, settings(trainer=trainer(own)))
    each = [steps.results(steps.train(1))["own"] for _ in range(2)]
    assert min(each) > 0
    full, rest = divmod(len(splits.validation), steps.evaluation_examples)
    assert steps.results(steps.evaluate(full, rest), training=False)["own"] > 0


@pytest.mark.task(backend="jax")
def test_a_subclass_whose_build_made_no_weights_makes_them_in_its_first_call() -> None:
    import keras
    import numpy as np

    from dtrain.task.backends.runtime import runtime

    class Late(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def build(self, input_shape: Any) -> None:
            self.built = True

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model = Late()
    model.build((None, 3))
    assert runtime().outputs(model, np.ones([1, 3], "float32")).shape == (1, 2)
    assert np.isfinite(np.asarray(model.dense.kernel.value)).all(), "it is no tracer of a program"
