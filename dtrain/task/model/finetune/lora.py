"""LoRA: layers whose kernel stays, and to which a product of two thin matrices is added.

(Hu et al. 2021, arXiv 2106.09685.) Keras' own: ``layer.enable_lora``. The second matrix begins with
zeros, so that the model computes what it computed without.
"""

from __future__ import annotations

from typing import Any

import keras

from dtrain.errors import UsageError
from dtrain.task.model.finetune import weights
from dtrain.task.model.path_rules import choose, listed

KEY = "finetune.lora"
_NONE = "'finetune.lora=[]'"


def enable(model: keras.Model, rules: list[Any]) -> None:
    """Enable LoRA in the layers of a model that rules name; inside the scope of its variables.

    Args:
        model: built.
        rules: ``{path: REGEX, rank: NUMBER}``; the first that is found in a layer's path holds.

    Raises:
        UsageError: a rule names no layer, or one that has no LoRA.
    """
    if not rules:
        return
    layers = [(prefix[:-1], layer) for prefix, layer in weights.walk(model) if prefix]
    able = [(path, layer) for path, layer in layers if hasattr(layer, "enable_lora")]
    paths = [path for path, _ in able]
    if not able:
        raise UsageError(
            KEY, rules[0]["path"], "no layer of this model has enable_lora",
            "a model with Dense, EinsumDense, Embedding or convolutions", _NONE,
        )  # fmt: skip
    chosen = choose(
        rules, paths, "layer with enable_lora", lambda r: (r["path"], r["rank"]), KEY, _NONE
    )
    for rule, (path, layer) in zip(chosen, able, strict=True):
        if rule is None:
            continue
        try:
            layer.enable_lora(rule[1])
        except (ValueError, NotImplementedError) as error:
            raise UsageError(
                KEY, rule[0], f"the layer {path} cannot have it ({error})",
                listed(paths), _NONE,
            ) from None  # fmt: skip
