"""What is tried on a few examples before training: metrics whose states do not add up."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.errors import UsageError
from dtrain.sources import Source
from dtrain.task import keras_internals, pipeline
from dtrain.task.logs import evaluates, unwrapped

#: Examples of each of the two batches, at most.
ROWS = 8


def check_metrics(model: keras.Model, source: Source, fixed: int | None = None) -> None:
    """Refuse a metric of a user's own that steps and replicas cannot be added up for.

    Its state is read and reset in each step, and the states of steps and replicas are added, as
    those of Keras' own metrics can be: sums, counts, confusion matrices. That of a maximum cannot.
    So the state after two batches is compared with the sum of those after each. Nothing of the
    model changes: all of it is computed in a ``keras.StatelessScope``, on the CPU.

    Args:
        model: built and compiled.
        source: examples to try it on.
        fixed: how many examples a batch must have; None where any number will do.

    Raises:
        UsageError: naming the metric.
    """
    own = [metric for metric in _leaves(model) if not type(metric).__module__.startswith("keras.")]
    rows = fixed or min(ROWS, len(source) // 2)
    if 2 * rows > len(source):
        return
    if not own or not rows or not evaluates(model):
        return
    with tf.device("CPU:0"):
        first, second = (
            pipeline.take(source, tf.range(begin, begin + rows, dtype=tf.int64))
            for begin in (0, rows)
        )
        known = [v for metric in model.metrics for v in metric.variables]
        variables = [*model.variables, *keras_internals.states(model), *known]
        before = [(v, tf.constant(v.numpy(), v.dtype)) for v in variables]
        one = _tried(model, first, before)
        # ORDER: the second batch has the seeds of after the first, in both.
        fresh = {id(v): value for v, value in before if any(v is k for k in known)}
        alone = _tried(model, second, [(v, fresh.get(id(v), value)) for v, value in one])
        both = _tried(model, second, one)
    states = [{id(v): np.asarray(value) for v, value in of} for of in (before, one, alone, both)]
    for metric in own:
        for variable in metric.variables:
            zero, a, b, sum_ = (of[id(variable)].astype(np.float64) for of in states)
            if np.any(zero != 0) or not np.allclose(a + b, sum_, rtol=1e-4, atol=1e-6):
                raise UsageError(
                    "trainer.metrics", f"{type(metric).__module__}.{type(metric).__name__}",
                    f"its state {variable.name} is no sum over the examples, and dtrain adds those "
                    "of steps and replicas up",
                    "a metric whose state begins with zeros and adds up, such as sums and counts, "
                    "of which result() makes what it likes",
                    "trainer.metrics=[] to train without it",
                )  # fmt: skip


def _leaves(model: keras.Model) -> list[keras.metrics.Metric]:
    found: list[keras.metrics.Metric] = []
    for metric in model.metrics:
        found += getattr(metric, "metrics", None) or [metric]
    return found


def _tried(model: keras.Model, batch: Any, values: list[Any]) -> list[Any]:
    """Return the variables, with their values after an evaluation of ``batch``."""
    with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
        model.test_step(unwrapped(tuple(batch)))
    return [(v, scope.get_current_value(v)) for v, _ in values]
