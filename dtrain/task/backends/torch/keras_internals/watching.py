"""What each operation of PyTorch returns, seen before anything goes on with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Of what autograd keeps of a gradient in anomaly mode.
LABEL = "dtrain"


class Watching(TorchDispatchMode):
    """Calls a function after each operation inside, also those of gradients.

    Args:
        watch: is given the name of the operation, and what it has returned.
    """

    def __init__(self, watch: Callable[[str, Any], None]):
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        self._watch(func.overloadpacket.__name__, outputs)
        return outputs


def label(tensors: Iterable[Any], name: str) -> None:
    """Give a name to the gradients of all that tensors are computed by, and that has none.

    It is known in anomaly mode.
    """
    nodes: list[Any] = [each.grad_fn for each in tensors if isinstance(each, torch.Tensor)]
    while nodes:
        node = nodes.pop()
        if node is not None and LABEL not in node.metadata:
            node.metadata[LABEL] = name
            nodes += [following for following, _ in node.next_functions]


def gradient_label() -> str:
    """Return the name of the gradient that is computed now; empty where it has none."""
    node: Any = torch._C._current_autograd_node()
    return "" if node is None else node.metadata.get(LABEL, "")


def gradient_lines() -> list[tuple[str, int]] | None:
    """Return file and line of the frames that the gradient which is computed now is of.

    It is known in anomaly mode. None: no gradient is computed.
    """
    node: Any = torch._C._current_autograd_node()
    if node is None:
        return None
    text = "".join(node.metadata.get("traceback_", []))
    return [(file, int(line)) for file, line in re.findall(r'File "(.+)", line (\d+)', text)]
