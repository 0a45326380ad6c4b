"""Probes in a training step: of each layer's input, output and their gradients, and of weights.

Each counts the values that are not finite, where they are computed, and calls back into this
process. Probes have their order from the trace of the step, forward and then backward, which is the
same on all replicas and in all tasks: the first of them that has found something is where it began.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.task import keras_internals
from dtrain.task.debugging import calls

#: What a probe looks at.
DATA, INPUT, OUTPUT, LOSS = "data", "input", "output", "loss"
ARRIVES, PASSES, GRADIENT = "arrives", "passes", "gradient"

_local = threading.local()


@dataclasses.dataclass(frozen=True)
class Probe:
    """Where a probe is.

    Attributes:
        order: of the probes of a step, from 0.
        kind: what it looks at.
        path: of the layer, such as ``encoder/dense_2``, or of the weight; of data its place.
        what: class of the layer, or shape.
        replica: that it is on.
    """

    order: int
    kind: str
    path: str
    what: str
    replica: int


@dataclasses.dataclass(frozen=True)
class Count:
    """What a probe has counted in a step; ``largest`` is of the finite values, in magnitude."""

    nan: int
    infinite: int
    size: int
    largest: float

    @property
    def bad(self) -> int:
        """How many are not finite."""
        return self.nan + self.infinite


class Probes:
    """The probes of all traces of a step. A watcher of calls.

    Attributes:
        counts: of the last step, by probe.
    """

    def __init__(self) -> None:
        self.counts: dict[Probe, Count] = {}
        self._made: list[Probe] = []
        self._lock = threading.Lock()
        self._seen: Any = contextlib.nullcontext

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let tapes and layers ask for probes; there are some where :meth:`of_step` says so.

        ORDER: before dtrain averages the gradients of replicas: each is seen as it was computed.
        """
        original = tf.GradientTape.gradient

        @functools.wraps(original)
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            if _order() is None or getattr(_local, "inside", False):
                return original(tape, target, sources, *args, **kwargs)
            targets = map(tf.convert_to_tensor, tf.nest.flatten(target))
            looks = [
                self._look(each, LOSS, "", _shape(each)) for each in targets if calls.is_float(each)
            ]
            _local.inside = True
            try:
                found = original(tape, target, sources, *args, **kwargs)
            finally:
                _local.inside = False
            return self._gradients(found, sources, looks)

        with calls.watched(self) as self._seen:
            tf.GradientTape.gradient = gradient
            try:
                yield
            finally:
                tf.GradientTape.gradient = original

    def of_step(self, model: keras.Model) -> None:
        """Put probes into the training step of a model, from its next trace on."""
        original = model.train_step

        @functools.wraps(original)
        def train_step(data: Any) -> Any:
            _local.order = 0
            try:
                with self._seen():
                    self._look_at_data(data)
                    return original(data)
            finally:
                _local.order = None

        model.train_step = train_step

    def take(self) -> dict[Probe, Count]:
        """Return what was counted since the last call, by probe."""
        with self._lock:
            found, self.counts = self.counts, {}
        return found

    def entered(self, path: str, layer: keras.Operation, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Put probes on the inputs of a layer, and on the gradients that it passes on."""
        found = self._mapped((args, kwargs), INPUT, PASSES, path, type(layer).__name__)
        return found[0], found[1]

    def left(self, path: str, layer: keras.Operation, outputs: Any) -> Any:
        """Put probes on the outputs of a layer, and on the gradients that arrive there."""
        return self._mapped(outputs, OUTPUT, ARRIVES, path, type(layer).__name__)

    def _mapped(self, values: Any, forward: str, backward: str, path: str, what: str) -> Any:
        def probed(value: Any) -> Any:
            if not calls.is_float(value):
                return value
            found = self._both(value, forward, backward, path, what)
            if (mask := keras_internals.mask(value)) is not None:
                keras_internals.set_mask(found, mask)
            return found

        return keras.tree.map_structure(probed, values)

    def _look_at_data(self, data: Any) -> None:
        parts = keras.utils.unpack_x_y_sample_weight(data)
        for name, part in zip(("inputs", "targets", "sample weights"), parts, strict=True):
            for value in tf.nest.flatten(part):
                if calls.is_float(value):
                    self._look(value, DATA, name, _shape(value))

    def _both(self, value: Any, forward: str, backward: str, path: str, what: str) -> Any:
        probes = self

        @tf.custom_gradient
        def identity(x: Any) -> Any:
            def grad(upstream: Any) -> Any:
                return probes._checked(upstream, backward, path, what)

            return probes._checked(x, forward, path, what), grad

        return identity(value)

    def _gradients(self, found: Any, sources: Any, looks: list[Any]) -> Any:
        gradients = tf.nest.flatten(found)
        with tf.control_dependencies(looks):
            for i, source in enumerate(tf.nest.flatten(sources)):
                if gradients[i] is not None:
                    path = getattr(source, "path", None) or getattr(source, "name", "") or "input"
                    gradients[i] = self._checked(gradients[i], GRADIENT, path, _shape(source))
        return tf.nest.pack_sequence_as(found, gradients)

    def _checked(self, value: Any, kind: str, path: str, what: str) -> Any:
        """Return a value, dense or sparse, after it was looked at."""
        dense = value.values if isinstance(value, tf.IndexedSlices) else value
        if not calls.is_float(dense):
            return value
        with tf.control_dependencies([self._look(dense, kind, path, what)]):
            dense = tf.identity(dense)
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(dense, value.indices, value.dense_shape)
        return dense

    def _look(self, value: tf.Tensor, kind: str, path: str, what: str) -> tf.Tensor:
        """Return what is there once a tensor was looked at."""
        context = tf.distribute.get_replica_context()
        replica = 0 if context is None else tf.get_static_value(context.replica_id_in_sync_group)
        order = _order() or 0
        _local.order = order + 1
        with self._lock:
            number = len(self._made)
            self._made.append(Probe(order, kind, path, what, int(replica or 0)))
        wide = tf.cast(tf.stop_gradient(value), tf.float64)  # 1e39 is one of float64: not changed
        finite = tf.math.is_finite(wide)
        zeros = tf.zeros_like(wide)
        largest = tf.reduce_max(tf.concat([[0.0], tf.reshape(
            tf.where(finite, tf.abs(wide), zeros), [-1])], 0))  # fmt: skip
        counts = [tf.reduce_sum(tf.cast(each, tf.float64)) for each in (
            tf.math.is_nan(wide), tf.math.is_inf(wide), tf.ones_like(finite))]  # fmt: skip
        return tf.numpy_function(
            functools.partial(self._count, number), [tf.stack([*counts, largest])], tf.bool
        )

    def _count(self, number: int, found: np.ndarray) -> np.bool_:
        nan, infinite, size, largest = found.tolist()
        probe = self._made[number]
        with self._lock:
            before = self.counts.get(probe)
            if before is None or not before.bad:  # a layer may be called more than once in a loop
                self.counts[probe] = Count(int(nan), int(infinite), int(size), largest)
        return np.bool_(True)


def _order() -> int | None:
    """Return the order of the next probe, None outside of a training step that is traced."""
    return getattr(_local, "order", None)


def _shape(value: Any) -> str:
    return " x ".join(str(size) for size in value.shape)
