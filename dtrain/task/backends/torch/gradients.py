"""Gradients are averaged over the replicas where autograd gives them.

The step of a replica sees its part of the global batch as a batch of its own: its losses are those
of the part, whatever they are. What ``torch.autograd.backward`` (``Tensor.backward``) leaves in
``.grad`` of the model's parameters, and what ``torch.autograd.grad`` returns of them, is then the
mean over the replicas, which is the gradient of the global batch. So all that follows, such as
clipping, a penalty or a second optimizer, does what it does on one device. What is accumulated over
several backward passes is right as well: the mean of what was averaged before is that.

All gradients of a type are one all-reduce after the backward pass. A collective for each parameter
is slower, and gloo aborts the process where a parameter is used on one replica only.

What a replica divides by is that of the global batch: losses, masks, batch statistics. What layers
of the user's own keep by hand is the mean over the replicas, as of a running mean. Functions of
Keras and PyTorch are wrapped once; outside of a step of several replicas they are as they were.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import keras
import torch
from torch import distributed

from dtrain.errors import refuse
from dtrain.task.aliases import Foreign, Function, Nest, Tensor, Tensors
from dtrain.task.backends import across
from dtrain.task.backends.torch.keras_internals import change, divide_added_losses, is_transformed
from dtrain.task.backends.tracing import now, tracing
from dtrain.task.keras_internals import divide_losses_by_global_batch, use_moments


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step of one of several replicas.

    Attributes:
        replicas: how many share the global batch.
        parameters: whose gradients are averaged.
        kept: the identities of variables that are averaged when they are assigned.
        summed: the losses are parts of that of the global batch, and not losses of parts: their
            gradients are added up (``trainer.gradient_reduction=sum``).
    """

    replicas: int
    parameters: Sequence[torch.Tensor]
    kept: Set[int]
    summed: bool = False


def current() -> Step | None:
    """Return the step that runs in this thread, None outside of one.

    What ``torch.func`` transforms is of the replica's own examples, as one of them alone may be.
    """
    step: Step | None = now().step
    return None if step is None or is_transformed() else step


class _Gathered(torch.autograd.Function):
    """Tensors of all replicas: ``[n, ...]`` of each to ``[replicas, n, ...]``."""

    @staticmethod
    def forward(ctx: Foreign, x: torch.Tensor) -> torch.Tensor:
        """Gather."""
        parts = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Foreign, *upstream: torch.Tensor) -> torch.Tensor:
        """Add up what the replicas' losses depend on this replica's values by.

        The mean over the replicas comes later, where gradients of parameters are averaged.
        """
        total = upstream[0].contiguous()
        distributed.all_reduce(total)
        return total[distributed.get_rank()]


