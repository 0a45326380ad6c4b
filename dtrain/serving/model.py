"""One version of a model: the process that runs it, the requests that wait for it, its batches.

All of it happens on one event loop. A batch goes out as soon as the process is free, with what has
come until then (or ``max_delay`` later): the busier the server, the larger the batches.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from dtrain.host import frames
from dtrain.serving.metrics import Metrics
from dtrain.serving.problems import Refused, Unusable, busy, wrong
from dtrain.serving.signature import Signature

#: Seconds between two attempts to start a process that has died; the last one from then on.
_PAUSES = (0.0, 1.0, 5.0, 30.0)
#: Times that a request is computed where the process dies meanwhile; from the second on it is
#: alone in its batch. More than two: what ends a process may have come from outside.
_TRIES = 3


class Process(Protocol):
    """A process that runs a model, as :class:`Model` sees it."""

    pid: int

    def kill(self) -> None:
        """Have it end at once."""

    def join(self) -> None:
        """Wait for its end."""


#: Starts such a process for the files at a path; returns the socket to ask it by.
Start = Callable[[str, Mapping[str, Any]], tuple[Process, socket.socket]]


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much is taken at once.

    Attributes:
        max_batch: rows of a batch.
        max_delay: seconds that the first request of a batch waits for others.
        max_queue: rows that wait.
        timeout: seconds until a request is given up.
        load_timeout: seconds that loading a version may take.
    """

    max_batch: int = 64
    max_delay: float = 0.0
    max_queue: int = 4096
    timeout: float = 30.0
    load_timeout: float = 600.0

    @property
    def batch_timeout(self) -> float:
        """Seconds until a process that computes a batch is taken to hang.

        Its requests are then computed again, one by one, and have time for that.
        """
        return self.timeout / 3


@dataclasses.dataclass(eq=False)
class _Item:
    """Rows of a request, which are computed in one batch."""

    inputs: Mapping[str, np.ndarray]
    rows: int
    key: tuple[Any, ...]
    answer: asyncio.Future[dict[str, np.ndarray]]
    came: float
    tries: int = 0


