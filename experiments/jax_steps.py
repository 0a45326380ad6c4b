"""The step alone on JAX, on one core: ``python experiments/jax_steps.py``, minutes when quiet.

Four sides train the same model on the same examples, batch 64, Adam, in one process:

- ``raw``: a loop that a user would write by hand: one ``jax.jit`` of a step with Keras'
  ``stateless_call`` and ``stateless_apply``, whose arguments are given away, and nothing measured
  but the loss, which is read at the end. Batches are rows of arrays of NumPy.
- ``scan``: the same step in a ``jax.lax.scan`` over the rows of arrays on the device.
- ``dtrain``: the compiled steps of ``backend=jax strategy=one_device``, with loss and accuracy.
- ``fit``: Keras' ``fit`` of arrays on JAX, with loss and accuracy.

They run in turn, and each round begins with another of them. A ratio is the median of the ratios
round by round, with the least and the greatest; above 1 dtrain is faster. Seconds are those of the
processor (``--clock cpu``), as in ``steps.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from steps import BATCH, MODELS, Side, against, config_of, extremes, timed


def dtrain(name: str) -> tuple[Side, Any, Any]:
    """Return dtrain's side, an uncompiled model like its own, and the arrays of the examples."""
    import keras
    import numpy as np

    from dtrain.task import strategies
    from dtrain.task.data import dataset
    from dtrain.task.data.inputs import Inputs
    from dtrain.task.model import build

    config = config_of(name, "")
    strategy = strategies.OneDevice(["cpu:0"])
    data = dataset.load(config)
    model = build.model(config, data.splits, strategy, 10_000, 100)
    inputs = Inputs(data.splits.train, None, BATCH, 0, order=data.order)
    steps = strategy.steps(model, inputs, jit_compile=False)

    def train(count: int) -> None:
        while count:
            now = min(count, steps.max_steps)
            steps.results(steps.train(now))
            count -= now

    source = data.splits.train
    arrays = [np.asarray(part) for part in source[np.arange(len(source))]]
    return train, keras.models.clone_model(model), arrays


def step_of(model: Any) -> tuple[Callable[..., Any], Any]:
    """Return a step by hand, and the state that it begins with."""
    import jax
    import keras

    optimizer = keras.optimizers.Adam(0.001)
    optimizer.build(model.trainable_variables)

    def loss_of(weights: Any, others: Any, x: Any, y: Any) -> Any:
        outputs, others = model.stateless_call(weights, others, x, training=True)
        losses = keras.losses.sparse_categorical_crossentropy(y, outputs)
        return keras.ops.mean(losses), others

    def step(state: Any, x: Any, y: Any) -> Any:
        weights, others, slots = state
        grad = jax.value_and_grad(loss_of, has_aux=True)
        (loss, others), gradients = grad(weights, others, x, y)
        weights, slots = optimizer.stateless_apply(slots, gradients, weights)
        return (weights, others, slots), loss

    variables = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    return step, tuple([keras.ops.copy(v.value) for v in group] for group in variables)


def raw(model: Any, arrays: list[Any]) -> Side:
    """Return a loop over a compiled step."""
    import jax
    import numpy as np

    step, state = step_of(model)
    compiled, random = jax.jit(step, donate_argnums=0), np.random.default_rng(0)

    def train(count: int) -> None:
        nonlocal state
        for _ in range(count):
            rows = random.integers(0, len(arrays[0]), BATCH)
            state, loss = compiled(state, *(part[rows] for part in arrays))
        float(loss)

    return train


def scan(model: Any, arrays: list[Any]) -> Side:
    """Return a compiled loop, of a hundred steps a call at most."""
    import jax
    import numpy as np

    step, state = step_of(model)
    parts, random = [jax.numpy.asarray(part) for part in arrays], np.random.default_rng(0)

    @jax.jit
    def steps(state: Any, rows: Any) -> Any:
        return jax.lax.scan(lambda s, at: step(s, *(part[at] for part in parts)), state, rows)

    def train(count: int) -> None:
        nonlocal state
        for at in range(0, count, 100):
            size = min(100, count - at)
            state, losses = steps(state, random.integers(0, len(arrays[0]), (size, BATCH)))
        float(losses[-1])

    return train


def fit(model: Any, arrays: list[Any]) -> Side:
    """Return Keras' ``fit``."""
    model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    count = len(arrays[0]) // BATCH * BATCH

    def train(steps: int) -> None:
        while steps:
            now = min(steps, count // BATCH)
            model.fit(*(part[: now * BATCH] for part in arrays), batch_size=BATCH, verbose=0)
            steps -= now

    return train


def measured(
    name: str, pairs: int, seconds: float, only: list[str], clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Return the seconds of a step of each side, round by round."""
    import keras

    keras.utils.set_random_seed(0)
    own, model, arrays = dtrain(name)
    makers = {"raw": raw, "scan": scan, "fit": fit}
    sides = {"dtrain": own}
    sides |= {
        side: make(keras.models.clone_model(model), arrays)
        for side, make in makers.items()
        if side in only
    }
    return timed(sides, pairs, seconds, clock, 100)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7, help="rounds of all sides (default: 7)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sides", nargs="+", default=["raw", "scan", "fit"])
    parser.add_argument("--seconds", type=float, default=1.0, help="of a side in a round")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="cpu")
    arguments = parser.parse_args()
    # ORDER: before JAX is imported, whose threads are as many as the cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    for name in arguments.models:
        times = measured(name, arguments.pairs, arguments.seconds, arguments.sides, clock)
        print(f"| {name} | {' | '.join(against(times, extremes))} |", flush=True)


if __name__ == "__main__":
    main()
