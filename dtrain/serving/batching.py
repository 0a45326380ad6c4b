"""Dynamic batching: requests wait in a queue, and the model runs on all that wait.

An idle model gets a request at once; the busier it is, the larger its batches are.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from prometheus_client import Histogram
from starlette.exceptions import HTTPException

from dtrain.serving.options import ServeOptions
from dtrain.serving.signature import Signature

#: Runs the model: inputs by name to outputs by name.
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
_ROWS = Histogram("dtrain_batch_rows", "Computed batches.", buckets=[1 << n for n in range(11)])
_TURN = 0.001  # seconds between two looks at a batch that waits for requests


@dataclasses.dataclass(eq=False)
class _Item:
    """A request; only those of equal ``shapes`` share a batch, those that are ``alone`` none."""

    inputs: Mapping[str, np.ndarray]
    rows: int
    shapes: list[tuple[int, ...]]
    answer: asyncio.Future[dict[str, np.ndarray]]
    came: float = dataclasses.field(default_factory=time.monotonic)
    alone: bool = False


class Batcher:
    """One version of a model with its queue; all but :meth:`_compute` is on the event loop.

    Args:
        run: the model. ValueError: it refuses the inputs; MemoryError: there is no memory.
        signature: of it.
        options: limits of requests and batches.

    Attributes:
        waiting: rows that wait or are computed.
    """

    def __init__(self, run: Run, signature: Signature, options: ServeOptions):
        self.signature, self.waiting = signature, 0
        self._run, self._options = run, options
        self._queue: collections.deque[_Item] = collections.deque()
        self._thread = ThreadPoolExecutor(1, "model")
        self._pumping = False  # a call of _pump is scheduled, or a batch is in the thread

    async def infer(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a request.

        Raises:
            HTTPException: the model refuses it, or too much waits.
        """
        rows, limits = self.signature.count(inputs), self._options
        if rows > limits.max_queue:
            raise HTTPException(413, f"a request has at most {limits.max_queue} rows: this {rows}")
        if self.waiting + rows > limits.max_queue:
            raise HTTPException(503, f"the queue is full: {self.waiting} rows wait")
        loop, shapes = asyncio.get_running_loop(), [value.shape[1:] for value in inputs.values()]
        item = _Item(inputs, rows, shapes, loop.create_future())
        self._queue.append(item)
        self.waiting += rows
        if not self._pumping:
            self._pumping = True
            loop.call_soon(self._pump, loop)  # ORDER: after all requests that have been read
        try:
            async with asyncio.timeout(limits.timeout):
                return await item.answer
        except TimeoutError:
            raise HTTPException(503, f"no answer within {limits.timeout:g} s") from None
        finally:
            self.waiting -= rows

    def _pump(self, loop: asyncio.AbstractEventLoop) -> None:
        """Compute the next batch; where it fails, each of its requests is computed alone."""
        while self._queue and self._queue[0].answer.done():  # given up
            self._queue.popleft()
        self._pumping = bool(self._queue)
        if not self._queue:
            return
        first, most = self._queue[0], self._options.max_batch
        shares = self.signature.batched and not first.alone
        wait = first.came + self._options.max_delay_ms / 1000 - time.monotonic()
        if wait > 0 and shares and self.waiting < most:
            loop.call_later(min(wait, _TURN), self._pump, loop)
            return
        batch, rows = [self._queue.popleft()], first.rows
        while self._queue and shares and self._queue[0].shapes == first.shapes:
            if (rows := rows + self._queue[0].rows) > most:
                break
            batch.append(self._queue.popleft())

        hangs = loop.call_later(self._options.timeout / 2, _end, self._options.timeout / 2)

        def answer(results: asyncio.Future[list[dict[str, np.ndarray]]]) -> None:
            hangs.cancel()
            _ROWS.observe(sum(item.rows for item in batch))
            error = results.exception()
            if error is not None and len(batch) > 1:
                for item in reversed(batch):
                    item.alone = True
                    self._queue.appendleft(item)
            elif error is None:
                for item, outputs in zip(batch, results.result(), strict=True):
                    if not item.answer.done():
                        item.answer.set_result(outputs)
            elif not first.answer.done():
                status = 400 if isinstance(error, ValueError) else 500
                status = 503 if isinstance(error, MemoryError) else status
                first.answer.set_exception(HTTPException(status, f"the model failed: {error}"))
            self._pump(loop)

        loop.run_in_executor(self._thread, self._compute, batch).add_done_callback(answer)

    def _compute(self, batch: list[_Item]) -> list[dict[str, np.ndarray]]:
        """Return the outputs of each request."""
        if len(batch) == 1:
            return [self._run(batch[0].inputs)]
        names, ends = batch[0].inputs, np.cumsum([item.rows for item in batch])
        joined = {name: np.concatenate([item.inputs[name] for item in batch]) for name in names}
        outputs = self._run(joined)
        if any(value.shape[:1] != (ends[-1],) for value in outputs.values()):
            raise ValueError("its outputs have other rows than its inputs")
        return [
            {name: value[end - item.rows : end] for name, value in outputs.items()}
            for item, end in zip(batch, ends, strict=True)
        ]


def _end(seconds: float) -> None:
    """End the process, in which a batch takes so long; the command starts another."""
    print(f"a batch does not end within {seconds:g} s", file=sys.stderr, flush=True)
    os._exit(1)
