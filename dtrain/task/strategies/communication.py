"""How the tasks of ``strategy=multiworker`` add gradients up: TensorFlow's way, or the host's own.

TensorFlow's collectives go through gRPC, between tasks of one machine as well. With
``strategy.communication=host`` the tasks of a machine add up in memory that they share, and
machines by sockets (:mod:`dtrain.task.exchange`). ``auto`` takes what a short measurement says is
faster for the gradients of this model.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.errors import TrainingError
from dtrain.run.cluster import EXCHANGE_SECRET, Cluster, Task
from dtrain.task.exchange.exchange import Exchange
from dtrain.task.replica import reduction
from dtrain.task.tensors import total

#: Sums that are timed of each kind, in turn, after those that are not.
ROUNDS, IDLE = 7, 2
#: Bytes of the longest vector for which ``auto`` looks at the host's way. Whole steps with more
#: were slower by it, though the sum alone was not (``docs/measurements.md``).
LONGEST = 1 << 20

AddUpNumbers = Callable[[list[float]], list[float]]


def over_host(exchange: Exchange) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function for :class:`reduction.Packed`: it adds up over this task's replicas first.

    TensorFlow runs what it calls in the order in which it was traced, and so in one order in all
    tasks.
    """

    def meet(strategy: tf.distribute.Strategy, vector: Any) -> tf.Tensor:
        parts = strategy.experimental_local_results(vector)
        own = parts[0] if len(parts) == 1 else total(parts)
        summed = tf.numpy_function(exchange.sum, [own], own.dtype)
        return tf.ensure_shape(summed, own.shape)

    @tf.custom_gradient
    def add_up(vector: tf.Tensor) -> Any:
        context = tf.distribute.get_replica_context()
        assert context is not None
        summed = context.merge_call(meet, args=(vector,))
        # The gradient of a sum over all is a sum over all itself.
        return summed, add_up

    return add_up


def connect(cluster: Cluster, task: Task, add_up: AddUpNumbers) -> Exchange | str:
    """Connect all tasks with each other; each must call it at the same point.

    Args:
        cluster: all tasks, with their addresses.
        task: this one.
        add_up: adds numbers up over the tasks.

    Returns:
        The exchange, or why there is none, in all tasks.
    """
    rank, tasks = cluster.tasks.index(task), len(cluster.tasks)
    key = os.environ.pop(EXCHANGE_SECRET, "").encode()
    if add_up([float(bool(key))])[0] < tasks:
        return "the launcher gives tasks no key to prove to each other"

    def share(own: list[int]) -> list[list[int]]:
        # As float64, in which integers are exact up to 53 bits.
        width = len(own)
        row = [0.0] * (rank * width) + [float(n) for n in own]
        flat = add_up(row + [0.0] * ((tasks - rank - 1) * width))
        return [[int(n) for n in flat[i : i + width]] for i in range(0, len(flat), width)]

    hosts = [str(each.address).rpartition(":")[0].strip("[]") for each in cluster.tasks]
    names = [each.name for each in cluster.tasks]
    found: Exchange | str
    try:
        found = Exchange(rank, hosts, names, key, share)
    except OSError as error:
        found = f"{task.name}: {error}"
    failed = add_up([float(i == rank and isinstance(found, str)) for i in range(tasks)])
    if not any(failed):
        return found
    if isinstance(found, Exchange):
        found.close()
        others = ", ".join(name for name, no in zip(names, failed, strict=True) if no)
        found = f"{others} could not connect; the reason is in the log of that task"
    return found


def needed(problem: str) -> TrainingError:
    """Return the error of a run that has `communication=host`, whose tasks cannot connect."""
    return TrainingError(
        f"strategy.communication=host: the tasks cannot connect ({problem}); "
        "strategy.communication=ring uses TensorFlow's connections"
    )


def size(model: keras.Model, kind: tf.DType) -> int:
    """Return how many bytes the gradients of a model have on their way, all of type ``kind``."""
    return kind.size * sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


def measure(
    engine: tf.distribute.Strategy,
    ways: dict[str, reduction.Packed],
    model: keras.Model,
    add_up: AddUpNumbers,
) -> tuple[dict[str, float], int]:
    """Time sums over the tasks; each must call it at the same point.

    Args:
        engine: of the strategy.
        ways: to add up, by name.
        model: built; of its gradients the vector has the length.
        add_up: adds numbers up over the tasks.

    Returns:
        Seconds of a sum by the name of its way, the means of the tasks' medians and so the same in
        all; and the bytes of a vector on its way.
    """
    vector = tf.zeros([max(1, size(model, tf.float32) // 4)])
    [travels] = {way.travels(vector.dtype) for way in ways.values()}
    functions = {name: _summing(engine, way) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(IDLE + ROUNDS):
        for name, function in functions.items():
            began = time.perf_counter()
            function(vector)
            if turn >= IDLE:
                times[name].append(time.perf_counter() - began)
    sums = add_up([1.0, *map(statistics.median, times.values())])
    seconds = [each / sums[0] for each in sums[1:]]
    return dict(zip(ways, seconds, strict=True)), travels.size * len(vector)


def _summing(engine: tf.distribute.Strategy, way: reduction.Packed) -> Callable[[Any], Any]:
    def replica(vector: tf.Tensor) -> tf.Tensor:
        return way.total(tf.identity(vector))[:1]

    return tf.function(lambda vector: engine.run(replica, args=(vector,)), autograph=False)
