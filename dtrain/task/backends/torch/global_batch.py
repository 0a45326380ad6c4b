"""What a replica divides by is that of the global batch: losses, masks, batch statistics.

What layers of the user's own keep by hand is the mean over the replicas, as of a running mean.

Functions of Keras and PyTorch are wrapped once; outside of a step of several replicas they are as
they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import torch

from dtrain.errors import UsageError
from dtrain.task.backends.torch import gradients
from dtrain.task.backends.torch.keras_internals import divide_added_losses
from dtrain.task.backends.tracing import now
from dtrain.task.keras_internals import divide_losses_by_global_batch, use_moments


def note_divisors() -> None:
    """Let losses of classes say what they are divided by, once in a process."""
    functional: Any = torch.nn.functional
    if not getattr(functional.cross_entropy, "by_dtrain", False):
        for name in ("cross_entropy", "nll_loss"):
            original = getattr(functional, name)
            asked = lambda: gradients.current() or now().divisors  # noqa: E731
            setattr(functional, name, _marked(original, _of_classes, asked))


def install() -> None:
    """Wrap them, once in a process."""
    note_divisors()
    divide_losses_by_global_batch(gradients.current, gradients.mean)
    use_moments(_keras_moments)
    divide_added_losses(lambda: now().parts)
    functional: Any = torch.nn.functional
    if not getattr(functional.batch_norm, "by_dtrain", False):
        functional.batch_norm = _marked(functional.batch_norm, _batch_norm)
        variable: Any = keras.Variable
        variable.assign = _marked(variable.assign, _assign)


def _marked(original: Any, of_replicas: Any, asked: Callable[[], Any] = gradients.current) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        if asked() is None:
            return original(*args, **options)
        return of_replicas(original, *args, **options)

    # A mark on a function, which types of functions do not have.
    call.by_dtrain = True  # type: ignore[attr-defined]
    return call


def _assign(original: Any, variable: keras.Variable, value: Any) -> Any:
    step = gradients.current()
    # What a weight is assigned without gradients an optimizer assigns it: that is the same already.
    if step is not None and id(variable) in step.kept and not now().inside:
        value = keras.ops.convert_to_tensor(value)
        by_hand = not variable.trainable or torch.is_grad_enabled()
        if by_hand and tuple(value.shape) == tuple(variable.shape):
            value = gradients.gathered(value.to(torch.promote_types(value.dtype, torch.float32)))
            value = value.mean(0)
    return original(variable, value)


def moments(values: torch.Tensor, axes: list[int], mask: Any = None) -> tuple[Any, Any, Any]:
    """Return mean and variance of the global batch along axes, and of how many values they are.

    Those of the replicas are combined as of Chan et al. 1979 (Updating Formulae and a Pairwise
    Algorithm for Computing Sample Variances), by one all-gather.

    Args:
        values: of this replica.
        axes: which are reduced.
        mask: of which values count, of the same shape; None: all.
    """
    weights = torch.ones_like(values) if mask is None else mask.to(values.dtype)
    count = weights.sum(axes)
    own = (values * weights).sum(axes) / count.clamp(min=1)
    shape = [1 if axis in axes else size for axis, size in enumerate(values.shape)]
    squares = (torch.square(values - own.reshape(shape)) * weights).sum(axes)
    counts, means, others = gradients.gathered(torch.stack([count, own, squares])).unbind(1)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total.clamp(min=1)
    between = counts * torch.square(means - mean)
    return mean, (others + between).sum(0) / total.clamp(min=1), total


def _keras_moments(original: Any, layer: Any, inputs: Any, mask: Any) -> Any:
    """Return what a ``BatchNormalization`` of Keras' normalises by."""
    if gradients.current() is None:
        return original(layer, inputs, mask)
    axis = layer.axis % inputs.ndim
    axes = [each for each in range(inputs.ndim) if each != axis]
    if mask is not None:
        mask = mask.unsqueeze(-1).broadcast_to(inputs.shape)
    return moments(inputs, axes, mask)[:2]


def _batch_norm(
    original: Any,
    input: torch.Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    if not training:
        result: torch.Tensor = original(
            input, running_mean, running_var, weight, bias, training, momentum, eps
        )
        return result
    mean, variance, count = moments(input.float(), [i for i in range(input.ndim) if i != 1])
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            unbiased = variance * count / (count - 1).clamp(min=1)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    shape = [1, -1] + [1] * (input.ndim - 2)
    scale = torch.rsqrt(variance + eps)
    outputs = (input - mean.view(shape)) * scale.view(shape)
    if weight is not None:
        outputs = outputs * weight.view(shape)
    if bias is not None:
        outputs = outputs + bias.view(shape)
    return outputs.to(input.dtype)


def _of_classes(
    original: Any,
    input: torch.Tensor,
    target: torch.Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    **options: Any,
) -> torch.Tensor:
    """Divide a loss of classes by the weights of the global batch, without what is ignored."""
    step, divisors = gradients.current(), now().divisors
    loss: torch.Tensor = original(
        input, target, weight, size_average, ignore_index, reduce, reduction, **options
    )
    if step is not None and (size_average is not None or reduce is not None):
        raise UsageError(
            "trainer.loss", original.__name__, "is called with size_average or reduce, which "
            "PyTorch has deprecated", "reduction", "reduction='mean'",
        )  # fmt: skip
    if reduction != "mean" or target.is_floating_point():  # probabilities are never ignored
        return loss
    counts = target != ignore_index
    own = counts.sum().float() if weight is None else weight[target[counts]].sum().float()
    # Of none it is 0 / 0.
    loss = torch.where(own > 0, loss, torch.zeros_like(loss))
    if step is not None:
        [whole] = gradients.mean([own])
        loss = loss * torch.where(whole > 0, own / whole, torch.ones_like(own)).to(loss.dtype)
    if divisors is not None:
        divisors.append((loss, own))
    return loss
