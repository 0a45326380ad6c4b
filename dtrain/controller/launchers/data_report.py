"""Asks a process that may import TensorFlow what a dataset gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtrain.controller.launchers.questions import ask_of_a_run
from dtrain.run.cluster import Cluster


def _enter(*arguments: Any) -> None:
    from dtrain.task.inspection.main import child

    child(*arguments)


def report(
    config: dict[str, Any],
    cluster: Cluster,
    asked: dict[str, Any],
    hear: Callable[[Any], None],
    waiting: Callable[[], None],
) -> None:
    """Have :func:`dtrain.task.inspection.report.report` made of a dataset.

    Args:
        config: the configuration, as plain values.
        cluster: as planned.
        asked: arguments of that function.
        hear: called with each part of the report.
        waiting: called once a second while none comes.

    Raises:
        DtrainError: what it raised there, with its exit code.
    """
    subject = "the process that reads the data"
    ask_of_a_run(_enter, config, cluster, asked, subject, hear, waiting)
