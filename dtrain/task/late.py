"""Lazy imports: modules that are imported when something in them is first used, or not at all."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def late(*names: str) -> Iterator[None]:
    """Import the named modules lazily where code that is imported inside imports them.

    It gets an empty module, which imports the real one at the first use of an attribute (PEP 562).
    An import after this context is of the real module.

    Args:
        names: of modules; a package comes before what is in it. One that is imported already stays
            what it is.
    """
    stand_ins: dict[str, types.ModuleType] = {}

    def remove() -> None:
        for name, each in stand_ins.items():
            if sys.modules.get(name) is each:
                del sys.modules[name]

    for name in names:
        if name not in sys.modules:
            stand_ins[name] = types.ModuleType(name)
            vars(stand_ins[name])["__getattr__"] = _loading(name, remove)
            package, _, own = name.rpartition(".")
            if package in stand_ins:
                setattr(stand_ins[package], own, stand_ins[name])
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        remove()


def _loading(name: str, before: Callable[[], None]) -> Callable[[str], object]:
    def load(attribute: str) -> object:
        if attribute.startswith("__"):  # who looks through all modules looks at nothing else
            raise AttributeError(attribute)
        before()
        return getattr(importlib.import_module(name), attribute)

    return load
