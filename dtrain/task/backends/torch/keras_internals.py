"""Private names of PyTorch, and those of Keras that are of its PyTorch backend alone.

What a model adds to its loss (``add_loss``, regularizers): on PyTorch Keras never scales it.

The states of a metric of ``torchmetrics``, and how they are reduced.

One operation on many tensors, in place: of small tensors the calls are what takes time. Optimizers
of PyTorch compute by these functions, which have no public names; a version without one computes
tensor by tensor.

What each operation of PyTorch returns, seen before anything goes on with it.

Files of ``torch.export``, loaded without anything that runs code: PyTorch unpickles what it cannot
load as weights, maps compiled libraries, and evaluates texts of a file as Python: names of
arguments, sizes, conditions. :func:`load_program` refuses a file that has more than tensors and a
graph of operators. What these do is the file's: they compute.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import torch
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

from dtrain.errors import TrainingError
from dtrain.task.aliases import Foreign, Function, Nest, Tensor
from dtrain.task.keras_internals.model import ONE_REPLICA, function, unknown


def divide_added_losses(parts: Callable[[], int]) -> None:
    """Divide them by a number; once in a process.

    Args:
        parts: returns it, when a loss is added: of how many parts the loss is the sum.

    Raises:
        TrainingError: this version of Keras adds them in another way.
    """
    kind: Foreign = keras.Model
    original = function(kind, "_aggregate_additional_loss", ["self", "loss"])
    if original is None:
        raise unknown("adds the losses of layers", ONE_REPLICA)
    if not getattr(original, "by_dtrain", False):

        @functools.wraps(original)
        def divided(self: Foreign, loss: Tensor) -> Tensor:
            return original(self, loss) / parts()

        # A mark on a function, which types of functions do not have.
        divided.by_dtrain = True  # type: ignore[attr-defined]
        kind._aggregate_additional_loss = divided


def summed_states(metric: Foreign) -> dict[str, torch.Tensor] | None:
    """Return what states of a metric begin with, by name; None where one is no sum from 0 on."""
    reductions, states = getattr(metric, "_reductions", None), metric.metric_state
    if not reductions or reductions.keys() != states.keys():
        return None
    for name, state in states.items():
        reduction = getattr(reductions[name], "__name__", "")
        if reduction != "dim_zero_sum" or not isinstance(state, torch.Tensor) or state.any():
            return None
    return dict(states)


@torch.no_grad()
def change(name: str, tensors: Sequence[torch.Tensor], value: Sequence[torch.Tensor] | int) -> None:
    """Call ``copy_``, ``add_`` or ``div_`` of each tensor, with a value for all or one for each."""
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


class Watching(TorchDispatchMode):
    """Calls a function after each operation inside, also those of gradients.

    Args:
        watch: is given the name of the operation, and what it has returned.
    """

    def __init__(self, watch: Callable[[str, Nest], None]):
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
    node: Foreign = torch._C._current_autograd_node()
    if node is None:
        return None
    text = "".join(node.metadata.get("traceback_", []))
    return [(file, int(line)) for file, line in re.findall(r'File "(.+)", line (\d+)', text)]


_RECORDS = re.compile(
    r"(\.data/)?\w+|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(weight_\d+|model_weights_config\.json|model\.pt)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json|model\.pt)"
)
_OPERATOR = re.compile(
    r"torch\.ops\.(?!_|load_library|import_module|debugprims)\w+\.(?!from_file)\w+(\.\w+)?"
    r"|torch\.(sym_|_sym_|_check)\w*|(_operator\.(?!_|call\b)|math\.)\w+"
)
#: Numbers and symbols, SymPy's classes, and names of keywords: no function of Python.
_SIZE = re.compile(
    r"([A-Z]\w*+|[a-z_]+\d++|[a-z]+=|floor|ceiling|(int_)?oo|'[\w.+-]*+'|\d[\d.]*+"
    r"|[-\s()+*/%,<>=!&|~])*+"
)
_ANY = re.compile(r".*", re.DOTALL)
_PLAIN = re.compile(r'[\w .+:/\-\[\]{},"\\]*')
#: By the field that a text is in: what it may be; others are :data:`_PLAIN`.
_TEXTS = {
    "target": _OPERATOR, "as_operator": _OPERATOR, "expr_str": _SIZE,
    # Of these nothing is evaluated; of the conditions, as :func:`load_program` asks for none.
    "as_string": _ANY, "as_strings": _ANY, "metadata": _ANY, "out_spec": _ANY, "guards_code": _ANY,
}  # fmt: skip


def load_program(path: Path) -> tuple[Foreign, Function]:
    """Return the example inputs of a program, and the module that it is.

    Raises:
        TrainingError: it has what may run code, or is not as this version of PyTorch writes it.
    """
    from torch.export.pt2_archive._package import PT2ArchiveReader, load_pt2

    reader, variable = PT2ArchiveReader(str(path)), "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    for name in reader.get_file_names():
        if not _RECORDS.fullmatch(name):
            raise TrainingError(f"{name[:80]!r} in it may run code, and is not loaded")
    _check(json.loads(reader.read_string("models/model.json")), "")
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        program = load_pt2(str(path)).exported_programs["model"]
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before
    return program.example_inputs, program.module(check_guards=False)


def _check(node: object, field: str) -> None:
    if isinstance(node, dict):
        for name, value in node.items():
            _check(name, "")
            _check(value, "metadata" if field == "metadata" else name)
    elif isinstance(node, list):
        for each in node:
            _check(each, field)
    elif isinstance(node, str) and not _TEXTS.get(field, _PLAIN).fullmatch(node):
        raise TrainingError(f"{node[:80]!r} in it may run code, and is not loaded")
