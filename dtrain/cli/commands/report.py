"""``python -m dtrain report RUN``: write report.html of a run: curves, predictions, data.

A training writes it at its end. This command does it for a run that was stopped or killed, that was
trained with report=false or by several processes, or of another checkpoint. Exit codes: 0 done,
1 failed, 2 wrong usage.

    python -m dtrain report latest
    python -m dtrain report RUN checkpoint=latest strategy=one_device
"""

from __future__ import annotations

from collections.abc import Collection

from dtrain.cli.commands.predict import PredictJob
from dtrain.cli.on_run import Derived, DerivedJob, start
from dtrain.cli.registry import RUN, command
from dtrain.config import tree
from dtrain.config.schema import running
from dtrain.config.tree import Config
from dtrain.files.fields import Json
from dtrain.job import report
from dtrain.run import checkpoint
from dtrain.run.folder import RunDir, read_json, short
from dtrain.tracking import shipping


class ReportJob(DerivedJob):
    """Predicts held-out examples, and writes the page."""

    saving = "nothing is kept"

    #: As a prediction by one worker.
    spread = staticmethod(PredictJob.spread)

    def _print_end(self, found: Json, lacking: Collection[str]) -> None:
        super()._print_end(found, lacking)
        run = RunDir(self._config.output_dir)
        if found["status"] == "FINISHED":
            result = read_json(run.result) or {"status": "not ended"}
            report.write_page(self._view, tree.read(run.config), run, result)
            self._view.detail(f"report: {short(run.page)}")
            if run.tracking.exists():
                self._view.detail(shipping.ship_evaluations(run))


class Report(Derived):
    """The command."""

    name = "report"
    folder = "reports"
    kind = ReportJob

    def check(self, config: Config) -> None:
        """Settle which checkpoint it is.

        Raises:
            UsageError: there is no such one.
        """
        word, mode = config.action["checkpoint"], config.objective_mode
        path = checkpoint.only(self.rundir.checkpoints, word, mode)
        config.action = config.action.replaced(checkpoint=path.name)


@command(RUN, running.Report, overrides=("strategy", "hardware", "launcher"), writes=True)
def main(run: str, overrides: list[str]) -> int:
    """Write the report of a run, and return the exit code."""
    return start(run, overrides, Report)
