"""A source around another one."""

from __future__ import annotations

import copy
from typing import Any


class Wrapped:
    """Has all that another source has, but for what a subclass changes.

    Args:
        source: the other one.
    """

    def __init__(self, source: Any):
        self._source = source

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._source, name)

    def __len__(self) -> int:
        return len(self._source)

    def take(self, indices: Any) -> tuple[Any, ...]:
        """Return the examples at ``indices``."""
        return tuple(self._source.take(indices))

    def bind(self, tensors: Any) -> None:
        """Read from ``tensors``: the same values in another place."""
        self._source = copy.copy(self._source)
        self._source.bind(tensors)
