"""Masks of tensors: where layers, losses and metrics look for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtrain.task.keras_internals.lookup import ONE_REPLICA, function, module, unknown

#: A metric that is updated away from the model needs the mask of its arguments.
MASKING = "keras.src.backend.common.masking"


def mask(tensor: Any) -> Any:
    """Return the mask that a layer has put on a tensor, None where there is none.

    Raises:
        TrainingError: this version of Keras keeps masks in another way.
    """
    return _masking("get_keras_mask", ["x"])(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Put a mask on a tensor, as a layer does; losses and metrics look for it there.

    Raises:
        TrainingError: this version of Keras keeps masks in another way.
    """
    _masking("set_keras_mask", ["x", "mask"])(tensor, mask)


def _masking(name: str, expected: list[str]) -> Callable[..., Any]:
    getter = function(module(MASKING), name, expected)
    if getter is None:
        raise unknown("keeps the masks of tensors", ONE_REPLICA)
    return getter
