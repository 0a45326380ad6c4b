"""Layers whose inside is computed again for the gradient, instead of being kept until then.

(Chen et al. 2016, arXiv 1604.06174, Training Deep Nets with Sublinear Memory Cost.) Keras'
``RematScope`` is for this, but no use with TensorFlow (Keras 3.15): in a graph it fails over every
``training=True``; eagerly it draws other dropout masks the second time, and moves statistics twice.
Here the second computation finds everything as the first one did, and changes nothing.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from dtrain.errors import TrainingError, UsageError
from dtrain.task.tensors import total

#: Where Keras keeps what layers do not get as arguments: is this training, in which precision?
CONTEXTS = ("current_call_ctx", "autocast_scope")


def rematerialize(model: keras.Model, patterns: Sequence[str]) -> None:
    """Have layers of ``model`` computed a second time for their gradients.

    Args:
        model: built.
        patterns: regular expressions, each found in a layer's name. What is inside of such a
            layer belongs to it.

    Raises:
        UsageError: one is no regular expression, or is found in no name.
        TrainingError: this version of Keras keeps :data:`CONTEXTS` elsewhere.
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
    if patterns and not all(_inside_of_a_layer()):
        raise TrainingError(
            f"Keras {keras.__version__} tells layers of training and precision in a way that "
            "dtrain does not know; leave hardware.remat empty, or use the Keras of constraints.txt"
        )
    for layer in dict.fromkeys(_chosen(model, patterns)):  # a layer may be in two others
        layer.call = _computed_twice(layer)


def _inside_of_a_layer() -> list[Any]:
    found: list[Any] = []

    class Probe(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            found.extend(global_state.get_global_attribute(name) for name in CONTEXTS)
            return x

    Probe(dtype="mixed_bfloat16")(tf.zeros([1]))
    return found


def _chosen(layer: keras.Layer, patterns: Sequence[str]) -> Iterator[keras.Layer]:
    for inner in _layers(layer):
        if any(re.search(pattern, inner.name) for pattern in patterns):
            yield inner
        else:
            yield from _chosen(inner, patterns)


def _layers(layer: keras.Layer) -> list[keras.Layer]:
    found = layer._flatten_layers(include_self=False, recursive=False)
    return [inner for inner in found if not isinstance(inner, keras.layers.InputLayer)]


def _computed_twice(layer: keras.Layer) -> Callable[..., Any]:
    call = layer.call

    @functools.wraps(call)
    def twice(*args: Any, **kwargs: Any) -> Any:
        given = keras.tree.flatten((args, kwargs))
        floats = [i for i, x in enumerate(given) if tf.is_tensor(x) and x.dtype.is_floating]
        contexts = {name: copy.copy(global_state.get_global_attribute(name)) for name in CONTEXTS}
        with _contexts({"autocast_scope": None}):  # values as they are kept, not as they are read
            before = [(v, tf.identity(v.value)) for v in layer.non_trainable_variables]
        known = [(inner, len(inner._losses)) for inner in layer._flatten_layers()]
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
                added = [loss for inner, count in known for loss in inner._losses[count:]]
                for inner, count in known:  # their gradients go through what is returned alone
                    del inner._losses[count:]
                return first, _summed(added)
            with _contexts(contexts), keras.StatelessScope(before, collect_losses=True) as scope:
                found = call(*arguments, **named)
            if scope.state_mapping.keys() - {id(v) for v, _ in before}:
                raise UsageError(
                    "hardware.remat", layer.name, "changes variables that are not its own",
                    "layers that do not: it would happen twice", "'hardware.remat=[]'",
                )  # fmt: skip
            return found, _summed(scope.losses if added else [])

        found, losses = tf.recompute_grad(compute)(*(given[i] for i in floats))
        for loss in losses:
            layer.add_loss(loss)
        return keras.tree.map_structure(_masked, found, first)

    return twice


def _summed(losses: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return one, if there are any: the second time they come in another order."""
    return [total([tf.cast(loss, tf.float32) for loss in losses])] if losses else []


@contextlib.contextmanager
def _contexts(values: dict[str, Any]) -> Iterator[None]:
    found = {name: global_state.get_global_attribute(name) for name in values}
    try:
        for name, value in values.items():
            global_state.set_global_attribute(name, value)
        yield
    finally:
        for name, value in found.items():
            global_state.set_global_attribute(name, value)


def _masked(tensor: Any, like: Any) -> Any:
    """Give a tensor the mask that Keras has hung on another one."""
    mask = getattr(like, "_keras_mask", None)
    if mask is not None:
        tensor._keras_mask = mask
    return tensor
