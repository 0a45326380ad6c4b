"""How the examples of a step come to the worker that runs it."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.task.backends.tensorflow import input_pipeline
from dtrain.task.backends.tensorflow.tensors import fresh
from dtrain.task.data.inputs import Inputs


class Feed:
    """Brings a step's examples to the worker that runs it.

    What a source of tensors holds is sent to each worker once and read there; the chief sends which
    rows. A source in plain Python, or a stream, is read by the chief, and its examples travel with
    the step.

    Args:
        coordinator: of TensorFlow.
        source: what is read.
        inputs: says which examples.
        parts: how many equal parts a global batch has.
        training: whether this is for training or for evaluation.
    """

    def __init__(
        self,
        coordinator: Any,
        source: Source | Stream,
        inputs: Inputs,
        parts: int,
        training: bool,
    ):
        self._source = source
        self._inputs = inputs
        self._training = training
        #: Sent to a worker once: a tensor that it has had is not sent again.
        self._numbers = [tf.constant(part, tf.int64) for part in range(parts)]
        #: That the chief has waited for what it reads itself.
        self.seconds = 0.0
        self._local: Iterator[Any] | None = None
        self._remote: Any = None
        if isinstance(source, Stream) or not source.in_graph:
            make = input_pipeline.training if training else input_pipeline.evaluation
            dataset = make(inputs, replicas=parts, first_replica=0, local_replicas=parts)
            self._local = iter(dataset)
            return
        if training:
            ahead = inputs.steps_ahead

            def looked_up(turn: int) -> list[np.ndarray]:
                steps = np.arange(turn * ahead, (turn + 1) * ahead)
                return list(inputs.rows(steps, parts, slice(0, parts)))

            self._ahead, self._looked_up = ahead, functools.lru_cache(1)(looked_up)
        else:
            self._batches = inputs.evaluation_batches(1)
        if hasattr(source, "tensors"):
            held: Any = source
            tensors = tuple(held.tensors())
            self._remote = iter(
                coordinator.create_per_worker_dataset(
                    lambda: tf.data.Dataset.from_tensors(tensors).repeat()
                )
            )

    def arguments(self, step: int) -> list[tuple[Any, ...]]:
        """Return what :meth:`load` needs on a worker, for each part of ``step``; ascending.

        The second of the arguments is the number of the part.
        """
        parts = self._numbers
        if self._local is not None:
            begin = time.perf_counter()
            arguments = [(next(self._local), part) for part in parts]
            self.seconds += time.perf_counter() - begin
            return arguments
        if self._training:
            turn, at = divmod(step, self._ahead)
            mine = slice(at * len(parts), (at + 1) * len(parts))
            rows = zip(*(each[mine] for each in self._looked_up(turn)), strict=True)
        else:
            rows = zip(*self._batches[step, :, None], strict=True)
        remote = () if self._remote is None else (self._remote,)
        return [
            (tuple(map(fresh, row)), part, *remote) for row, part in zip(rows, parts, strict=True)
        ]

    def load(self, *arguments: Any) -> Any:
        """Return the examples; traced, and run on a worker."""
        if self._local is not None:
            return arguments[0]
        source: Any = self._source
        if self._remote is not None:
            source = copy.copy(source)
            source.bind(next(arguments[2]))
        if self._training:
            return input_pipeline.training_part(self._inputs, source, *arguments[0])
        size = self._inputs.evaluation_batch
        return input_pipeline.evaluation_part(source, size, *arguments[0])
