"""Rehearsals: what several replicas compute otherwise than one device, and an evaluation step.

A notice says so, or a refusal: where a step in parts is not that of the whole, and what of a step
is of each replica by design, or of each trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.data.sources import Source
from dtrain.errors import behind
from dtrain.task import keras_internals
from dtrain.task.aliases import Nest, Options
from dtrain.task.backends import across
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.tensorflow.rehearsal.step import Step, operations, undisturbed
from dtrain.task.backends.tensorflow.replica import random_draws
from dtrain.task.backends.unsummed import Trial
from dtrain.task.data import reading

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replicas import Replicas

#: Parts of a batch where workers compute alone.
ALONE = 2
#: What a step makes of values of all replicas.
SUMS = "all_reduce sums of tf.distribute.get_replica_context()"


def notice(
    model: keras.Model, strategy: Replicas, source: Source, global_batch: int, seed: int
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
    notices = [_statistics(model, strategy)]
    if not across.is_known(model):
        notices += _of_a_step(model, strategy, source, global_batch, seed)
    return "; ".join(text for text in notices if text is not None) or None


def _of_a_step(
    model: keras.Model, strategy: Replicas, source: Source, global_batch: int, seed: int
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
            drawn, counter = _drawn(step.graph), _counter(before)
            yield drawn
            difference = across.difference(step, batches, strategy, SUMS)
            yield counter or difference
    except Exception as error:
        if (refused := behind(error)) is not None:
            raise refused from None
        yield across.untried(error, strategy.parts)


def trial(model: keras.Model) -> Trial:
    """Return what evaluates a batch, on the CPU and on one replica."""

    def evaluated(batch: Nest, start: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
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


#: Operations of ``tf.random`` that have a state of their own, or of a ``tf.random.Generator``.
STATEFUL = (
    "RandomUniform", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncated",
    "RandomGamma", "RandomPoisson", "RandomShuffle", "Multinomial", "StatefulUniform",
    "StatefulStandardNormal", "StatefulTruncatedNormal", "StatefulRandomBinomial",
)  # fmt: skip

#: And such as have a seed, which is the same on each replica.
STATELESS = (
    "StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal",
    "StatelessMultinomial", "StatelessRandomGamma", "StatelessRandomPoisson",
    "StatelessRandomBinomial", "StatelessParameterizedTruncated", "StatelessShuffle",
)  # fmt: skip


def _statistics(model: keras.Model, strategy: Replicas) -> str | None:
    """Return which layers normalise by a replica's part of the batch, if any do."""
    names = [
        layer.name
        for layer in keras_internals.layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and not layer.synchronized
    ]
    if not names:
        return None
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    under = "" if strategy.abilities.exchanges else " under strategy=multiworker"
    return (
        f"batch normalisation ({shown}) is by the statistics of each replica's part of a batch, "
        "and not by those of the whole, as on one device: "
        f"keras.layers.BatchNormalization(synchronized=True) is{under}"
    )


def _drawn(graph: tf.Graph) -> str | None:
    """Return what a step draws that replicas draw otherwise than one device, if there is any.

    Args:
        graph: of the step, traced under :func:`random_draws.watched`.
    """
    kinds = {
        kind
        for kind, name in operations(graph)
        if kind.startswith(STATEFUL)
        or (kind.startswith(STATELESS) and random_draws.SCOPE not in name)
    }
    if not kinds:
        return None
    return (
        f"the training step draws random numbers by tf.random ({', '.join(sorted(kinds))}), and "
        "each replica draws others than one device would: keras.random with a "
        "keras.random.SeedGenerator draws the same"
    )


def _counter(before: list[tuple[keras.Variable, Options]]) -> str | None:
    """Return which number a layer of the user's has changed while the step was traced, if any.

    Args:
        before: of :func:`.step.undisturbed`.
    """
    for owner, attributes in before:
        if keras_internals.is_of_keras(owner):
            continue
        for name, value in attributes.items():
            if type(value) in (int, float) and vars(owner).get(name) != value:
                return (
                    f"{type(owner).__name__} {owner.name} changes self.{name} in Python, which "
                    "runs once for each replica while the step is traced, and not once a step: "
                    "each replica has another constant; keep it in a variable "
                    "(self.add_weight(..., trainable=False))"
                )
    return None
