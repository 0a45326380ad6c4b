"""A reader: a process that reads examples for its task. It imports no TensorFlow.

A source of the user's may do so. What it has read lies in memory that it shares with its task. That
has no name, so that nothing is left of it, however the processes end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import mmap
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from dtrain import secrets
from dtrain.data import generators, nest
from dtrain.data.example import Example
from dtrain.data.mixture import members_of
from dtrain.data.nest import Ragged
from dtrain.data.sources import Source, Splits
from dtrain.data.streams import Stream
from dtrain.errors import DataError, DtrainError, describe
from dtrain.host import python_path, terminal
from dtrain.host.terminal import STOPS
from dtrain.task.aliases import Batch, Function
from dtrain.task.process import signals

#: What a source has read, or why it could not, by the number of an example: a digest, or None where
#: it is another one each time. And how many examples it has.
SourceSample = tuple[int, dict[int, str | None]]


def main(descriptor: int, name: str) -> None:
    """Read for the task at the other end of a socket, until that is closed.

    Args:
        descriptor: of the socket.
        name: of this reader, for messages.
    """
    signals.end_with_the_parent()
    for number in STOPS:  # the task saves when it is asked to stop, and may read until then
        signal.signal(number, _go_on)
    terminal.keep_from_children(_go_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):  # the log of the task
        sys.stdout.reconfigure(line_buffering=True)
    python_path.offer()
    generators.watch()  # ORDER: before the user's code is imported
    with contextlib.suppress(EOFError, OSError):  # the task has ended
        _Reader(Connection(descriptor), name).serve()


def _go_on(*_: object) -> None:
    """Handle a signal by nothing: one that is ignored would be so by processes of the user's."""


class _Reader:
    def __init__(self, connection: Connection, name: str):
        self._connection = connection
        self._name = name
        self._sources: list[Source] = []
        self._read: int | None = None  # descriptor of what the task does not have yet

    def serve(self) -> None:
        actions: dict[str, Function] = {
            "load": self._load, "make": self._make, "take": self._take,
        }  # fmt: skip
        while True:
            name, *arguments = self._connection.recv()
            try:
                reply = (True, actions[name](*arguments))
            except (Exception, KeyboardInterrupt) as error:
                reply = (False, self._portable(error))
            self._connection.send(reply)
            if self._read is not None:
                reduction.send_handle(self._connection, self._read, os.getppid())
                os.close(self._read)
                self._read = None

    def _load(self, lengths: list[int]) -> list[SourceSample]:
        self._sources = read_frame(reduction.recv_handle(self._connection), lengths)
        return samples(self._sources)

    def _make(self, node: Mapping[str, object], evaluates: bool) -> list[SourceSample]:
        from dtrain.config import targets
        from dtrain.data.convert import adapted

        splits = adapted(targets.instantiate(node, "dataset"))
        if not evaluates:  # on one without examples, say
            splits = Splits(splits.train)
        self._sources = in_python(splits)
        return samples(self._sources)

    def _take(self, number: int, rows: np.ndarray, key: tuple[int, ...] | None) -> list[int]:
        """Return the lengths of what was read."""
        if "keras" in sys.modules:  # imported by the user's code; it has what it draws by
            importlib.import_module("dtrain.task.keras_internals")
        with generators.reading(generators.Draws(key or tuple(rows[:1].tolist()))):
            frame = Frame(taken(self._sources[number], rows))
        self._read = frame.shared()
        return frame.lengths

    def _portable(self, error: BaseException) -> tuple[bytes, str]:
        """Return an exception as bytes, which may have none, and as text."""
        text = describe(error)
        if isinstance(error, MemoryError):
            error = DataError(self._name, "has run out of memory")
        elif not isinstance(error, DtrainError):
            print(secrets.mask(f"{self._name}: {traceback.format_exc()}"), file=sys.stderr)
        try:
            return pickle.dumps(error), text
        except Exception:  # whatever an exception of the user's raises where it is pickled
            return b"", text


def taken(source: Any, rows: np.ndarray) -> Batch:
    """Return the examples at ``rows`` as parts whose leaves are arrays, or ragged.

    Args:
        source: in Python.
        rows: int64 ``[b]``.
    """
    generators.seed_own(source)
    return Example.of(source[rows]).map(_array).parts


def _array(leaf: object) -> object:
    return leaf if isinstance(leaf, Ragged) else np.asarray(leaf)


def in_python(splits: Splits) -> list[Source]:
    """Return the sources that are read in Python, of mixtures the members; always in one order."""
    every = [*members_of(splits.train), *members_of(splits.validation)]
    return list(filter(is_in_python, every))


def is_in_python(source: Any) -> bool:
    """Whether a split is a source whose examples are read in Python."""
    return not (source is None or isinstance(source, Stream) or source.in_graph)


def samples(sources: Sequence[Source]) -> list[SourceSample]:
    """Read a few examples of each source, each of them twice."""
    read = []
    for source in sources:
        count = len(source)
        rows = sorted({0, count // 2, count - 1}) if count else []
        read.append((count, {row: _digest_of(source, row) for row in rows}))
    return read


def _digest_of(source: Any, row: int) -> str | None:
    digests = set()
    for _ in range(2):
        try:
            with generators.reading(generators.Draws((row,))):
                digests.add(nest.digest([taken(source, np.array([row]))]).hexdigest())
        except DataError as error:  # which is in the data, and may never be asked for
            digests.add(str(error))
    return digests.pop() if len(digests) == 1 else None


#: Bytes. TensorFlow takes an array as it lies where it begins at a multiple of this, and copies it
#: where it does not.
_ALIGNED = 64


class Frame:
    """A value that is to be shared: its arrays, beside the pickle of the rest.

    Args:
        value: any nest; an array that is not contiguous is copied once more.
        pickler: what pickles it.

    Attributes:
        lengths: bytes of the pickle, and of each array; :func:`read_frame` needs them.
    """

    def __init__(self, value: object, pickler: type[pickle.Pickler] = pickle.Pickler):
        arrays: list[memoryview] = []
        stream = io.BytesIO()
        pickler(
            stream, protocol=5, buffer_callback=lambda buffer: arrays.append(buffer.raw())
        ).dump(value)
        self._pieces = [stream.getbuffer(), *arrays]
        self.lengths = [piece.nbytes for piece in self._pieces]

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return sum(map(_whole, self.lengths))

    def shared(self) -> int:
        """Return a descriptor of memory that it is written to.

        That is not in ``/dev/shm``, which is 64 MB in a container unless its owner has said
        otherwise.
        """
        if sys.platform == "linux":
            descriptor = os.memfd_create("dtrain-reader")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.pwrite(descriptor, b"\0", self.size - 1)  # behind the last piece, too
        with open(descriptor, "r+b", closefd=False) as memory:
            for piece, length in zip(self._pieces, self.lengths, strict=True):
                memory.write(piece)
                memory.seek(_whole(length) - length, os.SEEK_CUR)
        return descriptor


def read_frame(descriptor: int, lengths: list[int]) -> Any:
    """Return a value that a :class:`Frame` has shared; its arrays keep the memory.

    What is written to them here, no other process sees.

    Args:
        descriptor: of :meth:`Frame.shared`; it is closed.
        lengths: of the frame.
    """
    try:
        memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    view, pieces, begin = memoryview(memory), [], 0
    for length in lengths:
        pieces.append(view[begin : begin + length])
        begin += _whole(length)
    return pickle.loads(pieces[0], buffers=pieces[1:])


def _whole(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
