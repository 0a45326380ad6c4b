"""One operation on many tensors, in place: of small tensors the calls are what takes time.

Optimizers of PyTorch compute by these functions, which have no public names; a version without one
computes tensor by tensor.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import torch
from torch.distributed import distributed_c10d


@torch.no_grad()
def copy(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Set each tensor to its value."""
    _each("copy_", tensors, values)


@torch.no_grad()
def add(tensors: Sequence[torch.Tensor], number: int) -> None:
    """Add a number to each tensor."""
    _each("add_", tensors, number)


@torch.no_grad()
def divide(tensors: Sequence[torch.Tensor], number: int) -> None:
    """Divide each tensor by a number."""
    _each("div_", tensors, number)


def _each(name: str, tensors: Sequence[torch.Tensor], value: Sequence[torch.Tensor] | int) -> None:
    """Call a method of each tensor, with one value for all, or with one for each."""
    function = getattr(torch, f"_foreach_{name}", None)
    if function is not None and tensors:
        function(list(tensors), value if isinstance(value, int) else list(value))
        return
    values = [value] * len(tensors) if isinstance(value, int) else value
    for tensor, one in zip(tensors, values, strict=True):
        getattr(tensor, name)(one)


def version(tensor: torch.Tensor) -> int:
    """Return what changes where a tensor is changed in place, other than by its ``data``."""
    return int(getattr(tensor, "_version", 0))


def set_timeout(timeout: datetime.timedelta) -> None:
    """Let collectives wait for so long from now on, where this version can be told."""
    getattr(distributed_c10d, "_set_pg_timeout", lambda timeout: None)(timeout)


def is_transformed() -> bool:
    """Whether this is inside of a transform of ``torch.func``, such as ``vmap``."""
    functorch = getattr(torch._C, "_functorch", None)
    return bool(getattr(functorch, "get_interpreter_stack", list)())
