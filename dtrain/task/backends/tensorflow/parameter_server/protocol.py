"""What the steps of a coordinator ask of their strategy."""

from __future__ import annotations

from typing import Any, Protocol

from dtrain.task.backends.base import Replicas


class Coordinator(Replicas, Protocol):
    """The chief's side of a cluster of workers and parameter servers."""

    #: Of TensorFlow (``tf.distribute.coordinator.ClusterCoordinator``).
    coordinator: Any
    #: How many workers there are.
    workers: int
