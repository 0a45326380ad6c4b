"""One operation on many tensors, in place: of small tensors the calls are what takes time.

Optimizers of PyTorch compute by these functions, which have no public names; a version without one
computes tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


@torch.no_grad()
def copy(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Set each tensor to its value."""
    function = getattr(torch, "_foreach_copy_", None)
    if function is not None and tensors:
        function(list(tensors), list(values))
        return
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


@torch.no_grad()
def add(tensors: Sequence[torch.Tensor], number: int) -> None:
    """Add a number to each tensor."""
    function = getattr(torch, "_foreach_add_", None)
    if function is not None and tensors:
        function(list(tensors), number)
        return
    for tensor in tensors:
        tensor.add_(number)


@torch.no_grad()
def divide(tensors: Sequence[torch.Tensor], number: int) -> None:
    """Divide each tensor by a number."""
    function = getattr(torch, "_foreach_div_", None)
    if function is not None and tensors:
        function(list(tensors), number)
        return
    for tensor in tensors:
        tensor.div_(number)
