"""Measures what adding gradients up costs the tasks of ``strategy=multiworker``.

``python experiments/communication.py`` prints rows for ``docs/measurements.md``: tasks of one core
each train a CNN of 28x28x1 images, 64 examples a task. Each way to add up is compared with the
same tasks in the same processes, which take their own gradients for those of all (``alone``). A
round is a call of some steps in each way, in turn; a figure is the median over the rounds of
``alone`` / way, of the same round, in brackets the first and the last quarter, then the extremes.

``--link 1gbit`` puts each task in a network namespace with such a link (tbf; as root, on Linux),
``--delay 1ms`` adds a delay where the kernel has netem; there is then no shared memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
#: Filters of the model: steps of about 10 and 60 ms on one core of a machine of 2026.
MODELS = {"short": [16, 32], "long": [64, 112]}
WAYS = ("alone", "ring", "host")
SWITCH = "dtrain-switch"


def task(arguments: argparse.Namespace) -> None:
    """Do the part of one task, and print its figures as JSON."""
    os.environ["DTRAIN_TRUST"] = "experiments"
    os.environ["DTRAIN_EXCHANGE_SECRET"] = "of an experiment"
    addresses = arguments.addresses.split(",")

    from dtrain.config.schema import Hardware
    from dtrain.run.cluster import Cluster, Task
    from dtrain.task.exchange import shared
    from dtrain.task.process import hardware
    from dtrain.task.replica import reduction
    from dtrain.task.strategies import MultiWorker, communication

    rank, cores = arguments.task, os.cpu_count() or 1
    own = len(addresses) <= cores
    tasks = [
        Task("worker" if i else "chief", max(0, i - 1), 1, threads=1, address=address,
             cores=(i,) if own else ())
        for i, address in enumerate(addresses)
    ]  # fmt: skip
    if arguments.link:
        shared.machine = lambda: rank
    cluster = Cluster(tuple(tasks), "cpu", len(tasks), {})
    devices = hardware.configure(Hardware(), cluster, tasks[rank])
    strategy = MultiWorker(devices, cluster, tasks[rank], "ring")
    exchange = communication.connect(cluster, tasks[rank], strategy.all_reduce_numbers)
    assert not isinstance(exchange, str), exchange
    packs = arguments.bytes_per_pack
    ways = {
        "alone": reduction.Packed(packs, lambda vector: vector * 2.0),
        "ring": reduction.Packed(packs),
        "host": reduction.Packed(packs, communication.over_host(exchange)),
    }
    steps, count = {}, 0
    for name, way in ways.items():
        reduction.use(strategy.engine, way)
        steps[name], count = made(strategy, MODELS[arguments.model], len(tasks))
        steps[name].train(2)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(arguments.rounds):
        order = list(ways)[turn % 3 :] + list(ways)[: turn % 3]
        for name in order:
            strategy.all_reduce_numbers([0.0])
            began = time.perf_counter()
            steps[name].train(arguments.steps)
            times[name].append((time.perf_counter() - began) / arguments.steps)
    print(json.dumps({"times": times, "bytes": 4 * count}), flush=True)
    exchange.sum(np.zeros(0, np.float32))  # none leaves before all have come here
    os._exit(0)


def made(strategy: Any, filters: list[int], tasks: int) -> tuple[Any, int]:
    """Return the steps of a model, and how many weights that has."""
    from dtrain.config import load
    from dtrain.task import build, dataset, input_pipeline

    config = load.parse(
        {
            "seed": 0,
            "hardware": {"remat": []},
            "model": {"_target_": "dtrain.models.cnn", "filters": filters, "units": 64},
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
    return strategy.steps(model, inputs, False), model.count_params()


@contextlib.contextmanager
def hosts(count: int, link: str | None, delay: str | None) -> Iterator[list[tuple[list[str], str]]]:
    """Yield for each task what its command begins with, and its address."""
    if link is None:
        with contextlib.ExitStack() as stack:
            taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                     for _ in range(count)]  # fmt: skip
            ports = [server.getsockname()[1] for server in taken]
        yield [([], f"127.0.0.1:{port}") for port in ports]
        return
    names = [f"dtrain-host-{i}" for i in range(count)]
    try:
        for name in (SWITCH, *names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", SWITCH, "link", "add", "bridge", "type", "bridge")
        ip("-n", SWITCH, "link", "set", "bridge", "up")
        for i, name in enumerate(names):
            ip(
                "link",
                "add",
                f"dt{i}",
                "netns",
                SWITCH,
                "type",
                "veth",
                "peer",
                "eth",
                "netns",
                name,
            )
            ip("-n", SWITCH, "link", "set", f"dt{i}", "master", "bridge", "up")
            ip("-n", name, "address", "add", f"10.77.0.{i + 1}/24", "dev", "eth")
            ip("-n", name, "link", "set", "eth", "up")
            limit = ("tbf", "rate", link, "burst", "256kb", "latency", "50ms")
            if delay is None:
                tc(name, "root", *limit)
            else:
                tc(name, "root", "handle", "1:", "netem", "delay", delay)
                tc(name, "parent", "1:", *limit)
        yield [(["ip", "netns", "exec", name], f"10.77.0.{i + 1}:2222")
               for i, name in enumerate(names)]  # fmt: skip
    finally:
        for name in (*names, SWITCH):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def tc(name: str, *words: str) -> None:
    subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "eth", *words], check=True)


def measure(arguments: argparse.Namespace, model: str, tasks: int) -> None:
    with hosts(tasks, arguments.link, arguments.delay) as places:
        addresses = ",".join(address for _, address in places)
        options = [
            f"--addresses={addresses}", f"--model={model}", f"--rounds={arguments.rounds}",
            f"--steps={arguments.steps if model == 'short' else max(1, arguments.steps // 5)}",
        ]  # fmt: skip
        options += [f"--link={arguments.link}"] if arguments.link else []
        if arguments.bytes_per_pack:
            options.append(f"--bytes-per-pack={arguments.bytes_per_pack}")
        processes = [
            subprocess.Popen(
                [*start, sys.executable, __file__, f"--task={i}", *options], cwd=ROOT,
                stdout=subprocess.PIPE, stderr=None if arguments.verbose else subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2",
                     "CUDA_VISIBLE_DEVICES": "-1", "no_grpc_proxy": "127.0.0.1"},
            )
            for i, (start, _) in enumerate(places)
        ]  # fmt: skip
        outputs = [process.communicate()[0] for process in processes]
    lines = outputs[0].decode().strip().splitlines()
    if not lines:
        raise SystemExit("the tasks have failed; --verbose shows why")
    found = json.loads(lines[-1])
    times = found["times"]
    for way in WAYS:
        ratios = [own / time for own, time in zip(times["alone"], times[way], strict=True)]
        first, middle, last = statistics.quantiles(ratios, n=4)
        each = 1000 * statistics.median(times[way])
        print(
            f"| {tasks} | {arguments.link or 'one machine'} | {found['bytes']:,} | {way} "
            f"| {each:.1f} | {middle:.2f} ({first:.2f} to {last:.2f}; {min(ratios):.2f} to "
            f"{max(ratios):.2f}) |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--steps", type=int, default=40, help="a call; a fifth of the long ones")
    parser.add_argument("--tasks", type=int, nargs="+", default=[2])
    parser.add_argument("--models", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--link", help="rate of the link of each task, such as 1gbit")
    parser.add_argument("--delay", help="of each task's link, such as 1ms; needs netem")
    parser.add_argument("--bytes-per-pack", type=int)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--task", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--addresses", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task is not None:
        task(arguments)
        return
    print("| tasks | network | bytes | way | ms a step | of those alone |")
    print("|---|---|---|---|---|---|")
    for model in arguments.models:
        for tasks in arguments.tasks:
            measure(arguments, model, tasks)


if __name__ == "__main__":
    main()
