"""What Keras' functions and classes take, read from its files: nothing of it is imported."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtrain.errors import UsageError, nearest

#: Keys of a node that are no arguments: the schedule makes the learning rate of its optimizer.
_NO_ARGUMENTS = ("_target_", "_partial_", "schedule")


@functools.cache
def folder() -> Path | None:
    """Return the folder of the installed Keras; None where there is none."""
    spec = importlib.util.find_spec("keras")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def check_arguments(key: str, node: Mapping[str, Any]) -> None:
    """Refuse an argument that a function or class of Keras' does not have.

    Args:
        key: of the node in the configuration.
        node: its ``_target_`` is a public name of Keras'.

    Raises:
        UsageError: naming the argument and those that there are.
    """
    takes = parameters(node["_target_"])
    for name, value in node.items():
        left_out = name in _NO_ARGUMENTS or (name, value) == ("learning_rate", None)
        if takes is None or name in takes or left_out:
            continue
        near = nearest(name, takes)
        raise UsageError(
            f"{key}.{name}", value, f"{node['_target_']} has no such parameter",
            ", ".join(takes) or "no arguments",
            f"{key}.{near}=..." if near else f"the command without {key}.{name}",
        )  # fmt: skip


@functools.cache
def parameters(target: str) -> tuple[str, ...] | None:
    """Return the names of what a public function or class of Keras' takes.

    None where that is not certain: it takes any keywords, or this version has it elsewhere.
    """
    module, _, name = target.rpartition(".")
    found = _definition(module, name)
    if isinstance(found, ast.ClassDef):
        inits = (n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
        found = next(inits, None)
    if not isinstance(found, ast.FunctionDef):
        return None
    # Keras' optimizers take any keywords, and refuse each that they do not know.
    if found.args.vararg or (found.args.kwarg and not module.startswith("keras.optimizers")):
        return None
    each = (*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs)
    return tuple(arg.arg for arg in each if arg.arg != "self")


def _definition(module: str, name: str, depth: int = 5) -> ast.stmt | None:
    """Return what defines a name: in the file of a module, or where that imports it from."""
    root, (_, *parts) = folder(), module.split(".")
    if root is None or not depth:
        return None
    path = root.joinpath(*parts)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("keras."):
            for each in node.names:
                if (each.asname or each.name) == name:
                    return _definition(str(node.module), each.name, depth - 1)
    return None
