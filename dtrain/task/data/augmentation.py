"""``dataset.augment``: Keras' layers as functions of an example and its seed, and several in turn.

The random numbers of Keras' preprocessing layers are of variables; here they are of the seed that
functions of :mod:`dtrain.augment` get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from dtrain.errors import UsageError
from dtrain.task.backends.runtime import runtime


class _PositionSeed(keras.random.SeedGenerator):
    """A stateless seed generator: its n-th seed is a function of ``key`` and n."""

    key: Any = None
    _draws = 0

    def start(self, key: Any) -> None:
        """Draw from ``key``, the seed of an example, from here on."""
        self.key, self._draws = key, 0

    def next(self, ordered: bool = True) -> Any:
        """Return a seed."""
        self._draws += 1
        return runtime().fold_in(self.key, self._draws)


class Layer:
    """Calls a Keras layer on one example, with random numbers of the example's seed.

    Args:
        layer: one of Keras' preprocessing layers, or of the user's own whose random numbers come
            from seed generators that are its attributes.
        key: in the configuration, for messages.

    Raises:
        UsageError: the layer changes several examples together, or not by a seed.
    """

    #: Of Keras, those whose changes are not of one example and its seed.
    REFUSED = {
        "MixUp": "mixes the examples of a batch, and their targets",
        "CutMix": "mixes the examples of a batch, and their targets",
        "AugMix": "draws from Python's random numbers, once for all examples",
    }

    def __init__(self, layer: keras.Layer, key: str):
        kind = type(layer).__name__
        if kind in self.REFUSED:
            raise UsageError(
                key, kind, self.REFUSED[kind], "layers that change one example by its seed",
                f"the configuration without {key}",
            )  # fmt: skip
        self._layer = layer
        self._seeds = _PositionSeed(0)
        for part in _layers(layer):
            for name, value in vars(part).items():
                if isinstance(value, keras.random.SeedGenerator):
                    setattr(part, name, self._seeds)

    def __call__(self, x: Any, seed: Any) -> Any:
        """Return what the layer makes of ``x``, in the type of ``x``."""
        self._seeds.start(seed)
        ops = keras.ops
        changed = ops.convert_to_tensor(self._layer(ops.cast(x, "float32"), training=True))
        if keras.backend.is_int_dtype(x.dtype):
            changed = ops.saturate_cast(ops.round(changed), x.dtype)
        return ops.cast(changed, x.dtype)

    def check(self, key: str, x: np.ndarray) -> None:
        """Refuse a range of values that is not that of the examples.

        Args:
            key: of the node.
            x: some examples, ``[n, ...]``.

        Raises:
            UsageError: naming the range.
        """
        bounds = [tuple(getattr(part, "value_range", (0, 1))) for part in _layers(self._layer)]
        high = max(high for _, high in bounds)
        if high == 255 and x.size and x.max() <= 1.0:
            raise UsageError(
                f"{key}.value_range", "[0, 255]", f"the examples are {x.min():.4g} to "
                f"{x.max():.4g}", "[0, 1] for these", f"value_range: [0, 1], in the node of {key}",
            )  # fmt: skip


def _layers(layer: keras.Layer) -> Iterator[keras.Layer]:
    """Yield a layer and those that are its attributes, alone or in a list."""
    yield layer
    for value in list(vars(layer).values()):
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, keras.Layer) and part is not layer:
                yield from _layers(part)


def in_turn(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function of an example and a seed that calls others one after the other.

    Args:
        functions: of an example and a seed; each gets a seed of its own.
    """

    def augment(x: Any, seed: Any) -> Any:
        for index, function in enumerate(functions):
            own = runtime().fold_in(seed, index) if index else seed
            x = function(x, seed=own)
        return x

    return augment
