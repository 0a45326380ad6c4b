"""The weights of a model, each with the path of layers that leads to it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

import keras

from dtrain.task import keras_internals

#: Begin the names of what Keras' ``enable_lora`` adds to a layer.
LORA = "lora_"


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight, or a statistic, of a layer.

    Attributes:
        path: names of the layers that lead to it, model inside of model, and its own:
            ``backbone/conv/kernel``. That of Keras lacks the models that layers lie in.
        index: its place among those of its layer, by which Keras' files name it.
        variable: it.
    """

    path: str
    index: int
    variable: keras.Variable

    @property
    def is_of_lora(self) -> bool:
        """Whether ``enable_lora`` has made it."""
        return self.variable.name.startswith(LORA)


def find(model: keras.Model) -> list[Weight]:
    """Return the weights of a model, each once; seeds and states of layers are none."""
    found: list[Weight] = []
    seen: set[int] = set()
    count: collections.Counter[str] = collections.Counter()
    for prefix, layer in walk(model):
        for index, variable in enumerate(own(layer)):
            if id(variable) in seen:
                continue
            seen.add(id(variable))
            path = f"{prefix}{variable.name}"
            count[path] += 1  # two layers of a user's model may share a name
            path = path if count[path] == 1 else f"{path}#{count[path]}"
            found.append(Weight(path, index, variable))
    return found


def walk(
    layer: keras.Layer, prefix: str = "", seen: set[int] | None = None
) -> Iterator[tuple[str, keras.Layer]]:
    """Yield a model and all layers in it, once, each after ``PATH/`` of it and before its parts."""
    seen = set() if seen is None else seen
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield prefix, layer
    for part in keras_internals.inner(layer):
        yield from walk(part, f"{prefix}{part.name}/", seen)


def own(layer: keras.Layer) -> list[keras.Variable]:
    """Return the weights of a layer itself, without those of layers in it."""
    inner = {id(v) for part in keras_internals.inner(layer) for v in part.weights}
    return [v for v in layer.weights if id(v) not in inner]
