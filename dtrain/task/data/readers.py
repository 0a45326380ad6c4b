"""``dataset.workers``: processes that read the sources in Python of a task, in its place.

They are fresh interpreters: what is forked from a process with TensorFlow's threads may hang. Each
has sources of its own: the task's, pickled, or, where these cannot be or do not read the same, what
the dataset function returns there. In which order they read is the input pipeline's: it asks for
several batches at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from dtrain.data import generators
from dtrain.data.mixture import by_member
from dtrain.data.sources import Source, Splits, View
from dtrain.data.streams import Stream
from dtrain.errors import DataError, DtrainError, UsageError, refuse
from dtrain.host import python_path, terminal, usage
from dtrain.task.aliases import Batch
from dtrain.task.data.reader import (
    Frame,
    SourceSample,
    in_python,
    is_in_python,
    read_frame,
    samples,
    taken,
)

KEY = "dataset.workers"
#: Seconds that readers have to end by themselves, all together.
_PATIENCE = 0.5


class Pooled(View):
    """A source that readers read, as soon as they can; the task until then.

    Args:
        source: in Python.
        pool: of the readers.
        number: of the source there.
    """

    def __init__(self, source: Source, pool: Pool, number: int):
        super().__init__(source)
        self._pool = pool
        self._number = number
        self.thread_safe, self.readers = True, pool.workers

    def __getitem__(self, indices: np.ndarray) -> Batch:
        """Return the examples at ``indices``."""
        return self._pool.read(self._number, indices)


class Pool:
    """The readers of a task; a context, in which they are there.

    Args:
        splits: as the dataset function's are adapted.
        workers: how many readers; 0: none.
        node: of the dataset function, plain.

    Attributes:
        splits: the same, read by the pool where they are in Python.
        workers: how many readers there will be: none where nothing is in Python.
        notices: what is to be reported.

    Raises:
        UsageError: what to train on is a stream.
    """

    def __init__(self, splits: Splits, workers: int, node: Mapping[str, object]):
        if workers and isinstance(splits.train, Stream):
            refuse(KEY, "a stream has an order of its own, in which one after the other is read",
                   workers, accepted="0, or a dataset with random access",
                   typed=f"{KEY}=0")  # fmt: skip
        self._sources = in_python(splits) if workers else []
        self._training = len(in_python(Splits(splits.train))) if workers else 0
        self._making = (dict(node), splits.validation is not None)
        self.workers = workers if self._sources else 0
        self.splits = self._wrapped(splits) if self.workers else splits
        self.notices: tuple[str, ...] = ()
        if workers and not self.workers:
            self.notices = (
                f"{KEY}={workers} has no effect: this dataset is read by threads already",
            )
        self._children: list[Child] = []
        self._free: queue.SimpleQueue[Child] = queue.SimpleQueue()
        self._alone = threading.Lock()  # held while the task itself reads
        self._pickled = self._serving = False

    def _wrapped(self, splits: Splits) -> Splits:
        numbers = iter(range(len(self._sources)))

        def wrap(source: Any) -> Any:
            return Pooled(source, self, next(numbers)) if is_in_python(source) else source

        train, validation = by_member(splits.train, wrap), by_member(splits.validation, wrap)
        return dataclasses.replace(splits, train=train, validation=validation)

    def __enter__(self) -> Pool:
        """Start the readers; what they read is the task's to read until they are ready.

        Raises:
            UsageError: there are too many for this machine.
        """
        frame = self._frame() if self.workers else None
        self._pickled = frame is not None
        with contextlib.ExitStack() as undo:
            undo.push(self)
            for number in range(self.workers):
                try:
                    self._children.append(Child(f"reader {number + 1} of {self.workers}"))
                except OSError as error:
                    raise UsageError(KEY,
                                     f"process {number + 1} cannot be started ({error.strerror})",
                                     self.workers, accepted="fewer, such as one for each core",
                                     typed=f"{KEY}={os.cpu_count()}") from None  # fmt: skip
            if frame is None:
                self._ask("make", *self._making)
            else:
                descriptor = frame.shared()
                try:
                    self._ask("load", frame.lengths, handle=descriptor)
                finally:
                    os.close(descriptor)
            undo.pop_all()
        return self

    def _frame(self) -> Frame | None:
        """Return the sources, to be sent; None where they cannot be, or are better made anew."""
        try:
            frame = Frame(self._sources, _Pickler)
        except Exception:  # whatever is raised by what cannot be pickled
            return None
        free = usage.available()
        return frame if free is None or frame.size < free // 2 else None

    def _ask(self, *message: object, handle: int | None = None) -> None:
        """Send a request to all; one that has ended is found out where it is to answer."""
        for child in self._children:
            with contextlib.suppress(DataError):
                child.send(*message, handle=handle)

    def ready(self) -> None:
        """Wait until the readers can read, and have them read from now on.

        Raises:
            UsageError: they read something else than the task.
        """
        if not self._children:
            return
        own = samples(self._sources)
        problem = self._changing(own)
        if problem is None:
            problem = self._answers(own)
            if problem is not None and self._pickled:
                self._ask("make", *self._making)
                problem = self._answers(own)
        if problem is not None:
            refuse(KEY, problem, self.workers, accepted="data that is the same whenever and "
                   "wherever it is read; what changes examples at random is dataset.augment",
                   typed=f"{KEY}=0")  # fmt: skip
        for child in self._children:
            self._free.put(child)
        self._serving = True

    def _answers(self, own: list[SourceSample]) -> str | None:
        """Receive from every reader what it reads; return the first difference from the task."""
        problem = None
        for child in self._children:
            try:
                difference = self._difference(own, child.receive())
            except DtrainError as error:  # or it has ended
                difference = f"cannot read the dataset ({error})"
            except Exception as error:  # of the user's own code
                difference = f"cannot read the dataset ({type(error).__name__}: {error})"
            if problem is None and difference is not None:
                problem = f"{child.name} {difference}"
        return problem

    def _changing(self, own: list[SourceSample]) -> str | None:
        changing = (
            f"{self._place(number, row)} is not the same when it is read again"
            for number, (_, digests) in enumerate(own)
            for row, digest in digests.items()
            if digest is None
        )
        return next(changing, None)

    def _difference(self, own: list[SourceSample], theirs: list[SourceSample]) -> str | None:
        if len(own) != len(theirs):
            return f"finds {len(theirs)} sources where the task has {len(own)}"
        for number, (mine, other) in enumerate(zip(own, theirs, strict=True)):
            if mine[0] != other[0]:
                return f"finds {other[0]:,} examples where the task has {mine[0]:,}"
            for row, digest in mine[1].items():
                if digest != other[1][row]:
                    return f"reads {self._place(number, row)} otherwise than the task does"
        return None

    def _place(self, number: int, row: int) -> str:
        split = "training" if number < self._training else "validation"
        return f"example {row:,} of the {split} data"

    def read(self, number: int, rows: np.ndarray) -> Batch:
        """Return examples of a source, read by a reader that is free; waits for one.

        Args:
            number: of the source.
            rows: int64 ``[b]``.

        Raises:
            DataError: the reader has ended.
            Exception: what its source has raised.
        """
        if not self._serving:
            with self._alone:
                return taken(self._sources[number], rows)
        child = self._free.get()
        try:
            return tuple(child.take(number, rows, generators.reading_key()))
        finally:  # one that has ended, too: nobody is to wait for it
            self._free.put(child)

    def __exit__(self, *_: object) -> None:
        """End the readers, within a second."""
        for child in self._children:
            child.leave()
        until = time.monotonic() + _PATIENCE
        for child in self._children:
            child.end(max(0.0, until - time.monotonic()))


class _Pickler(pickle.Pickler):
    """Refuses arrays of mapped files: each reader opens these itself, where that is cheap."""

    def reducer_override(self, value: object) -> Any:
        base = value
        while isinstance(base, np.ndarray | memoryview):
            base = base.obj if isinstance(base, memoryview) else base.base
        if isinstance(base, mmap.mmap):
            raise pickle.PicklingError("it would be copied into memory")
        return NotImplemented


#: It computes on no GPU, and has the others beside it for the other cores.
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class Child:
    """A reader, as its task has it. It runs :func:`dtrain.task.data.reader.main`.

    Started by the main thread: the kernel ends it with the thread that has.

    Args:
        name: for messages.

    Raises:
        OSError: the system starts no more processes.
    """

    def __init__(self, name: str):
        self.name = name
        self._socket, theirs = socket.socketpair()
        path = [folder for folder in sys.path if isinstance(folder, str)]
        code = f"import sys; sys.path[:] = {path}; from dtrain.task.data.reader import main; "
        code += f"main({theirs.fileno()}, sys.argv[1])"
        # A signal that stops the task must not end the reader before it has its own handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, terminal.STOPS)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, name],
                env={**os.environ, **python_path.environment(), **_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        except OSError:
            self._socket.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        self._connection = Connection(os.dup(self._socket.fileno()))

    def send(self, *message: object, handle: int | None = None) -> None:
        """Send a request, and a descriptor.

        Raises:
            DataError: it has ended.
        """
        try:
            self._connection.send(message)
            if handle is not None:
                reduction.send_handle(self._connection, handle, self._process.pid)
        except OSError:
            raise self._ended() from None

    def receive(self) -> Any:
        """Wait for the answer.

        Raises:
            DataError: it has ended.
            Exception: what was raised there.
        """
        try:
            succeeded, answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if succeeded:
            return answer
        raise _raised(*answer)

    def take(self, number: int, rows: np.ndarray, key: object = None) -> Any:
        """Return what it has read.

        Args:
            number: of the source.
            rows: int64 ``[b]``.
            key: by which it draws random numbers; None: by the rows.

        Raises:
            DataError: it has ended.
            Exception: what its source has raised.
        """
        self.send("take", number, rows, key)
        lengths = self.receive()
        try:
            descriptor = reduction.recv_handle(self._connection)
        except (EOFError, OSError, RuntimeError):
            raise self._ended() from None
        return read_frame(descriptor, lengths)

    def _ended(self) -> DataError:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:  # something has closed what it is asked by
            self._process.kill()
            self._process.wait()
            return DataError(self.name, "does not answer any more")
        if code >= 0:
            problem = f"ended with exit code {code}; what it printed is in the log of its task"
        elif code == -signal.SIGKILL:
            problem = "ended by SIGKILL, as the system does where memory runs out"
        else:
            problem = f"ended by {terminal.name(-code)}"
        return DataError(self.name, problem)

    def leave(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_WR)

    def end(self, seconds: float) -> None:
        """Wait so long for its end, then end it."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._socket.close()


def _raised(pickled: bytes, text: str) -> Exception:
    """Return an exception of the reader, or one with its text where it cannot be had here."""
    try:
        error = pickle.loads(pickled)
    except Exception:  # whatever an exception of the user's raises where it is unpickled
        error = None
    return error if isinstance(error, Exception) else RuntimeError(text)
