"""How workers update the variables: each by itself, or all at once.

Updates as they come: each worker applies its own gradient.

One update a global batch: the average of what the workers computed. That is one tensor on its way
to the chief, and one on to each server: each tensor that the chief fetches is a call over the
network, and so is each that it sends on.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from dtrain.files.fields import Json
from dtrain.task.aliases import Foreign, Nest, Tensor, Tensors
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.tensorflow.parameter_server.steps import CoordinatedSteps, worker_index
from dtrain.task.backends.tensorflow.replica import random_draws
from dtrain.task.backends.tensorflow.replica.dependence import appended, divided
from dtrain.task.backends.tracing import tracing


def mean(vectors: list[np.ndarray]) -> np.ndarray:
    """Return the mean of float32 vectors ``[f]``, summed in their order.

    By NumPy, and not by TensorFlow, which takes a list of arrays apart number by number.
    """
    total = vectors[0] if len(vectors) == 1 else vectors[0] + vectors[1]
    for vector in vectors[2:]:
        total += vector
    return total / np.float32(len(vectors))


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A tensor that is packed.

    Attributes:
        variable: its number, those that are trained first.
        of: ``dense``, or ``values`` or ``indices`` of rows that were looked up.
        shape: of the tensor.
        floating: whether it travels as float32, and not as int64.
        appended: whether the workers' are appended, and not averaged.
    """

    variable: int
    of: str
    shape: tuple[int, ...]
    floating: bool
    appended: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Packing:
    """Packs gradients and the new values of layers into bytes, and unpacks them.

    Floating values travel as float32, all others as int64. Those of variables that a server has
    follow each other. Rows that were looked up travel as such, for an optimizer may square each:
    those that all workers have are averaged, and those of each worker's examples appended.

    Args:
        model: whose variables they are of.
        gradients: of each trainable variable, or None.
        others: of each other variable, or None.
        same: of gradients that are rows, by their ids: which uses of the table give rows that all
            workers have.
    """

    def __init__(
        self, model: keras.Model, gradients: Tensors, others: Tensors, same: dict[int, list[bool]]
    ):
        self._variables = [*model.trainable_variables, *model.non_trainable_variables]
        self._trainable = len(gradients)
        tensors: dict[_Piece, tf.Tensor] = {}
        for i, value in enumerate((*gradients, *others)):
            for piece, tensor in self._divided(i, value, same.get(id(value), [])):
                tensors[piece] = tensor
        pieces = sorted(tensors, key=lambda p: (p.appended, str(self._device(p.variable))))
        self._floats = [piece for piece in pieces if piece.floating]
        self._whole = [piece for piece in pieces if not piece.floating]
        #: What is packed, in the graph of this packing alone.
        self.tensors = [
            *(_flat(tensors[piece], tf.int64) for piece in self._whole),
            *(_flat(tensors[piece], tf.float32) for piece in self._floats),
        ]

    def _divided(self, i: int, value: Tensor, same: list[bool]) -> Iterator[tuple[_Piece, Tensor]]:
        if value is None:
            return
        floating = tf.as_dtype(self._variables[i].dtype).is_floating
        rows = isinstance(value, tf.IndexedSlices)
        if not rows or value.indices.shape[0] is None:  # of how many rows there are no bytes say
            dense = tf.convert_to_tensor(value)
            yield _Piece(i, "dense", tuple(self._variables[i].shape), floating), dense
            return
        for own, part in enumerate(divided(value, same or [False])):
            if part is not None:
                of, appended = (i, "values"), bool(own)
                yield _Piece(*of, tuple(part.values.shape), floating, appended), part.values
                yield _Piece(i, "indices", tuple(part.indices.shape), False, appended), part.indices

    def pack(self, account: tf.Tensor) -> tf.Tensor:
        """Return all of them as one tensor, uint8 ``[n]``; in a graph.

        Args:
            account: float64 ``[m]``, first of all.
        """
        parts = [account, *self.tensors]
        return tf.concat([tf.reshape(tf.bitcast(part, tf.uint8), [-1]) for part in parts], 0)

    def unpack(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what was packed: float32 ``[f]``, int64 ``[w]``, and the account."""
        floats = len(data) - 4 * sum(piece.size for piece in self._floats)
        whole = floats - 8 * sum(piece.size for piece in self._whole)
        return (
            data[floats:].view(np.float32),
            data[whole:floats].view(np.int64),
            data[:whole].view(np.float64),
        )

    def together(self, floats: list[np.ndarray], whole: list[np.ndarray]) -> list[np.ndarray]:
        """Return what the workers have computed together, of what each has.

        Args:
            floats, whole: of :meth:`unpack`, of each worker.

        Returns:
            float32 ``[a]`` and int64 ``[b]`` of what is averaged, or the same for all; then float32
            ``[workers, c]`` and int64 ``[workers, d]`` of what is appended.
        """
        a, b = (
            sum(piece.size for piece in pieces if not piece.appended)
            for pieces in (self._floats, self._whole)
        )
        rows = np.stack([each[a:] for each in floats]) / np.float32(len(floats))
        indices = np.stack([each[b:] for each in whole])
        return [mean([each[:a] for each in floats]), whole[0][:b], rows, indices]

    def part(
        self, floats: tf.Tensor, whole: tf.Tensor, rows: tf.Tensor, indices: tf.Tensor
    ) -> tuple[Tensors, Tensors]:
        """Return gradients and others again, each on the server of its variable; in a graph.

        Args:
            floats, whole, rows, indices: of :meth:`together`.
        """
        received: list[dict[str, Tensors]] = [{} for _ in self._variables]
        for vector, table, pieces in (
            (floats, rows, self._floats), (whole, indices, self._whole),
        ):  # fmt: skip
            once = [piece for piece in pieces if not piece.appended]
            while once:
                device = self._device(once[0].variable)
                here = [piece for piece in once if self._device(piece.variable) == device]
                once = once[len(here) :]
                sizes = [piece.size for piece in here]
                with tf.device(device):  # where they will be needed
                    sent, vector = tf.identity(vector[: sum(sizes)]), vector[sum(sizes) :]
                    for piece, value in zip(here, tf.split(sent, sizes), strict=True):
                        self._take(received, piece, tf.reshape(value, piece.shape))
            for piece in pieces[len(pieces) - sum(piece.appended for piece in pieces) :]:
                with tf.device(self._device(piece.variable)):
                    value, table = tf.identity(table[:, : piece.size]), table[:, piece.size :]
                    self._take(received, piece, tf.reshape(value, [-1, *piece.shape[1:]]))
        values = [self._joined(i, parts) for i, parts in enumerate(received)]
        return values[: self._trainable], values[self._trainable :]

    def _take(self, received: list[dict[str, Tensors]], piece: _Piece, value: tf.Tensor) -> None:
        dtype = tf.int64 if piece.of == "indices" else self._variables[piece.variable].dtype
        received[piece.variable].setdefault(piece.of, []).append(tf.cast(value, dtype))

    def _joined(self, i: int, parts: dict[str, Tensors]) -> tf.Tensor:
        if "values" not in parts:
            return parts["dense"][0] if parts else None
        shape = tf.constant(list(self._variables[i].shape), tf.int64)
        pairs = zip(parts["values"], parts["indices"], strict=True)
        return appended([tf.IndexedSlices(values, indices, shape) for values, indices in pairs])

    def _device(self, index: int) -> Foreign:
        return self._variables[index].value.device


def _flat(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.reshape(tf.cast(value, dtype), [-1])


class AsynchronousSteps(CoordinatedSteps):
    """Each step's gradient is applied by its worker as soon as it is there.

    A bound on staleness holds back the start of a step (as in Ho et al. 2013, More Effective
    Distributed ML via a Stale Synchronous Parallel Parameter Server): nothing is dropped. A step
    can be overtaken only by those in flight when it was begun and those begun while it is in
    flight; one more is begun only while that number is within the bound for every one of them.

    Args:
        max_staleness: how many updates may come between the reading of the variables and the
            update made of them; None for any.
        arguments: of :class:`CoordinatedSteps`.
    """

    def __init__(self, max_staleness: int | None, *arguments: Nest):
        super().__init__(*arguments)
        self._bound = max_staleness
        self._in_flight: dict[int, int] = {}  # step: how many may overtake it
        self._staleness: collections.Counter[int] = collections.Counter()
        self._interval: collections.Counter[int] = collections.Counter()
        iterations = self._model.optimizer.iterations
        # Keras would read, add and assign: of two at once one would be lost.
        iterations.assign_add = lambda n: iterations.value.assign_add(tf.cast(n, iterations.dtype))

    def _may_begin(self) -> bool:
        if self._bound is None:
            return len(self._in_flight) < 2 * self._workers
        return len(self._in_flight) <= min(self._bound, self._workers - 1) and all(
            overtaking < self._bound for overtaking in self._in_flight.values()
        )

    def train(self, steps: int, ahead: int = 0) -> Sums:
        """Wait for the next ``steps`` updates, whichever; others stay in flight."""
        sums = Sums()
        while sums.steps < steps:
            while len(self._in_flight) < steps - sums.steps + ahead and self._may_begin():
                self._in_flight = {step: n + 1 for step, n in self._in_flight.items()}
                self._in_flight[self._step] = len(self._in_flight)
                [arguments] = self.fed()
                self._begin((self._step,), self._train_step_remote, arguments)
                self._step += 1
            self._take(sums)
        return sums

    def drain(self) -> Sums:
        """Wait for every update that is under way."""
        sums = Sums()
        while self._in_flight:
            self._take(sums)
        return sums

    def _take(self, sums: Sums) -> None:
        (step,), vector = self._next()
        del self._in_flight[step]
        *numbers, staleness, worker = np.asarray(vector)
        self._interval[int(staleness)] += 1
        self._worker_steps[int(worker)] += 1
        row = np.array(numbers)
        sums.append(self._account([row], self._global_batch, training=True, steps=1))

    @tf.function(autograph=False)
    def _train_step_remote(self, *arguments: Nest) -> tf.Tensor:
        data = self._feed.load(*arguments)
        model = self._model
        iterations = model.optimizer.iterations

        def replica() -> tf.Tensor:
            # ORDER: count, then read the variables; compute, count again, then update.
            before = tf.identity(iterations.value)
            with tf.control_dependencies([before]):
                gradients, others, vector = self._pure(data, training=True)
            computed = [tf.convert_to_tensor(g) for g in gradients if g is not None]
            with tf.control_dependencies([*computed, vector]):
                after = tf.identity(iterations.value)
            with tf.control_dependencies([after]):
                norms = self._update(gradients)
                for variable, value in zip(model.non_trainable_variables, others, strict=True):
                    if value is not None:
                        variable.assign(value)
            account = [tf.cast(after - before, tf.float64), tf.cast(worker_index(), tf.float64)]
            return tf.concat([vector, *norms, account], 0)

        return self._engine.run(replica)

    def interval(self) -> dict[str, float]:
        """Return mean and greatest staleness of the updates since the last such call."""
        found, self._interval = self._interval, collections.Counter()
        self._staleness += found
        if not found:
            return {}
        return {
            "staleness": sum(k * n for k, n in found.items()) / found.total(),
            "staleness_max": float(max(found)),
        }

    def summary(self) -> Json:
        """Return how many updates there were of each staleness, and of each worker."""
        found = self._staleness + self._interval
        return {**super().summary(), "staleness": {str(k): found[k] for k in sorted(found)}}

    def restore(self, summary: Json) -> None:
        """Go on counting from a summary."""
        super().restore(summary)
        counts = {int(k): n for k, n in summary.get("staleness", {}).items()}
        self._staleness = collections.Counter(counts)


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

    def __init__(self, backup_workers: int, *arguments: Nest):
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
        arrived: dict[int, Foreign] = {}
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
    def _compute(self, *arguments: Nest) -> Foreign:
        """Return gradients, new values and accounts, packed."""
        data = self.waiting.entered(self.waiting.fetched(lambda: self._feed.load(*arguments)))

        def replica() -> Foreign:
            draws = self._drawn(data, self._part_rows)
            part = random_draws.part(arguments[1], self._workers, self._part_rows, draws)
            with random_draws.seeded(self._seed), tracing(draws=part):
                gradients, others, vector = self._pure(data, True, self._workers)
            self._packing = Packing(self._model, gradients, others, self._same)
            account = [self.waiting.seconds, tf.cast(worker_index(), tf.float64)]
            return self._packing.pack(tf.concat([vector, account], 0))

        return self._engine.run(replica)

    @tf.function(autograph=False)
    def _apply(self, *together: tf.Tensor) -> Tensors:
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

    def summary(self) -> Json:
        """Return how many parts each worker has done, and how many gradients were dropped."""
        return {**super().summary(), "dropped_gradients": self._dropped}

    def restore(self, summary: Json) -> None:
        """Go on counting from a summary."""
        super().restore(summary)
        self._dropped = self._told = summary.get("dropped_gradients", 0)
