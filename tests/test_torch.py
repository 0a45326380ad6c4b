"""Numbers of ``backend=torch``: beside loops by hand, one process, and other backends."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.data import generators
from dtrain.run.cluster import Cluster, Task
from tests import warm
from tests.conftest import need
from tests.sampled import sampled
from tests.test_jax import CLOSE, STEPS
from tests.test_steps import in_order, prepare, settings
from tests.test_strategies import together

SPARSE, SUMS = "sparse_categorical_crossentropy", "mean_with_sample_weight"


def loss_of(kind: str, reduction: str) -> dict[str, Any]:
    return {"_target_": f"keras.losses.{kind}Crossentropy", "reduction": reduction}


def reduced(reduction: str, **trainer: Any) -> dict[str, Any]:
    """Weights of examples, and a loss by ``reduction``."""
    metrics = ["accuracy", {"_target_": "keras.metrics.AUC", "num_thresholds": 20, "name": "auc"}]
    return {
        "model": {"_target_": "tests.test_steps.logistic"},
        "dataset": {"_target_": "tests.test_steps.weighted", "train": 50, "held": 17},
        "trainer": {"loss": loss_of("Binary", reduction), "metrics": metrics, **trainer},
    }


def ours(name: str, metrics: Any = ("accuracy",), loss: Any = SPARSE, **model: Any) -> Any:
    trainer = {"loss": loss, "metrics": list(metrics)}
    return {"model": {"_target_": f"tests.torch_models.{name}", **model}, "trainer": trainer}


def optimized(name: str, model: str = "tests.test_jax.smooth", **options: Any) -> Any:
    node = {"_target_": f"keras.optimizers.{name}", "learning_rate": 0.01, **options}
    return {"model": {"_target_": model}, "optimizer": node}


TAGGED = {"dataset": {"_target_": "tests.zoo.data.tagged"}}
NORMS = ["gradient_norm", "weight_norm", "update_ratio"]
PICTURES = {"_target_": "tests.zoo.data.photos_of_whole_batches"}
STREAM = {"_target_": "tests.torch_models.stream"}
OWN_METRIC = {"_target_": "tests.test_rehearsal_metrics.metric", "kind": "sum"}
NESTED = {"model": {"_target_": "tests.test_finetune.nested"}}
#: By Keras' scale, 32768, gradients of a replica's part would overflow, and those of all not.
SCALED = {
    "_target_": "keras.optimizers.LossScaleOptimizer", "initial_scale": 1024,
    "inner_optimizer": optimized("SGD")["optimizer"],
}  # fmt: skip
#: Keys of :func:`settings`, by case.
CASES: dict[str, dict[str, Any]] = {
    "normalized": {"model": {"_target_": "tests.test_jax.smooth", "normalized": True}},
    **{each: reduced(each) for each in ("sum_over_batch_size", "sum", SUMS)},
    "summed": reduced("sum_over_batch_size", gradient_reduction="sum"),
    "masked": {**ours("sequences"), **TAGGED},
    "masked sums": {**ours("sequences", loss=loss_of("SparseCategorical", SUMS)), **TAGGED},
    "adversaries": ours("adversaries", ()),
    "gradient penalty": ours("adversaries", (), penalty=True),
    "routed": optimized("AdamW", "tests.torch_models.routed", weight_decay=0.1),
    "centred": ours("centred", [OWN_METRIC]),
    "across": ours("centred", (), {"_target_": "tests.torch_models.contrast"}),
    "wrapped": ours("wrapped"),
    "stream": {"dataset": STREAM},
    "classes": {"trainer": {"loss": SPARSE, "class_weight": {0: 0.25, 2: 5.0}}},
    "clipped": optimized("Adam", global_clipnorm=0.1),
    "accumulated": optimized("SGD", gradient_accumulation_steps=2, momentum=0.9),
    "averaged": optimized("Adam", use_ema=True, ema_overwrite_frequency=5),
    "norms": {"trainer": {"loss": SPARSE, "metrics": [], "log": NORMS}},
    "mixed_bfloat16": optimized("SGD"),
    "mixed_float16": {**optimized("SGD"), "optimizer": SCALED},
    "unfrozen": {**NESTED, "finetune": {"freeze": ["^backbone/"], "unfreeze": {2: ["/b/"]}}},
    "adapted": {**NESTED, "finetune": {"lora": [{"path": "^head$", "rank": 2}]}},
}  # fmt: skip
FEW = ["summed", "masked", "gradient penalty", "routed", "centred", "wrapped", "adapted"]
#: Without gradients: an optimizer must leave them.
UNUSED = {"routed": (4, 5)}


def numbers(case: str, strategy: Any = None) -> Any:
    """Return what each step returns, what a validation does, and the weights afterwards."""
    import keras

    from dtrain.task.model import finetune, train_state

    keras.utils.clear_session()
    keras.config.set_dtype_policy(case if case.startswith("mixed") else "float32")
    config = settings(**CASES[case])
    model, strategy, steps, splits = prepare("OneDevice", 1, config, strategy=strategy)
    begun = [*strategy.read(train_state.variables(model)).values()]
    finetune.begin(model, config, strategy, 0, 4)
    each = []
    for step in range(STEPS):
        if step % 25 == 0:
            steps.enter(1 + step // 25)
        each.append(steps.results(steps.train(1)))
    held = {}
    if model.loss and splits.validation is not None:
        full, rest = divmod(len(splits.validation), steps.evaluation_examples)
        held = steps.results(steps.evaluate(full, rest), training=False)
    weights = [*strategy.read(train_state.variables(model)).values()]
    for index in UNUSED.get(case, ()):
        assert (weights[index] == begun[index]).all()
    return each, held, weights


def alone(cases: list[str]) -> Any:
    return {case: numbers(case) for case in cases}


def shared(cluster: Cluster, task: Task, devices: list[str], cases: list[str]) -> Any:
    from dtrain.task.strategies import MultiWorker

    return {case: numbers(case, MultiWorker(devices)) for case in cases}


def processes(count: int) -> list[Task]:
    return [Task("chief", 0, 1), *(Task("worker", index, 1) for index in range(count - 1))]


@pytest.mark.parametrize(
    ("count", "cases"), sampled([(2, "few"), (2, "all"), (4, "all")], (2, "few"))
)
def test_processes_have_the_numbers_of_one(count: int, cases: str) -> None:
    need("torch")
    names = FEW if cases == "few" else list(CASES)
    expected = warm.call(alone, 1, {"cases": names}, backend="torch")
    for made in together(shared, processes(count), count, "torch", cases=names):
        for case, (each, held, weights) in made.items():
            close = 0.02 if case.startswith("mixed") else CLOSE
            for step, pair in enumerate(zip(each, expected[case][0], strict=True)):
                assert pair[0] == pytest.approx(pair[1], abs=close, rel=close), (case, step)
            assert held == pytest.approx(expected[case][1], abs=close, rel=close), case
            for one, other in zip(weights, expected[case][2], strict=True):
                assert one == pytest.approx(other, abs=10 * close), case


def noticed(cluster: Cluster, task: Task, devices: list[str], models: dict[str, Any]) -> Any:
    import keras

    from dtrain.errors import UsageError
    from dtrain.task.backends.torch import strategy as module

    sentences = dict.fromkeys(models, "")
    for name, keys in models.items():
        keras.utils.clear_session()
        strategy = module.MultiWorker(devices)
        try:
            model, _, _, splits = prepare("", 1, settings(**keys), strategy=strategy)
            variables = {variable.path: variable for variable in model.variables}
            before = strategy.read(variables)
            notices = strategy.notices(model, splits, None, 8, 0)
            after = strategy.read(variables)
            changed = [k for k in before if (after[k] != before[k]).any()]
            assert not changed, name
            sentences[name] = "; ".join(filter(None, notices))
        except UsageError as error:
            sentences[name] = str(error)
    return sentences


#: What is said of gradients of single examples, by what a step does with them.
OF_EXAMPLES = {
    "weighed": "takes gradients of single examples", "added": "", "few": "examples (too few), so",
    "func": "other gradients on each replica", "batched": "takes gradients of single examples",
    "uneven": "takes gradients of single examples",
}  # fmt: skip


def test_what_replicas_compute_otherwise_is_said() -> None:
    need("torch")
    models = {
        "known": CASES["normalized"],
        "exact": CASES["across"],
        "penalty": CASES["gradient penalty"],
        "loss": ours("centred", (), {"_target_": "tests.torch_models.across"}),
        "counted": ours("counting"),
        "held": {
            "model": {"_target_": "tests.torch_modules.Hidden", "adds": True},
            "dataset": {"_target_": "tests.torch_modules.data"},
            "trainer": {"loss": "torch.nn.CrossEntropyLoss", "metrics": []},
        },
        **{kind: ours("of_examples", (), kind=kind) for kind in OF_EXAMPLES},
        "drawn": ours("mixed"),
        "stateful": {"model": {"_target_": "tests.zoo.stateful.model"}, "dataset": PICTURES},
        "augmented": {"model": {"_target_": "tests.torch_models.augmented"}, "dataset": PICTURES},
    }
    chief, other = together(noticed, processes(2), 2, "torch", models=models)
    assert chief == other
    assert [name for name, text in chief.items() if not text] == [
        "known", "exact", "penalty", "added",
    ]  # fmt: skip
    for kind, words in OF_EXAMPLES.items():
        assert words in chief[kind], (kind, chief[kind])
    assert "on 2 replicas the loss is not that of one device" in chief["loss"]
    assert "dtrain.replicas.gather does" in chief["loss"]
    assert "model=counting/count: the training step assigns it what several" in chief["counted"]
    assert chief["held"].startswith("model=Hidden/sum: the training step assigns it what several")
    assert chief["drawn"].startswith("the training step draws random numbers, and each replica")
    assert "is stateful" in chief["stateful"]
    assert "strategy=one_device" in chief["augmented"]


@pytest.mark.task(backend="torch")
def test_one_device_has_the_losses_of_a_loop_of_pytorch() -> None:
    """Without Keras: modules, an optimizer and a loss of PyTorch's own, on the same batches."""
    import numpy as np
    import torch

    config = settings(**optimized("SGD", momentum=0.9))
    model, _, steps, splits = prepare("OneDevice", 1, config)
    weights = [weight.value.detach().clone() for weight in model.trainable_variables]
    layers = [torch.nn.Linear(*kernel.shape) for kernel in weights[::2]]
    for layer, kernel, bias in zip(layers, weights[::2], weights[1::2], strict=True):
        layer.weight.data, layer.bias.data = kernel.T.contiguous(), bias
    a, b, head = layers
    module = torch.nn.Sequential(a, torch.nn.Tanh(), b, torch.nn.GELU(), head)
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
    for x, y in zip(
        *(np.split(part, STEPS) for part in in_order(splits.train, STEPS)), strict=True
    ):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        optimizer.step()
        assert steps.results(steps.train(1))["loss"] == pytest.approx(loss.item(), abs=1e-6)


