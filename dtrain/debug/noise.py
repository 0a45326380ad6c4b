"""Layers that draw random numbers while a model is trained, made to draw none."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras

from dtrain.task import keras_internals

_KINDS = keras.layers
#: Of layers of Keras': what says how much noise there is.
_AMOUNTS: dict[tuple[type, ...], tuple[str, ...]] = {
    (
        _KINDS.Dropout, _KINDS.SpatialDropout1D, _KINDS.SpatialDropout2D, _KINDS.SpatialDropout3D,
        _KINDS.GaussianDropout, _KINDS.AlphaDropout,
    ): ("rate",),
    (_KINDS.GaussianNoise,): ("stddev",),
    (_KINDS.LSTMCell, _KINDS.GRUCell, _KINDS.SimpleRNNCell): ("dropout", "recurrent_dropout"),
}  # fmt: skip
#: Augmentation: layers that do nothing where they do not train.
_RANDOM = tuple(
    kind
    for name, kind in vars(_KINDS).items()
    if name.startswith("Random") and isinstance(kind, type)
)


def silence(model: keras.Model) -> list[str]:
    """Take the noise of Keras' own layers out of a model, and return the names of these layers.

    Dropout, Gaussian noise and random augmentation; not what a layer of the user's own draws.
    """
    found = []
    for layer in keras_internals.layers(model):
        silenced = isinstance(layer, _RANDOM)
        if silenced:
            layer.call = _without_training(layer.call)
        for kinds, names in _AMOUNTS.items():
            for name in names if isinstance(layer, kinds) else ():
                if getattr(layer, name):
                    setattr(layer, name, 0.0)
                    silenced = True
        if silenced:
            found.append(layer.name)
    return found


def _without_training(call: Any) -> Any:
    if "training" not in inspect.signature(call).parameters:
        return call

    @functools.wraps(call)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        return call(*args[:1], **{**kwargs, "training": False})

    return quiet
