"""Asks processes that may import TensorFlow to export a model, and to run what was exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtrain.controller.launchers.questions import ask_of_a_run
from dtrain.run.cluster import Cluster


def _enter(*arguments: Any) -> None:
    from dtrain.task.export.main import child

    child(*arguments)


class Steps:
    """The steps of an export, each in a process of its own.

    Args:
        config: of the run, as plain values.
        cluster: of one process.
        hear: called with each clause about what is being done.
        waiting: called once a second while none comes.
        gives_way: others have the cores first.
    """

    def __init__(
        self,
        config: dict[str, Any],
        cluster: Cluster,
        hear: Callable[[str], None],
        waiting: Callable[[], None],
        gives_way: bool = False,
    ):
        self._config, self._cluster, self._gives_way = config, cluster, gives_way
        self._hear, self._waiting = hear, waiting

    def write(self, **arguments: Any) -> dict[str, Any]:
        """Have :func:`dtrain.task.export.main.written` called.

        Raises:
            DtrainError: what it raised there, with its exit code.
        """
        return self._ask("the process that builds the model", {"do": "write", **arguments})

    def check(self, **arguments: Any) -> dict[str, Any]:
        """Have :func:`dtrain.task.export.main.checked` called.

        Raises:
            DtrainError: what it raised there, with its exit code.
        """
        subject = f"the process that runs {arguments['name']}"
        return self._ask(subject, {"do": "check", **arguments})

    def _ask(self, subject: str, asked: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = ask_of_a_run(
            _enter,
            self._config,
            self._cluster,
            asked,
            subject,
            self._hear,
            self._waiting,
            self._gives_way,
        )
        return found
