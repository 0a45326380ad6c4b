"""Metrics of a model in its steps: their methods are wrapped once, and their results are known.

A metric's way from the step to the journal: :mod:`.steps` runs the step (:mod:`.row_steps` adds
what a run logs), this module has what it returns, :mod:`.rows` makes a row of numbers of it and
values of their :class:`~dtrain.task.backends.metric_sums.Sums`, and :mod:`dtrain.task.train.loop`
has the points, which :mod:`dtrain.task.train.recorder` writes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import keras

from dtrain.task import keras_internals
from dtrain.task.aliases import Function, Logs, Nest, Tensor
from dtrain.task.backends.step_logs import (
    flattened,
    has_own,
    is_loss,
    is_mean,
    leaves,
    named,
    tensor,
)
from dtrain.task.backends.tracing import now


def wrap(model: keras.Model) -> None:
    """Let metrics of a model look up what is traced (:func:`tracing`); outside they are Keras' own.

    ``update_state`` of a tracker of losses: first a loss that is a part of that of the global batch
    is multiplied by the number of parts; then a batch without weights weighs its ``rows``. Keras
    weighs it by the rows that are known when a step is traced: of a batch whose size is not known
    then, as the last of a validation, none, and the number would be a mean over batches.

    ``result`` adds what it returns to ``results``. So does ``get_metrics_result`` of the model's
    own class.
    """
    trackers = {id(tracker) for tracker in keras_internals.loss_trackers(model)}
    for metric in {id(m): m for m in (*model.metrics, *leaves(model))}.values():
        if getattr(metric.result, "by_dtrain", False):
            continue
        adds_up = is_mean(metric) and is_loss(metric.name)
        if adds_up or id(metric) in trackers:
            metric.update_state = _updating(metric.update_state, adds_up, id(metric) in trackers)
        metric.result = _noted(metric.result, metric)
    own = model.get_metrics_result
    if has_own(model, "get_metrics_result") and not getattr(own, "by_dtrain", False):
        model.get_metrics_result = _noted(own, model)


def scalars(logs: Nest) -> Logs:
    """Keep what a step returned that is one number, as float32; a dict in it gives its own names.

    As Keras' ``fit`` does with what a ``train_step`` returns.
    """
    numbers: Logs = {}
    for name, value in flattened(logs):
        if value is not None:
            number = tensor(value)
            kind = keras.backend.standardize_dtype(number.dtype)
            if len(number.shape) == 0 and ("float" in kind or "int" in kind):
                numbers[name] = keras.ops.cast(number, "float32")
    return numbers


def _updating(update: Function, adds_up: bool, weighs: bool) -> Function:
    @functools.wraps(update)
    def update_state(values: Tensor, sample_weight: Tensor = None) -> Tensor:
        parts, rows = now().parts, now().rows
        if adds_up and parts > 1:
            values = keras.ops.convert_to_tensor(values)
            if len(values.shape) == 0:  # a loss for each example is averaged as ever
                values = values * keras.ops.cast(parts, values.dtype)
        if weighs and sample_weight is None and rows is not None:
            sample_weight = keras.ops.cast(rows, "float32")
        return update(values, sample_weight)

    return update_state


def _noted(original: Function, owner: keras.metrics.Metric) -> Function:
    @functools.wraps(original)
    def result() -> Tensor:
        value, results = original(), now().results
        if results is not None:
            # Of a variable itself: what it holds here, where the metric has been updated.
            value = value.value if isinstance(value, keras.Variable) else value
            logs = value if isinstance(owner, keras.Model) else {owner.name: value}
            results += [(owner, name, each) for name, each in flattened(logs)]
        return value

    # A mark on a function, which types of functions do not have.
    result.by_dtrain = True  # type: ignore[attr-defined]
    return result


class Returned:
    """What a step of a class's own returns: numbers, and results of metrics under any name.

    A metric's result is read from its state, whatever the step calls it: the mean of its results
    over steps is not its result over their examples. So are the numbers that the model's own
    ``get_metrics_result`` makes of metrics.

    Args:
        model: whose steps they are; its metrics are wrapped.
        averaged: metrics of which the results themselves are wanted: they do not add up over
            batches.

    Attributes:
        averaged: the names under which their results are returned; known once traced.
    """

    def __init__(self, model: keras.Model, averaged: Sequence[keras.metrics.Metric] = ()):
        wrap(model)
        self.averaged: set[str] = set()
        #: By training or not, under which names the result of a metric is returned, by the
        #: metric's name; None: no such step was traced.
        self.names: dict[bool, dict[str, set[str]] | None] = {True: None, False: None}
        #: By training or not, the same of the numbers of ``get_metrics_result``.
        self.derived: dict[bool, dict[str, set[str]]] = {True: {}, False: {}}
        self._model, self._averaged = model, {id(metric) for metric in averaged}

    def values(self, logs: Nest, training: bool) -> Logs:
        """Return the numbers that are read from no state of a metric; called where the step was."""
        numbers, results = scalars(logs), now().results or ()
        metrics = {id(metric) for metric in self._model.metrics}
        averaged = {id(value) for owner, _, value in results if id(owner) in self._averaged}
        of_metrics = {id(value): name for owner, name, value in results if id(owner) in metrics}
        # What is made of results that are averaged is no function of states: it is averaged, too.
        derived = {
            id(value): name
            for owner, name, value in results
            if owner is self._model and not self._averaged
        }
        names = self.names[training] = self.names[training] or {}
        for name, value in flattened(logs):
            if id(value) in averaged:
                numbers.pop(name, None)
                for shown, number in named(name, value):
                    numbers[shown] = keras.ops.cast(tensor(number), "float32")
                    self.averaged.add(shown)
            elif id(value) in of_metrics:
                pairs = zip(named(of_metrics[id(value)], value), named(name, value), strict=True)
                for (inner, _), (outer, _) in pairs:
                    names.setdefault(inner, set()).add(outer)
                numbers.pop(name, None)
            elif id(value) in derived and name in numbers:
                self.derived[training].setdefault(derived[id(value)], set()).add(name)
                del numbers[name]
        return numbers
