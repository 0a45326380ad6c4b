"""Layers whose inside is computed again for the gradient, instead of being kept until then."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
from torch.utils import checkpoint

from dtrain.task.backends.torch.keras_internals import copy
from dtrain.task.backends.tracing import now, tracing
from dtrain.task.keras_internals import contexts


def computed_twice(layer: keras.Layer) -> Callable[..., Any]:
    """Return a layer's call, which is computed a second time for its gradients.

    PyTorch draws the same again; the second time begins with what the layer had kept before the
    first (seeds, statistics), and leaves behind what the first left.

    Raises:
        TrainingError: this version of Keras passes layers training and precision in another way.
    """
    contexts.check()
    call = layer.call

    @functools.wraps(call)
    def twice(*args: Any, **kwargs: Any) -> Any:
        passed, traced = contexts.current(), now()
        # Values as they are kept, not as they are read.
        with contexts.replaced({contexts.PRECISION: None}):
            state = [variable.value for variable in layer.non_trainable_variables]
        before = [value.detach().clone() for value in state]
        computed = False

        def compute(*arguments: Any) -> Any:
            nonlocal computed
            if not computed:
                computed = True
                return call(*arguments, **kwargs)
            after = [value.detach().clone() for value in state]
            copy(state, before)
            try:
                # Perhaps in another thread, as of a GPU.
                again = tracing(step=traced.step, rows=traced.rows, inside=True)
                losses = keras.StatelessScope(collect_losses=True)
                with contexts.replaced(passed), again, losses:
                    return call(*arguments, **kwargs)
            finally:
                copy(state, after)

        return checkpoint.checkpoint(compute, *args, use_reentrant=False)

    return twice
