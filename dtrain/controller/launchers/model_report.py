"""Asks a process that may import TensorFlow what ``strategy.rules`` will make of a model."""

from __future__ import annotations

from typing import Any

from dtrain.controller.launchers.questions import ask
from dtrain.host import variables
from dtrain.run.cluster import Cluster


def _enter(
    config: dict[str, Any], cluster: dict[str, Any], environment: dict[str, str], pipe: Any
) -> None:
    from dtrain.task.model_report import child

    child(config, cluster, environment, pipe)


def describe(config: dict[str, Any], cluster: Cluster) -> list[str]:
    """Return :func:`dtrain.task.model_report.describe` of a configuration, as plain values.

    Raises:
        DtrainError: what it raised there, with its exit code.
    """
    environment = {**variables.copied(), **cluster.environment, "CUDA_VISIBLE_DEVICES": "-1"}
    arguments = (config, cluster.to_json(), environment)
    found = ask(_enter, arguments, cluster.environment, "the process that builds the model")
    return list(found)
