"""Measures what adding gradients up costs the tasks of ``strategy=multiworker``.

``python experiments/communication.py`` prints rows for ``docs/measurements.md``: tasks of one core
each train a CNN of 28x28x1 images, 64 examples a task. Each way to add up is compared with the
same tasks in the same processes, which take their own gradients for those of all (``alone``). A
round is a call of some steps in each way, in turn; a figure is the median over the rounds of
``alone`` / way, of the same round, in brackets the first and the last quarter, then the extremes.

``--link none 1gbit 100mbit+1ms`` has all tasks on one machine, then each in a network namespace
with such a link (as root, on Linux). What the links do is printed before the rows; "switch" is the
share of a core of the process that delays their packets.

For machines with other work there are also the processor time of a step and the time of a sum for
which nothing is computed. What they say of a machine without is "computed": the processor time of a
step ``alone`` over that and a sum. ``--alone`` has that of a machine which had nothing else to do:
on a busy one the processor time is longer, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from links import ROOT, Link, parsed, places, spent

#: Filters of the model: steps of about 10 and 60 ms on one core of a machine of 2026.
MODELS = {"short": [16, 32], "long": [64, 112]}
WAYS = ("alone", "ring")
#: Of so many medians of a sum's time the least counts: that without other work is asked for.
SUMS = 5
#: Sums that are timed of each way, in turn, after those that are not.
ROUNDS, IDLE = 7, 2
#: Seconds after which the tasks of a measurement are ended.
LIMIT = 1200


def task(arguments: argparse.Namespace) -> None:
    """Do the part of one task, and print its figures as JSON."""
    os.environ["DTRAIN_TRUST"] = "experiments"
    addresses = arguments.addresses.split(",")

    from dtrain.config.tree import Hardware
    from dtrain.run.cluster import Cluster, Task
    from dtrain.task.backends.tensorflow import hardware
    from dtrain.task.backends.tensorflow.replica import gradients
    from dtrain.task.strategies import MultiWorker

    rank, cores = arguments.task, os.cpu_count() or 1
    own = len(addresses) <= cores
    tasks = [
        Task("worker" if i else "chief", max(0, i - 1), 1, threads=1, address=address,
             cores=(i,) if own else ())
        for i, address in enumerate(addresses)
    ]  # fmt: skip
    cluster = Cluster(tuple(tasks), "cpu", len(tasks), {})
    devices = hardware.configure(Hardware(), cluster, tasks[rank])
    import tensorflow as tf  # ORDER: after the task has its core

    strategy = MultiWorker(devices, cluster, tasks[rank], "ring")

    def alone(vector: tf.Tensor) -> tf.Tensor:
        """Take a task's own gradients for those of all."""
        return vector * float(len(tasks))

    known = {"alone": alone, "ring": gradients.collective}
    steps: dict[str, Any] = {}
    model: Any = None
    for name in arguments.ways:
        gradients.add_up_together(strategy.engine, known[name])
        steps[name], model = made(strategy, arguments.model, len(tasks))
        steps[name].train(1)
    ways = {name: known[name] for name in steps}
    sums = [sums_of(strategy, ways, model) for _ in range(SUMS)]
    times: dict[str, list[float]] = {name: [] for name in steps}
    switch, processor = dict.fromkeys(steps, 0.0), dict.fromkeys(steps, 0.0)
    for turn in range(arguments.rounds):
        first = turn % len(steps)
        for name in [*steps][first:] + [*steps][:first]:
            strategy.tasks.sum([0.0])
            before, own_before = spent(arguments.switch), time.process_time()
            began = time.perf_counter()
            steps[name].train(arguments.steps)
            times[name].append((time.perf_counter() - began) / arguments.steps)
            processor[name] += time.process_time() - own_before
            switch[name] += spent(arguments.switch) - before
    count = arguments.rounds * arguments.steps
    figures = {
        "times": times,
        "bytes": 4 * model.count_params(),
        "switch": {name: switch[name] / sum(times[name]) / arguments.steps for name in steps},
        "processor": {name: processor[name] / count for name in steps},
        "sums": {name: min(each[name] for each in sums) for name in sums[0]},
    }
    print(json.dumps(figures), flush=True)
    strategy.tasks.barrier()
    os._exit(0)


