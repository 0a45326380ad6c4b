"""``hardware.remat``: layers whose inside is computed again for the gradient, and not kept."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from dtrain.task.backends.runtime import runtime
from dtrain.task.model.path_rules import choose, pattern
from dtrain.task.model.walk import walk

KEY = "hardware.remat"


def rematerialize(model: keras.Model, patterns: Sequence[str]) -> None:
    """Have layers of ``model`` computed a second time for their gradients.

    Args:
        model: built.
        patterns: regular expressions, each found in a layer's name. What is inside of such a
            layer belongs to it.

    Raises:
        UsageError: one is no regular expression, or is found in no name.
    """
    # The outermost come first in an error.
    layers = sorted(walk(model), key=lambda item: item[0].count("/"))
    rules = choose(
        list(patterns), [layer.name for _, layer in layers], "layer",
        lambda text: (pattern(text, KEY), None), KEY, text="name",
    )  # fmt: skip
    chosen = {id(layer) for (_, layer), rule in zip(layers, rules, strict=True) if rule}
    for _, layer in walk(model, enters=lambda layer: id(layer) not in chosen):
        if id(layer) in chosen:
            layer.call = runtime().computed_twice(layer)
