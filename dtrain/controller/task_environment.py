"""Variables that every process of a job must have before Keras is imported."""

from __future__ import annotations

import os

from dtrain.host.frameworks import VARIABLE

#: Of the log of XLA and TensorFlow.
_LOG = "TF_CPP_MIN_LOG_LEVEL"
#: Whether threads of OpenMP that wait are active.
_WAIT = "OMP_WAIT_POLICY"
_HASHING = "PYTHONHASHSEED"


def task_environment(
    onednn: bool = True, backend: str = "tensorflow", hashing: str = "0"
) -> dict[str, str]:
    """Return them.

    They are the same for every kind of device, so that all processes of a job are forked from one
    warm server: those that look at data, too, which leave a GPU alone.

    Args:
        onednn: ``hardware.onednn``, of TensorFlow.
        backend: of Keras.
        hashing: of texts, by which sets are ordered: classes that are numbered by one must not be
            others in the next process; ``random`` where requests of others are answered.
    """
    common = {VARIABLE: backend, _LOG: os.environ.get(_LOG, "2")}
    common[_HASHING] = os.environ.get(_HASHING, hashing)
    if backend == "jax":
        return {**common, "JAX_PLATFORMS": "cpu"}  # a task on another device changes it in JAX
    if backend == "torch":
        return {
            **common,
            # Else Keras asks for GPUs while it is imported, and no process that is forked has one.
            # A task on another device says so to Keras.
            "KERAS_TORCH_DEVICE": "cpu",
            # Threads of an operation that wait for each other take the cores, which other programs
            # have as well: steps are then many times slower.
            _WAIT: os.environ.get(_WAIT, "PASSIVE"),
        }
    return {**common, "TF_ENABLE_ONEDNN_OPTS": "1" if onednn else "0"}
