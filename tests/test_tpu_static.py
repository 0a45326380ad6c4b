"""Steps of known shapes: the same numbers as the others, and XLA compiles what a replica does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dtrain.data.sources import Source
from tests.sampled import sampled
from tests.test_steps import BATCH, BINARY, PLAIN, prepare, settings

DROPOUT = {"model": {"_target_": "dtrain.models.mlp", "units": [5], "dropout": 0.3}}
CONFIGS = {"binary": BINARY, "plain": PLAIN, "dropout": DROPOUT}


def static(kind: str, devices: int) -> Any:
    """A strategy with static steps."""
    from dtrain.task import strategies
    from dtrain.task.backends.tensorflow.tpu import StaticSteps

    class Static(getattr(strategies, kind)):
        def steps(self, model: Any, inputs: Any, jit_compile: bool) -> Any:
            return StaticSteps(model, self, inputs)

    return Static([f"CPU:{i}" for i in range(devices)])


@pytest.mark.task(devices=4)
@pytest.mark.parametrize(
    ("config", "replicas", "rest"),
    sampled([("binary", 2, 1), ("plain", 4, 5), ("dropout", 1, 5)], ("plain", 4, 5)),
)
def test_the_same_numbers_as_other_steps(config: str, replicas: int, rest: int) -> None:
    """And what each replica tells ends in its sums once, whichever way the rest is cut."""
    given = settings(**CONFIGS[config])
    reference = prepare("OneDevice", 1, given)[2]
    strategy = static("Mirrored", replicas)
    _, _, steps, splits = prepare("", replicas, given, strategy=strategy)
    held = len(splits.validation)
    assert held == 2 * BATCH + rest
    expected, found = reference.train(3), steps.train(3)
    expected.add(reference.train(2))
    found.add(steps.train(2))
    assert (found.examples, found.steps) == (5 * BATCH, 5)
    for _ in range(2):  # the input begins again, and training leaves nothing behind
        sums = steps.evaluate(1, 0)
        sums.append(steps.evaluate(1, rest))
        whole = reference.evaluate(2, rest)
        assert sums.examples == held
        for mine, other in zip(sums.states, whole.states, strict=True):
            assert mine == pytest.approx(other, rel=1e-5)
        assert steps.results(sums) == pytest.approx(reference.results(whole), rel=1e-5)
    found, expected = steps.results(found), reference.results(expected)
    if config == "plain":  # what it returns as `rows` are those of a replica
        assert found.pop("rows") == expected.pop("rows") / replicas
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.task(devices=4)
def test_the_rest_goes_evenly_and_then_one_by_one() -> None:
    cases = [(1, 16, []), (1, 21, [5]), (2, 20, [4]), (2, 21, [4, 1]), (4, 19, [3]), (4, 7, [4, 3])]
    for replicas, held, ends in [*cases, (2, 0, [])]:
        config = settings()
        config.dataset = config.dataset.replaced(validation_examples=held)
        strategy = static("Mirrored", replicas)
        _, _, steps, splits = prepare("", replicas, config, strategy=strategy)
        assert [examples for _, examples in steps._ends] == ends
        assert sum(ends) == held % BATCH, len(splits.validation or ())
        assert (steps._evaluation_iterator is not None) == (held >= BATCH)
        if (replicas, held) == (4, 7):  # less than a batch, and a replica has none of the last
            sums = steps.evaluate(0, 7)
            reference = prepare("OneDevice", 1, config)[2]
            expected = reference.results(reference.evaluate(0, 7))
            assert steps.results(sums) == pytest.approx(expected, rel=1e-5)


@pytest.mark.task
@pytest.mark.parametrize("config", sampled(CONFIGS, "plain"))
def test_xla_compiles_what_a_replica_does(config: str) -> None:
    """On one device, which does the parts of two replicas by turns: XLA's CPU has no sum of two."""
    import tensorflow as tf

    def results(compiled: bool) -> Any:
        strategy: Any = static("OneDevice", 1)

        def run(step: Any, data: Any) -> Any:
            def replica(part: Any, number: Any) -> Any:
                with tf.distribute.ReplicaContext(strategy.engine, number):
                    return step(part)

            whole = tf.function(replica, autograph=False, jit_compile=compiled)
            return strategy.engine.run(whole, args=(data, tf.constant(1)))

        strategy.run = run
        type(strategy).replicas = 2
        _, _, steps, splits = prepare("", 1, settings(**CONFIGS[config]), strategy=strategy)
        full, rest = divmod(len(splits.validation), BATCH)
        assert rest % 2, "one replica has none of the last"
        return [steps.results(s) for s in (steps.train(4), steps.evaluate(full, rest))]

    compiled = results(True)
    if config == "dropout":  # XLA's draws are others
        assert all(math.isfinite(found["loss"]) for found in compiled)
        return
    for found, expected in zip(compiled, results(False), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.task
def test_a_stretch_of_a_source() -> None:
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.tpu import Stretch

    class Squares(Source):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, indices: Any) -> Any:
            return indices**2, indices

    stretch = Stretch(Squares(), 6, 3)
    assert len(stretch) == 3
    x, y = stretch.gather(tf.range(3, dtype=tf.int64))
    assert (x.numpy().tolist(), y.numpy().tolist()) == ([36, 49, 64], [6, 7, 8])
