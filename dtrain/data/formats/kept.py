"""Columns of a few batches or row groups, decoded, that are kept for the next reads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Any

from dtrain.data.files import DataFile

#: Least and most bytes that are kept of a table.
_LEAST, _MOST = 32 << 20, 256 << 20


def share(files: Iterable[DataFile]) -> int:
    """Return how many bytes may be kept of files: a sixteenth of theirs, within bounds."""
    return min(max(sum(file.size() for file in files) // 16, _LEAST), _MOST)


class Kept:
    """What was used last, up to so many bytes; of more than that, one.

    Args:
        most: bytes.
    """

    def __init__(self, most: int):
        self._most = most
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable) -> Any:
        """Return what is kept; None where nothing is."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keep a value of so many bytes, for which others go."""
        self._size -= self._held.pop(key, (None, 0))[1]
        self.make_room(size)
        self._held[key] = value, size
        self._size += size

    def make_room(self, size: int) -> None:
        """Let go what was used longest ago until there is room for so many bytes."""
        while self._held and self._size + size > self._most:
            self._size -= self._held.popitem(last=False)[1][1]

    def forget(self, owner: Hashable) -> None:
        """Let go what has a key that begins with ``owner``."""
        for key in [key for key in self._held if isinstance(key, tuple) and key[0] == owner]:
            self._size -= self._held.pop(key)[1]
