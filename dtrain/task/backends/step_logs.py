"""What a step of Keras' takes and returns: batches, logs, the results of metrics."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf


def has_own(model: keras.Model, *methods: str) -> bool:
    """Whether a class of the user's has any of these methods of its own, and not Keras'.

    With a ``train_step`` or ``test_step`` it says itself what a step is, and what its results are.
    """
    return any(getattr(type(model), name) is not getattr(keras.Model, name) for name in methods)


def evaluates(model: keras.Model) -> bool:
    """Whether there is anything to evaluate by: a ``test_step`` of its own, or a loss."""
    own = has_own(model, "test_step", "compute_loss")
    return own or model.loss is not None or bool(model.losses)


def unwrapped(data: Any) -> Any:
    """Return a batch as Keras gives it to a step: inputs alone are no tuple.

    As ``keras.utils.pack_x_y_sample_weight`` does.
    """
    return data[0] if isinstance(data, tuple) and len(data) == 1 else data


def flattened(logs: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that a step returned; a dict in it gives its own names."""
    for name, value in (logs or {}).items():
        if isinstance(value, dict):
            yield from flattened(value)
        else:
            yield name, value


def scalars(logs: Any) -> dict[str, tf.Tensor]:
    """Keep what a step returned that is one number, as float32; a dict in it gives its own names.

    As Keras' ``fit`` does with what a ``train_step`` returns.
    """
    found: dict[str, tf.Tensor] = {}
    for name, value in flattened(logs):
        if value is not None:
            number = tf.convert_to_tensor(value)
            if number.shape.rank == 0 and (number.dtype.is_floating or number.dtype.is_integer):
                found[name] = tf.cast(number, tf.float32)
    return found


