"""Tasks of a cluster that are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dtrain.task.backends.base import Tasks


class ThreadTasks(Tasks):
    """One of several tasks."""

    def __init__(self, rank: int, numbers: list[Sequence[float]], barrier: threading.Barrier):
        super().__init__(rank, len(numbers))
        self._numbers, self._barrier = numbers, barrier

    def sum(self, numbers: Sequence[float]) -> list[float]:
        self._numbers[self.rank] = numbers
        self._barrier.wait()
        total = [sum(each) for each in zip(*self._numbers, strict=True)]
        self._barrier.wait()
        return total

    def _sum_bytes(self, data: bytes) -> bytes:
        return bytes(map(int, self.sum(list(data))))


def thread_tasks(size: int) -> list[ThreadTasks]:
    """Return the tasks, by rank."""
    numbers: list[Sequence[float]] = [()] * size
    barrier = threading.Barrier(size, timeout=60)
    return [ThreadTasks(rank, numbers, barrier) for rank in range(size)]


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Return what the calls return, each in a thread."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
