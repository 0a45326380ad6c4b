"""``launcher=env``: one command a task, as an operator or a user with several shells does it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dtrain.launchers.local import Ports
from dtrain.run.folder import RunDir, read_json
from tests.conftest import QUICK
from tests.integration.test_cluster_faults import MULTIWORKER

ENV = ("launcher=env", "launcher.start_timeout=60")


class Shell:
    """One command on one host."""

    def __init__(self, folder: Path, name: str, variables: dict[str, str], *arguments: str):
        self.name = name
        self.file = folder / f"{name}.txt"
        with self.file.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dtrain", *arguments],
                cwd=folder, stdout=file, stderr=file,
                env={**os.environ, **variables, "HOME": str(folder)},
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self.file.read_text()


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[Callable[..., list[Shell]]]:
    """Start a command for each task, and end what is left of them."""
    ports, started = Ports(), []

    def start(roles: dict[str, int], *arguments: str, **own: list[str]) -> list[Shell]:
        cluster = {
            role: [f"127.0.0.1:{port}" for port in ports.take(count)]
            for role, count in roles.items()
        }
        for role, count in roles.items():
            for index in range(count):
                name = f"{role}-{index}"
                extra = own.get(name.replace("-", "_"), [])
                task = {"cluster": cluster, "task": {"type": role, "index": index}}
                variables = {"TF_CONFIG": json.dumps(task)}
                started.append(Shell(tmp_path, name, variables, *arguments, *extra))
        return started

    yield start
    for shell in started:
        if shell.process.poll() is None:
            shell.process.kill()
        shell.process.wait()
    ports.release()


def ended(shells: list[Shell]) -> dict[str, int]:
    return {shell.name: shell.process.wait(120) for shell in shells}


def the_run(folder: Path) -> RunDir:
    [found] = folder.glob("outputs/*/*/cluster.json")
    return RunDir(found.parent)


@pytest.mark.faults
def test_an_evaluation_in_shells_of_their_own(shells, dtrain, tmp_path: Path) -> None:
    """Each host types the same command; the chief alone records."""
    run = dtrain(*QUICK, "strategy=one_device", "hydra.run.dir=run")
    assert run.code == 0, run.output
    words = ("evaluate", "run", "strategy=multiworker", *ENV)
    started = shells({"worker": 2}, *words)
    assert set(ended(started).values()) == {0}, [shell.output for shell in started]
    [line] = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert event["replicas"] == 2 and event["strategy"] == "multiworker"
    val = (read_json(tmp_path / "run" / "result.json") or {})["metrics"]["val_loss"]
    assert math.isclose(event["metrics"]["loss"], val, rel_tol=1e-6)
    [folder] = (tmp_path / "run" / "evaluations").iterdir()
    assert {path.name for path in (folder / "logs").iterdir()} == {"worker-0.log", "worker-1.log"}


def test_workers_in_shells_of_their_own(shells, dtrain, tmp_path: Path) -> None:
    """No task is called chief, as Kubernetes' operators have it: worker 0 is."""
    started = shells({"worker": 2}, *QUICK, *MULTIWORKER, *ENV)
    assert ended(started) == {"worker-0": 0, "worker-1": 0}, [s.output for s in started]
    rundir = the_run(tmp_path)
    result = read_json(rundir.result) or {}
    assert (result["status"], result["replicas"], result["step"]) == ("FINISHED", 2, 8)
    assert sorted(p.name for p in rundir.logs.iterdir()) == ["worker-0.log", "worker-1.log"]
    assert "worker-1: ended with exit code 0" in started[1].output
    alone = dtrain(*QUICK, "strategy=one_device")
    assert math.isclose(result["metrics"]["loss"], alone.result["metrics"]["loss"], rel_tol=1e-5)


def test_processes_of_torchrun(on_torch, tmp_path: Path) -> None:
    """Each is a device, of this machine or of several hosts."""
    words = ("backend=torch", *QUICK, "trainer.epochs=1")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         "-m", "dtrain", *words, "strategy=mirrored"],
        cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "dtrain: torchrun: 2 tasks on this machine" in done.stderr
    rundir = the_run(tmp_path)
    result = read_json(rundir.result) or {}
    assert (result["status"], result["replicas"], result["step"]) == ("FINISHED", 2, 4)
    predicted = on_torch("predict", str(rundir.path), "workers=2")  # each with a device
    assert predicted.code == 0 and "(50 rows)" in predicted.output, predicted.output
    alone = on_torch(*words, "strategy=one_device")
    assert alone.code == 0, alone.output
    assert math.isclose(result["metrics"]["loss"], alone.result["metrics"]["loss"], rel_tol=1e-5)


def test_another_configuration_on_another_host(shells, tmp_path: Path) -> None:
    started = shells(
        {"chief": 1, "worker": 1}, *QUICK, *MULTIWORKER, *ENV, worker_0=["trainer.batch_size=64"]
    )
    assert ended(started) == {"chief-0": 2, "worker-0": 2}, [s.output for s in started]
    for shell in started:
        assert (
            "error: trainer.batch_size=64: worker-0 has this, and the chief has 32" in shell.output
        )
        assert "type: trainer.batch_size=32" in shell.output
        assert "Traceback" not in shell.output
    assert not list(tmp_path.glob("outputs/*/*"))


def test_a_host_that_never_comes(shells, tmp_path: Path) -> None:
    roles = {"chief": 1, "worker": 1}
    started = shells(roles, *QUICK, *MULTIWORKER, "launcher=env", "launcher.start_timeout=1")
    started[1].process.kill()
    assert started[0].process.wait(60) == 1, started[0].output
    assert "worker-0 did not come to the chief" in started[0].output
    assert (read_json(the_run(tmp_path).result) or {})["status"] == "FAILED"


@pytest.mark.parametrize(
    ("arguments", "tf_config", "sentence"),
    [
        ((*MULTIWORKER, *ENV), "", "TF_CONFIG="),
        ((*MULTIWORKER, *ENV), "{", "is not JSON"),
        (
            ("strategy=mirrored", *ENV),
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
            "strategy=mirrored",
        ),
        ((*MULTIWORKER, *ENV, "launcher.max_restarts=1"), "{}", "launcher.max_restarts=1: "),
    ],
)
def test_mistakes_are_found_before_anything_starts(
    arguments: tuple[str, ...], tf_config: str, sentence: str, dtrain, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config)
    run = dtrain(*QUICK, *arguments)
    assert run.code == 2, run.output
    assert sentence in run.output
    assert not (tmp_path / "outputs").exists()


def test_the_plan_of_an_environment(dtrain, monkeypatch) -> None:
    cluster = {"chief": ["a.example:2222"], "worker": ["b.example:2222"]}
    tf_config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    monkeypatch.setenv("DTRAIN_CLUSTER_KEY", "a key of this test")
    run = dtrain(*QUICK, *MULTIWORKER, *ENV, "dry_run=true")
    assert run.code == 0, run.output
    assert "a.example:2222" in run.output
    assert "b.example:2222" in run.output
