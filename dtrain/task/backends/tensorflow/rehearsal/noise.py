"""What of a step is of each replica by design, or of each trace: a notice names it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras

from dtrain.task import keras_internals
from dtrain.task.backends.tensorflow.replica import random_draws

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replicas import Replicas

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


def augmentations(model: keras.Model) -> list[keras.Layer]:
    """Return the preprocessing layers of Keras' own, which may draw and look at a whole batch."""
    layers = keras_internals.layers(model)
    return [layer for layer in layers if ".layers.preprocessing." in type(layer).__module__]


def has_draws_of_any_shape(model: keras.Model) -> bool:
    """Whether a draw may have as many rows as a batch, and not be for its examples."""
    layers = keras_internals.layers(model)
    of_keras = all(map(keras_internals.is_of_keras, layers))
    return not of_keras or bool(augmentations(model))


def statistics(model: keras.Model, strategy: Replicas) -> str | None:
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


def operations(graph: Any) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each operation of a graph, and of functions inside of it."""
    definition = graph.as_graph_def()
    inside = (node for each in definition.library.function for node in each.node_def)
    for node in (*definition.node, *inside):
        yield node.op, node.name


def drawn(graph: Any) -> str | None:
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


def counter(before: list[tuple[Any, dict[str, Any]]]) -> str | None:
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
