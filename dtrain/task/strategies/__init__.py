"""The strategies that a configuration names, as the backend of this process has them.

The package of a backend has a registry, ``STRATEGIES``. A class is imported when it is asked for:
plans stand beside, and are read without any framework.
"""

from __future__ import annotations

import typing

from dtrain.task import backends


def __getattr__(name: str) -> typing.Any:
    registry = backends.module().STRATEGIES
    if name not in registry:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(backends.module(registry[name]), name)