def gathered(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of all replicas, ``[replicas, *shape]``; differentiable."""
    return _Gathered.apply(x)


def mean(values: Sequence[Tensor]) -> list[torch.Tensor]:
    """Return the means of scalars over the replicas, by one all-reduce."""
    step = current()
    assert step is not None
    total = torch.stack([value.detach().float() for value in values])
    distributed.all_reduce(total)
    return list(total / step.replicas)


def install() -> None:
    """Let PyTorch and Keras ask :func:`current` for the step; once in a process."""
    note_divisors()
    divide_losses_by_global_batch(current, mean)
    use_moments(_keras_moments)
    divide_added_losses(lambda: now().parts)
    autograd: Foreign = torch.autograd
    if getattr(autograd.backward, "by_dtrain", False):
        return
    autograd.backward = _wrapped(autograd.backward, _backward, _note_all)
    autograd.grad = _wrapped(autograd.grad, _grad, _note_of_parameters)
    functional: Foreign = torch.nn.functional
    functional.batch_norm = _marked(functional.batch_norm, _batch_norm)
    variable: Foreign = keras.Variable
    variable.assign = _marked(variable.assign, _assign)


def _wrapped(original: Function, averaging: Function, note: Callable[..., None]) -> Function:
    @functools.wraps(original)
    def call(*args: object, **options: object) -> Nest:
        traced = now()
        if traced.targets is not None and not traced.inside:
            note(traced.targets, *args, **options)
        # A pass inside of another, such as of a layer that is computed twice, is a part of it.
        if traced.step is None or traced.inside:
            return original(*args, **options)
        with tracing(inside=True):
            returned = original(*args, **options)
        return averaging(traced.step, returned, *args, **options)

    # A mark on a function, which types of functions do not have.
    call.by_dtrain = True  # type: ignore[attr-defined]
    return call


def _note_all(targets: Tensors, tensors: Nest, *args: object, **options: object) -> None:
    targets.extend(keras.tree.flatten(tensors))


def _note_of_parameters(
    targets: Tensors, outputs: Nest, inputs: Nest, *args: object, **options: object
) -> None:
    # Of inputs, such as a gradient penalty's, each replica has its own.
    if any(isinstance(each, torch.nn.Parameter) for each in keras.tree.flatten(inputs)):
        targets.extend(keras.tree.flatten(outputs))


def _backward(step: Step, returned: None, *args: object, **options: object) -> None:
    parameters = [each for each in step.parameters if each.requires_grad]
    gradients = [each.grad for each in parameters]
    for parameter, gradient in zip(parameters, reduced(step, parameters, gradients), strict=True):
        parameter.grad = gradient


def _grad(step: Step, gradients: Any, outputs: Any, inputs: Any, *args: Any, **options: Any) -> Any:
    sources = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    own = {id(each) for each in step.parameters}
    # Of inputs, such as a gradient penalty's, each replica has its own.
    places = [i for i, source in enumerate(sources) if id(source) in own]
    if places and options.get("is_grads_batched"):
        raise across.gradients_of_examples("train_step")
    chosen, parameters = [gradients[i] for i in places], [sources[i] for i in places]
    if any(each is not None and each.requires_grad for each in chosen):  # of create_graph=True
        averaged: Iterable[Tensor] = [
            gathered(torch.zeros_like(p) if g is None else g).sum(0)
            / (1 if step.summed else step.replicas)
            for p, g in zip(parameters, chosen, strict=True)
        ]
    else:
        averaged = reduced(step, parameters, chosen)
    result = list(gradients)
    for place, gradient in zip(places, averaged, strict=True):
        result[place] = gradient
    return tuple(result)


def reduced(
    step: Step, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Reduce gradients over the replicas, by one all-reduce for each type.

    One that a replica does not have counts as zeros; one that no replica has stays None: zeros
    would let an optimizer decay the weight and move its momentum.

    Args:
        step: of the replicas.
        parameters: the same on all of them.
        gradients: of each, on this one.
    """
    result: list[torch.Tensor | None] = [None] * len(parameters)
    types = list(dict.fromkeys(parameter.dtype for parameter in parameters))
    for dtype in types:
        places = [i for i, each in enumerate(parameters) if each.dtype == dtype]
        own = [gradients[i] for i in places]
        is_whole = all(each is not None for each in own)
        vectors = [
            torch.zeros_like(parameters[i]).reshape(-1) if gradient is None
            else (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)
            for i, gradient in zip(places, own, strict=True)
        ]  # fmt: skip
        used = torch.tensor([each is not None for each in own], dtype=dtype)
        flat = torch.cat([*vectors, used.to(vectors[0].device)])
        distributed.all_reduce(flat)
        *sums, used = flat.split([each.numel() for each in vectors] + [len(own)])
        if not step.summed:
            change("div_", sums, step.replicas)
        # Where this replica has all of them, so have they together: nothing is read of a GPU.
        counts = [1.0] * len(own) if is_whole else used.tolist()
        for i, total, count in zip(places, sums, counts, strict=True):
            result[i] = total.view_as(parameters[i]) if count else None
    return result


def note_divisors() -> None:
    """Let losses of classes say what they are divided by, once in a process."""
    functional: Foreign = torch.nn.functional
    if not getattr(functional.cross_entropy, "by_dtrain", False):
        for name in ("cross_entropy", "nll_loss"):
            original = getattr(functional, name)
            setattr(functional, name, _marked(original, _of_classes, _dividing))


def _dividing() -> object:
    return current() or now().divisors


def _marked(original: Function, of_replicas: Function, asked: Function = current) -> Function:
    @functools.wraps(original)
    def call(*args: object, **options: object) -> Nest:
        if asked() is None:
            return original(*args, **options)
        return of_replicas(original, *args, **options)

    # A mark on a function, which types of functions do not have.
    call.by_dtrain = True  # type: ignore[attr-defined]
    return call


def _assign(original: Function, variable: keras.Variable, value: Tensor) -> Foreign:
    step = current()
    # What a weight is assigned without gradients an optimizer assigns it: that is the same already.
    if step is not None and id(variable) in step.kept and not now().inside:
        value = keras.ops.convert_to_tensor(value)
        by_hand = not variable.trainable or torch.is_grad_enabled()
        if by_hand and tuple(value.shape) == tuple(variable.shape):
            value = gathered(value.to(torch.promote_types(value.dtype, torch.float32)))
            value = value.mean(0)
    return original(variable, value)


def moments(values: torch.Tensor, axes: list[int], mask: Tensor = None) -> tuple[Tensor, ...]:
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
    counts, means, others = gathered(torch.stack([count, own, squares])).unbind(1)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total.clamp(min=1)
    between = counts * torch.square(means - mean)
    return mean, (others + between).sum(0) / total.clamp(min=1), total


def _keras_moments(original: Function, layer: keras.Layer, inputs: Tensor, mask: Tensor) -> Nest:
    """Return what a ``BatchNormalization`` of Keras' normalises by."""
    if current() is None:
        return original(layer, inputs, mask)
    axis = layer.axis % inputs.ndim
    axes = [each for each in range(inputs.ndim) if each != axis]
    if mask is not None:
        mask = mask.unsqueeze(-1).broadcast_to(inputs.shape)
    return moments(inputs, axes, mask)[:2]


def _batch_norm(
    original: Function, input: torch.Tensor, running_mean: Tensor, running_var: Tensor,
    weight: Tensor = None, bias: Tensor = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    if not training:
        return original(input, running_mean, running_var, weight, bias, training, momentum, eps)
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
    original: Function, input: torch.Tensor, target: torch.Tensor, weight: Tensor = None,
    size_average: object = None, ignore_index: int = -100, reduce: object = None,
    reduction: str = "mean", **options: object,
) -> torch.Tensor:  # fmt: skip
    """Divide a loss of classes by the weights of the global batch, without what is ignored."""
    step, divisors = current(), now().divisors
    loss: torch.Tensor = original(
        input, target, weight, size_average, ignore_index, reduce, reduction, **options
    )
    if step is not None and (size_average is not None or reduce is not None):
        refuse("trainer.loss",
               "is called with size_average or reduce, which PyTorch has deprecated",
               original.__name__, accepted="reduction", hint="reduction='mean'")  # fmt: skip
    if reduction != "mean" or target.is_floating_point():  # probabilities are never ignored
        return loss
    counts = target != ignore_index
    own = counts.sum().float() if weight is None else weight[target[counts]].sum().float()
    # Of none it is 0 / 0.
    loss = torch.where(own > 0, loss, torch.zeros_like(loss))
    if step is not None:
        [whole] = mean([own])
        loss = loss * torch.where(whole > 0, own / whole, torch.ones_like(own)).to(loss.dtype)
    if divisors is not None:
        divisors.append((loss, own))
    return loss
