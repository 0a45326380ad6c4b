"""How a private name is looked up: what is not as expected is refused in a sentence."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from dtrain.errors import TrainingError
from dtrain.host.packages import version

#: What to do instead where several replicas need a name.
ONE_REPLICA = "train on one replica (strategy=one_device)"


def unknown(what: str, instead: str = "", package: str = "keras") -> TrainingError:
    """Return the refusal of a version that does ``what`` in another way.

    Args:
        what: such as ``keeps the masks of tensors``.
        instead: what the user may do with this version, if there is anything.
        package: whose version it is.
    """
    name = {"keras": "Keras", "tensorflow": "TensorFlow"}[package]
    known = f"{'or with ' if instead else 'use '}the {name} of constraints.txt"
    hint = f"{instead}, {known}" if instead else known
    return TrainingError(
        f"{name} {version(package)} {what} in a way that dtrain does not know; {hint}"
    )


def module(name: str) -> Any:
    """Return a module, None where there is none of this name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def parameters(function: Any) -> list[str] | None:
    """Return the names of a function's parameters, None of what is no function."""
    return list(inspect.signature(function).parameters) if callable(function) else None


def function(owner: Any, name: str, expected: Sequence[str]) -> Callable[..., Any] | None:
    """Return a function of ``owner`` with these parameters, None where it has no such one."""
    attribute: Any = getattr(owner, name, None)
    return attribute if parameters(attribute) == list(expected) else None
