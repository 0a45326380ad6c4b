"""Rehearsals: a step in parts compared with the whole, in training and in an evaluation.

What several replicas compute otherwise than one device: a notice says so, or a refusal.

An evaluation step on some examples, before training, that changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.data.sources import Source
from dtrain.errors import behind
from dtrain.task import keras_internals
from dtrain.task.backends import across
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.tensorflow.rehearsal import noise
from dtrain.task.backends.tensorflow.rehearsal.step import Step, undisturbed
from dtrain.task.backends.unsummed import Trial
from dtrain.task.data import reading

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replicas import Replicas

#: Parts of a batch where workers compute alone.
ALONE = 2
#: What a step makes of values of all replicas.
SUMS = "all_reduce sums of tf.distribute.get_replica_context()"


def notice(
    model: keras.Model,
    strategy: Replicas,
    source: Source,
    global_batch: int,
    seed: int,
) -> str | None:
    """Return what the user should know where numbers or draws of replicas are not those of one.

    Args:
        model: built and compiled.
        strategy: it is to be trained on.
        source: examples to try it on.
        global_batch: examples of a step.
        seed: of the experiment.

    Returns:
        A sentence or more; None where both are the same.
    """
    if strategy.parts == 1:
        return None
    notices = [noise.statistics(model, strategy)]
    is_known = across.is_known(model)
    if not is_known or noise.augmentations(model):
        notices += _of_a_step(model, strategy, source, global_batch, seed, is_known)
    return "; ".join(text for text in notices if text is not None) or None


def _of_a_step(
    model: keras.Model,
    strategy: Replicas,
    source: Source,
    global_batch: int,
    seed: int,
    is_known: bool,
) -> Iterator[str | None]:
    parts = strategy.replicas if strategy.abilities.exchanges else ALONE
    rows = min(global_batch // strategy.parts, max(across.FEWEST, across.EXAMPLES // parts))
    examples = reading.available(source, max(across.LOOKED_AT, parts * rows))
    if examples < parts * rows:
        return
    try:
        with undisturbed(model, strategy) as before:
            with tf.device("CPU:0"):
                first = reading.first(source, examples)
                batches = [
                    tuple(nest.mapped(tf.convert_to_tensor, part) for part in batch)
                    for batch in across.batches(first, parts, rows)
                ]
            step = Step(model, strategy, batches[0], parts, rows, seed)
            drawn, counter = noise.drawn(step.graph), noise.counter(before)
            yield None if is_known else drawn
            difference = across.difference(step, batches, strategy, SUMS)
            yield None if is_known else counter or difference
    except Exception as error:
        if (refused := behind(error)) is not None:
            raise refused from None
        yield across.untried(error, strategy.parts)


def trial(model: keras.Model) -> Trial:
    """Return what evaluates a batch, on the CPU and on one replica."""

    def evaluated(batch: Any, start: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        with tf.device("CPU:0"):
            metrics = [v for metric in model.metrics for v in metric.variables]
            mapping = []
            for variable in (*model.variables, *keras_internals.states(model), *metrics):
                value = start.get(id(variable), variable.numpy())
                mapping.append((variable, tf.cast(tf.constant(value), variable.dtype)))
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                model.test_step(unwrapped(nest.mapped(tf.convert_to_tensor, batch)))
            return {id(v): np.asarray(scope.get_current_value(v), np.float64) for v in metrics}

    return evaluated
