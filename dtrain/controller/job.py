"""One job: checked, planned, launched, followed, recorded."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dtrain import checkpoint, errors, targets
from dtrain.cluster import Cluster
from dtrain.controller import report
from dtrain.controller.launchers import Launcher
from dtrain.controller.plan import Plan, check_values, gpus, plan, sizes
from dtrain.controller.progress import Display
from dtrain.controller.tracking import Shipper, Tracker
from dtrain.errors import UsageError
from dtrain.journal import Follower, cut
from dtrain.rundir import RunDir, read_json, write_json

#: Seconds between two looks at the tasks.
INTERVAL = 0.2


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        exit_code: of the command.
        objective: the last value of the objective, None where there is none.
        interrupted: somebody asked it to stop.
    """

    exit_code: int
    objective: float | None = None
    interrupted: bool = False


class Signals:
    """Counts the requests to stop that this process gets, while it is entered.

    Until :attr:`started` is set a request raises KeyboardInterrupt: nothing is there to be saved.
    """

    def __init__(self) -> None:
        self.count = 0
        self.started = False

    def __enter__(self) -> Signals:
        self._before = {
            number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        self.count += 1
        if not self.started:
            raise KeyboardInterrupt


def run(config: DictConfig, folder: Path, command: dict[str, Any]) -> Outcome:
    """Do one job from its configuration to its result.

    Args:
        config: composed by Hydra, and taken over from the run where it resumes one.
        folder: where a new run folder goes.
        command: contents of ``command.json``.

    Raises:
        UsageError: the configuration is wrong; nothing is left behind.
    """
    check_values(config)
    launcher: Launcher = targets.instantiate(targets.plain(config.launcher), "launcher")
    early = plan(config, None, gpus())
    if not config.dry_run:
        launcher.prepare(early.cluster)  # imports TensorFlow while the data is looked at
    planned = plan(config, sizes(config), gpus())
    if config.dry_run:
        report.print_plan(config, planned, folder)
        return Outcome(errors.OK)
    return Job(config, planned, launcher, folder, command).run()


class Job:
    """A job whose configuration is in order.

    Args:
        config: resolved.
        planned: its processes.
        launcher: starts them.
        folder: where a new run folder goes.
        command: contents of ``command.json``.
    """

    def __init__(
        self,
        config: DictConfig,
        planned: Plan,
        launcher: Launcher,
        folder: Path,
        command: dict[str, Any],
    ):
        self._command = command
        self._config = config
        self._cluster: Cluster = planned.cluster
        self._launcher = launcher
        self._resumed = config.resume is not None
        self._rundir = RunDir(config.resume) if self._resumed else _new_folder(config, folder)
        self._display = Display()
        self._tracker: Tracker | None = None
        self._events: list[dict[str, Any]] = []
        self._began = time.time()

    def run(self) -> Outcome:
        """Start the tasks, follow them to their end, and write ``result.json``."""
        self._prepare_folder()
        follower = Follower(self._rundir.journal)
        follower.new()  # what an earlier start wrote is not news
        if self._config.tracking.mlflow:
            shipper = Shipper(self._config, self._rundir, self._cluster)
            self._tracker = Tracker(shipper, self._rundir.journal, self._display.message)
        self._display.message(f"run folder: {report.short(self._rundir.path)}")
        self._display.message("starting: importing TensorFlow takes 10 to 30 s")
        with Signals() as signals:
            try:
                self._launcher.start(self._rundir, self._cluster)
                signals.started = True
                self._follow(follower, signals)
            except KeyboardInterrupt:
                signals.count = max(1, signals.count)
            finally:
                signals.started = True  # what comes now is short and must not be torn
                self._launcher.kill()
                self._display.close()
            self._take_events(follower)  # what was written since the last look
            return self._finish(signals.count > 0)

    def _prepare_folder(self) -> None:
        if self._resumed:
            found, _ = checkpoint.newest(self._rundir.checkpoints)
            cut(self._rundir.journal, found.step if found else 0)
            self._rundir.progress.unlink(missing_ok=True)
        text = OmegaConf.to_yaml(self._config, resolve=True)
        self._rundir.config.write_text(text)
        write_json(self._rundir.command, self._command)
        write_json(self._rundir.cluster, self._cluster.to_json())
        self._rundir.logs.mkdir(exist_ok=True)

    def _take_events(self, follower: Follower) -> None:
        for event in follower.new():
            self._events.append(event)
            if event["event"] == "notice":
                self._display.message(event["message"])

    def _follow(self, follower: Follower, signals: Signals) -> None:
        asked, deadline = 0, math.inf
        while self._launcher.running(INTERVAL):
            self._display.update(read_json(self._rundir.progress))
            self._take_events(follower)
            if signals.count > asked:
                asked = signals.count
                if asked > 1:
                    self._display.message("stopping at once")
                    return
                self._display.message("stopping: saving a checkpoint (once more: stop at once)")
                self._launcher.stop()
                deadline = time.monotonic() + self._launcher.grace_seconds
            if time.monotonic() > deadline:
                self._display.message("the tasks did not stop in time: ended by force")
                return
        self._display.update(read_json(self._rundir.progress))

    def _finish(self, interrupted: bool) -> Outcome:
        codes = self._launcher.exit_codes()
        code = self._exit_code(codes, interrupted)
        problem = self._problem(codes) if code == errors.FAILED else None
        if code == errors.USAGE:
            # Nothing was trained: leave the disk as it was before.
            if self._tracker is not None:
                self._tracker.finish(None, time.time())
            message = self._error_message() or f"see {self._rundir.log('chief-0')}"
            if not self._resumed:
                _remove(self._rundir.path)
            self._display.message(f"error: {message}")
            return Outcome(code)
        status = {errors.OK: "FINISHED", errors.FAILED: "FAILED"}.get(code, "KILLED")
        if interrupted and code == errors.FAILED:
            status, problem = "KILLED", "stopped before a checkpoint was saved"
        result = self._result(status, code, problem)
        try:
            write_json(self._rundir.result, result)
        except OSError as error:
            self._display.message(f"error: {self._rundir.result}: {error.strerror}")
        shipped = self._tracker is None or self._tracker.finish(status, time.time())
        report.print_end(self._display, self._config, self._rundir, result, shipped)
        return Outcome(code, result["objective"], interrupted)

    def _exit_code(self, codes: dict[str, int], interrupted: bool) -> int:
        """Reduce the tasks' exit codes to the command's."""
        found = set(codes.values())
        if found == {errors.OK}:
            return errors.OK
        if errors.USAGE in found:
            return errors.USAGE
        if found == {errors.INTERRUPTED}:
            return errors.INTERRUPTED
        if interrupted and checkpoint.steps(self._rundir.checkpoints):
            return errors.INTERRUPTED
        return errors.FAILED

    def _error_message(self) -> str | None:
        return next((e["message"] for e in self._events if e["event"] == "error"), None)

    def _problem(self, codes: dict[str, int]) -> str:
        """Name the task that failed, what it said last, and where the rest is."""
        for name, code in codes.items():
            if code == errors.OK:
                continue
            log = self._rundir.log(name)
            said = self._error_message()
            if code < 0:
                said = said or f"ended by {signal.Signals(-code).name}"
            if said is None and log.exists():
                said = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            return f"{name}: {said} (log: {report.short(log)})"
        return "no task was started"

    def _result(self, status: str, code: int, problem: str | None) -> dict[str, Any]:
        end: dict[str, Any] = next((e for e in reversed(self._events) if e["event"] == "end"), {})
        start: dict[str, Any] = next((e for e in self._events if e["event"] == "start"), {})
        reported = read_json(self._rundir.progress) or {}
        metrics = end.get("metrics", {})
        return {
            "status": status,
            "exit_code": code,
            "error": problem,
            "objective": metrics.get(self._config.objective),
            "objective_name": self._config.objective,
            "best_objective": end.get("best_objective"),
            "best_step": end.get("best_step"),
            "metrics": metrics,
            "step": end.get("step", reported.get("step", 0)),
            "examples": end.get("examples", 0),
            "examples_per_second": end.get("examples_per_second"),
            "replicas": self._cluster.replicas,
            "parameters": start.get("parameters"),
            "restarts": 0,
            "started": self._began,
            "seconds": round(time.time() - self._began, 3),
        }


def _new_folder(config: DictConfig, folder: Path) -> RunDir:
    try:
        return RunDir.create(folder)
    except OSError as error:
        raise UsageError(
            "output_dir", config.output_dir, f"no folder can be made there ({error.strerror})",
            "a folder that can be written", "output_dir=FOLDER",
        ) from None  # fmt: skip


def _remove(path: Path) -> None:
    """Remove a run folder and the date folder above it where that is empty."""
    shutil.rmtree(path, ignore_errors=True)
    for parent in (path.parent, path.parent.parent):
        try:
            os.rmdir(parent)
        except OSError:
            return
