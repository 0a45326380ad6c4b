"""How fast the examples of training can be read."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import tensorflow as tf

from dtrain.data import failures, nest
from dtrain.data.streams import examples_in
from dtrain.task import input_pipeline
from dtrain.task.inputs import Inputs

#: Seconds of a measurement, and of one of data that is through before.
SECONDS, LEAST = 2.0, 0.5
#: Batches, and seconds, that are read before one: functions are traced, buffers are filled.
WARM_BATCHES, WARM_SECONDS = 10, 0.5


@dataclasses.dataclass(frozen=True)
class Speed:
    """What was read in a while.

    Attributes:
        examples: how many.
        bytes: of their arrays.
        seconds: that it took.
    """

    examples: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        each, size = self.examples / self.seconds, self.bytes / self.seconds / 1e6
        return f"{each:,.0f} examples/s, {f'{size:,.0f}' if size >= 100 else f'{size:.3g}'} MB/s"


def measured(inputs: Inputs) -> Speed:
    """Read batches of training for one replica: for 2 s, or one pass if that is shorter.

    Raises:
        DataError: an example cannot be read.
    """
    whole = examples_in(inputs.train)
    dataset = input_pipeline.training(inputs, replicas=1, first_replica=0, local_replicas=1)
    try:
        with tf.device("CPU:0"):
            batches = iter(dataset)
            begun = time.perf_counter()
            for _ in range(WARM_BATCHES):
                next(batches)
                if time.perf_counter() - begun > WARM_SECONDS:
                    break
            examples = size = 0
            begun = time.perf_counter()
            while True:
                size += _bytes(next(batches))
                examples += inputs.global_batch
                seconds = time.perf_counter() - begun
                through = whole is not None and examples >= whole and seconds >= LEAST
                if through or seconds >= SECONDS:
                    return Speed(examples, size, seconds)
    except tf.errors.OpError:
        found = failures.first()
        if found is None:
            raise
        raise found from None  # what TensorFlow makes of it says no more


def _bytes(batch: tuple[Any, ...]) -> int:
    found = 0
    for part in batch:
        for leaf in () if part is None else nest.leaves(part):
            if leaf.dtype == tf.string:
                found += int(tf.reduce_sum(tf.strings.length(leaf)))
            else:
                found += int(tf.size(leaf)) * leaf.dtype.size
    return found
