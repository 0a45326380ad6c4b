"""What a worker cannot compute of a step: the servers have the weights, and each has its part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from dtrain.errors import UsageError
from dtrain.task.model.optimizers import Update


class Scope(keras.StatelessScope):
    """Values of variables; it takes note of weights that are read once they are old."""

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        #: Weights, by their ids: they change when the step is over.
        self.weights: Mapping[int, Any] = {}
        #: What the optimizer was given.
        self.updates: list[Update] = []
        self.read: list[keras.Variable] = []

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Return a value, as the scope has it."""
        if self.updates and id(variable) in self.weights:
            self.read.append(variable)
        return super().get_current_value(variable)


def check_pure(moved: list[keras.Variable], scope: Scope) -> None:
    """Refuse a ``train_step`` that does what a worker cannot: the servers have the weights.

    Args:
        moved: the weights that it has assigned itself.
        scope: says which it has read after they were given to the optimizer.

    Raises:
        UsageError: there is one.
    """
    if moved:
        raise _refused(f"assigns weights itself ({moved[0].path})")
    if scope.read:
        raise _refused(
            f"reads weights after it has applied their gradients ({scope.read[0].path}), which are "
            "then what they were before"
        )


def check_whole(applied: list[Any], given: list[Any]) -> None:
    """Refuse a ``train_step`` that needs the gradient of the whole batch, which a worker has not.

    Args:
        applied: the gradients that it gives to the optimizer.
        given: those that tapes gave to it.

    Raises:
        UsageError: it does more than to hand one over as the other.
    """
    if any(g is not None and all(g is not each for each in given) for g in applied):
        raise _refused(
            "changes gradients between the tape and the optimizer, and a worker has those of its "
            "part of the batch"
        )


def _refused(does: str) -> UsageError:
    return UsageError(
        "strategy", "ps", f"the model's step {does}",
        "a train_step that applies what the tape gives, as Keras' own does (global_clipnorm of the "
        "optimizer clips), or a strategy whose replicas meet in a step", "strategy=multiworker",
    )  # fmt: skip
