"""A launcher whose tasks are real processes without TensorFlow: what they do, their seed says."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from dtrain.config import schema, tree
from dtrain.config.objective import mode_of
from dtrain.launchers import Launcher
from dtrain.run.cluster import Cluster
from dtrain.run.devices import Machine
from dtrain.run.folder import RunDir
from dtrain.run.outcome import Outcome
from dtrain.sweep.compose import Master

#: What a task does: some steps, of which each has a value, and then as its seed says.
TASK = """
import json, os, signal, sys, time
from pathlib import Path

folder, seed, steps, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
journal = (folder / "journal.jsonl").open("a")

def write(event, **fields):
    journal.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\\n")
    journal.flush()

def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.01)

def stop(*_):
    write("end", status="KILLED", step=step, metrics={"val_accuracy": step / 10})
    os._exit(75)

step = 0
signal.signal(signal.SIGTERM, stop)
if last == "refuse":
    write("error", kind="usage", message="objective=x: is not there")
    os._exit(2)
write("start", step=0, objective="val_accuracy", objective_mode=sys.argv[5])
for step in range(1, steps + 1):
    write("metrics", step=step, metrics={"val_accuracy": round(seed % 100 / 100 + step / 1000, 3)})
    report = {"step": step, "total_steps": steps, "epoch": step, "epochs": steps,
              "loss": 1.0, "metrics": {}, "examples_per_second": 1.0, "time": time.time()}
    (folder / "progress.tmp").write_text(json.dumps(report))
    os.replace(folder / "progress.tmp", folder / "progress.json")
Path(f"began-{seed}").touch()
if last == "crash":
    write("error", kind="training", message="bang")
    os._exit(1)
if last == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if last.startswith("interrupt:"):
    wait_for(last[10:])
    os.kill(os.getppid(), signal.SIGINT)
    wait_for("never")
if last.startswith("wait:"):
    wait_for(last[5:])
value = round(seed % 100 / 100 + steps / 1000, 3)
write("end", status="FINISHED", step=steps, metrics={"val_accuracy": value})
os._exit(0)
"""


class Quick(Launcher):
    """Runs :data:`TASK`."""

    def __init__(self, last: dict[str, str] | None = None, x: int = 0, **settings: Any):
        super().__init__(**settings)
        self._last = last or {}  # what the task of a seed does in the end
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        config = tree.read(rundir.config)
        last = self._last.get(f"s{config.seed}", "end")
        self._told = False
        with rundir.log("chief-0").open("ab") as log:
            log.write(f"gpus {self.gpus}\n".encode())
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-P", "-c", TASK, str(rundir.path), str(config.seed),
                 str(config.trainer.epochs), last,
                 mode_of(config.objective_mode, "val_accuracy")],
                stdout=log, stderr=log,
            )  # fmt: skip
        return cluster

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        assert self._process is not None
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return []
        news = [] if self._told else [("chief-0", "joined"), ("chief-0", "ended")]
        self._told = True
        return news

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def exit_codes(self) -> dict[str, int]:
        code = self._process.poll() if self._process is not None else None
        return {} if code is None else {"chief-0": code}


class Far(Quick):
    """As if its tasks were on another machine, which has GPUs."""

    shares_machine = False

    def part(self, machine: Machine) -> Machine:
        return Machine(2, 1, shared=False)


#: Words that make jobs of it; ``DTRAIN_TRUST=tests`` beside them.
WORDS = (
    "launcher=local",
    "launcher._target_=tests.quick.Quick",
    "tracking=none",
    "trainer.epochs=3",
)


def master(*words: str) -> Master:
    """Return the configuration of a sweep."""
    schema.register()
    with initialize_config_dir(str(schema.folder("conf")), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        given = [*WORDS, *words, "hydra.mode=MULTIRUN"]
        config = loader.load_configuration("config", given, run_mode=RunMode.MULTIRUN)
    HydraConfig.instance().set_config(config)  # as Hydra does
    return Master(loader, config)


def grid(*jobs: str, words: tuple[str, ...] = ()) -> list[list[str]]:
    """Return the words of jobs, each given as one string."""
    return [[*WORDS, *words, *job.split()] for job in jobs]


def outcome(**fields: Any) -> Outcome:
    return Outcome(**{"exit_code": 0, "status": "FINISHED", "seconds": 1.0, **fields})
