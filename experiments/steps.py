"""The step alone, on one core: ``python experiments/steps.py``, minutes on a quiet machine.

Three sides train the same model on the same shuffled examples, batch 64, Adam, in one process:

- ``raw``: a loop in TensorFlow's graph that a user would write by hand for speed. Examples are
  tensors, each pass is shuffled in the graph, Adam is one fused kernel a variable, and nothing is
  measured but the loss.
- ``dtrain``: the compiled steps of ``strategy=one_device``, with loss and accuracy of every step.
- ``fit``: Keras' ``fit`` of arrays, with loss and accuracy.

They run in turn, and each round begins with another of them. A ratio is the median of the ratios
round by round, with the least and the greatest; above 1 dtrain is faster. Seconds are those of the
processor (``--clock cpu``): on one core that is the time of a step, and other programs change it
less than they change the clock on the wall.

With ``--interval`` the brackets have the median's interval of confidence (95 %, of 2,000 draws with
replacement) in place of the least and the greatest; it takes many rounds to be narrow.

``--account`` measures dtrain without one of its parts each instead: without the accuracy, with
TensorFlow's fused kernel of Adam (other numbers), with the examples in the order of the source,
without the times that steps wait for their input. Those are taken where a batch has more than
1 MB or comes from an iterator of tf.data, as it does of files: with ``--iterator`` it does here.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH = 64
LOSS = "sparse_categorical_crossentropy"
DIGITS = {"_target_": "dtrain.datasets.digits", "validation_split": 0.0}
IMAGES = {"_target_": "dtrain.datasets.synthetic", "examples": 10_000, "validation_examples": 0}
TEXT = {"_target_": "dtrain.datasets.text", "validation_split": 0.0}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "digits": ({"_target_": "dtrain.models.cnn"}, DIGITS),
    "mlp": ({"_target_": "dtrain.models.mlp", "units": [128]}, {**IMAGES, "shape": [784]}),
    "cnn": ({"_target_": "dtrain.models.cnn"}, {**IMAGES, "shape": [28, 28, 1]}),
    "resnet": ({"_target_": "dtrain.models.resnet"}, DIGITS),
    "transformer": ({"_target_": "dtrain.models.transformer"}, TEXT),
}
#: What dtrain is measured without.
PARTS = ("accuracy", "own adam", "shuffling", "timestamps")
#: Trains so many steps.
Side = Callable[[int], None]
#: From values of all rounds to a pair that says how far they are spread.
About = Callable[[list[float]], tuple[float, float]]


def config_of(name: str, without: str) -> Any:
    """Return the configuration of a model."""
    from dtrain.config import tree

    model, data = MODELS[name]
    data = {**data, "shuffle": "none"} if without == "shuffling" else data
    return tree.parse(
        {
            "seed": 0,
            "hardware": {"remat": []},
            "model": model,
            "dataset": data,
            "optimizer": {"_target_": "keras.optimizers.Adam", "learning_rate": 0.001},
            "trainer": {"loss": LOSS, "metrics": [] if without == "accuracy" else ["accuracy"]},
        },
        Path("config.yaml"),
    )


def dtrain(name: str, in_loop: bool, without: str = "") -> tuple[Side, Any, Any]:
    """Return dtrain's side, an uncompiled model like its own, and the source of examples."""
    import keras
    import tensorflow as tf

    from dtrain.task import strategies  # fmt: skip
    from dtrain.task.backends.tensorflow import input_pipeline, keras_internals, short_adam
    from dtrain.task.data import dataset
    from dtrain.task.model import build

    config = config_of(name, without)
    strategy = strategies.OneDevice(["CPU:0"])
    strategy.abilities = dataclasses.replace(strategy.abilities, reads_in_loop=in_loop)
    data = dataset.load(config)
    model = build.model(config, data.splits, strategy, 10_000, 100)
    inputs = input_pipeline.Inputs(data.splits.train, None, BATCH, 0, order=data.order)
    steps = strategy.steps(model, inputs, jit_compile=False)
    steps.waiting.measured = without != "timestamps"
    original = short_adam._update
    if without == "own adam":
        short_adam._update = fused
    keras_internals.keep_order()  # as a task does
    steps.train(1)
    short_adam._update = original
    options = tf.config.optimizer.get_experimental_options()

    def train(count: int) -> None:
        tf.config.optimizer.set_experimental_options(options)
        while count:
            now = min(count, steps.max_steps)
            steps.results(steps.train(now))
            count -= now
        # The other sides are optimized as TensorFlow does by itself.
        tf.config.optimizer.set_experimental_options({"dependency_optimization": True})

    return train, keras.models.clone_model(model), data.splits.train


def fused(optimizer: Any, gradient: Any, variable: Any, slots: Any, rate: Any) -> None:
    """Update a weight by one kernel; ``rate`` has the correction of its bias already."""
    import tensorflow as tf

    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle, m=slots[0].handle, v=slots[1].handle, grad=gradient, lr=rate,
        beta1_power=0.0, beta2_power=0.0, beta1=0.9, beta2=0.999, epsilon=1e-7,
    )  # fmt: skip