class Model:
    """One version.

    Args:
        start: starts a process for it.
        path: of the files.
        version: what answers say that they are from.
        limits: of requests and batches.
        metrics: to count in.
        notice: takes a sentence for the user.
    """

    def __init__(
        self,
        start: Start,
        path: str,
        version: str,
        limits: Limits,
        metrics: Metrics,
        notice: Callable[[str], None],
    ):
        self.path, self.version, self.loaded = path, version, {}  # type: str, str, dict[str, Any]
        self.example: dict[str, np.ndarray] = {}
        self._start, self._limits, self._metrics, self._notice = start, limits, metrics, notice
        self._signature: Signature | None = None
        self._process: Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._queue: collections.deque[_Item] = collections.deque()
        self._waiting = 0  # rows in it
        self._batch: list[_Item] = []  # that the process computes
        self._alarm: asyncio.TimerHandle | None = None  # of that
        self._pumping: asyncio.Handle | None = None
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def signature(self) -> Signature:
        """What it takes and gives; known once it is loaded."""
        assert self._signature is not None, "is loaded"
        return self._signature

    @property
    def ready(self) -> bool:
        """Whether its process is there."""
        return self._writer is not None

    @property
    def waiting(self) -> int:
        """How many rows wait."""
        return self._waiting

    @property
    def pid(self) -> int | None:
        """Its process."""
        return None if self._process is None else self._process.pid

    async def load(self) -> None:
        """Start its process, and wait until it has loaded, warmed up and compared the model.

        Raises:
            Unusable: it cannot serve; no process is left.
        """
        loop = asyncio.get_running_loop()
        options = {"max_batch": self._limits.max_batch}
        try:
            self._process, ours = await loop.run_in_executor(None, self._start, self.path, options)
        except OSError as error:
            raise Unusable(f"its process cannot be started: {error.strerror}") from None
        if self._closed:
            self._end()
            raise Unusable("the server stops")
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
        try:
            async with asyncio.timeout(self._limits.load_timeout):
                head, arrays = await _message(reader)
        except (EOFError, OSError):
            problem = "its process died while it was loaded"
        except TimeoutError:
            problem = f"it was not loaded within {self._limits.load_timeout:g} s"
        else:
            problem = head.get("failed", "")
        if problem or self._closed:
            writer.close()
            await loop.run_in_executor(None, self._end)
            raise Unusable(problem or "the server stops")
        self.loaded, self.example = head, arrays
        self._signature = Signature.of(head["signature"])
        self._writer = writer
        self._spawn(self._read(reader, writer))
        self._pump()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def infer(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a request.

        Args:
            inputs: by name, of the signature's types and shapes.

        Raises:
            Refused: the inputs do not go together, the model refuses them, too much waits, or the
                process died of them.
        """
        rows = self.signature.check(inputs)
        if self._closed:
            raise busy("the server stops")
        if self._waiting + rows > self._limits.max_queue and self._waiting:
            raise busy(f"{self._waiting} rows wait for the model, and no more may")
        most = self.signature.rows or self._limits.max_batch
        cuts = [slice(0, rows)]
        if self.signature.batched:
            cuts = [slice(at, min(at + most, rows)) for at in range(0, rows, most)]
        items = [self._item(inputs, cut, whole=len(cuts) == 1) for cut in cuts]
        self._queue.extend(items)
        self._waiting += rows
        self._idle.clear()
        self._pump_soon()
        try:
            async with asyncio.timeout(self._limits.timeout):
                found = [await item.answer for item in items]
        except TimeoutError:
            raise busy(f"there was no answer within {self._limits.timeout:g} s") from None
        finally:
            for item in items:
                item.answer.cancel()
        if len(found) == 1:
            return found[0]
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def _item(self, inputs: Mapping[str, np.ndarray], cut: slice, whole: bool) -> _Item:
        part = inputs if whole else {name: value[cut] for name, value in inputs.items()}
        key = tuple(part[spec.name].shape[1:] for spec in self.signature.inputs)
        loop = asyncio.get_running_loop()
        return _Item(part, cut.stop - cut.start, key, loop.create_future(), time.monotonic())

    def _pump_soon(self) -> None:
        """Make a batch once all that has come by now has been read."""
        if self._pumping is None:
            self._pumping = asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = None
        if self._batch or self._writer is None:
            return
        batch = self._next()
        if not batch:
            if not self._queue:
                self._idle.set()
            return
        self._batch = batch
        arrays = {
            spec.name: batch[0].inputs[spec.name]
            if len(batch) == 1
            else np.concatenate([item.inputs[spec.name] for item in batch])
            for spec in self.signature.inputs
        }
        rows = sum(item.rows for item in batch)
        self._metrics.batch(rows)
        self._writer.write(frames.packed({"rows": rows}, arrays))
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(self._limits.batch_timeout, self._hangs)

    def _next(self) -> list[_Item]:
        """Take the next batch from the queue; empty where it is to wait for more."""
        queue = self._queue
        while queue and queue[0].answer.done():  # given up
            self._waiting -= queue.popleft().rows
        if not queue:
            return []
        first, most = queue[0], self.signature.rows or self._limits.max_batch
        alone = first.tries > 0 or not self.signature.batched
        late = first.came + self._limits.max_delay - time.monotonic()
        if late > 0 and not alone and self._waiting < most:
            self._pumping = asyncio.get_running_loop().call_later(late, self._pump)
            return []
        batch, rows = [queue.popleft()], first.rows
        while not alone and queue and queue[0].key == first.key and not queue[0].tries:
            if rows + queue[0].rows > most and not queue[0].answer.done():
                break
            item = queue.popleft()
            if item.answer.done():
                self._waiting -= item.rows
            else:
                batch.append(item)
                rows += item.rows
        self._waiting -= rows
        return batch

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take answers until the process ends; then have another one started."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                head, arrays = await _message(reader)
                self._answered(head, arrays)
        self._writer = None
        writer.close()
        if not self._closed:
            await self._again()

    def _answered(self, head: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        batch, self._batch = self._batch, []
        if self._alarm is not None:
            self._alarm.cancel()
        if "error" in head and len(batch) > 1:  # whose rows it was is found one by one
            self._put_back(batch)
        elif "error" in head:
            _set(batch[0].answer, _problem(head))
        elif not self.signature.batched:
            _set(batch[0].answer, arrays)
        else:
            at = 0
            for item in batch:
                part = {name: value[at : at + item.rows] for name, value in arrays.items()}
                _set(item.answer, part if len(batch) > 1 else arrays)
                at += item.rows
        self._pump()

    def _put_back(self, batch: list[_Item]) -> None:
        for item in reversed(batch):
            item.tries += 1
            if not item.answer.done():
                self._queue.appendleft(item)
                self._waiting += item.rows

    def _hangs(self) -> None:
        self._notice(
            f"version {self.version}: its process has computed a batch for "
            f"{self._limits.batch_timeout:g} s and is started again"
        )
        if len(self._batch) == 1:  # it is that request: it would hang again
            self._batch[0].tries = _TRIES
        if self._process is not None:
            self._process.kill()

    async def _again(self) -> None:
        """Start the process again; what it was computing is computed again, one by one."""
        batch, self._batch = self._batch, []
        if self._alarm is not None:
            self._alarm.cancel()
        for item in batch:
            if item.tries + 1 >= _TRIES:
                text = "the process of the model died of this request"
                _set(item.answer, Refused(503, text))
        self._put_back([item for item in batch if item.tries + 1 < _TRIES])
        await asyncio.get_running_loop().run_in_executor(None, self._end)
        for attempt in range(1 << 30):
            await asyncio.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
            if self._closed:
                return
            self._metrics.restarts += 1
            try:
                await self.load()
            except Unusable as error:
                self._notice(f"version {self.version} cannot be started again: {error}")
            else:
                self._notice(f"version {self.version}: its process has died and was started again")
                return

    async def close(self, seconds: float = 0.0) -> None:
        """End it, once what waits is answered or ``seconds`` are over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for item in (*self._batch, *self._queue):
            _set(item.answer, busy("the server stops"))
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        await asyncio.get_running_loop().run_in_executor(None, self._end)
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()


def _set(answer: asyncio.Future[Any], found: dict[str, np.ndarray] | Refused) -> None:
    if answer.done():
        return
    if isinstance(found, Refused):
        answer.set_exception(found)
    else:
        answer.set_result(found)


def _problem(head: dict[str, Any]) -> Refused:
    if head["kind"] == "input":
        return wrong(f"the model does not take these inputs: {head['error']}")
    if head["kind"] == "memory":
        return busy(f"there is not the memory for it: {head['error']}")
    return Refused(500, f"the model failed: {head['error']}")


async def _message(
    reader: asyncio.StreamReader,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the next message of the process.

    Raises:
        EOFError, OSError: it has ended.
    """
    sizes = frames.SIZES.unpack(await reader.readexactly(frames.SIZES.size))
    head = await reader.readexactly(sizes[0])
    return frames.unpacked(head, await reader.readexactly(sizes[1]))
