"""Copies of weights on several replicas, which must be alike."""

from __future__ import annotations

import keras
import numpy as np

from dtrain.errors import refuse

#: Copies of a weight are alike where they differ by so much of its largest element: devices of
#: several kinds may round otherwise.
COPIES = 1e-6


def check_alike(
    model: keras.Model, variable: keras.Variable, own: np.ndarray, other: np.ndarray
) -> None:
    """Refuse a model of which two replicas have other values of a weight.

    Raises:
        UsageError: naming the weight.
    """
    with np.errstate(invalid="ignore"):  # of what is not finite other checks tell
        differ = np.any(np.abs(other - own) > COPIES * np.max(np.abs(own), initial=0.0))
    if differ:
        refuse(
            "model",
            f"its step changes {variable.path} otherwise on each replica, as noise does that is "
            "drawn for weights or gradients: replicas draw what is for examples",
            type(model).__name__,
            accepted="a step that changes weights by what tapes give and what is the same on all "
            "replicas, "
            "or one replica", typed="strategy=one_device",
        )  # fmt: skip