@pytest.mark.task(backend="torch")
def test_what_modules_in_layers_keep_is_in_checkpoints() -> None:
    from dtrain.task.model import train_state

    model, strategy, steps, _ = prepare("OneDevice", 1, settings(**CASES["wrapped"]))
    steps.train(1)
    state = train_state.snapshot(model, strategy)
    kept = {"1.running_mean", "1.running_var", "1.num_batches_tracked", "3.mean"}
    assert {name.partition("/module.")[2] for name in state} >= kept
    expected = steps.results(steps.evaluate(2, 5), training=False)
    steps.train(2)
    train_state.restore(model, strategy, state)
    assert steps.results(steps.evaluate(2, 5), training=False) == expected


@pytest.mark.task(backend="torch")
def test_a_read_inside_of_a_read_draws_by_its_own_key() -> None:
    import torch

    def draw() -> list[float]:
        return [torch.rand(()).item(), torch.empty(()).uniform_().item(), torch.rand(()).item()]

    with generators.reading(generators.Draws((2,))):
        alone = draw()
    with generators.reading(generators.Draws((1,))):
        others = draw()
    with generators.reading(generators.Draws((1,))):
        first = torch.rand(()).item()
        with generators.reading(generators.Draws((2,))):
            assert draw() == alone
        assert [first, torch.empty(()).uniform_().item()] == others[:2]
    assert len({*alone, *others}) == 6


