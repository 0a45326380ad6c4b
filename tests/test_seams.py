"""Each seam takes what is not of the package: one class, and one YAML file that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK, Commands

STRATEGY = '''
from dtrain.run.strategy_plan import StrategyPlan

class Plan(StrategyPlan):
    """Three devices, each with a replica, whatever the kind."""

    own_keys = ("copies",)

    def __init__(self, copies):
        self.copies = copies

    def devices(self, kind, gpus):
        return self.copies

    def replicas(self, hosts, devices):
        return devices

    def rows(self, cluster):
        return {"copies": str(self.copies)}

def __getattr__(name):
    """Let the plan be read without TensorFlow: the class is made when a task asks for it."""
    if name != "Copies":
        raise AttributeError(name)
    import tensorflow as tf

    from dtrain.task.strategies import Strategy

    class Copies(Strategy):
        def __init__(self, devices):
            super().__init__(tf.distribute.MirroredStrategy(devices))

    Copies.__module__ = __name__
    return Copies
'''

TRACKER = '''
import json
from pathlib import Path

from dtrain.tracking.base import Tracker

class Lines(Tracker):
    """Writes a line of a file for each call."""

    def __init__(self, file, experiment):
        self.file, self.experiment, self.opened = Path(file), experiment, False

    @property
    def address(self):
        return f"lines:{self.file}"

    def _line(self, *what):
        with self.file.open("a") as file:
            file.write(json.dumps(what) + "\\n")

    def open(self, run, started):
        if not self.opened:
            self._line("open", self.experiment, run.config.name, run.cluster.replicas)
        self.opened = True

    def write(self, events):
        for event in events:
            if event["event"] == "metrics" and "loss" in event["metrics"]:
                self._line("loss", event["step"], event["metrics"]["loss"])

    def close(self, status, ended):
        self._line("close", status)
'''

LAUNCHER = '''
import dataclasses
import json
import os
import subprocess
import sys

from dtrain.launchers import Launcher
from dtrain.run.folder import write_json

CODE = "import sys; from dtrain.task.main import run; sys.exit(run(*sys.argv[1:]))"

class Interpreter(Launcher):
    """Each task is a fresh interpreter; its address is known when it has been started."""

    process = None

    def start(self, rundir, cluster):
        placed = cluster.at(["127.0.0.1:1"])
        write_json(rundir.cluster, placed.to_json())
        self.name = cluster.chief.name
        with rundir.log(self.name).open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CODE, str(rundir.path), self.name],
                env={**os.environ, **cluster.environment, "CUDA_VISIBLE_DEVICES": "-1"},
                stdout=log, stderr=log,
            )
        self.told = False
        return placed

    def poll(self, timeout):
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return []
        events = [] if self.told else [(self.name, "ended")]
        self.told = True
        return events

    def stop(self):
        self.process.terminate()

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def exit_codes(self):
        code = None if self.process is None else self.process.poll()
        return {} if code is None else {self.name: code}
'''

SHELL = '''
import json
import subprocess

from dtrain.launchers import Elsewhere
from dtrain.run.outcome import Outcome

class Shell(Elsewhere):
    """Gives the user's command to another program, which does the job."""

    def __init__(self, program, **settings):
        super().__init__(**settings)
        self.program = program

    def delegate(self, cluster):
        return self.run

    def run(self, job):
        name, tasks = job.config.name, [task.name for task in job.cluster.tasks]
        order = json.dumps([name, tasks, job.command["overrides"], str(job.folder)])
        code = subprocess.run([*self.program, order]).returncode
        return Outcome(code, status="FAILED" if code else "FINISHED")
'''

ENVIRONMENT = '''
import os

from dtrain.errors import UsageError

class Rank:
    """Says by RANK and HOSTS who is who."""

    def __init__(self, variable):
        self.variable = variable

    def find(self, planned, strategy, on_hosts):
        if self.variable not in os.environ:
            raise UsageError(self.variable, "no host has a rank", hint="RANK=0")
        placed = planned.at(os.environ["HOSTS"].split(","))
        return placed, placed.tasks[int(os.environ[self.variable])]
'''

PLATFORM = '''
import os

from dtrain.launchers.platforms.base import Ranked, Started

