"""Asks processes that may import TensorFlow to export a model, and to run what was exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtrain.controller.launchers.questions import ask_of_a_run
from dtrain.run.cluster import Cluster


def _enter(*arguments: Any) -> None:
    from dtrain.task.export.main import child

    child(*arguments)


def steps(
    config: dict[str, Any],
    cluster: Cluster,
    hear: Callable[[str], None],
    waiting: Callable[[], None],
    gives_way: bool,
) -> Callable[..., dict[str, Any]]:
    """Return what asks: ``do="write"`` or ``"check"``, arguments of that function by name.

    It raises DtrainError with what was raised there.

    Args:
        config: of the run, as plain values.
        cluster: of one process.
        hear: called with each clause about what is being done.
        waiting: called once a second while none comes.
        gives_way: others have the cores first.
    """

    def ask(**asked: Any) -> dict[str, Any]:
        subject = f"the process that is to {asked['do']} the export"
        found: dict[str, Any] = ask_of_a_run(
            _enter, config, cluster, asked, subject, hear, waiting, gives_way
        )
        return found

    return ask
