"""What is tried on a few examples before training: metrics whose states do not add up."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.data.sources import Source, Splits
from dtrain.task import keras_internals, reading
from dtrain.task.metric_replay import Replay
from dtrain.task.protocol import Replicas
from dtrain.task.step_logs import evaluates, unwrapped

#: Examples of each of the two batches, at most.
ROWS = 8


def replayed(
    model: keras.Model, splits: Splits, strategy: Replicas, fixed: int | None = None
) -> Replay | None:
    """Return the metrics of a user's own that steps and replicas are not known to add up for.

    The state of a metric is read and reset in each step, and the states of steps and replicas are
    added, as those of Keras' own metrics can be: sums, counts, confusion matrices. That of a
    maximum cannot. So the state after two batches is compared with the sum of those after each, and
    so is that after one batch twice. It is taken for a sum where that holds of numbers of which
    both batches have some. Nothing of the model changes: all of it is computed in a
    ``keras.StatelessScope``, on the CPU.

    Args:
        model: built and compiled.
        splits: examples to try them on.
        strategy: it runs on; all its tasks find the same.
        fixed: how many examples a batch must have; None where any number will do.
    """
    own = [metric for metric in _leaves(model) if not type(metric).__module__.startswith("keras.")]
    own = [m for m in own if m.variables and not getattr(m, "adds_up", False)]
    if not own:
        return None
    examples = reading.available(splits.train, 2 * max(ROWS, fixed or 0))
    rows = fixed or min(ROWS, examples // 2)
    adds = [False] * len(own)
    if rows and 2 * rows <= examples and evaluates(model):
        adds = _add_up(model, own, splits.train, rows)
    found = strategy.all_reduce_numbers([float(not each) for each in adds])
    left = [metric for metric, number in zip(own, found, strict=True) if number > 0]
    return Replay(model, left, splits) if left else None


def _add_up(
    model: keras.Model, own: list[keras.metrics.Metric], source: Source, rows: int
) -> list[bool]:
    """Say of each metric whether its state is seen to be a sum."""
    known = [v for metric in model.metrics for v in metric.variables]
    adds, telling = set(map(id, known)), set()
    with tf.device("CPU:0"):
        variables = [*model.variables, *keras_internals.states(model), *known]
        before = [(v, tf.constant(v.numpy(), v.dtype)) for v in variables]
        fresh = {id(v): value for v, value in before if any(v is k for k in known)}
        first, second = (reading.first(source, rows, begin) for begin in (0, rows))
        one = _tried(model, first, before)
        for other in (second, first):  # the same once more: counts of rare things meet there
            # ORDER: the other batch has the seeds of after the first, in both.
            alone = _tried(model, other, [(v, fresh.get(id(v), value)) for v, value in one])
            both = _tried(model, other, one)
            for values in zip(before, one, alone, both, strict=True):
                zero, a, b, sum_ = (np.asarray(value).astype(np.float64) for _, value in values)
                name = id(values[0][0])
                if np.any(zero) or not np.allclose(a + b, sum_, rtol=1e-4, atol=1e-6):
                    adds.discard(name)
                if np.any((a != 0) & (b != 0)):
                    telling.add(name)
    return [all(id(v) in adds & telling for v in metric.variables) for metric in own]


def _leaves(model: keras.Model) -> list[keras.metrics.Metric]:
    found: list[keras.metrics.Metric] = []
    for metric in model.metrics:
        found += getattr(metric, "metrics", None) or [metric]
    return found


def _tried(model: keras.Model, batch: Any, values: list[Any]) -> list[Any]:
    """Return the variables, with their values after an evaluation of ``batch``."""
    with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
        model.test_step(unwrapped(batch))
    return [(v, scope.get_current_value(v)) for v, _ in values]
