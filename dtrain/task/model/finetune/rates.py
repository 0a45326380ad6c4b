"""Factors of the learning rate by the paths of weights (``finetune.learning_rates``).

A weight with a factor is updated as a second optimizer with that learning rate would: the update is
scaled, and decoupled weight decay with it. Not the gradient, whose scale Adam does not see.
"""

from __future__ import annotations

from typing import Any

import keras

from dtrain.errors import UsageError
from dtrain.task import keras_internals
from dtrain.task.model import optimizers
from dtrain.task.model.finetune import stages, weights
from dtrain.task.model.path_rules import choose

KEY = "finetune.learning_rates"
_NONE = "'finetune.learning_rates=[]'"


def scale(model: keras.Model, rules: list[Any]) -> None:
    """Give weights their factors; the optimizer has its slots by now.

    Args:
        model: compiled and built.
        rules: ``{path: REGEX, factor: NUMBER}``; the first that is found in a path holds, and
            what no rule names has the factor 1.

    Raises:
        UsageError: a rule names no weight that is trained, or the model has not one optimizer.
    """
    if not rules:
        return
    known = optimizers.named(model)
    if list(known) != ["optimizer"]:
        raise UsageError(
            KEY, rules[0]["path"], f"the model has {len(known)} optimizers ({', '.join(known)})",
            "a model with the one of compile", _NONE,
        )  # fmt: skip
    slots = {id(variable): index for index, variable in enumerate(stages.trained(model))}
    able = [weight for weight in weights.find(model) if id(weight.variable) in slots]
    chosen = choose(
        rules, [weight.path for weight in able], "weight that is trained",
        lambda rule: (rule["path"], rule["factor"]), KEY, _NONE,
    )  # fmt: skip
    factors = [1.0] * len(slots)
    for weight, rule in zip(able, chosen, strict=True):
        if rule is not None:
            factors[slots[id(weight.variable)]] = float(rule[1])
    keras_internals.scale_learning_rates(model.optimizer, factors)
