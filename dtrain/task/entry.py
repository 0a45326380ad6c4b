"""Where the process of a task begins. Light: a forked one has the rest, and imports no launcher."""

from __future__ import annotations

from typing import Any

from dtrain.task.process.status_pipe import StatusPipe


def enter(run_path: str, task_name: str, environment: dict[str, str], pipe: Any) -> None:
    """Run one task and end.

    Args:
        run_path, task_name: as of :func:`dtrain.task.main.run`.
        environment: of this process.
        pipe: a connection to the launcher, for statuses.
    """
    report = StatusPipe(pipe)
    report.watch()
    from dtrain.task.main import child  # a fresh interpreter imports TensorFlow here

    child(run_path, task_name, environment, report)
