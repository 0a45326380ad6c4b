"""A sum over the tasks of one machine, in memory that they share."""

from __future__ import annotations

import hashlib
import hmac
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dtrain.task.exchange import wire
from dtrain.task.exchange.links import Link, barrier

_HEADER = 64


def machine() -> int:
    """Return 48 bits that tasks have in common which can open each other's descriptors.

    They are of one kernel, one namespace of processes and one user. Elsewhere than on Linux every
    task is on a machine of its own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        text = f"{boot} {os.readlink('/proc/self/ns/pid')} {os.geteuid()}"
    except OSError:
        return int.from_bytes(os.urandom(6), "big")
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def create(key: bytes) -> int:
    """Return the descriptor of new memory, which only tasks that know the key take for it."""
    descriptor = os.memfd_create("dtrain-exchange", os.MFD_CLOEXEC)
    os.write(descriptor, _mark(key))
    return descriptor


def open_of(pid: int, descriptor: int, key: bytes) -> int:
    """Return an own descriptor of what :func:`create` has made in another process.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    found = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    if not hmac.compare_digest(os.pread(found, _HEADER, 0), _mark(key)):
        os.close(found)
        raise PermissionError(f"descriptor {descriptor} of process {pid} is not this job's")
    return found


def _mark(key: bytes) -> bytes:
    return hmac.digest(key, b"memory", hashlib.sha256).ljust(_HEADER, b"\0")


class Shared:
    """The memory: a part for the vector of each task, and one for the sum.

    Args:
        index: of this task among those of its machine; the first one says how large it is.
        links: to the others.
        descriptor: of the memory, which is closed by :meth:`close`.
    """

    def __init__(self, index: int, links: Sequence[Link], descriptor: int):
        self._index, self._links = index, links
        self._tasks = len(links) + 1
        self._descriptor = descriptor
        self._room = 0  # bytes of each part
        self._memory: mmap.mmap | None = None

    def sum(self, vector: np.ndarray, beyond: Callable[[np.ndarray], None] | None) -> np.ndarray:
        """Return the sum of these tasks' vectors, the same bits in each.

        Each task adds a part of the elements up, in the order of the tasks; types of two bytes in
        float32.

        Args:
            vector: of one dimension.
            beyond: what the first task does with the sum before all take it; each says whether
                there is anything.

        Raises:
            Lost: another task is gone, or stands still.
        """
        self._reserve(vector.nbytes)
        *own, total = self._parts(vector)
        own[self._index][:] = vector
        barrier(self._links)
        bounds = [len(vector) * i // self._tasks for i in (self._index, self._index + 1)]
        mine, *parts = (part[slice(*bounds)] for part in (total, *own))
        wide = wire.wide(mine.dtype)
        sums = mine if wide == mine.dtype else np.empty(len(mine), wide)
        np.add(parts[0], parts[1] if len(parts) > 1 else 0, out=sums, dtype=wide)
        for part in parts[2:]:
            sums += part
        if sums is not mine:
            mine[:] = sums
        # ORDER: none writes its vector again before all have passed here, nor the sum before all
        # have passed the barrier above, and so have taken this one.
        barrier(self._links)
        if beyond is not None:
            if self._index == 0:
                beyond(total)
            barrier(self._links)
        return total.copy()

    def _parts(self, like: np.ndarray) -> list[np.ndarray]:
        assert self._memory is not None
        begins = (_HEADER + i * self._room for i in range(self._tasks + 1))
        return [np.frombuffer(self._memory, like.dtype, len(like), begin) for begin in begins]

    def _reserve(self, count: int) -> None:
        """Make room for vectors of ``count`` bytes, as all tasks do at this point."""
        if self._memory is not None and count <= self._room:
            return
        self._room = -(-count // _HEADER) * _HEADER
        size = _HEADER + (self._tasks + 1) * self._room
        barrier(self._links)  # ORDER: all have taken the sum before
        if self._index == 0:
            os.posix_fallocate(self._descriptor, 0, size)
        barrier(self._links)
        self._memory = mmap.mmap(self._descriptor, size)

    def close(self) -> None:
        """Close the memory; once more does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
