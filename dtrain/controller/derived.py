"""Commands that work on what a run has left: jobs of their own, in folders inside of the run's.

Their configuration is that of the run, from its own command line, with what the user changes; the
action is another one. So the same launchers and strategies do the work. They are no runs: nothing
is tracked but what they add to the run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.overrides import key_of, parse
from dtrain.config.schema import Config
from dtrain.config.values import settle
from dtrain.controller import cli, folders, other_data
from dtrain.controller.job import Job
from dtrain.controller.run_command import RunCommand
from dtrain.controller.start import start
from dtrain.controller.terminal import report
from dtrain.controller.validate import check_address
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir, short

#: Keys of a training that have no meaning here.
_OF_A_RUN = (
    "resume",
    "fork",
    "init",
    "output_dir",
    "tracking",
    "action",
    "debug",
    "sweep",
    "hydra",
    "objective",
)
#: Keys of how many devices and hosts there are: another strategy has its own.
_SIZES = ("hardware.devices", "hardware.hosts")


class Derived(RunCommand):
    """A command on a run: ``python -m dtrain NAME RUN [KEY=VALUE ...]``.

    Args:
        run: a run folder, or one of its checkpoints.
    """

    #: What the run's folder has its folders in.
    folder: str
    #: Keys of the action that are typed without a group.
    words: Sequence[str] = ("checkpoint", "weights")
    #: Those that may be typed without it, too.
    short_words: Sequence[str] = ()
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
            if not override.startswith("-") and key.partition(".")[0] in _OF_A_RUN:
                raise UsageError(
                    key, parse(override).value or "", f"is of a training, and {self.name} is none",
                    "overrides of strategy, hardware, launcher, dataset, trainer",
                    f"the command without {override}",
                )  # fmt: skip
        own = [self._translated(override) for override in given]
        self._typed = keys = {key_of(override) for override in own}
        self.check_run("action.checkpoint" in keys)
        if self._chosen is not None:
            own.append(f"action.checkpoint={self._chosen.name}")
        own += [f"action={self.name}", "tracking=none"]
        # Which checkpoint is the best is the run's: its objective stays.
        replaced = {*keys, *_OF_A_RUN, *(_SIZES if "strategy" in keys else ())} - {"objective"}
        return self.overrides(own, replaced)

    def _translated(self, override: str) -> str:
        """Return an override with the action's key in the place of the command's own."""
        found = parse(override)
        head, _, rest = found.name.partition(".")
        if found.value is None or found.sign or override.startswith("-"):
            return override
        if found.name in (*self.words, *self.short_words):
            return f"action.{override}"
        return f"action.{rest}={found.value}" if head == self.name and rest else override

    def worded(self, text: str) -> str:
        """Return a message with the command's own keys in the place of those of the action."""

        def typed(match: re.Match[str]) -> str:
            return match[1] if match[1] in self.words else f"{self.name}.{match[1]}"

        return re.sub(r"(?<![\w.])action\.(\w+)", typed, text)

    def job(self, node: Any) -> int:
        """Do the work of one configuration, and return the exit code."""
        config = settle(node)
        check_address(config)
        about = {"command": self.name, "run": str(self.rundir.path)}
        command = {**cli.command_of(config, node), "derived": about}
        config.action = config.action.replaced(run=str(self.rundir.path))
        config.output_dir = str(self.rundir.path)
        labels = self.needs_labels(config)
        config.dataset = other_data.settled(config.dataset, self.rundir, self._typed, labels)
        self.check(config)
        path = self.rundir.path / self.folder / time.strftime("%Y-%m-%d_%H-%M-%S")
        return start(config, path, command, kind=self.kind).exit_code

    def needs_labels(self, config: Config) -> bool:
        """Say whether the targets of the data are needed."""
        return True

    def check(self, config: Config) -> None:
        """Refuse what cannot be done, before anything is started.

        Raises:
            UsageError: naming the key.
        """


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
        self,
        config: Config,
        cluster: Cluster,
        rundir: RunDir,
        events: list[dict[str, Any]],
        **course: Any,
    ) -> dict[str, Any]:
        """Return the contents of ``result.json``."""
        end: dict[str, Any] = next((e for e in reversed(events) if e["event"] == "end"), {})
        start: dict[str, Any] = next((e for e in reversed(events) if e["event"] == "start"), {})
        return {
            "status": course["status"],
            "exit_code": course["exit_code"],
            "error": course["error"],
            "run": config.action["run"],
            "objective": None,
            "metrics": end.get("metrics", {}),
            "examples_per_second": end.get("examples_per_second"),
            **self.found(events),
            "replicas": cluster.replicas,
            "tasks": len(cluster.tasks),
            "parameters": start.get("parameters"),
            "restarts": course["restarts"],
            "replaced_workers": course["replaced"],
            "started": course["began"],
            "start_seconds": course["start_seconds"],
            "seconds": round(time.time() - course["began"], 3),
        }

    def found(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what was found, for ``result.json``."""
        return {}

    def _print_end(self, found: dict[str, Any], shipped: bool) -> None:
        speed = found["examples_per_second"]
        self._view.detail(f"{found['status']}" + (f": {speed:,.0f} examples/s" if speed else ""))
        if found["error"]:
            self._view.detail(f"error: {found['error']}")
        self._view.detail(f"folder: {short(self._rundir.path)}")
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
