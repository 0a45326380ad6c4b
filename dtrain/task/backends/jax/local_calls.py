"""``predict`` and ``evaluate`` of a model in a callback, in a process of several.

On variables of several processes they are programs of all of them: one that calls them by itself
would wait for ever. So the model gets copies of its variables for such a call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

from dtrain.task import keras_internals
from dtrain.task.model import local_calls, train_state


class LocalCalls(local_calls.LocalCalls):
    """Computes with arrays of this process."""

    @contextlib.contextmanager
    def _with_copies(self) -> Iterator[None]:
        named, metrics = train_state.variables(self._model), self._metrics()
        arrays = [*self._strategy.read(named).values(), *(v.value for v in metrics)]
        copies = [jax.numpy.asarray(jax.device_get(array)) for array in arrays]
        with keras_internals.exchanged([*named.values(), *metrics], copies):
            yield
