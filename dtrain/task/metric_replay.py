"""Metrics whose states do not add up: what they are given is recorded, and given once more.

The state of a maximum, of a mean of roots or of the last value is no sum, and that of two replicas
cannot be put together. So the arguments of such a metric's ``update_state`` come back from every
step beside its sums: of a validation, of each batch; of training, of the replicas in the order of
their examples, joined into those of the global batch. On the host the metric is updated with them,
batch after batch, on one state, as Keras' ``fit`` does on one device.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.data.sources import Source, Splits
from dtrain.errors import UsageError
from dtrain.host import memory
from dtrain.task import reading
from dtrain.task.metric_calls import Call, Leaf, flat, recordable, with_masks
from dtrain.task.metric_sums import Given

#: What such metrics may be given in a step, over all replicas.
MOST_BYTES = 2**28

_Calls = list[tuple[int, Any]]
# MirroredStrategy traces each replica in a thread of its own, and they take turns.
_current = threading.local()


class Replay:
    """The metrics of a model whose states do not add up.

    Args:
        model: built and compiled.
        metrics: those of it.
        splits: which examples there are, for their shapes.

    Attributes:
        positions: of their variables among those of all metrics of the model.
        initial: the values of these variables after ``reset_state``.
        notices: what is to be reported of their numbers; known after :meth:`learn`.
    """

    def __init__(self, model: keras.Model, metrics: list[keras.metrics.Metric], splits: Splits):
        self._metrics = metrics
        self._splits = splits
        self._variables = [v for metric in metrics for v in metric.variables]
        everything = [id(v) for metric in model.metrics for v in metric.variables]
        self.positions = [everything.index(id(v)) for v in self._variables]
        with tf.device("CPU:0"), keras.StatelessScope() as scope:
            for metric in metrics:
                metric.reset_state()
        self.initial = [
            np.asarray(tf.convert_to_tensor(v.value if found is None else found), np.float64)
            for v, found in ((v, scope.get_current_value(v)) for v in self._variables)
        ]
        self.notices: list[str] = []
        self._updates = [metric.update_state for metric in metrics]
        for index in range(len(metrics)):
            self._watch(index)
        self._seen: _Calls = []  # of the step that was traced last
        self._calls: dict[bool, list[Call]] = {}  # by training or not
        self._parts: dict[bool, int] = {}
        self._functions: dict[tuple[bool, int], Any] = {}

    def _watch(self, index: int) -> None:
        metric, original = self._metrics[index], self._updates[index]

        @functools.wraps(original)
        def update_state(*args: Any, **kwargs: Any) -> Any:
            calls: _Calls | None = getattr(_current, "calls", None)
            if calls is not None:
                if tf.compat.v1.get_default_graph() is not _current.graph:
                    raise self.refused(
                        "is updated inside tf.cond, a loop or a tf.function of its own", index
                    )
                calls.append((index, with_masks((args, kwargs))))
            return original(*args, **kwargs)

        metric.update_state = update_state

    @contextlib.contextmanager
    def recording(self) -> Iterator[_Calls]:
        """Let what is traced inside, in a replica, fill in the calls of these metrics."""
        calls: _Calls = []
        _current.calls, _current.graph = calls, tf.compat.v1.get_default_graph()
        try:
            yield calls
        finally:
            _current.calls = _current.graph = None

    def learn(
        self, training: bool, rows: int, parts: int, trace: Callable[[tuple[Any, ...]], None]
    ) -> None:
        """Learn what the metrics are given in a step.

        Args:
            training: which step.
            rows: examples of a batch of it.
            parts: how many batches of so many examples are one update together.
            trace: traces the step for a batch of such tensors; nothing is run.

        Raises:
            UsageError: what one of them is given cannot be recorded.
        """
        source = self._splits.train if training else self._splits.validation
        assert source is not None
        shaped = []
        for examples in (rows, rows + 1):
            self._seen = []
            trace(_specs(source, examples))
            shaped.append([(index, *flat(call)) for index, call in self._seen])
        first, second = shaped
        if [index for index, *_ in first] != [index for index, *_ in second]:
            raise self.refused("is updated more or less often by the number of examples")
        self._calls[training] = [
            self._call(index, structure, list(zip(leaves, others, strict=True)), rows, parts)
            for (index, structure, leaves), (_, _, others) in zip(first, second, strict=True)
        ]
        self._parts[training] = parts
        size = 8 * parts * self.width(training)
        if size > MOST_BYTES:
            raise self.refused(
                f"is given {memory.text(size)} in a step of {rows * parts:,} examples"
            )

    def _call(
        self, index: int, structure: Any, pairs: list[tuple[Any, Any]], rows: int, parts: int
    ) -> Call:
        leaves: list[Any] = []
        for one, other in pairs:
            if not tf.is_tensor(one) and type(one) is type(other) and one == other:
                leaves.append(one)
                continue
            if not recordable(one) or not recordable(other):
                raise self.refused(f"is given a {type(one).__name__}", index)
            a, b = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
            leaf = Leaf.of(a, b, rows)
            if leaf is None:
                raise self.refused(
                    f"is given values of shape {a.shape}, whose rows are not those of the {rows} "
                    f"examples (of one example more it is {b.shape})", index
                )  # fmt: skip
            if parts > 1 and not leaf.factor:
                known = tf.get_static_value(a), tf.get_static_value(b)
                if None not in known and np.any(known[0] != known[1]):
                    raise self.refused("is given the number of examples of a replica", index)
                notice = (
                    f"{self._metrics[index].name}: what it is given in training is no value of "
                    "each example, and is the mean over the replicas; in a validation it is what "
                    "one device has"
                )
                self.notices += [notice] if notice not in self.notices else []
            leaves.append(leaf)
        return Call(self._updates[index], structure, leaves)

    def width(self, training: bool) -> int:
        """Return how many numbers :meth:`given` has."""
        return sum(leaf.size for call in self._calls.get(training, ()) for leaf in call.tensors)

    def given(
        self,
        training: bool,
        calls: _Calls,
        rows: Any,
        whole: Callable[[tf.Tensor], tf.Tensor] = lambda tensor: tensor,
    ) -> list[tf.Tensor]:
        """Return what the metrics were given in a step, as a vector in a list.

        Args:
            training: which step.
            calls: of :meth:`recording`.
            rows: examples that the step had, of those that it has at most.
            whole: puts a tensor together that lies in parts.

        Returns:
            ``[float64 [w]]``; the rows that are not there are zeros. Nothing before :meth:`learn`.
        """
        if training not in self._calls:
            self._seen = calls
            return []
        numbers: list[tf.Tensor] = [tf.zeros([0], tf.float64)]
        known = self._calls[training]
        if len(known) != len(calls):
            raise self.refused("is updated more or less often by the number of examples")
        for call, (index, values) in zip(known, calls, strict=True):
            leaves = flat(values)[1]
            if len(leaves) != len(call.leaves):
                raise self.refused("is given other things by the number of examples", index)
            for leaf, value in zip(call.leaves, leaves, strict=True):
                if isinstance(leaf, Leaf):
                    tensor = tf.cast(tf.convert_to_tensor(value), leaf.dtype)
                    numbers.append(leaf.encoded(whole(tensor), rows))
        return [tf.concat(numbers, 0)]

    def slots(self, vectors: list[tf.Tensor], replica: Any, replicas: int) -> list[tf.Tensor]:
        """Return vectors of a replica in its place among those of all: their sum has each."""
        mine = tf.equal(tf.range(replicas), tf.cast(replica, tf.int32))[:, tf.newaxis]
        return [
            tf.reshape(tf.where(mine, vector, tf.zeros([], vector.dtype)), [-1])
            for vector in vectors
        ]

    def of_steps(self, training: bool, rows: np.ndarray, examples: int, batch: int) -> Given:
        """Return what some steps gave, to be added to sums.

        Args:
            training: which steps.
            rows: float64 ``[k, p * w]``: of ``k`` steps the vectors of ``p`` replicas.
            examples: of all these steps together.
            batch: the most that a replica has.
        """
        width = self.width(training)
        parts = rows.shape[1] // width if width else 0
        vectors = rows.reshape(len(rows), parts, width)
        if training:
            counts = np.full([len(rows), 1], batch)
        else:  # each replica has a batch of its own
            firsts = np.arange(len(rows) * parts) * batch
            counts = np.clip(examples - firsts, 0, batch).reshape(len(rows), parts)
        return Given(vectors, counts, functools.partial(self._add, training))

    def _add(
        self, training: bool, states: list[np.ndarray], vectors: np.ndarray, counts: np.ndarray,
        fresh: bool,
    ) -> None:  # fmt: skip
        if not training:
            vectors = vectors.reshape(counts.size, 1, vectors.shape[2])
            counts = counts.reshape(-1, 1)
        vectors, counts = vectors[counts[:, 0] > 0], counts[counts[:, 0] > 0, 0]
        begin = self.initial if fresh else [states[i] for i in self.positions]
        found: list[Any] = begin
        if self._calls.get(training) and len(counts):
            with tf.device("CPU:0"):
                values = [
                    tf.constant(value, v.dtype)
                    for value, v in zip(begin, self._variables, strict=True)
                ]
                function = self._function(training, vectors.shape[1])
                found = function(values, tf.constant(vectors), tf.constant(counts, tf.int64))
        for i, value in zip(self.positions, found, strict=True):
            states[i] = np.asarray(value, np.float64)

    def _function(self, training: bool, parts: int) -> Any:
        """Return the function that updates with batch after batch of ``parts`` parts each."""
        if (training, parts) in self._functions:
            return self._functions[training, parts]
        calls, variables = self._calls[training], self._variables

        def update(values: list[tf.Tensor], vectors: tf.Tensor, counts: tf.Tensor) -> Any:
            def body(i: tf.Tensor, *states: tf.Tensor) -> Any:
                pairs = list(zip(variables, states, strict=True))
                with keras.StatelessScope(state_mapping=pairs) as scope:
                    at = 0
                    for call in calls:
                        at = call.repeat(vectors[i], at, counts[i])
                new = [tf.cast(scope.get_current_value(v), v.dtype) for v in variables]
                return i + 1, *map(tf.ensure_shape, new, [v.shape for v in variables])

            start = [tf.constant(0, tf.int64), *values]
            _, *new = tf.while_loop(
                lambda i, *_: i < tf.shape(vectors, tf.int64)[0], body, start, parallel_iterations=1
            )
            return new

        specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        made = tf.function(update, autograph=False).get_concrete_function(
            specs,
            tf.TensorSpec([None, parts, self.width(training)], tf.float64),
            tf.TensorSpec([None], tf.int64),
        )
        if made.variables:
            raise self.refused(f"reads variables other than its own ({made.variables[0].name})")
        self._functions[training, parts] = made
        return made

    def check(self) -> None:
        """Refuse a metric that cannot be updated away from the model, before training.

        Raises:
            UsageError: naming it.
        """
        with tf.device("CPU:0"):
            for training, parts in self._parts.items():
                self._function(training, parts if training else 1)

    def refused(self, problem: str, index: int = 0) -> UsageError:
        """Return the refusal of one of the metrics, of which ``problem`` is said."""
        kind = type(self._metrics[index])
        return UsageError(
            "trainer.metrics", f"{kind.__module__}.{kind.__name__}",
            f"its state is no sum over the examples, as far as can be tried, and it {problem}",
            "a metric whose state begins with zeros and adds up, such as sums and counts, of which "
            "result() makes what it likes", "trainer.metrics=[] to train without it",
        )  # fmt: skip


def _specs(source: Source, rows: int) -> tuple[Any, ...]:
    """Return what a batch of so many examples is."""
    return reading.specs(source, rows)
