"""A module that is imported when something in it is first asked for."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


def late(name: str) -> None:
    """Let a module be imported when it is first used, and not when another one imports it.

    Until then a module without anything of its own stands in its place (PEP 562).

    Args:
        name: of a module that has no submodules, and is not imported yet.
    """
    stand_in = types.ModuleType(name)

    def load(attribute: str) -> Any:
        if attribute.startswith("__"):  # who looks through all modules looks at nothing else
            raise AttributeError(attribute)
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
        return getattr(importlib.import_module(name), attribute)

    vars(stand_in)["__getattr__"] = load
    sys.modules[name] = stand_in
