"""One update a global batch: the average of what the workers computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.tensorflow.parameter_server.packing import Packing
from dtrain.task.backends.tensorflow.parameter_server.steps import CoordinatedSteps, worker_index
from dtrain.task.backends.tensorflow.replica import host_random, random_draws
from dtrain.task.backends.tracing import tracing


class SynchronousSteps(CoordinatedSteps):
    """One averaged update a global batch, of which each worker computes a part.

    With backup workers the update is made of the first gradients to come, and those of the
    slowest are dropped (Chen et al. 2016, Revisiting Distributed Synchronous SGD): a worker that
    is late is given nothing new before it is done. The examples of what is dropped are not
    trained on, nor counted.

    Args:
        backup_workers: how many gradients a step does without.
        arguments: of :class:`CoordinatedSteps`.
    """

    def __init__(self, backup_workers: int, *arguments: Any):
        super().__init__(*arguments)
        self._needed = self._workers - backup_workers
        self._part_rows = self._global_batch // self._workers
        self._late = 0  # parts of earlier steps that are still being computed
        self._dropped = 0
        self._told = 0  # of them, in points of the journal

    def train(self, steps: int, ahead: int = 0) -> Sums:
        """Run ``steps`` updates, one after the other."""
        sums = Sums()
        for _ in range(steps):
            sums.append(self._train_one())
        return sums

    def _train_one(self) -> Sums:
        step, parts = self._step, self.fed()
        while self._workers - self._late < self._needed:
            self._next()
            self._came_late()
        free = self._workers - self._late
        for turn in range(free):  # in turn, so that no part of the batches is always left out
            part = (step + turn) % self._workers
            self._begin((step, part), self._compute, parts[part])
        arrived: dict[int, Any] = {}
        while len(arrived) < self._needed:
            (of_step, part), value = self._next()
            if of_step == step:
                arrived[part] = value
            else:
                self._came_late()
        self._late += free - len(arrived)
        self._dropped += self._workers - self._needed
        # Summed in the order of the parts: the result must not depend on who came first.
        values = [self._packing.unpack(arrived[part]) for part in sorted(arrived)]
        floats, whole, vectors = zip(*values, strict=True)
        norms = self._apply(*self._packing.together(floats, whole))
        for vector in vectors:
            self._worker_steps[int(vector[-1])] += 1
        self.waiting.add(float(np.mean([vector[-2] for vector in vectors])))
        self._step += 1
        rows = [np.concatenate([vector[:-2], *norms]) for vector in vectors]
        return self._account(rows, self._part_rows, training=True, steps=1)

    def _came_late(self) -> None:
        self._late -= 1

    @tf.function(autograph=False)
    def _compute(self, *arguments: Any) -> Any:
        """Return gradients, new values and accounts, packed."""
        data = self.waiting.entered(self.waiting.fetched(lambda: self._feed.load(*arguments)))

        def replica() -> Any:
            draws = self._drawn(data, self._part_rows)
            part = random_draws.part(arguments[1], self._workers, self._part_rows, draws)
            with host_random.seeded(self._seed), tracing(draws=part):
                gradients, others, vector = self._pure(data, True, self._workers)
            self._packing = Packing(self._model, gradients, others, self._same)
            account = [self.waiting.seconds, tf.cast(worker_index(), tf.float64)]
            return self._packing.pack(tf.concat([vector, account], 0))

        return self._engine.run(replica)

    @tf.function(autograph=False)
    def _apply(self, *together: tf.Tensor) -> list[tf.Tensor]:
        model = self._model
        gradients, others = self._packing.part(*together)
        with self._engine.scope():
            # The optimizer is only ever called inside a replica.
            with tf.distribute.ReplicaContext(self._engine, 0):
                norms = self._update(gradients)
            for variable, value in zip(model.non_trainable_variables, others, strict=True):
                if value is not None:
                    variable.assign(value)
        return norms

    def interval(self) -> dict[str, float]:
        """Return how many gradients were dropped since the last such call, if any may be."""
        if self._needed == self._workers:
            return {}
        dropped, self._told = self._dropped - self._told, self._dropped
        return {"dropped_gradients": float(dropped)}

    def summary(self) -> dict[str, Any]:
        """Return how many parts each worker has done, and how many gradients were dropped."""
        return {**super().summary(), "dropped_gradients": self._dropped}

    def restore(self, summary: dict[str, Any]) -> None:
        """Go on counting from a summary."""
        super().restore(summary)
        self._dropped = self._told = summary.get("dropped_gradients", 0)