def raw(model: Any, source: Any) -> Side:
    """Return a loop in the graph, by hand."""
    import keras
    import tensorflow as tf

    examples, weights = len(source), [v.value for v in model.trainable_variables]
    slots = [(tf.Variable(tf.zeros_like(w)), tf.Variable(tf.zeros_like(w))) for w in weights]
    done = tf.Variable(0.0)
    rates = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7}

    def update(gradients: list[Any]) -> None:
        done.assign_add(1.0)
        powers = {"beta1_power": 0.9**done, "beta2_power": 0.999**done}
        for weight, (m, v), gradient in zip(weights, slots, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle, m=m.handle, v=v.handle, grad=tf.convert_to_tensor(gradient),
                **powers, **rates,
            )  # fmt: skip

    @tf.function(autograph=False)
    def train(steps: Any) -> Any:
        a_pass = examples // BATCH
        draws = tf.random.uniform([-(-steps // a_pass), examples])
        order = tf.reshape(tf.argsort(draws)[:, : a_pass * BATCH], [-1, BATCH])

        def body(i: Any, total: Any) -> Any:
            x, y = source.gather(tf.gather(order, i))
            with tf.GradientTape() as tape:
                losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True))
                loss = tf.reduce_mean(losses)
            update(tape.gradient(loss, weights))
            return i + 1, total + loss

        return tf.while_loop(
            lambda i, _: i < steps, body, [tf.constant(0), 0.0], parallel_iterations=1
        )[1]

    return lambda count: train(tf.constant(count)).numpy()


def fit(model: Any, source: Any) -> Side:
    """Return Keras' ``fit``."""
    import numpy as np

    count = len(source) // BATCH * BATCH
    x, y = (np.asarray(part) for part in source[np.arange(count)])
    model.compile("adam", loss=LOSS, metrics=["accuracy"])

    def train(steps: int) -> None:
        while steps:
            now = min(steps, count // BATCH)
            model.fit(x[: now * BATCH], y[: now * BATCH], batch_size=BATCH, verbose=0)
            steps -= now

    return train


def measured(
    name: str,
    pairs: int,
    seconds: float,
    only: list[str],
    clock: Callable[[], float],
    in_loop: bool,
) -> dict[str, list[float]]:
    """Return the seconds of a step of each side, round by round."""
    import keras

    keras.utils.set_random_seed(0)
    own, model, source = dtrain(name, in_loop)
    sides = {"dtrain": own, "raw": raw(model, source)}
    sides |= {part: dtrain(name, in_loop, part)[0] for part in PARTS if part in only}
    if "fit" in only:
        sides["fit"] = fit(keras.models.clone_model(model), source)
    sides = {side: sides[side] for side in only}
    return timed(sides, pairs, seconds, clock, 10)


def timed(
    sides: dict[str, Side], pairs: int, seconds: float, clock: Callable[[], float], least: int
) -> dict[str, list[float]]:
    """Return the seconds of a step of each side, round by round; counts are multiples of ``least``.

    Each is run twice before, so that it is traced, and warm.
    """
    counts = {}
    for side, train in sides.items():
        train(least)
        begin = clock()
        train(least)
        counts[side] = max(least, int(seconds / (clock() - begin) * least) // least * least)
        train(counts[side])
    times: dict[str, list[float]] = {side: [] for side in sides}
    for index in range(pairs):
        turn = [*sides][index % len(sides) :] + [*sides][: index % len(sides)]
        for side in turn:
            begin = clock()
            sides[side](counts[side])
            times[side].append((clock() - begin) / counts[side])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=9, help="rounds of all sides (default: 9)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sides", nargs="+", default=["raw", "dtrain", "fit"])
    parser.add_argument("--account", action="store_true", help="of which parts a step is made")
    parser.add_argument("--seconds", type=float, default=0.7, help="of a side in a round")
    parser.add_argument("--interval", action="store_true", help="show that of confidence")
    parser.add_argument("--iterator", action="store_true", help="read batches by tf.data")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="cpu")
    parser.add_argument("--cores", type=int, default=1, help="that the process may use")
    arguments = parser.parse_args()
    # ORDER: before TensorFlow is imported, whose threads are as many as the cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-arguments.cores :])
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1")
    only = ["dtrain", "raw", *arguments.parts] if arguments.account else arguments.sides
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    for name in arguments.models:
        given = arguments.pairs, arguments.seconds, only, clock, not arguments.iterator
        found = measured(name, *given)
        show = without if arguments.account else against
        about = confident if arguments.interval else extremes
        print(f"| {name} | {' | '.join(show(found, about))} |", flush=True)


def extremes(values: list[float]) -> tuple[float, float]:
    """Return the least and the greatest."""
    return min(values), max(values)


def confident(values: list[float]) -> tuple[float, float]:
    """Return between what the median is, with 95 % confidence."""
    import numpy as np

    draws = np.random.default_rng(0).choice(values, [2_000, len(values)])
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def against(found: dict[str, list[float]], about: About) -> list[str]:
    """Return the microseconds of a step of each side, and dtrain's ratios over the others."""
    texts = [f"{side} {statistics.median(times) * 1e6:,.0f}" for side, times in found.items()]
    for side, times in found.items():
        if side != "dtrain":
            ratios = [a / b for a, b in zip(times, found["dtrain"], strict=True)]
            spread = "{:.2f} to {:.2f}".format(*about(ratios))
            texts.append(f"over {side} {statistics.median(ratios):.3f} ({spread})")
    return texts


def without(found: dict[str, list[float]], about: About) -> list[str]:
    """Return the microseconds of a step of dtrain, and how many fewer it has without each part."""
    texts = [f"dtrain {statistics.median(found['dtrain']) * 1e6:,.0f}"]
    for side, times in found.items():
        if side != "dtrain":
            fewer = [(a - b) * 1e6 for a, b in zip(found["dtrain"], times, strict=True)]
            spread = "{:,.0f} to {:,.0f}".format(*about(fewer))
            texts.append(f"{side} {statistics.median(fewer):,.0f} ({spread})")
    return texts


if __name__ == "__main__":
    main()
