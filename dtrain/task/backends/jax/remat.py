"""Layers whose inside is computed again for the gradient, instead of being kept until then.

Keras' ``RematScope`` does not return what a layer assigns, such as the state of a seed; here the
layer is a function of its variables.
"""

from __future__ import annotations

import functools

import jax
import keras

from dtrain.task import keras_internals
from dtrain.task.aliases import Function, Nest, Tensors


def computed_twice(layer: keras.Layer) -> Function:
    """Return a layer's call, which is computed a second time for its gradients."""
    call, variables = layer.call, list(layer.variables)

    @functools.wraps(call)
    def twice(*args: object, **kwargs: object) -> Nest:
        arguments = keras.tree.flatten((args, kwargs))
        tensors = {i: x for i, x in enumerate(arguments) if isinstance(x, jax.Array)}
        outside: list[Nest] = []  # what of the result is no array

        def compute(values: Tensors, arrays: dict[int, jax.Array]) -> Nest:
            arrays = {i: _masked(array, mask) for i, (array, mask) in arrays.items()}
            filled = [arrays.get(i, argument) for i, argument in enumerate(arguments)]
            positional, named = keras.tree.pack_sequence_as((args, kwargs), filled)
            state = list(zip(variables, values, strict=True))
            with keras.StatelessScope(state, collect_losses=True) as scope:
                returned = call(*positional, **named)
            outputs = keras.tree.flatten(returned)
            changed = [v for v, value in state if scope.get_current_value(v) is not value]
            outside[:] = returned, changed
            after = [scope.get_current_value(variable) for variable in changed]
            return [(x, keras_internals.mask(x)) for x in outputs], after, list(scope.losses)

        outputs, after, losses = jax.checkpoint(compute)(
            [variable.value for variable in variables],
            {i: (x, keras_internals.mask(x)) for i, x in tensors.items()},
        )
        returned, changed = outside
        for variable, value in zip(changed, after, strict=True):
            variable.assign(value)
        for loss in losses:
            layer.add_loss(loss)
        return keras.tree.pack_sequence_as(returned, [_masked(x, mask) for x, mask in outputs])

    return twice


def _masked(tensor: jax.Array, mask: jax.Array) -> jax.Array:
    if mask is not None:
        keras_internals.set_mask(tensor, mask)
    return tensor
