"""Commands that work on what a run has left: on its model, or as jobs in folders inside of it.

The configuration of such a job is that of the run, from its own command line, with what the user
changes; the action is another one. So the same launchers and strategies do the work. They are no
runs: nothing is tracked but what they add to the run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.cli import app
from dtrain.config import schema, tree
from dtrain.config.check import settle
from dtrain.config.overrides import key_of, parse
from dtrain.config.tree import Config
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.host import answer
from dtrain.job import early_import, folders, report, resume
from dtrain.job.checks import check_address
from dtrain.job.checks import start as start_job
from dtrain.job.run import Job
from dtrain.run import failure, journal
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir, short
from dtrain.run.follow import LOOK, Followed
from dtrain.run.other_data import settle_data
from dtrain.run.outcome import last
from dtrain.terminal.progress import Activity


class RunCommand(app.OneConfiguration):
    """A command on a run.

    Args:
        run: a run folder, or one of its checkpoints.
    """

    of_project = False  # the run has recorded it

    def __init__(self, run: str):
        self._run = run
        self.rundir, self._chosen = resume.origin(run)

    def check_run(self, has_checkpoint: bool) -> None:
        """Refuse what is no run, and two checkpoints.

        Args:
            has_checkpoint: one was typed.

        Raises:
            UsageError: there is no such folder, or it is another checkpoint.
        """
        if not self.rundir.path.is_dir():
            refuse("RUN", "is not a folder", self._run,
                   accepted="a run folder, or RUN/checkpoints/STEP",
                   hint=f"python -m dtrain {self.name} outputs/DATE/TIME_NAME")  # fmt: skip
        if self._chosen is not None and has_checkpoint:
            refuse("RUN", "names a checkpoint, and so does checkpoint=", self._run,
                   typed=f"python -m dtrain {self.name} {short(self.rundir.path)}")  # fmt: skip

    def overrides(self, own: list[str], replaced: Collection[str]) -> list[str]:
        """Return the overrides of the run with those of this command.

        Args:
            own: of this command.
            replaced: keys and groups of which those of the run are left out.

        Raises:
            UsageError: it is no run folder.
        """
        typed = f"python -m dtrain {self.name} "
        return resume.of_run("RUN", self._run, self.rundir, own, replaced, typed)


class OfModel(RunCommand):
    """A command on the model of a run.

    Args:
        run: a run folder, or one of its checkpoints.
        checkpoint: which one was typed, if any.
        weights: which of it.
    """

    def __init__(self, run: str, checkpoint: str | None = None, weights: str = "raw"):
        super().__init__(run)
        self.weights, self._checkpoint = weights, checkpoint

    def arguments(self, given: list[str]) -> list[str]:
        """Return the overrides of the run, and those that were typed.

        Raises:
            UsageError: there is no such run.
        """
        self.check_run(self._checkpoint is not None)
        replaced = {*map(key_of, given), "resume", "fork", "output_dir", "tracking", "debug",
                    "sweep", "hydra"}  # fmt: skip
        return self.overrides([*given, "tracking=none"], replaced)

    @property
    def checkpoint(self) -> str | None:
        """What was typed of the checkpoint that is meant, or the name of its folder."""
        return self._checkpoint if self._chosen is None else self._chosen.name


class Derived(RunCommand):
    """A command on a run: ``python -m dtrain NAME RUN [KEY=VALUE ...]``.

    Args:
        run: a run folder, or one of its checkpoints.
    """

    #: What the run's folder has its folders in.
    folder: str
    #: What does the work.
    kind: type[DerivedJob]

    def __init__(self, run: str):
        super().__init__(run)
        self._typed: set[str] = set()

    def arguments(self, given: list[str]) -> list[str]:
        """Return the overrides of the run, less those that this command replaces, and its own.

        Raises:
            UsageError: there is no such run, or a key of training is given.
        """
        for override in given:
            key = key_of(override)
            of_training = key.partition(".")[0] == "hydra" or schema.has_mark(key, "training")
            if of_training and not override.startswith(("-", "action.")):
                refuse(key, f"is of a training, not of {self.name}", parse(override).value or "",
                       accepted="keys of strategy, hardware, launcher, dataset, trainer",
                       hint=f"the command without {override}")  # fmt: skip
        own = list(given)
        self._typed = keys = {key_of(override) for override in own}
        self.check_run("action.checkpoint" in keys)
        if self._chosen is not None:
            own.append(f"action.checkpoint={self._chosen.name}")
        own += [f"action={self.name}", "tracking=none"]
        # Which checkpoint is the best is the run's: its objective stays.
        replaced = {*keys, *schema.having(mark="training"), "sweep", "hydra"} - {"objective"}
        if "strategy" in keys:
            replaced |= {*schema.having(mark="strategy")}
        return self.overrides(own, replaced)

    def worded(self, text: str) -> str:
        """Return a message with the command's own words in the place of the action's keys."""
        return re.sub(r"(?<![\w.])action\.(?=\w)", "", text)

    def job(self, node: Any) -> int:
        """Do the work of one configuration, and return the exit code."""
        config = settle(node)
        check_address(config)
        about = {"command": self.name, "run": str(self.rundir.path)}
        command = {**app.command_of(config, node), "derived": about}
        config.action = config.action.replaced(run=str(self.rundir.path))
        config.output_dir = str(self.rundir.path)
        labels = self.needs_labels(config)
        own, columns = tree.read(self.rundir.config).dataset, _columns(self.rundir)
        config.dataset = settle_data(config.dataset, own, columns, self._typed, labels)
        self.check(config)
        path = self.rundir.path / self.folder / time.strftime("%Y-%m-%d_%H-%M-%S")
        return app.exit_code_of(start_job(config, path, command, kind=self.kind))

    def needs_labels(self, config: Config) -> bool:
        """Say whether the targets of the data are needed."""
        return True

    def check(self, config: Config) -> None:
        """Refuse what cannot be done, before anything is started.

        Raises:
            UsageError: naming the key.
        """


def start(run: str, given: list[str], command: Callable[[str], Derived]) -> int:
    """Run a command whose tasks are those of a job, and return its exit code.

    Args:
        run: that was typed.
        given: its overrides.
        command: makes it, of the run.
    """
    with early_import.begun(given):
        return app.composed(given, command(run))


def wait_for_first(followed: Followed, also: Callable[[], None] = lambda: None) -> str:
    """Return the first checkpoint of a run that is followed, and show that it is waited for.

    Args:
        followed: the run.
        also: called as long as there is none.

    Returns:
        As of :meth:`dtrain.run.follow.Followed.newest`.

    Raises:
        UsageError: it has ended without one.
    """
    with Activity() as activity:
        activity.begin("waiting for the first checkpoint")

        def wait() -> None:
            activity.continues()
            also()
            time.sleep(LOOK)

        return followed.wait_for_first(wait)


class DerivedJob(Job):
    """A job that does not train, in a folder inside of that of the run that it is about."""

    trains = is_run = False
    saving = "what is done so far stays"
    unsaved = "stopped; the same command goes on"

    def _take(self, folder: Path, chosen: bool) -> tuple[RunDir, int]:
        try:
            rundir = RunDir.create(folder)
        except OSError as error:
            where = self._config.output_dir
            raise folders.unwritable("RUN", where, "no folder can be made there", error) from None
        return rundir, folders.lock(rundir, "RUN")

    def _result(
        self, config: Config, cluster: Cluster, rundir: RunDir, events: list[Json], **course: Any
    ) -> Json:
        """Return the contents of ``result.json``."""
        end = last(events, "end")
        del course["start_phases"]  # of a training alone
        return {
            **course,
            "run": config.action["run"],
            "objective": None,
            "metrics": end.get("metrics", {}),
            "examples_per_second": end.get("examples_per_second"),
            **self.result_fields(events),
            "replicas": cluster.replicas,
            "tasks": len(cluster.tasks),
            "parameters": last(events, "start").get("parameters"),
            "seconds": round(time.time() - course["started"], 3),
        }

    def result_fields(self, events: list[Json]) -> Json:
        """Return what was found, for ``result.json``."""
        return {}

    def _print_end(self, found: Json, lacking: Collection[str]) -> None:
        speed = found["examples_per_second"]
        self._view.detail(f"{found['status']}" + (f": {speed:,.0f} examples/s" if speed else ""))
        if (error := failure.sentence(found["failure"], self._rundir.path)) is not None:
            self._view.detail(f"error: {error}")
        self._view.detail(f"folder: {short(self._rundir.path)}")
        answer.note(folder=str(self._rundir.path))
        if found["exit_code"] == errors.INTERRUPTED:
            self._view.detail("the same command, once more, goes on")

    def _may_continue(self) -> bool:
        return True  # what was done before is not done again

    @staticmethod
    def show(config: Config, planned: Any, folder: Path) -> None:
        """Print what would be started (``dry_run=true``)."""
        cluster, held = planned.cluster, planned.validation_examples
        rows = {
            "run": short(Path(config.output_dir)),
            "strategy": config.strategy.name,
            "replicas": f"{cluster.replicas}",
            **planned.strategy.rows(cluster),
            "examples": "known once the task has loaded the dataset"
            if held is None
            else f"{held:,}",
            "folder": short(folder),
        }
        print("plan:")
        for name, value in rows.items():
            print(f"  {name:<20} {value}")
        for line in report.drawing(cluster, planned.where):
            print(f"  {line}")
        print("dry_run=true: nothing was started")


def _columns(rundir: RunDir) -> Json | None:
    """Return the names of the columns that the run was trained on; None of what is no table."""
    for event in journal.read(rundir.journal):
        if event["event"] == "data":
            columns: Json | None = (event.get("train") or {}).get("columns")
            return columns
    return None
