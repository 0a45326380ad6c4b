"""Random numbers of Python and NumPy in a step: the same whenever it is traced, on each replica.

What a step draws by them is a constant of its graph, of which each replica has one: ``AugMix``
chooses its operations so. Replicas are traced in threads that take turns where they meet, and the
generators are those of the process. So whenever a replica's step is left, for others or for good,
the generators are what they were before it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from dtrain.task.backends import host
from dtrain.task.backends.tracing import now, tracing


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let what is traced inside draw what it draws whenever it is traced."""
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        _install()
    with tracing(outside=host.state()), host.seeded(seed):
        yield


def _install() -> None:
    """Let other replicas find the generators as they were outside; once in a process."""
    kind: Any = tf.distribute.ReplicaContext
    original = kind.merge_call
    if getattr(original, "by_dtrain", False):
        return

    @functools.wraps(original)
    def merge_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        outside = now().outside
        if outside is None:
            return original(self, *args, **kwargs)
        with host.kept():
            host.put(outside)
            return original(self, *args, **kwargs)

    # A mark on a function, which types of functions do not have.
    merge_call.by_dtrain = True  # type: ignore[attr-defined]
    kind.merge_call = merge_call