@pytest.mark.task(backend="torch")
def test_a_draw_is_of_its_step_and_its_replica() -> None:
    import keras
    import numpy as np
    import torch

    from dtrain.task.backends.torch.draws import Draws

    layers = [keras.layers.Dropout(0.5), keras.layers.Dropout(0.5, seed=3)]
    model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.GaussianNoise(1.0)])

    def draw(step: int, rank: int) -> bytes:
        state = [variable.value.clone() for variable in model.variables]
        with Draws(model, 7, rank).step(step):
            made = [model(torch.ones(8, 16), training=True).numpy(), np.random.rand(3)]
        for variable, value in zip(model.variables, state, strict=True):
            variable.assign(value)
        return b"".join(each.tobytes() for each in made)

    places = [(step, rank) for step in range(3) for rank in range(3)]
    made = {place: draw(*place) for place in places}
    assert len(set(made.values())) == len(places)
    assert all(draw(*place) == made[place] for place in places)


@pytest.mark.task(backend="torch")
@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"model": {"_target_": "tests.test_jax.adversaries"}},
            "model=Adversaries.train_step: takes (state, data), as on backend=jax: on PyTorch",
        ),
        (
            {"trainer": {"loss": loss_of("SparseCategorical", "none"), "metrics": []}},
            "has a value for each example, and PyTorch differentiates one number",
        ),
        (
            {
                "model": {"_target_": "tests.zoo.stateful.model"},
                "dataset": PICTURES,
                "trainer": {"batch_size": 8, "loss": SPARSE},
            },
            "is stateful, and the second step of it fails on PyTorch, in Keras' fit as well",
        ),
    ],
)
def test_what_pytorch_cannot_do_is_refused(keys: Any, sentence: str) -> None:
    from dtrain.errors import UsageError

    with pytest.raises(UsageError) as error:
        prepare("OneDevice", 1, settings(**keys))[2].train(1)
    assert sentence in str(error.value)


OF_TENSORFLOW = """
import keras

class Layer(keras.layers.Layer):
    def call(self, x):
        import tensorflow as tf
        return tf.nn.relu(x)

def build(input_shape, classes):
    first, last = keras.layers.Dense(4), keras.layers.Dense(classes, "softmax")
    return keras.Sequential([keras.Input(input_shape), first, Layer(), last])
"""


def test_operations_of_tensorflow_are_named(
    on_jax: Any, quick: tuple[str, ...], user_code: Any
) -> None:
    need("torch")
    user_code(OF_TENSORFLOW)
    data = [word for word in quick if not word.startswith("model")]
    run = on_jax(*data, "backend=torch", "model=custom", "model._target_=mine.build")
    assert run.code == 1
    assert "code of yours imports TensorFlow, whose operations do not compute" in run.output