def sums_of(strategy: Any, ways: dict[str, Any], model: Any) -> dict[str, float]:
    """Return by the name of a way the seconds of a sum, the mean of the tasks' medians."""
    import tensorflow as tf

    vector = tf.zeros([sum(math.prod(each.shape) for each in model.trainable_variables)])

    def summing(way: Any) -> Any:
        def replica(vector: tf.Tensor) -> tf.Tensor:
            return way(tf.identity(vector))[:1]

        run = strategy.engine.run
        return tf.function(lambda vector: run(replica, args=(vector,)), autograph=False)

    functions = {name: summing(way) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(IDLE + ROUNDS):
        for name, function in functions.items():
            began = time.perf_counter()
            function(vector)
            if turn >= IDLE:
                times[name].append(time.perf_counter() - began)
    count, *sums = strategy.tasks.sum([1.0, *map(statistics.median, times.values())])
    return {name: total / count for name, total in zip(ways, sums, strict=True)}


def made(strategy: Any, name: str, tasks: int) -> tuple[Any, Any]:
    """Return the steps of a model, and that."""
    from dtrain.config import tree
    from dtrain.task.backends.tensorflow import input_pipeline
    from dtrain.task.data import dataset
    from dtrain.task.model import build

    config = tree.parse(
        {
            "seed": 0,
            "hardware": {"remat": []},
            "model": {"_target_": "dtrain.models.cnn", "filters": MODELS[name], "units": 64},
            "dataset": {
                "_target_": "dtrain.datasets.synthetic", "examples": 20_000,
                "validation_examples": 64, "shape": [28, 28, 1], "classes": 10,
            },
            "optimizer": {"_target_": "keras.optimizers.Adam", "learning_rate": 0.001},
            "trainer": {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
        },
        Path("config.yaml"),
    )  # fmt: skip
    data = dataset.load(config)
    model = build.model(config, data.splits, strategy, 10_000, 10_000)
    inputs = input_pipeline.Inputs(data.splits.train, None, 64 * tasks, 0, 0, data.augment)
    return strategy.steps(model, inputs, False), model


def measure(arguments: argparse.Namespace, model: str, tasks: int, link: Link) -> list[Row]:
    """Return the figures of one model, of the tasks on one link; none if the tasks fail."""
    with places(tasks, link) as where:
        if where.found:
            print(f"{link.name}, {tasks} tasks: {where.found}", flush=True)
        steps = arguments.steps if model == "short" else max(1, arguments.steps // 5)
        options = [
            f"--addresses={','.join(where.addresses)}", f"--model={model}", f"--steps={steps}",
            f"--rounds={arguments.rounds}", "--ways", *arguments.ways,
            *([f"--switch={where.switch}"] if where.switch else []),
        ]  # fmt: skip
        processes = [
            subprocess.Popen(
                [*start, sys.executable, __file__, f"--task={i}", *options], cwd=ROOT,
                stdout=subprocess.PIPE, stderr=None if arguments.verbose else subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2",
                     "CUDA_VISIBLE_DEVICES": "-1",
                     "no_grpc_proxy": ",".join(a.partition(":")[0] for a in where.addresses)},
            )
            for i, start in enumerate(where.starts)
        ]  # fmt: skip
        try:
            outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    lines = outputs[0].decode().strip().splitlines()
    if not lines:
        codes = [process.returncode for process in processes]
        print(f"{link.name}, {tasks} tasks, {model} steps: failed (exit codes {codes})", flush=True)
        return []
    found = json.loads(lines[-1])
    times, sums = found["times"], {**found["sums"], "alone": 0.0}
    own = found["processor"]["alone"]
    if arguments.alone:
        own = arguments.alone[arguments.models.index(model)] / 1000
    return [
        Row(
            tasks, link, model, found["bytes"], way, 1000 * statistics.median(times[way]),
            [one / other for one, other in zip(times["alone"], times[way], strict=True)],
            1000 * found["processor"][way], 1000 * sums.get(way, math.nan),
            own / (own + sums.get(way, math.nan)),
            found["switch"][way] if where.switch else None,
        )
        for way in arguments.ways
    ]  # fmt: skip


@dataclasses.dataclass
class Row:
    """Of one way: milliseconds of a step, the share of ``alone`` in each round, and what is said
    above; what is not known of a way is NaN."""

    tasks: int
    link: Link
    model: str
    bytes: int
    way: str
    each: float
    ratios: list[float]
    processor: float
    sum: float
    computed: float
    switch: float | None

    def __str__(self) -> str:
        first, middle, last = statistics.quantiles(self.ratios, n=4)
        return (
            f"| {self.tasks} | {self.link.name} | {self.bytes:,} | {self.way} | {self.each:.1f} "
            f"| {middle:.2f} ({first:.2f} to {last:.2f}; {min(self.ratios):.2f} to "
            f"{max(self.ratios):.2f}) | {self.processor:.1f} | {self.sum:.1f} "
            f"| {self.computed:.2f} | {'' if self.switch is None else f'{self.switch:.2f}'} |"
        )


def plot(rows: list[Row], path: Path) -> None:
    """Draw the shares of ``alone`` over the links, for each model and number of tasks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    models, counts, links, ways = (
        list(dict.fromkeys(getattr(row, name) for row in rows))
        for name in ("model", "tasks", "link", "way")
    )
    figure, axes = plt.subplots(
        len(models), len(counts), figsize=(1 + 3.2 * len(counts), 0.6 + 2.6 * len(models)),
        sharex=True, sharey=True, squeeze=False,
    )  # fmt: skip
    for line, model in zip(axes, models, strict=True):
        for axis, tasks in zip(line, counts, strict=True):
            for place, way in enumerate(ways):
                some = [r for r in rows if (r.model, r.tasks, r.way) == (model, tasks, way)]
                if way == "alone" or not some:
                    continue
                found = [statistics.quantiles(row.ratios, n=4) for row in some]
                middle = [middle for _, middle, _ in found]
                spread = [[m - a for a, m, _ in found], [b - m for _, m, b in found]]
                at = [links.index(row.link) + 0.06 * (place - 2) for row in some]
                drawn = axis.errorbar(at, middle, yerr=spread, marker="o", capsize=3, label=way)
                axis.plot(at, [row.computed for row in some], "x--", color=drawn[0].get_color())
            axis.axhline(1, color="black", linewidth=0.8)
            axis.set_xticks(range(len(links)), [link.name for link in links])
            axis.set_title(f"{tasks} tasks, {model} steps", fontsize=10)
        line[0].set_ylabel("share of alone (x: computed)")
        line[0].set_ylim(0, 1.3)
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--steps", type=int, default=40, help="a call; a fifth of the long ones")
    parser.add_argument("--tasks", type=int, nargs="+", default=[2])
    parser.add_argument("--models", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=["alone", "ring"])
    parser.add_argument(
        "--link", type=parsed, nargs="+", default=[Link("none")],
        help="of each task: none (one machine), RATE or RATE+DELAY, such as 100mbit+1ms",
    )  # fmt: skip
    parser.add_argument("--plot", type=Path, help="draw the shares there (PNG)")
    parser.add_argument(
        "--alone", type=float, nargs="+",
        help="milliseconds of a step alone, for each of --models, of which `computed` is",
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--task", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--addresses", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--switch", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.ways = ["alone", *(way for way in arguments.ways if way != "alone")]
    if arguments.task is not None:
        task(arguments)
        return
    if arguments.alone and len(arguments.alone) != len(arguments.models):
        parser.error(
            f"--alone has {len(arguments.alone)} values for {len(arguments.models)} models"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no namespace, and no task, is left
    rows: list[Row] = []
    for model in arguments.models:
        for tasks in arguments.tasks:
            for link in arguments.link:
                found = measure(arguments, model, tasks, link)
                print(*found, sep="\n", flush=True)
                rows += found
    print(
        "\n| tasks | link | bytes | way | ms a step | of those alone | processor, ms a step "
        "| a sum, ms | computed | switch |"
    )
    print(f"{'|---' * 10}|")
    print(*rows, sep="\n")
    if arguments.plot and rows:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
