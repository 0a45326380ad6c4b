"""The layers inside of a model and their weights, each with the path of names that leads to it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator

import keras

from dtrain.task import keras_internals
from dtrain.task.aliases import Nest

#: Begin the names of what Keras' ``enable_lora`` adds to a layer.
LORA = "lora_"


def walk(
    model: keras.Layer, enters: Callable[[keras.Layer], bool] = lambda layer: True
) -> Iterator[tuple[str, keras.Layer]]:
    """Yield (path, layer) of the layers in a model, each once and before those inside of it.

    A path has the names of all layers around it: ``backbone/block/conv``. Inputs are left out.

    Args:
        model: is not yielded itself.
        enters: whether the layers inside of a layer are yielded as well.
    """
    visited: set[int] = set()

    def inside(layer: keras.Layer, prefix: str) -> Iterator[tuple[str, keras.Layer]]:
        for part in keras_internals.inner(layer):
            if id(part) in visited or isinstance(part, keras.layers.InputLayer):
                continue
            visited.add(id(part))
            yield f"{prefix}{part.name}", part
            if enters(part):
                yield from inside(part, f"{prefix}{part.name}/")

    return inside(model, "")


def own(layer: keras.Layer, kind: str = "weights") -> list[keras.Variable]:
    """Return the weights of a layer itself, without those of layers in it.

    Args:
        layer: any.
        kind: ``weights``, or ``variables`` for states of random generators as well.
    """
    inner = {id(v) for part in keras_internals.inner(layer) for v in getattr(part, kind)}
    return [v for v in getattr(layer, kind) if id(v) not in inner]


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight, or a statistic, of a layer.

    Attributes:
        path: of its layer, and its own name: ``backbone/conv/kernel``. Keras' own paths lack the
            models that layers lie in.
        index: its place among those of its layer, by which Keras' files name it.
        variable: of Keras.
    """

    path: str
    index: int
    variable: keras.Variable

    @property
    def is_of_lora(self) -> bool:
        """Whether ``enable_lora`` has made it."""
        return self.variable.name.startswith(LORA)


def weights(model: keras.Model) -> list[Weight]:
    """Return the weights of a model, each once, without states of generators and recurrent layers.

    Of two that have one path the second ends in ``#2``.
    """
    unique: dict[int, Weight] = {}
    count: collections.Counter[str] = collections.Counter()
    for path, layer in [("", model), *walk(model)]:
        for index, variable in enumerate(own(layer)):
            if id(variable) in unique:
                continue
            place = f"{path}/{variable.name}" if path else variable.name
            count[place] += 1
            place = place if count[place] == 1 else f"{place}#{count[place]}"
            unique[id(variable)] = Weight(place, index, variable)
    return list(unique.values())


def inputs(model: keras.Model) -> list[Nest]:
    """Return the symbolic inputs of a model; none where it declares none."""
    try:
        return list(model.inputs or ())  # a Sequential that is not built raises
    except (AttributeError, ValueError):
        return []