class Numbered(Ranked):
    """Numbers its commands, and says nothing of their addresses."""

    name = "mine"

    def started(self):
        if "MY_RANK" not in os.environ:
            return None
        return Started("mine", int(os.environ["MY_RANK"]), int(os.environ["MY_NUMBER"]))
'''

ACTION = '''
import json

from dtrain.task.train.session import Action

class Count(Action):
    """Evaluates what there is, and writes down how large it is."""

    def __init__(self, file):
        self.file = file

    def run(self, session):
        assert session.process.is_chief
        sums = session.steps.evaluate(1, 0)
        found = {
            "evaluated": sums.examples,
            "parameters": session.model.count_params(),
            "examples": len(session.inputs.train),
            "replicas": session.strategy.replicas,
        }
        (session.process.rundir.path / self.file).write_text(json.dumps(found))
        session.process.notice("counted")
'''


@pytest.fixture
def own(tmp_path: Path, user_code: Any) -> Any:
    """Write one module of the user's own, and one YAML file of a group."""

    def write(source: str, group: str, yaml: str, module: str | None = None) -> list[str]:
        user_code(source, module or f"my_{group}")
        preset = tmp_path / "presets" / group / "mine.yaml"
        preset.parent.mkdir(parents=True)
        preset.write_text(yaml)
        return ["--config-dir", "presets", *QUICK, f"{group}=mine"]

    return write


def test_a_strategy(own: Any, dtrain: Commands) -> None:
    words = own(
        STRATEGY,
        "strategy",
        """
_target_: my_strategy.Copies
name: copies
copies: 3
plan: {_target_: my_strategy.Plan}
""",
    )
    shown = dtrain(*words, "dry_run=true", "trainer.batch_size=33")
    assert shown.code == 0, shown.output
    assert "  replicas             3\n  copies               3\n" in shown.output
    run = dtrain(*words, "trainer.batch_size=33")
    assert run.code == 0, run.output
    [start] = run.events("start")
    assert start["replicas"] == run.result["replicas"] == 3
    alone = dtrain(*QUICK, "strategy=one_device", "trainer.batch_size=33")
    assert run.points("loss") == pytest.approx(alone.points("loss"), rel=1e-5)


def test_a_plan_that_is_not_the_strategy_s(own: Any, dtrain: Commands) -> None:
    words = own(
        STRATEGY,
        "strategy",
        """
_target_: dtrain.task.strategies.OneDevice
name: copies
copies: 2
plan: {_target_: my_strategy.Plan}
""",
    )
    run = dtrain(*words)
    assert run.code == 2 and run.rundir is None, run.output
    assert "my_strategy.Plan: OneDevice has 1 replicas, and the plan has 2" in run.output


def test_a_tracker(own: Any, dtrain: Commands, tmp_path: Path) -> None:
    words = own(
        TRACKER,
        "tracking",
        """
_target_: my_tracking.Lines
uri: null
experiment: of mine
histograms: false
profile_steps: null
file: lines.txt
""",
    )
    words.remove("tracking=none")
    shown = dtrain(*words, "dry_run=true")
    assert "  tracking             lines:lines.txt\n" in shown.output
    assert not (tmp_path / "lines.txt").exists()
    run = dtrain(*words, "name=seen")
    assert run.code == 0, run.output
    assert "compare: lines:lines.txt" in run.output
    lines = [json.loads(line) for line in (tmp_path / "lines.txt").read_text().splitlines()]
    assert (lines[0], lines[-1]) == (["open", "of mine", "seen", 1], ["close", "FINISHED"])
    losses = {step: loss for kind, step, loss in lines[1:-1] if kind == "loss"}
    assert losses == run.points("loss") and losses


def test_a_launcher(own: Any, dtrain: Commands) -> None:
    words = own(
        LAUNCHER,
        "launcher",
        """
defaults: [local, _self_]
_target_: my_launcher.Interpreter
start_timeout: 300
""",
    )
    run = dtrain(*words, "strategy=one_device")
    assert run.code == 0, run.output
    assert run.result["status"] == "FINISHED" and len(run.points("loss")) == 8
    assert run.rundir is not None
    [task] = json.loads(run.rundir.cluster.read_text())["tasks"]
    assert task["address"] == "127.0.0.1:1"


def test_a_launcher_that_gives_the_job_away(own: Any, dtrain: Commands, tmp_path: Path) -> None:
    """It gets what another command needs; its exit code is that of what did the job."""
    words = own(
        SHELL,
        "launcher",
        """
_target_: my_shell.Shell
grace_seconds: 30.0
start_timeout: null
stall_timeout: null
max_restarts: 0
peer_timeout: 45.0
program: [sh, -c, 'echo "$0" >> orders; exit $(cat code)']
""",
        "my_shell",
    )
    (tmp_path / "code").write_text("0")
    words += ["strategy=multiworker", "hardware.hosts=2"]
    shown = dtrain(*words, "dry_run=true")
    assert shown.code == 0 and "worker-0" in shown.output, shown.output
    assert not (tmp_path / "orders").exists()
    assert dtrain(*words, "name=mine", "hydra.run.dir=there").code == 0
    (tmp_path / "code").write_text("75")
    assert dtrain(*words, "seed=7").code == 75
    (tmp_path / "code").write_text("0")
    swept = dtrain("-m", *words, "seed=1,2")
    assert swept.code == 0, swept.output
    orders = [json.loads(line) for line in (tmp_path / "orders").read_text().splitlines()]
    name, tasks, overrides, folder = orders[0]
    assert (name, tasks) == ("mine", ["chief-0", "worker-0"])
    assert "strategy=multiworker" in overrides and folder == str(tmp_path / "there")
    assert len(orders) == 4 and {"seed=1", "seed=2"} < {x for o in orders[2:] for x in o[2]}
    assert not (tmp_path / "there").exists()


def test_a_cluster_environment(
    own: Any, dtrain: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = own(
        ENVIRONMENT,
        "launcher",
        """
defaults: [env, _self_]
environment: {_target_: my_environment.Rank, variable: MY_RANK}
""",
        "my_environment",
    )
    words += ["strategy=multiworker", "hardware.hosts=1"]
    monkeypatch.setenv("HOME", str(tmp_path))
    refused = dtrain(*words)
    assert refused.code == 2 and "MY_RANK: no host has a rank" in refused.output
    monkeypatch.setenv("MY_RANK", "0")
    monkeypatch.setenv("HOSTS", "127.0.0.1:2222")
    run = dtrain(*words)
    assert run.code == 0, run.output
    assert run.rundir is not None
    [task] = json.loads(run.rundir.cluster.read_text())["tasks"]
    assert task["address"] == "127.0.0.1:2222"
    assert len(run.points("loss")) == 8


def test_a_platform_that_numbers_its_commands(
    own: Any, dtrain: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """How many there are is what ``hardware.hosts`` follows."""
    words = own(
        PLATFORM,
        "launcher",
        """
defaults: [env, _self_]
environment: {_target_: my_platform.Numbered}
""",
        "my_platform",
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    refused = dtrain(*words, "strategy=multiworker")
    assert refused.code == 2 and "the environment says nothing of mine" in refused.output
    monkeypatch.setenv("MY_RANK", "0")
    monkeypatch.setenv("MY_NUMBER", "3")
    refused = dtrain(*words, "strategy=mirrored")
    assert refused.code == 2 and "mine has 3 tasks" in refused.output
    monkeypatch.setenv("MY_NUMBER", "1")
    run = dtrain(*words, "strategy=multiworker")
    assert run.code == 0, run.output
    assert run.result["tasks"] == 1 and len(run.points("loss")) == 8


def test_an_action(own: Any, dtrain: Commands) -> None:
    words = own(
        ACTION,
        "action",
        """
_target_: my_action.Count
file: counted.json
""",
    )
    run = dtrain(*words)
    assert run.code == 0, run.output
    assert run.rundir is not None
    found = json.loads((run.rundir.path / "counted.json").read_text())
    parameters = 8 * 16 + 16 + 16 * 4 + 4
    assert found == {"evaluated": 32, "parameters": parameters, "examples": 128, "replicas": 1}
    assert [event["message"] for event in run.events("notice")] == ["counted"]
    assert run.result["status"] == "FINISHED" and not run.points("loss")
