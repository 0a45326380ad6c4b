"""Variables that every process of a job must have before TensorFlow is imported."""

from __future__ import annotations

import os


def task_environment(onednn: bool = True) -> dict[str, str]:
    """Return them.

    Args:
        onednn: ``hardware.onednn``.
    """
    return {
        "KERAS_BACKEND": "tensorflow",
        "TF_ENABLE_ONEDNN_OPTS": "1" if onednn else "0",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }
