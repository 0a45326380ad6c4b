"""Where the time of steps goes, by timestamps in their graph: input, exchange, and the rest.

Which parts (:mod:`dtrain.run.times`) can be told apart is the strategy's to say
(``Strategy.step_parts``).

A replica that exchanges gradients cannot see when the last of the others came: clocks of hosts
differ. But the last to come waits for nobody. So of the times that the replicas have spent in the
exchange of a step the least is ``communication``, and what the others have spent more is
``waiting``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.run.times import COMMUNICATION, COMPUTE, HOST, INPUT, WAITING

#: Of the replica that is traced in this thread: MirroredStrategy traces each in one of its own.
_current = threading.local()


def of_replicas(replicas: int, devices: Sequence[str]) -> tuple[str, ...]:
    """Return what can be told apart where replicas on ``devices`` meet to exchange gradients.

    With GPUs nothing: a timestamp is taken when work is handed to them, and not when it is done.
    """
    if replicas == 1:
        return (COMPUTE,)
    on_cpus = all(device.startswith("CPU") for device in devices)
    return (COMPUTE, COMMUNICATION, WAITING) if on_cpus else ()


class Waiting:
    """Adds up the seconds that steps have waited, in the mean over the tasks and replicas.

    Args:
        parts: what of a step can be told apart (``Strategy.step_parts``).
        replicas: that exchange gradients.

    Attributes:
        measured: whether it does. Op determinism (``trainer.deterministic``) admits no timestamp.
        traced: called when a training step has been traced.
    """

    def __init__(self, parts: tuple[str, ...] = (), replicas: int = 1):
        self.measured = True
        self.traced: Callable[[], None] = lambda: None
        self._parts = parts
        self._slots = replicas if COMMUNICATION in parts and replicas > 1 else 0
        self._spent: dict[str, float] = {}
        self._graph: Any = None  # of the loop over steps
        self._ready = self._fetch = None  # tensors of the step that is traced
        self._exchanges: dict[int, list[tf.Tensor]] = {}  # by replica: seconds of each

    @property
    def width(self) -> int:
        """Numbers of a row.

        The seconds that a task has waited in the step for its input; 1, by which the sum over the
        tasks becomes their mean; and for each replica its seconds in the exchange of gradients, 0
        in the rows of other tasks.
        """
        return 2 + self._slots

    def fetched(self, fetch: Callable[[], Any], quick: bool = False) -> Any:
        """Return what ``fetch`` returns, the input of the step that is traced from here on.

        Args:
            fetch: returns it, in a graph.
            quick: to measure it would take longer: it is a part of what computes.
        """
        self._graph, self._exchanges = tf.compat.v1.get_default_graph(), {}
        if quick:
            self._ready, self._fetch = None, tf.zeros([], tf.float64)
            return fetch()
        begin = self.now([])
        with tf.control_dependencies([begin]):
            data = fetch()
        self._ready = self.now(tf.nest.flatten(data, expand_composites=True))
        self._fetch = self._ready - begin
        return data

    def entered(self, data: Any) -> Any:
        """Return the input of a replica, after the timestamp that ends the wait for it.

        ORDER: on a single core what computes would run first, and be taken for input.
        """
        return data if self._ready is None else self.after(self._ready, data)

    def after(self, moment: tf.Tensor, data: Any) -> Any:
        """Return ``data``, to be had from a timestamp on; in a graph.

        Where no part is measured by itself it may be a TPU that computes: it has no float64.
        """
        return _after(moment, data) if self.measured and self._parts else data

    def added(self, row: tf.Tensor) -> tf.Tensor:
        """Return a row, and what was measured of its step since :meth:`fetched`; in a graph.

        Args:
            row: float64 ``[m]``.

        Returns:
            float64 ``[m + width]``.
        """
        self.traced()
        none = tf.zeros([], tf.float64)
        exchanges = [sum(self._exchanges.get(r, [none])) for r in range(self._slots)]
        return tf.concat([row, tf.stack([self._fetch, tf.ones_like(none), *exchanges])], 0)

    def now(self, tensors: list[Any]) -> tf.Tensor:
        """Return the time at which ``tensors`` are there, float64; in a graph."""
        return _ended(tensors) if self.measured else tf.zeros([], tf.float64)

    @contextlib.contextmanager
    def exchanging(self, replica: Any) -> Iterator[None]:
        """Take note of the exchanges of gradients that are traced inside, by one replica.

        Args:
            replica: its number, a constant tensor.
        """
        before = getattr(_current, "seen", None)
        number = tf.get_static_value(replica) if self.measured and self._slots else None
        _current.seen = None if number is None else (self, int(number))
        try:
            yield
        finally:
            _current.seen = before

    def took(self, replica: int, begin: tf.Tensor, end: tf.Tensor) -> None:
        """Take note of an exchange, where its graph is that of the steps."""
        self._exchanges.setdefault(replica, []).append(tf.maximum(end - begin, 0.0))

    def sees(self, graph: Any) -> bool:
        """Whether a timestamp in ``graph`` can be one of a step: others are of XLA's, or inside."""
        return graph is self._graph

    def taken(self, rows: np.ndarray) -> np.ndarray:
        """Add up the last columns of rows, summed over the tasks; return the other columns."""
        own = rows[:, rows.shape[1] - self.width :]
        self.add(float(np.sum(own[:, 0] / np.maximum(own[:, 1], 1))))
        if self._slots:
            exchanged = own[:, 2:]
            least = exchanged.min(axis=1)
            # A replica that has met no other in the graph of the steps was not seen.
            if np.all(exchanged.max(axis=0) > 0):
                self.add(float(least.sum()), COMMUNICATION)
                self.add(float((exchanged.mean(axis=1) - least).sum()), WAITING)
        return rows[:, : rows.shape[1] - self.width]

    def add(self, seconds: float, part: str = INPUT) -> None:
        """Add what was measured on the host."""
        self._spent[part] = self._spent.get(part, 0.0) + seconds

    def on_host(self, read: Callable[[], Any]) -> Any:
        """Return what ``read`` returns, and add how long that took as input."""
        begin = time.perf_counter()
        found = read()
        self.add(time.perf_counter() - begin)
        return found

    def pop(self, seconds: float) -> Mapping[str, float]:
        """Return the seconds of each part since the last such call; of none that is not measured.

        Args:
            seconds: in all. What is left of them is the time of computing, where that is so.
        """
        found, self._spent = self._spent, {}
        if not self.measured:
            return {}
        found.setdefault(INPUT, 0.0)
        seen = COMMUNICATION in found or not self._slots
        rest = max(0.0, seconds - sum(found.values()))
        if COMPUTE in found:  # a coordinator's workers have measured it
            found[HOST] = rest
        elif COMPUTE in self._parts and seen:
            found[COMPUTE] = rest
        return found


