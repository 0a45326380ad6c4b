"""What several replicas of a model do together in a training step, beside their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import torch
from torch import distributed

from dtrain.errors import UsageError
from dtrain.task import keras_internals
from dtrain.task.backends.torch import gradients
from dtrain.task.backends.torch.plain import buffers


def step(
    model: keras.Model, replicas: int, summed: bool = False, averages: bool = True
) -> gradients.Step | None:
    """Return the training step of a replica, for ``tracing``; None where there is one.

    Args:
        model: built.
        replicas: how many share the global batch.
        summed: as of :class:`gradients.Step`.
        averages: gradients are averaged here, and not by PyTorch.
    """
    if replicas == 1:
        return None
    parameters = [v.value for v in model.trainable_variables] if averages else []
    kept = frozenset(map(id, kept_by_hand(model)))
    return gradients.Step(replicas, parameters, kept, summed)


def kept_by_hand(model: keras.Model) -> list[keras.Variable]:
    """Return the numbers that layers of the user's own may assign: statistics, a codebook."""
    variables = [*keras_internals.of_own_classes(model), *(v for _, v in buffers(model))]
    return [v for v in variables if v.value.is_floating_point()]


@torch.no_grad()
def average(values: Sequence[torch.Tensor], replicas: int) -> None:
    """Replace tensors by their means over the replicas, by one all-reduce for each type."""
    for dtype in dict.fromkeys(value.dtype for value in values):
        own = [value for value in values if value.dtype == dtype]
        flat = torch.cat([value.reshape(-1) for value in own])
        distributed.all_reduce(flat)
        means = (flat / replicas).split([value.numel() for value in own])
        for value, mean in zip(own, means, strict=True):
            value.copy_(mean.view_as(value))


@torch.no_grad()
def share(values: Sequence[torch.Tensor]) -> None:
    """Give all replicas the values of the chief."""
    for value in values:
        distributed.broadcast(value, 0)


def exchange(name: str, x: Any) -> Any:
    """Return ``gather``, ``sum`` or ``mean`` over the replicas; ``x`` where there is one.

    Raises:
        UsageError: ``x`` is nothing that they could exchange.
    """
    now = gradients.current()
    if now is None:
        return x
    x = keras.ops.convert_to_tensor(x)
    if name == "gather":
        if x.ndim == 0:
            raise UsageError(
                "model", "dtrain.replicas.gather", "is given a scalar, which has no rows",
                "a tensor [examples, ...]", "dtrain.replicas.sum",
            )  # fmt: skip
        sizes = gradients.gathered(torch.tensor([len(x)], device=x.device)).reshape(-1).tolist()
        padded = torch.nn.functional.pad(x, [0, 0] * (x.ndim - 1) + [0, max(sizes) - len(x)])
        rows = gradients.gathered(padded)
        return torch.cat([part[:size] for part, size in zip(rows, sizes, strict=True)])
    if x.dtype == torch.bool:
        raise UsageError(
            "model", f"dtrain.replicas.{name}", "is given bool", "a tensor of numbers",
            "keras.ops.cast(x, 'float32')",
        )  # fmt: skip
    every = gradients.gathered(x)
    if name == "sum":
        return every.sum(0)
    return (every if x.is_floating_point() else every.float()).mean(0)
