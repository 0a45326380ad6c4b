"""Asks a process that may import TensorFlow what ``strategy.rules`` will make of a model."""

from __future__ import annotations

import os
from typing import Any

from dtrain.errors import DtrainError
from dtrain.host.forkserver import warm
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
    context: Any = warm(cluster.environment)
    environment = {**os.environ, **cluster.environment, "CUDA_VISIBLE_DEVICES": "-1"}
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_enter, args=(config, cluster.to_json(), environment, theirs))
    process.start()
    theirs.close()
    try:
        code, reported = ours.recv()
    except EOFError:
        code, reported = DtrainError.exit_code, "the process that builds the model died"
    finally:
        process.kill()
        process.join()
    if code:
        error = DtrainError(reported)
        error.exit_code = code
        raise error
    return list(reported)
