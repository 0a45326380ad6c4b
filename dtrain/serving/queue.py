"""Rows of requests that wait for a model, and how batches are made of them."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from dtrain.serving.problems import Refused


@dataclasses.dataclass(eq=False)
class Item:
    """Rows of a request, which are computed in one batch.

    Attributes:
        inputs: by name, ``[rows, ...]``; of a model without rows of any shape.
        rows: how many.
        key: rows with another one cannot stand in the same batch.
        answer: is to get the outputs.
        came: when, by the clock of the system since its start.
        tries: how often it has been computed in vain; from the first time on it is to be alone.
    """

    inputs: Mapping[str, np.ndarray]
    rows: int
    key: tuple[Any, ...]
    answer: asyncio.Future[dict[str, np.ndarray]]
    came: float = dataclasses.field(default_factory=time.monotonic)
    tries: int = 0

    def end(self, found: dict[str, np.ndarray] | Refused) -> None:
        """Answer it, where it still waits."""
        if self.answer.done():
            return
        if isinstance(found, Refused):
            self.answer.set_exception(found)
        else:
            self.answer.set_result(found)


class Queue:
    """Items in their order.

    Attributes:
        rows: how many wait.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._items: collections.deque[Item] = collections.deque()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def add(self, items: Iterable[Item]) -> None:
        """Put items behind the others."""
        for item in items:
            self._items.append(item)
            self.rows += item.rows

    def put_back(self, items: list[Item]) -> None:
        """Put items that were computed in vain before the others."""
        for item in reversed(items):
            item.tries += 1
            if not item.answer.done():
                self._items.appendleft(item)
                self.rows += item.rows

    def _take(self) -> Item:
        item = self._items.popleft()
        self.rows -= item.rows
        return item

    def batch(self, most: int, shared: bool, delay: float) -> tuple[list[Item], float]:
        """Take the next batch.

        Args:
            most: rows of it.
            shared: whether several items may stand in it.
            delay: seconds that the first waits for others.

        Returns:
            Its items; of none the seconds after which there is one, or 0.
        """
        items = self._items
        while items and items[0].answer.done():  # given up
            self._take()
        if not items:
            return [], 0.0
        shared = shared and not items[0].tries
        late = items[0].came + delay - time.monotonic()
        if late > 0 and shared and self.rows < most:
            return [], late
        found = [self._take()]
        rows = found[0].rows
        while shared and items and items[0].key == found[0].key and not items[0].tries:
            if items[0].answer.done():
                self._take()
            elif rows + items[0].rows > most:
                break
            else:
                found.append(self._take())
                rows += found[-1].rows
        return found, 0.0
