"""The predictions of a run's report, by a command of their own."""

from __future__ import annotations

from typing import Any

from dtrain.run import schemas
from dtrain.run.folder import RunDir
from dtrain.task.train.held_out import write_report
from dtrain.task.train.session import Action, Session


class Report(Action):
    """Writes ``report.json`` of a run, of the examples that it has held out.

    Args:
        run: the run folder.
        checkpoint: ``best``, ``latest`` or a step; None: the best, or else the latest.
    """

    trains = False

    def __init__(self, run: str, checkpoint: str | None):
        self._rundir = self.of_run = RunDir(run)
        self._checkpoint = checkpoint

    def run(self, session: Session) -> None:
        """Predict, and write what there is to say."""
        process = session.process
        result: Any = schemas.glance(self._rundir.result, schemas.Result) or {}
        replicas, parameters = session.strategy.replicas, session.model.count_params()
        process.event("start", step=0, replicas=replicas, parameters=parameters)
        process.begun()
        write_report(session, self._rundir, self._checkpoint, result.get("seconds") or 0.0)
        process.event("end", status="FINISHED", step=0, metrics={})
