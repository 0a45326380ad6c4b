"""What is inside of a model: layers, variables and states that are in no public list of Keras."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dtrain.task.keras_internals.lookup import unknown


def layers(model: keras.Layer) -> list[keras.Layer]:
    """Return a model and all layers in it; Keras' public list has the outermost alone.

    Raises:
        TrainingError: this version of Keras holds them in another way.
    """
    return _flattened(model)


def inner(layer: keras.Layer) -> list[keras.Layer]:
    """Return the layers that a layer holds itself, without those inside of them.

    Keras' public ``layers`` is of models alone.

    Raises:
        TrainingError: this version of Keras holds them in another way.
    """
    return _flattened(layer, include_self=False, recursive=False)


def _flattened(layer: keras.Layer, **options: bool) -> list[keras.Layer]:
    function = getattr(layer, "_flatten_layers", None)
    if function is None:
        raise unknown("holds the layers inside of a layer")
    return list(function(**options))


def of_own_classes(model: keras.Model) -> list[keras.Variable]:
    """Return the variables of layers and models whose class is not Keras' own, seeds left out.

    What Keras' own layers keep is known; these may keep anything.
    """
    found: dict[int, keras.Variable] = {}
    for layer in layers(model):
        if type(layer).__module__.partition(".")[0] == "keras":
            continue
        inside = {id(v) for part in _flattened(layer, include_self=False) for v in part.variables}
        for variable in layer.variables:
            if id(variable) not in inside and variable.dtype != "string":
                found[id(variable)] = variable
    return [v for v in found.values() if "seed_generator_state" not in v.name]


def plain_variables(model: keras.Model) -> list[tuple[str, Any]]:
    """Return TensorFlow's own variables among the attributes of layers, with their names.

    Keras has them in no list: ``layer name/attribute``.
    """
    found: dict[int, tuple[str, Any]] = {}
    for layer in layers(model):
        if type(layer).__module__.partition(".")[0] == "keras":
            continue
        for name, value in sorted(vars(layer).items()):
            if isinstance(value, tf.Variable | tf.distribute.DistributedValues):
                found.setdefault(id(value), (f"{layer.name}/{name}", value))
    return list(found.values())


def states(model: keras.Model) -> list[keras.Variable]:
    """Return what stateful recurrent layers carry on to the next batch, ``[batch, ...]`` each.

    Keras has them among the variables of neither the layer nor the model.
    """
    found: dict[int, keras.Variable] = {}
    for layer in layers(model):
        if getattr(layer, "stateful", False):
            for state in keras.tree.flatten(getattr(layer, "states", None)):
                if isinstance(state, keras.Variable):
                    found[id(state)] = state
    known = {id(variable) for variable in model.variables}
    return [state for key, state in found.items() if key not in known]


def loss_trackers(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the trackers of the losses of each of several outputs, which Keras makes.

    They are among the model's metrics, where nothing tells them from a tracker of the user's. Where
    this version of Keras holds them in another way there are none: their numbers are Keras' own.
    """
    found = getattr(getattr(model, "_compile_loss", None), "metrics", None)
    return [metric for metric in found or () if isinstance(metric, keras.metrics.Mean)]
