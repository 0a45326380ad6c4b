"""Validation in batches of its own size, of which some or all are evaluated; the referee is fit."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.run.cluster import Task
from tests import warm
from tests.sampled import sampled
from tests.test_parameter_server import servers
from tests.test_steps import BATCH, prepare, settings
from tests.test_strategies import together

HELD = 21
#: Batch size and steps: with a rest, without the rest, a batch of everything and more, single ones.
CASES = [(5, None), (5, 3), (None, 2), (7, 3), (64, None), (64, 1), (1, 4)]


def across(input_shape: Any, classes: int) -> Any:
    """A model whose loss is of a batch: the mean over two batches is not that of both."""
    import keras
    from keras import layers, ops

    def spread(y_true: Any, y_pred: Any) -> Any:
        error = 1 - ops.take_along_axis(y_pred, ops.cast(ops.reshape(y_true, [-1, 1]), "int32"), 1)
        return ops.max(error) + ops.var(y_pred)

    inputs = keras.Input(input_shape)
    made = keras.Model(inputs, layers.Dense(classes, "softmax")(layers.Flatten()(inputs)))
    made.compile(keras.optimizers.SGD(0.0), loss=spread, metrics=["accuracy"])
    return made


def weighing(input_shape: Any, classes: int, backend: str) -> Any:
    """A model whose step says of how many targets its loss is the mean."""
    import keras
    from keras import layers, ops

    def test_step(self: Any, *given: Any) -> Any:
        y = given[-1][1]
        counts = ops.cast(ops.sum(ops.cast(y > 0, "int32")), "float32")
        logs = {"loss": ops.sum(ops.cast(y, "float32")) / (counts + 1e-9), "loss_weight": counts}
        return (logs, given[0]) if backend == "jax" else logs

    inputs = keras.Input(input_shape)
    kind = type("Weighing", (keras.Model,), {"test_step": test_step})
    return kind(inputs, layers.Dense(classes, "softmax")(inputs))


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_step_says_what_its_loss_is_the_mean_over(backend: str) -> None:
    for kind, devices in [("OneDevice", 1), ("Mirrored", 2)][: 1 + (backend == "tensorflow")]:
        arguments = {"backend": backend, "kind": kind}
        warm.call(_weighed, devices, arguments, backend=backend)


def _weighed(backend: str, kind: str, strategy: Any = None) -> None:
    import numpy as np

    model = {"_target_": "tests.test_validation.weighing", "backend": backend}
    for batch in (None, 5, 1):
        trainer = {**settings().trainer.__dict__, "validation_batch_size": batch}
        of = settings(model=model, trainer=trainer)
        _, _, steps, splits = prepare(kind, 2 if kind == "Mirrored" else 1, of, strategy=strategy)
        sums = steps.evaluate(*divmod(HELD, steps.evaluation_examples))
        y = np.asarray(splits.validation[np.arange(HELD)][1])
        assert steps.results(sums, False)["loss"] == pytest.approx(y[y > 0].mean(), rel=1e-5)


def config(batch: int | None = None, steps: int | None = None) -> Any:
    trainer = {"loss": "mse", "metrics": []}
    return settings(
        model={"_target_": "tests.test_validation.across"},
        trainer={**trainer, "validation_batch_size": batch, "validation_steps": steps},
    )


def expected() -> list[dict[str, float]]:
    """Return what fit finds in each case, with the same weights: the learning rate is 0."""
    import numpy as np

    model, _, _, splits = prepare("Default", 1, config())
    x, y = (np.asarray(part) for part in splits.validation[np.arange(HELD)])
    found = []
    for batch, steps in CASES:
        history = model.fit(
            x[:BATCH], y[:BATCH], BATCH, epochs=2, verbose=0, validation_data=(x, y),
            validation_batch_size=batch, validation_steps=steps,
        ).history  # fmt: skip
        found.append({k[4:]: v[-1] for k, v in history.items() if k.startswith("val_")})
    return found


def wrong(kind: str, devices: int, strategy: Any = None) -> list[Any]:
    """Return the cases in which a strategy finds something else than fit, one after the other."""
    import keras
    import pytest

    differ: list[Any] = []
    for case, numbers in zip(CASES, expected(), strict=True):
        keras.utils.clear_session()
        _, _, steps, _ = prepare(kind, devices, config(*case), strategy=strategy)
        examples = HELD if case[1] is None else min(HELD, case[1] * (case[0] or BATCH))
        for _ in range(2):  # the second begins where the first did
            sums = steps.evaluate(*divmod(examples, steps.evaluation_examples))
            found = steps.results(sums)
            if sums.examples != examples or found != pytest.approx(numbers, rel=1e-5):
                differ.append((kind, devices, case, sums.examples, found, numbers))
    return differ


@pytest.mark.task(devices=4)
@pytest.mark.parametrize(
    ("kind", "devices"),
    sampled(
        [("OneDevice", 1), ("Mirrored", 2), ("Mirrored", 4), ("CentralStorage", 2)], ("Mirrored", 2)
    ),
)
def test_a_validation_is_that_of_fit(kind: str, devices: int) -> None:
    assert not wrong(kind, devices)


def _cluster(cluster: Any, task: Any, devices: list[str], update: str | None) -> Any:
    from dtrain.task.strategies import MultiWorker
    from tests.test_parameter_server import strategy_of

    if update is not None:
        return wrong("ParameterServer", 1, strategy_of(cluster, task, update))
    return wrong("MultiWorker", 1, MultiWorker(devices, cluster, task, "auto"))


@pytest.mark.faults
def test_on_hosts() -> None:
    tasks = [Task("chief", 0, 1), Task("worker", 0, 1)]
    assert not any(together(_cluster, tasks, 2, update=None))


def _weighed_by_servers(cluster: Any, task: Any, devices: list[str]) -> None:
    from tests.test_parameter_server import strategy_of

    _weighed("tensorflow", "", strategy_of(cluster, task, "async"))


@pytest.mark.faults
def test_parameter_servers_weigh_too() -> None:
    together(_weighed_by_servers, servers(2, 1), 1)


@pytest.mark.parametrize("update", sampled(["sync", "async"]))
def test_by_parameter_servers(update: str) -> None:
    [found] = together(_cluster, servers(2, 1), 2 if update == "sync" else 1, update=update)
    assert not found


@pytest.mark.task
def test_a_loop_evaluates_so_many() -> None:
    """Through the loop's own calls, of any number of steps each."""
    from dtrain.task.train.validation import evaluate

    _, strategy, steps, _ = prepare("OneDevice", 1, config(5, 3))

    class Planned:
        validation_examples = 15

    seen: list[int] = []
    plan: Any = Planned
    sums = evaluate(
        strategy, steps, plan, True, lambda: False, lambda done: seen.append(done.examples)
    )
    assert sums is not None
    assert (sums.examples, seen[-1]) == (15, 15)
    assert steps.results(sums) == pytest.approx(expected()[1], rel=1e-5)


@pytest.mark.task(devices=2)
def test_hooks_have_the_numbers_of_batches() -> None:
    """Of those of a validation, which may have another size than those of training."""
    from dtrain.task.train.validation import evaluate

    class Hooks:
        def __init__(self) -> None:
            self.first: list[int] = []
            self.last: list[int] = []

        def on_test_batch_begin(self, batch: int) -> None:
            self.first.append(batch)

        def on_test_batch_end(self, batch: int, logs: Any) -> None:
            assert logs.keys() >= {"loss"}
            self.last.append(batch)

    class Planned:
        validation_examples = 15

    for kind, devices, first, last in (
        ("OneDevice", 1, [0, 1, 2], [0, 1, 2]),
        ("Mirrored", 2, [0, 2], [1, 2]),
    ):
        _, strategy, steps, _ = prepare(kind, devices, config(5, 3))
        hooks: Any = Hooks()
        plan: Any = Planned
        evaluate(strategy, steps, plan, True, lambda: False, lambda done: None, hooks)
        assert (hooks.first, hooks.last) == (first, last), kind
