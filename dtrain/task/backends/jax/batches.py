"""How batches lie on the devices, and which of their rows a process reads."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from dtrain.data import nest
from dtrain.task.backends.base import Tasks
from dtrain.task.backends.jax.arrays import narrowed
from dtrain.task.backends.jax.layouts import Layouts


class Batches:
    """Sends batches to the devices of a strategy.

    Args:
        layouts: how arrays lie on several devices; None: there is one.
        replicas: that share each batch.
        tasks: that read it, each the rows of its own replicas.
    """

    def __init__(self, layouts: Layouts | None, replicas: int, tasks: Tasks):
        self._layouts, self._replicas, self.tasks = layouts, replicas, tasks

    @property
    def replicated(self) -> jax.sharding.Sharding | None:
        """How what every process reads lies on the devices; None: there is one device."""
        return None if self._layouts is None else self._layouts.sharding(0, divided=False)

    def share(self, rows: int) -> slice:
        """Return which rows of a batch of so many this task reads: all where it is not divided."""
        if rows % self._replicas:
            return slice(None)
        own = rows // self.tasks.size
        return slice(self.tasks.rank * own, (self.tasks.rank + 1) * own)

    def put(self, batch: Any, rows: int, steps: int | None = None) -> Any:
        """Send a batch to the devices, divided over its rows where they divide it.

        Args:
            batch: arrays ``[b, ...]``, the rows that this task has read; or all of them.
            rows: how many the batch has in all tasks.
            steps: of the batches of so many steps, ``[steps, b, ...]``; None: it is one.

        Raises:
            UsageError: JAX has no such numbers.
        """
        batch = narrowed(batch)
        if self._layouts is None:
            return jax.device_put(batch)
        layouts, divided = self._layouts, rows % self._replicas == 0
        before = () if steps is None else (steps,)

        def laid_out(leaf: np.ndarray) -> jax.Array:
            sharding = layouts.sharding(np.ndim(leaf), divided, axis=len(before))
            shape = (*before, rows, *np.shape(leaf)[1 + len(before) :])
            return jax.make_array_from_process_local_data(sharding, leaf, shape)

        return nest.mapped(laid_out, batch)
