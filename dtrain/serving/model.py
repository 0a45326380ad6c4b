"""One version of a model: the process that runs it, the requests that wait for it, its batches.

All of it happens on one event loop. A batch goes out as soon as the process is free, with what has
come until then (or ``max_delay`` later): the busier the server, the larger the batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dtrain.serving.channel import Channel, Start
from dtrain.serving.metrics import Metrics
from dtrain.serving.problems import Refused, Unusable, busy, wrong
from dtrain.serving.queue import Item, Queue
from dtrain.serving.signature import Signature

#: Seconds between two attempts to start a process that has died; the last one from then on.
_PAUSES = (0.0, 1.0, 5.0, 30.0)
#: Times that a request is computed where the process dies meanwhile; from the second on it is
#: alone in its batch. More than two: what ends a process may have come from outside.
_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much is taken at once.

    Attributes:
        max_batch: rows of a batch.
        max_delay: seconds that the first request of a batch waits for others.
        max_queue: rows that wait, and rows of a request.
        timeout: seconds until a request is given up.
        batch_timeout: seconds until a process that computes a batch is taken to hang; its requests
            are then computed again, one by one, and are to have time for that.
        load_timeout: seconds that loading a version may take.
    """

    max_batch: int = 64
    max_delay: float = 0.0
    max_queue: int = 4096
    timeout: float = 30.0
    batch_timeout: float = 10.0
    load_timeout: float = 600.0


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
        self.path, self.version = path, version
        self._start, self._limits, self._metrics, self._notice = start, limits, metrics, notice
        self._signature: Signature | None = None
        self._channel: Channel | None = None  # where its process is there
        self.loaded: dict[str, Any] = {}
        self.example: dict[str, np.ndarray] = {}
        self._work: asyncio.Task[None] | None = None
        self._queue = Queue()
        self._batch: list[Item] = []  # that the process computes
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
        return self._channel is not None

    @property
    def waiting(self) -> int:
        """How many rows wait."""
        return self._queue.rows

    @property
    def pid(self) -> int | None:
        """Its process."""
        return None if self._channel is None else self._channel.pid

    async def load(self) -> None:
        """Start its process, and answer from then on.

        Raises:
            Unusable: it cannot serve; no process is left.
        """
        channel = await self._open()
        self._work = asyncio.get_running_loop().create_task(self._answer(channel))

    async def _open(self) -> Channel:
        options = {"max_batch": self._limits.max_batch}
        channel = await Channel.open(self._start, self.path, options, self._limits.load_timeout)
        self._signature = Signature.of(channel.about["signature"])
        self.loaded, self.example = channel.about, channel.example
        self._channel = channel
        return channel

    async def infer(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a request.

        Args:
            inputs: by name, of the signature's types and shapes.

        Raises:
            Refused: the inputs do not go together, are too many, or the model refuses them; too
                much waits, or the process died of them.
        """
        rows = self.signature.check(inputs)
        if self._closed:
            raise busy("the server stops")
        if rows > self._limits.max_queue:
            most = self._limits.max_queue
            raise Refused(413, f"a request has at most {most:,} rows: this {rows:,}")
        if self._queue.rows + rows > self._limits.max_queue:
            raise busy(f"{self._queue.rows} rows wait for the model, and no more may")
        cuts = [slice(0, rows)]
        if self.signature.batched:
            most = self._most()
            cuts = [slice(at, min(at + most, rows)) for at in range(0, rows, most)]
        items = [self._item(inputs, cut, whole=len(cuts) == 1) for cut in cuts]
        self._queue.add(items)
        self._idle.clear()
        if self._pumping is None:  # once all that has come by now has been read
            self._pumping = asyncio.get_running_loop().call_soon(self._pump)
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

    def _most(self) -> int:
        return self.signature.rows or self._limits.max_batch

    def _item(self, inputs: Mapping[str, np.ndarray], cut: slice, whole: bool) -> Item:
        part = inputs if whole else {name: value[cut] for name, value in inputs.items()}
        key = tuple(part[spec.name].shape[1:] for spec in self.signature.inputs)
        answer = asyncio.get_running_loop().create_future()
        return Item(part, cut.stop - cut.start, key, answer)

    def _pump(self) -> None:
        """Send the next batch, where the process is free."""
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = None
        if self._batch or self._channel is None:
            return
        loop = asyncio.get_running_loop()
        shared, delay = self.signature.batched, self._limits.max_delay
        batch, late = self._queue.batch(self._most(), shared, delay)
        if not batch:
            if late:
                self._pumping = loop.call_later(late, self._pump)
            else:
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
        self._channel.say({"rows": rows}, arrays)
        self._alarm = loop.call_later(self._limits.batch_timeout, self._hangs)

    async def _answer(self, channel: Channel) -> None:
        """Take answers; where the process ends, have another one started."""
        while True:
            self._pump()
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._answered(*await channel.hear())
            self._channel = None
            self._again(self._taken())
            await channel.close()
            channel = await self._restarted()
            self._notice(f"version {self.version}: its process has died and was started again")

    def _taken(self) -> list[Item]:
        """Return what the process had to compute, which it has no more."""
        if self._alarm is not None:
            self._alarm.cancel()
        batch, self._batch = self._batch, []
        return batch

    def _answered(self, head: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        batch = self._taken()
        if "error" in head and len(batch) > 1:  # whose rows it was is found one by one
            self._queue.put_back(batch)
        elif "error" in head:
            batch[0].end(_problem(head))
        elif len(batch) == 1:
            batch[0].end(arrays)
        else:
            at = 0
            for item in batch:
                item.end({name: value[at : at + item.rows] for name, value in arrays.items()})
                at += item.rows
        self._pump()

    def _hangs(self) -> None:
        seconds = self._limits.batch_timeout
        self._notice(
            f"version {self.version}: its process has computed a batch for {seconds:g} s and is "
            "started again"
        )
        if len(self._batch) == 1:  # it is that request: it would hang again
            self._batch[0].tries = _TRIES
        if self._channel is not None:
            self._channel.kill()

    def _again(self, batch: list[Item]) -> None:
        """Have computed again, one by one, what a process has died of."""
        last = [item for item in batch if item.tries + 1 >= _TRIES]
        for item in last:
            item.end(Refused(503, "the process of the model died of this request"))
        self._queue.put_back([item for item in batch if item not in last])

    async def _restarted(self) -> Channel:
        attempt = 0
        while True:
            await asyncio.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
            self._metrics.restarts += 1
            attempt += 1
            try:
                return await self._open()
            except Unusable as error:
                self._notice(f"version {self.version} cannot be started again: {error}")

    async def close(self, seconds: float = 0.0) -> None:
        """End it, once what waits is answered or ``seconds`` are over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        self._closed = True
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        for item in (*self._taken(), *self._queue):
            item.end(busy("the server stops"))
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _problem(head: dict[str, Any]) -> Refused:
    if head["kind"] == "input":
        return wrong(f"the model does not take these inputs: {head['error']}")
    if head["kind"] == "memory":
        return busy(f"there is not the memory for it: {head['error']}")
    return Refused(500, f"the model failed: {head['error']}")
