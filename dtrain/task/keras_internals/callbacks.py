"""When callbacks of Keras choose how they compare, and what ``SwapEMAWeights`` has swapped."""

from __future__ import annotations

import keras

from dtrain.task.keras_internals.lookup import unknown


def choose_comparison(callback: keras.callbacks.Callback) -> None:
    """Let a callback choose now whether less or more is better, if it would at an epoch's end.

    Keras then flips its ``min_delta``: it has to have done so before the flipped value is put back.
    A callback that compares nothing has no such function.
    """
    choose = getattr(callback, "_set_monitor_op", None)
    if choose is not None:
        choose()


def has_swapped(callback: keras.callbacks.Callback) -> bool:
    """Say whether the weights are moving averages now, and those that are trained in their place.

    Raises:
        TrainingError: this version of Keras notes it in another way.
    """
    if not isinstance(callback, keras.callbacks.SwapEMAWeights):
        return False
    if not hasattr(callback, "_ema_weights_in_model"):
        raise unknown("swaps weights and their averages")
    return bool(callback._ema_weights_in_model)


def end_with_averages(callback: keras.callbacks.Callback) -> None:
    """Let the averages be what the weights are: the optimizer copies them back at the end."""
    if has_swapped(callback):
        callback._finalize_ema_values()
