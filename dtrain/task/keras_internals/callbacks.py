"""When callbacks of Keras choose how they compare."""

from __future__ import annotations

import keras


def choose_comparison(callback: keras.callbacks.Callback) -> None:
    """Let a callback choose now whether less or more is better, if it would at an epoch's end.

    Keras then flips its ``min_delta``: it has to have done so before the flipped value is put back.
    A callback that compares nothing has no such function.
    """
    choose = getattr(callback, "_set_monitor_op", None)
    if choose is not None:
        choose()
