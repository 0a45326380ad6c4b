"""Layers whose inside is computed again for the gradient, instead of being kept until then.

(Chen et al. 2016, arXiv 1604.06174, Training Deep Nets with Sublinear Memory Cost.) Keras'
``RematScope`` is for this, but no use with TensorFlow (Keras 3.15): in a graph it fails over every
``training=True``; eagerly it draws other dropout masks the second time, and moves statistics twice.
Here the second computation finds everything as the first one did, and changes nothing.
"""

from __future__ import annotations

import functools

import keras
import tensorflow as tf

from dtrain.errors import refuse
from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Function, Nest, Tensors
from dtrain.task.backends.tensorflow import keras_internals as tf_internals
from dtrain.task.backends.tensorflow.tensors import total
from dtrain.task.keras_internals import contexts


def computed_twice(layer: keras.Layer) -> Function:
    """Return a layer's call, which is computed a second time for its gradients.

    Raises:
        TrainingError: this version of Keras passes layers training and precision in another way.
    """
    contexts.check()
    call = layer.call

    @functools.wraps(call)
    def twice(*args: object, **kwargs: object) -> Nest:
        arguments = keras.tree.flatten((args, kwargs))
        floats = [i for i, x in enumerate(arguments) if tf.is_tensor(x) and x.dtype.is_floating]
        passed = contexts.current()
        # Values as they are kept, not as they are read.
        with contexts.replaced({contexts.PRECISION: None}):
            before = [(v, tf.identity(v.value)) for v in layer.non_trainable_variables]
        own = [tf_internals.losses_of(inner) for inner in keras_internals.layers(layer)]
        lengths = [(losses, len(losses)) for losses in own]
        first: Foreign = None
        added: Tensors = []

        def compute(*tensors: tf.Tensor) -> tuple[Nest, Tensors]:
            # TensorFlow calls this for the result, and then once more for the gradient.
            nonlocal first, added
            filled = list(arguments)
            for i, tensor in zip(floats, tensors, strict=True):
                filled[i] = _masked(tensor, like=arguments[i])
            positional, named = keras.tree.pack_sequence_as((args, kwargs), filled)
            if first is None:
                first = call(*positional, **named)
                added = [loss for losses, count in lengths for loss in losses[count:]]
                for losses, count in lengths:  # their gradients go through what is returned alone
                    del losses[count:]
                return first, _summed(added)
            stateless = keras.StatelessScope(before, collect_losses=True)
            with contexts.replaced(passed), stateless as scope:
                outputs = call(*positional, **named)
            if scope.state_mapping.keys() - {id(v) for v, _ in before}:
                refuse("hardware.remat", "changes variables that are not its own", layer.name,
                       accepted="layers that do not: it would happen twice",
                       typed="'hardware.remat=[]'")  # fmt: skip
            return outputs, _summed(scope.losses if added else [])

        outputs, again = tf.recompute_grad(compute)(*(arguments[i] for i in floats))
        for loss in again:
            layer.add_loss(loss)
        return keras.tree.map_structure(_masked, outputs, first)

    return twice


def _summed(losses: Tensors) -> Tensors:
    """Return one, if there are any: the second time they come in another order."""
    return [total([tf.cast(loss, tf.float32) for loss in losses])] if losses else []


def _masked(tensor: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Give a tensor the mask that Keras has hung on another one."""
    mask = keras_internals.mask(like)
    if mask is not None:
        keras_internals.set_mask(tensor, mask)
    return tensor
