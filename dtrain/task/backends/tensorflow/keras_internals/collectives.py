"""The devices of a task of several."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from dtrain.task.keras_internals.model import function, module, unknown

MODULE = "tensorflow.python.distribute.collective_all_reduce_strategy"


@contextlib.contextmanager
def local_devices(devices: Sequence[str]) -> Iterator[None]:
    """Let the ``MultiWorkerMirroredStrategy`` that is made inside have these devices in each task.

    TensorFlow counts a task's GPUs and knows of one CPU device alone: several logical ones, on
    which a data-parallel run is tried without GPUs, cannot be asked for publicly. Where they are
    GPUs, or one CPU device, nothing is replaced.

    Raises:
        TrainingError: this version of TensorFlow finds them in another way.
    """
    if len(devices) == 1 or not all(name.startswith("CPU") for name in devices):
        yield
        return
    kind = getattr(module(MODULE), "CollectiveAllReduceExtended", None)
    name = "_initialize_local_devices"
    original = function(kind, name, ["self", "cluster_resolver", "worker_device"])
    if original is None:
        raise unknown(
            "finds the CPU devices of a task", "set hardware.devices=1, or use strategy=mirrored",
            "tensorflow",
        )  # fmt: skip

    def found(self: object, resolver: object, worker_device: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker_device}/device:{name}" for name in devices), "CPU"

    setattr(kind, name, found)
    try:
        yield
    finally:
        setattr(kind, name, original)
