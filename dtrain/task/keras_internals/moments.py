"""What a ``BatchNormalization`` of Keras' normalises by.

On PyTorch Keras synchronizes nothing over the replicas, and behind a mask on no backend.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from dtrain.task.keras_internals.lookup import ONE_REPLICA, function, unknown


def use_moments(moments: Callable[..., Any]) -> None:
    """Let ``moments`` compute mean and variance of a batch; once in a process.

    Args:
        moments: is given Keras' own function, and its arguments: layer, inputs and mask.

    Raises:
        TrainingError: this version of Keras computes them in another way.
    """
    kind: Any = keras.layers.BatchNormalization
    original = function(kind, "_moments", ["self", "inputs", "mask"])
    if original is None:
        raise unknown("computes the statistics of a batch", ONE_REPLICA)
    if not getattr(original, "by_dtrain", False):

        @functools.wraps(original)
        def of_replicas(self: Any, inputs: Any, mask: Any) -> Any:
            return moments(original, self, inputs, mask)

        # A mark on a function, which types of functions do not have.
        of_replicas.by_dtrain = True  # type: ignore[attr-defined]
        kind._moments = of_replicas
