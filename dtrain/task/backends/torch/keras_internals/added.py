"""What a model adds to its loss (``add_loss``, regularizers): on PyTorch Keras never scales it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from dtrain.task.keras_internals.model import ONE_REPLICA, function, unknown


def divide_added_losses(parts: Callable[[], int]) -> None:
    """Divide them by a number; once in a process.

    Args:
        parts: returns it, when a loss is added: of how many parts the loss is the sum.

    Raises:
        TrainingError: this version of Keras adds them in another way.
    """
    kind: Any = keras.Model
    original = function(kind, "_aggregate_additional_loss", ["self", "loss"])
    if original is None:
        raise unknown("adds the losses of layers", ONE_REPLICA)
    if not getattr(original, "by_dtrain", False):

        @functools.wraps(original)
        def divided(self: Any, loss: Any) -> Any:
            return original(self, loss) / parts()

        # A mark on a function, which types of functions do not have.
        divided.by_dtrain = True  # type: ignore[attr-defined]
        kind._aggregate_additional_loss = divided
