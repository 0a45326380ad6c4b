"""Losses of PyTorch's, and functions that take what these do, as losses of Keras'."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import keras
import torch

from dtrain.errors import UsageError

#: How first parameters begin by which a function says that it is given outputs first, as PyTorch's
#: are, or targets, as Keras'.
OUTPUTS_FIRST = ("input", "output", "pred", "logit", "y_pred", "y_hat")
TARGETS_FIRST = ("y_true", "target", "label")
#: Names of PyTorch's losses that compare each output with its own target; the others take classes.
OF_NUMBERS = re.compile(
    r"(MSE|L1|SmoothL1|Huber|BCE|BCEWithLogits|PoissonNLL|KLDiv|SoftMargin)Loss"
    r"|(mse|l1|smooth_l1|huber)_loss|binary_cross_entropy(_with_logits)?"
)


class Loss(keras.losses.Loss):
    """A loss of PyTorch's, or one that takes what PyTorch's do: ``loss(outputs, targets)``.

    Args:
        function: a module, or a function.
    """

    def __init__(self, function: Callable[..., Any]):
        name = getattr(function, "__name__", type(function).__name__)
        super().__init__(name=name)
        self.__name__ = name
        object.__setattr__(self, "function", function)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the loss of a batch, one number.

        Raises:
            UsageError: targets have another shape than the outputs, or the loss is no number.
        """
        name, y_true = self.name, keras.ops.convert_to_tensor(y_true)
        if sample_weight is not None:
            raise UsageError(
                "dataset", "weights", f"{name} takes no weights of examples",
                "a loss of Keras', or a module with a training_step", "trainer.loss=mse",
            )  # fmt: skip
        shapes = tuple(y_true.shape), tuple(y_pred.shape)
        of_numbers = y_true.is_floating_point() or OF_NUMBERS.fullmatch(name) is not None
        if shapes[0] != shapes[1] and (of_numbers or shapes[1] == (*shapes[0], 1)):
            raise UsageError(
                "trainer.loss", name,
                f"outputs have the shape {shapes[1]}, and targets {shapes[0]}: "
                "PyTorch would compare each with all", "outputs of the targets' shape",
                "outputs.squeeze(-1), or outputs.reshape(targets' shape), in the module",
            )  # fmt: skip
        loss = self.function(y_pred, y_true.to(y_pred.dtype) if of_numbers else y_true.long())
        if loss.ndim:
            raise UsageError(
                "trainer.loss", name, f"has the shape {tuple(loss.shape)}, and is to be one number",
                "a loss with reduction=mean or sum", "reduction='mean'",
            )  # fmt: skip
        return loss


def loss(value: Any) -> Any:
    """Return a loss that takes ``(outputs, targets)`` as Keras calls one; another as it is."""
    if isinstance(value, torch.nn.Module):
        return Loss(value)
    if not (inspect.isfunction(value) or isinstance(value, functools.partial)):
        return value
    first = next(iter(inspect.signature(value).parameters), "")
    return Loss(value) if first.startswith(OUTPUTS_FIRST) else value
