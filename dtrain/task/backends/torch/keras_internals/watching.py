"""What each operation of PyTorch returns, seen before anything goes on with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


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


def gradient_lines() -> list[tuple[str, int]] | None:
    """Return file and line of the frames that the gradient which is computed now is of.

    It is known in anomaly mode. None: no gradient is computed.
    """
    node: Any = torch._C._current_autograd_node()
    if node is None:
        return None
    text = "".join(node.metadata.get("traceback_", []))
    return [(file, int(line)) for file, line in re.findall(r'File "(.+)", line (\d+)', text)]