def named(name: str, result: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a metric's result: of a dict its own, at any depth.

    Of several numbers, such as an F1 score for each class, each has its index in its name.
    """
    if isinstance(result, dict):
        for key, value in result.items():
            yield from named(key, value)
    elif len(getattr(result, "shape", ())) > 0:
        numbers = tf.reshape(result, [-1])
        [count] = numbers.shape
        for index in range(count):
            yield f"{name}_{index}" if count > 1 else name, numbers[index]
    else:
        yield name, result


def is_loss(name: str) -> bool:
    """Whether a number of this name is summed over the replicas where losses are.

    A word of it is ``loss``, as in ``d_loss`` and ``TotalLoss``; ``lossless`` is another.
    """
    words = re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return any(word.lower() in ("loss", "losses") for word in words)


def is_mean(metric: keras.metrics.Metric) -> bool:
    """Whether it is the mean of numbers that it is given, and not of a function of predictions."""
    wrapper = keras.metrics.MeanMetricWrapper
    return isinstance(metric, keras.metrics.Mean) and not isinstance(metric, wrapper)


def leaves(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the metrics of a model; of those of ``compile`` each."""
    metrics: list[keras.metrics.Metric] = []
    for metric in model.metrics:
        metrics += getattr(metric, "metrics", None) or [metric]
    return metrics


def adds_up(metric: keras.metrics.Metric) -> bool:
    """Whether the state after two batches is the sum of the states after each.

    ``adds_up`` of a class is its author's word;
    :mod:`dtrain.task.backends.tensorflow.rehearsal.metrics` tries the others, and sets it.
    Metrics of Keras' own do, and have no such attribute.
    """
    return bool(getattr(metric, "adds_up", True))


def add_up_losses(metrics: list[keras.metrics.Metric], replicas: Callable[[], int]) -> None:
    """Let trackers of losses have the sum over the replicas, where a loss is a part of one.

    A tracker is a ``keras.metrics.Mean`` that :func:`is_loss` by its name, and is given a scalar. A
    tensor with a loss for each example is averaged over them as ever.

    Args:
        metrics: of the model.
        replicas: returns how many parts the losses of the step that is traced now are, 1 if none.
    """
    for metric in metrics:
        if is_mean(metric) and is_loss(metric.name):
            metric.update_state = _multiplied(metric.update_state, replicas)


def _multiplied(update: Callable[..., Any], replicas: Callable[[], int]) -> Callable[..., Any]:
    @functools.wraps(update)
    def update_state(values: Any, sample_weight: Any = None) -> Any:
        values = tf.convert_to_tensor(values)
        if values.shape.rank == 0 and replicas() > 1:
            values = values * tf.cast(replicas(), values.dtype)
        return update(values, sample_weight)

    return update_state


class Weights:
    """Lets trackers of the losses of several outputs weigh a batch by its rows.

    Keras weighs it by the rows that are known when the step is traced. Of a batch whose size is not
    known then, as the last of a validation, that is none: the number would be a mean over batches,
    beside a loss that is one over examples.

    Args:
        trackers: of the losses of the outputs.
    """

    def __init__(self, trackers: list[keras.metrics.Metric]):
        self._rows = threading.local()  # MirroredStrategy traces each replica in a thread
        for tracker in trackers:
            tracker.update_state = self._weighted(tracker.update_state)

    def _weighted(self, update: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(update)
        def update_state(values: Any, sample_weight: Any = None) -> Any:
            rows = getattr(self._rows, "rows", None)
            if sample_weight is None and rows is not None:
                sample_weight = tf.cast(rows, tf.float32)
            return update(values, sample_weight)

        return update_state

    @contextlib.contextmanager
    def of(self, rows: Any) -> Iterator[None]:
        """Let a batch that has no weight here weigh ``rows``."""
        before, self._rows.rows = getattr(self._rows, "rows", None), rows
        try:
            yield
        finally:
            self._rows.rows = before


class Returned:
    """What a step of a class's own returns: numbers, and results of metrics under any name.

    A metric's result is read from its state, whatever the step calls it: the mean of its results
    over steps is not its result over their examples. So are the numbers that the model's own
    ``get_metrics_result`` makes of metrics.

    Args:
        model: whose steps they are.
        metrics: of the model.
        averaged: those of which the results themselves are wanted: they do not add up over batches.

    Attributes:
        averaged: the names under which their results are returned; known once traced.
    """

    def __init__(
        self,
        model: keras.Model,
        metrics: list[keras.metrics.Metric],
        averaged: Sequence[keras.metrics.Metric] = (),
    ):
        self.averaged: set[str] = set()
        #: By training or not, under which names the result of a metric is returned, by the
        #: metric's name; None: no such step was traced.
        self.names: dict[bool, dict[str, set[str]] | None] = {True: None, False: None}
        #: By training or not, the same of the numbers of ``get_metrics_result``.
        self.derived: dict[bool, dict[str, set[str]]] = {True: {}, False: {}}
        self._traced = _Traced()
        for metric in averaged:
            self._watch(metric, "averaged")
        for metric in metrics:
            self._watch(metric, "results")
        # What is made of results that are averaged is no function of states: it is averaged, too.
        if metrics and not averaged and has_own(model, "get_metrics_result"):
            self._watch_model(model)

    def _watch(self, metric: keras.metrics.Metric, kind: str) -> None:
        original = metric.result

        def result() -> Any:
            value = original()
            for name, each in flattened({metric.name: value}):
                getattr(self._traced, kind)[id(each)] = name, each
            return value

        metric.result = result

    def _watch_model(self, model: keras.Model) -> None:
        original = model.get_metrics_result

        def get_metrics_result() -> Any:
            logs = original()
            for name, each in flattened(logs):
                self._traced.derived[id(each)] = name, each
            return logs

        model.get_metrics_result = get_metrics_result

    def values(self, logs: Any, training: bool) -> dict[str, tf.Tensor]:
        """Return the numbers that are read from no state of a metric; called where the step was."""
        numbers, traced = scalars(logs), self._traced
        names = self.names[training] = self.names[training] or {}
        for name, value in flattened(logs):
            if id(value) in traced.averaged:
                numbers.pop(name, None)
                for shown, number in named(name, value):
                    numbers[shown] = tf.cast(tf.convert_to_tensor(number), tf.float32)
                    self.averaged.add(shown)
            elif id(value) in traced.results:
                metric, _ = traced.results[id(value)]
                pairs = zip(named(metric, value), named(name, value), strict=True)
                for (inner, _), (outer, _) in pairs:
                    names.setdefault(inner, set()).add(outer)
                numbers.pop(name, None)
            elif id(value) in traced.derived and name in numbers:
                self.derived[training].setdefault(traced.derived[id(value)][0], set()).add(name)
                del numbers[name]
        traced.clear()
        return numbers


class _Traced(threading.local):
    """Results in the step that is traced now, by id: with the value, for its id to be its own."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget them."""
        self.averaged: dict[int, tuple[str, Any]] = {}
        self.results: dict[int, tuple[str, Any]] = {}
        self.derived: dict[int, tuple[str, Any]] = {}
