"""What the host does beside the steps.

The function that predicts, where rows are read on the host: rows in, columns out.

The generators of Python and NumPy, which are those of the process.

How long the host waits for its input, where it reads it between the steps.
"""

from __future__ import annotations

import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from dtrain.data import generators, nest
from dtrain.data.sources import Source
from dtrain.run.predictions import ColumnSpec
from dtrain.run.times import INPUT
from dtrain.task.aliases import Nest
from dtrain.task.backends.base import Finish
from dtrain.task.backends.runtime import runtime


class HostForward(ABC):
    """Predicts batches of one model.

    It is a function of the rows: what a layer would keep for the next batch is dropped.

    Args:
        model: built in the strategy's scope, with the weights to use.
        source: has the rows.
        batch: rows of a batch.
        finish: makes columns.
        replicas: how many batches a call takes.

    Attributes:
        specs: of the columns, of one row each.
    """

    def __init__(
        self, model: keras.Model, source: Source, batch: int, finish: Finish, replicas: int = 1
    ):
        self._model, self._source, self._finish = model, source, finish
        self.replicas, self.batch = replicas, batch
        self.specs: dict[str, ColumnSpec] = {}

    @property
    def at_once(self) -> int:
        """How many calls may be under way: one is computed while the rows of another are read."""
        return 2

    def trace(self) -> None:
        """Call the function once; it can be called then.

        Raises:
            UsageError: model, rows and columns do not go together.
        """
        self(np.zeros([self.replicas, self.batch], np.int64), np.zeros([self.replicas], np.int64))

    def __call__(self, rows: np.ndarray, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Predict rows of a batch for each replica: :class:`dtrain.task.backends.base.Forward`."""
        parts = runtime().read(self._source, rows.reshape(-1))
        outputs = self._outputs(parts[0], numbers)
        with runtime().on_cpu():
            columns = self._finish(outputs, parts)
        arrays = {name: np.asarray(column) for name, column in columns.items()}
        self.specs = {
            name: ColumnSpec(array.shape[1:], array.dtype.name) for name, array in arrays.items()
        }
        return arrays

    @abstractmethod
    def _outputs(self, x: Nest, numbers: np.ndarray) -> Nest:
        """Return what the model predicts for the inputs of a call, on the host."""


def as_data(x: Nest) -> Nest:
    """Return inputs as Keras' predict gives them to its step."""
    return (x,) if nest.is_nest(x) and not isinstance(x, dict) else x


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let what is called inside draw by a seed."""
    with generators.stepping(), kept():
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Put the generators back to where they were, at the end."""
    before = state()
    try:
        yield
    finally:
        put(before)


def state() -> tuple[object, object]:
    """Return what the generators hold."""
    return random.getstate(), np.random.get_state()


def put(state: tuple[Any, Any]) -> None:
    """Let the generators go on from a state."""
    random.setstate(state[0])
    np.random.set_state(state[1])


class Waiting:
    """Adds up the seconds that the host waits for its input."""

    def __init__(self) -> None:
        self.measured = True
        self.traced: Callable[[], None] = lambda: None
        self._seconds = 0.0

    def on(self, read: Callable[[], Any]) -> Any:
        """Return what ``read`` returns, and add how long that took."""
        begin = time.perf_counter()
        value = read()
        self.add(time.perf_counter() - begin)
        return value

    def add(self, seconds: float) -> None:
        """Add what was measured."""
        self._seconds += seconds

    def pop(self) -> Mapping[str, float]:
        """Return the seconds since the last such call; nothing where they are not measured."""
        seconds, self._seconds = self._seconds, 0.0
        return {INPUT: seconds} if self.measured else {}
