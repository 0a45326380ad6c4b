"""Files of ``torch.export``, loaded without anything that runs code.

PyTorch unpickles what it cannot load as weights, maps compiled libraries, and evaluates texts of a
file as Python: names of arguments, sizes, conditions. :func:`load_program` refuses a file that has
more than tensors and a graph of operators. What these do is the file's: they compute.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain.errors import TrainingError

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


def load_program(path: Path) -> tuple[Any, Callable[..., Any]]:
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


def _check(node: Any, field: str) -> None:
    if isinstance(node, dict):
        for name, value in node.items():
            _check(name, "")
            _check(value, "metadata" if field == "metadata" else name)
    elif isinstance(node, list):
        for each in node:
            _check(each, field)
    elif isinstance(node, str) and not _TEXTS.get(field, _PLAIN).fullmatch(node):
        raise TrainingError(f"{node[:80]!r} in it may run code, and is not loaded")
