"""``python -m dtrain evaluate RUN``: evaluate checkpoints of a run, also on other data.

Each example counts once, on any number of replicas. The data is the validation data of the run, or
that of dataset.path. Exit codes: 0 done, 1 failed, 2 wrong usage, 75 interrupted: the same
command goes on.

    python -m dtrain evaluate latest by=label
    python -m dtrain evaluate RUN checkpoint=all dataset.path=FILE strategy=mirrored
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from dtrain.cli.on_run import Derived, DerivedJob, start, wait_for_first
from dtrain.cli.registry import RUN, command
from dtrain.config.schema import running
from dtrain.config.tree import Config
from dtrain.files import writing
from dtrain.files.fields import Json
from dtrain.job import report
from dtrain.run import checkpoint
from dtrain.run.folder import RunDir
from dtrain.run.follow import Followed
from dtrain.tracking import shipping


class EvaluateJob(DerivedJob):
    """Evaluates checkpoints of a run."""

    def result_fields(self, events: list[Json]) -> Json:
        """Return the evaluations, and how many examples they are of."""
        evaluations = [
            {name: value for name, value in event.items() if name not in ("event", "time")}
            for event in events
            if event["event"] == "evaluation"
        ]
        done = sum(each["examples"] for each in evaluations if not each.get("already"))
        return {"evaluated_examples": done, "evaluations": evaluations}

    def _print_end(self, found: Json, lacking: Collection[str]) -> None:
        for each in found["evaluations"]:
            if each.get("confusion") and not each.get("already"):
                self._draw(self._rundir.path / each["confusion"], f"step {each['step']}")
        for line in report.evaluation_lines(found["evaluations"], self._rundir.path.parent):
            print(line, flush=True)
        super()._print_end(found, lacking)
        run = RunDir(self._config.output_dir)
        if run.evaluated.exists():
            self._view.detail(shipping.ship_evaluations(run))

    def _draw(self, path: Path, title: str) -> None:
        from dtrain.terminal import pictures

        try:
            classes, counts = report.read_matrix(path)
            writing.write_bytes(
                path.with_suffix(".png"), pictures.confusion_matrix(counts, classes, title)
            )
        except OSError as error:  # the matrix itself is there
            self._view.message(f"error: {error.filename or path}: {error.strerror}")


class Evaluate(Derived):
    """The command."""

    name = "evaluate"
    folder = "evaluations"
    kind = EvaluateJob

    def __init__(self, run: str):
        super().__init__(run)
        self._ending = contextlib.ExitStack()

    def job(self, node: Any) -> int:
        """Evaluate, and return the exit code."""
        with self._ending:
            return super().job(node)

    def check(self, config: Config) -> None:
        """Refuse checkpoints that are not there, and averages that the run has not kept.

        Of a run that is followed the first one is waited for.
        """
        mode, action = config.objective_mode, config.action
        if action["follow"]:
            followed = Followed(self.rundir, action["checkpoint"] or "all", mode)
            self._ending.enter_context(followed.alone(self.name))
            config.launcher = config.launcher.replaced(stall_timeout=None)  # it waits for the run
            if not config.dry_run:
                wait_for_first(followed)
        for path in checkpoint.choose(self.rundir.checkpoints, action["checkpoint"], mode):
            checkpoint.check_weights(path, action["weights"])


@command(RUN, running.Evaluate, overrides=(), writes=True)
def main(run: str, overrides: list[str]) -> int:
    """Evaluate checkpoints of a run, and return the exit code."""
    return start(run, overrides, Evaluate)
