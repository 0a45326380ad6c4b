"""Layers whose inside is computed again for the gradient, instead of being kept until then.

(Chen et al. 2016, arXiv 1604.06174, Training Deep Nets with Sublinear Memory Cost.) Keras'
``RematScope`` is for this, but no use with TensorFlow (Keras 3.15): in a graph it fails over every
``training=True``; eagerly it draws other dropout masks the second time, and moves statistics twice.
Here the second computation finds everything as the first one did, and changes nothing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from dtrain.errors import UsageError
from dtrain.task import keras_internals
from dtrain.task.backends.tensorflow import keras_internals as tf_internals
from dtrain.task.backends.tensorflow.tensors import total
from dtrain.task.keras_internals import contexts


def rematerialize(model: keras.Model, patterns: Sequence[str]) -> None:
    """Have layers of ``model`` computed a second time for their gradients.

    Args:
        model: built.
        patterns: regular expressions, each found in a layer's name. What is inside of such a
            layer belongs to it.

    Raises:
        UsageError: one is no regular expression, or is found in no name.
        TrainingError: this version of Keras passes layers training and precision in another way.
    """
    names, level = [], [model]
    while level := [inner for layer in level for inner in _layers(layer)]:
        names += [each.name for each in level]
    for pattern in patterns:
        try:
            if any(re.search(pattern, name) for name in names):
                continue
            problem = "no layer of this model has such a name"
        except re.error as error:
            problem = f"is no regular expression ({error})"
        accepted = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise UsageError("hardware.remat", pattern, problem, accepted, "'hardware.remat=[]'")
    if patterns:
        contexts.check()
    for layer in dict.fromkeys(_chosen(model, patterns)):  # a layer may be in two others
        layer.call = _computed_twice(layer)


def _chosen(layer: keras.Layer, patterns: Sequence[str]) -> Iterator[keras.Layer]:
    for inner in _layers(layer):
        if any(re.search(pattern, inner.name) for pattern in patterns):
            yield inner
        else:
            yield from _chosen(inner, patterns)


def _layers(layer: keras.Layer) -> list[keras.Layer]:
    found = keras_internals.inner(layer)
    return [inner for inner in found if not isinstance(inner, keras.layers.InputLayer)]


def _computed_twice(layer: keras.Layer) -> Callable[..., Any]:
    call = layer.call

    @functools.wraps(call)
    def twice(*args: Any, **kwargs: Any) -> Any:
        given = keras.tree.flatten((args, kwargs))
        floats = [i for i, x in enumerate(given) if tf.is_tensor(x) and x.dtype.is_floating]
        passed = contexts.current()
        # Values as they are kept, not as they are read.
        with contexts.replaced({contexts.PRECISION: None}):
            before = [(v, tf.identity(v.value)) for v in layer.non_trainable_variables]
        own = [tf_internals.losses_of(inner) for inner in keras_internals.layers(layer)]
        known = [(losses, len(losses)) for losses in own]
        first: Any = None
        added: list[tf.Tensor] = []

        def compute(*tensors: tf.Tensor) -> tuple[Any, list[tf.Tensor]]:
            # TensorFlow calls this for the result, and then once more for the gradient.
            nonlocal first, added
            filled = list(given)
            for i, tensor in zip(floats, tensors, strict=True):
                filled[i] = _masked(tensor, like=given[i])
            arguments, named = keras.tree.pack_sequence_as((args, kwargs), filled)
            if first is None:
                first = call(*arguments, **named)
                added = [loss for losses, count in known for loss in losses[count:]]
                for losses, count in known:  # their gradients go through what is returned alone
                    del losses[count:]
                return first, _summed(added)
            stateless = keras.StatelessScope(before, collect_losses=True)
            with contexts.replaced(passed), stateless as scope:
                found = call(*arguments, **named)
            if scope.state_mapping.keys() - {id(v) for v, _ in before}:
                raise UsageError(
                    "hardware.remat", layer.name, "changes variables that are not its own",
                    "layers that do not: it would happen twice", "'hardware.remat=[]'",
                )  # fmt: skip
            return found, _summed(scope.losses if added else [])

        found, again = tf.recompute_grad(compute)(*(given[i] for i in floats))
        for loss in again:
            layer.add_loss(loss)
        return keras.tree.map_structure(_masked, found, first)

    return twice


def _summed(losses: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return one, if there are any: the second time they come in another order."""
    return [total([tf.cast(loss, tf.float32) for loss in losses])] if losses else []


def _masked(tensor: Any, like: Any) -> Any:
    """Give a tensor the mask that Keras has hung on another one."""
    mask = keras_internals.mask(like)
    if mask is not None:
        keras_internals.set_mask(tensor, mask)
    return tensor
