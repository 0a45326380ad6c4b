"""A reader: a process that reads examples for its task. It imports no TensorFlow.

A source of the user's may do so.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import io
import mmap
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from dtrain import secrets
from dtrain.data import nest, seeding
from dtrain.data.example import Example
from dtrain.data.mixture import by_member
from dtrain.data.ragged import Ragged
from dtrain.data.sources import Splits
from dtrain.data.streams import Stream
from dtrain.errors import DataError, DtrainError
from dtrain.host import python_path, terminal
from dtrain.host.terminal import STOPS
from dtrain.task.data import slots
from dtrain.task.process import parent_death

#: What a source has read, or why it could not, by the number of an example: a digest, or None where
#: it is another one each time. And how many examples it has.
Trial = tuple[int, dict[int, str | None]]


def main(descriptor: int, name: str) -> None:
    """Read for the task at the other end of a socket, until that is closed.

    Args:
        descriptor: of the socket.
        name: of this reader, for messages.
    """
    parent_death.end_with_the_parent()
    for number in STOPS:  # the task saves when it is asked to stop, and may read until then
        signal.signal(number, _go_on)
    terminal.keep_from_children(_go_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):  # the log of the task
        sys.stdout.reconfigure(line_buffering=True)
    python_path.offer()
    with contextlib.suppress(EOFError, OSError):  # the task has ended
        _Reader(Connection(descriptor), name).serve()


def _go_on(*_: Any) -> None:
    """Handle a signal by nothing: one that is ignored would be so by processes of the user's."""


class _Reader:
    def __init__(self, connection: Connection, name: str):
        self._connection = connection
        self._name = name
        self._sources: list[Any] = []
        self._slots: dict[int, mmap.mmap] = {}
        self._made = 0  # slots, ever
        self._handle: int | None = None  # of one that the task does not have yet

    def serve(self) -> None:
        actions: dict[str, Callable[..., Any]] = {
            "load": self._load, "make": self._make, "take": self._take,
        }  # fmt: skip
        while True:
            name, *arguments = self._connection.recv()
            try:
                reply = (True, actions[name](*arguments))
            except Exception as error:
                reply = (False, self._portable(error))
            self._connection.send(reply)
            if self._handle is not None:
                reduction.send_handle(self._connection, self._handle, os.getppid())
                os.close(self._handle)
                self._handle = None

    def _load(self, lengths: list[int], size: int) -> list[Trial]:
        memory = slots.mapped(reduction.recv_handle(self._connection), size, own=True)
        self._sources = slots.read(np.frombuffer(memory, np.uint8), lengths)
        return tried(self._sources)

    def _make(self, node: Mapping[str, Any], evaluates: bool) -> list[Trial]:
        from dtrain.config import targets
        from dtrain.data.convert import adapted

        splits = adapted(targets.instantiate(node, "dataset"))
        if not evaluates:  # on one without examples, say
            splits = Splits(splits.train)
        self._sources = in_python(splits)
        return tried(self._sources)

    def _take(
        self,
        number: int,
        rows: np.ndarray,
        slot: int | None,
        key: tuple[int, ...] | None,
    ) -> tuple[int, list[int], int | None]:
        """Return the slot of what was read, its lengths, and the size of a slot that is new."""
        with seeding.seeded(key):
            frame = slots.Frame(taken(self._sources[number], rows))
        if slot is not None and len(self._slots[slot]) >= frame.size:
            frame.write(self._slots[slot])
            return slot, frame.lengths, None
        if slot is not None:
            del self._slots[slot]  # too small, and dropped by the task too
        # The next one may be larger: what is not written to takes no memory.
        size = 1 << (frame.size - 1).bit_length()
        self._handle = slots.made(size)
        memory = slots.mapped(os.dup(self._handle), size)
        frame.write(memory)
        self._made += 1
        self._slots[self._made] = memory
        return self._made, frame.lengths, size

    def _portable(self, error: Exception) -> tuple[bytes, str]:
        """Return an exception as bytes, which may have none, and as text."""
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            error = DataError(self._name, "has run out of memory")
        elif not isinstance(error, DtrainError):
            print(secrets.mask(f"{self._name}: {traceback.format_exc()}"), file=sys.stderr)
        try:
            return pickle.dumps(error), text
        except Exception:  # whatever an exception of the user's raises where it is pickled
            return b"", text


def taken(source: Any, rows: np.ndarray) -> tuple[Any, ...]:
    """Return the examples at ``rows`` as parts whose leaves are arrays, or ragged.

    Args:
        source: in Python.
        rows: int64 ``[b]``.
    """
    return Example.of(source[rows]).map(_array).parts


def _array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, Ragged) else np.asarray(leaf)


def in_python(splits: Splits) -> list[Any]:
    """Return the sources that are read in Python, of mixtures the members; always in one order."""
    found: list[Any] = []

    def add(source: Any) -> Any:
        if is_in_python(source):
            found.append(source)
        return source

    for source in (splits.train, splits.validation):
        by_member(source, add)
    return found


def is_in_python(source: Any) -> bool:
    """Whether a split is a source whose examples are read in Python."""
    return not (source is None or isinstance(source, Stream) or source.in_graph)


def tried(sources: Sequence[Any]) -> list[Trial]:
    """Read a few examples of each source, each of them twice."""
    found = []
    for source in sources:
        count = len(source)
        rows = sorted({0, count // 2, count - 1}) if count else []
        found.append((count, {row: _digest_of(source, row) for row in rows}))
    return found


def _digest_of(source: Any, row: int) -> str | None:
    digests = set()
    for _ in range(2):
        try:
            with seeding.seeded((row,)):
                digests.add(_digest(taken(source, np.array([row]))))
        except DataError as error:  # which is in the data, and may never be asked for
            digests.add(str(error))
    return digests.pop() if len(digests) == 1 else None


def _digest(parts: tuple[Any, ...]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for name, leaf in nest.named(parts):
        arrays = [leaf.values, leaf.lengths] if isinstance(leaf, Ragged) else [leaf]
        for array in arrays:
            if array is None:
                continue
            found.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            if array.dtype.hasobject:
                found.update("\0".join(map(repr, array.ravel().tolist())).encode())
            else:
                found.update(array.tobytes())
    return found.hexdigest()
