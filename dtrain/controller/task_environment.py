"""Variables that every process of a job must have before Keras is imported."""

from __future__ import annotations

import os


def task_environment(onednn: bool = True, backend: str = "tensorflow") -> dict[str, str]:
    """Return them.

    Args:
        onednn: ``hardware.onednn``.
        backend: of Keras.
    """
    return {
        "KERAS_BACKEND": backend,
        "TF_ENABLE_ONEDNN_OPTS": "1" if onednn else "0",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }
