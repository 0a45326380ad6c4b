"""Layers whose inside is computed again for the gradient, instead of being kept until then."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
from torch.utils import checkpoint

from dtrain.task.backends.torch.keras_internals import copy


def computed_twice(layer: keras.Layer) -> Callable[..., Any]:
    """Return a layer's call, which is computed a second time for its gradients.

    PyTorch draws the same again; the second time begins with what the layer had kept before the
    first (seeds, statistics), and leaves behind what the first left.
    """
    call = layer.call

    @functools.wraps(call)
    def twice(*args: Any, **kwargs: Any) -> Any:
        state = [variable.value for variable in layer.non_trainable_variables]
        before = [value.detach().clone() for value in state]
        losses: list[int] = []

        def compute(*arguments: Any) -> Any:
            if not losses:
                losses.append(1)
                return call(*arguments, **kwargs)
            after = [value.detach().clone() for value in state]
            copy(state, before)
            try:
                with keras.StatelessScope(collect_losses=True):
                    return call(*arguments, **kwargs)
            finally:
                copy(state, after)

        return checkpoint.checkpoint(compute, *args, use_reentrant=False)

    return twice