def timed(values: list[Any], exchange: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """Return what ``exchange`` returns, and have it measured where that is asked for.

    ORDER: it begins after a timestamp, and what follows it comes after another: else whatever is
    ready would run first on a single core.

    Args:
        values: what is exchanged, dense or sparse.
        exchange: does it.
    """
    seen: tuple[Waiting, int] | None = getattr(_current, "seen", None)
    if seen is None or not seen[0].sees(tf.compat.v1.get_default_graph()):
        return exchange(values)
    begin = _ended(tf.nest.flatten(values, expand_composites=True))
    found = exchange(_after(begin, values))
    end = _ended(tf.nest.flatten(found, expand_composites=True))
    seen[0].took(seen[1], begin, end)
    return _after(end, found)


def _after(moment: Any, data: Any) -> Any:
    """Return ``data``, to be had from ``moment`` on; in a graph."""
    with tf.control_dependencies([moment]):
        return tf.nest.map_structure(
            lambda part: tf.identity(part) if tf.is_tensor(part) else part,
            data,
            expand_composites=True,
        )


def _ended(tensors: list[Any]) -> tf.Tensor:
    """Return the time at which all ``tensors`` are there, float64, in a graph."""
    with tf.control_dependencies([each for each in tensors if tf.is_tensor(each)]):
        return tf.timestamp()
