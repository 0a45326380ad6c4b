"""The local launcher: real processes, their exit codes, their end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dtrain.cluster import Cluster, Task
from dtrain.controller.launchers import Local
from dtrain.controller.launchers import local as module
from dtrain.rundir import RunDir, write_json
from tests import warm


@pytest.fixture
def cluster() -> Cluster:
    return Cluster((Task("chief", 0, 1),), "cpu", 1, warm.ENVIRONMENT)


def broken(tmp_path: Path, cluster: Cluster) -> RunDir:
    """Return a run folder whose configuration names a model that does not exist."""
    rundir = RunDir.create(tmp_path / "run")
    write_json(rundir.cluster, cluster.to_json())
    rundir.config.write_text("hardware: {}\n")
    return rundir


def test_exit_codes_and_logs(tmp_path: Path, cluster: Cluster) -> None:
    rundir = broken(tmp_path, cluster)
    launcher = Local(grace_seconds=5)
    launcher.prepare(cluster)
    launcher.start(rundir, cluster)
    while launcher.running(timeout=10):
        pass
    assert launcher.exit_codes() == {"chief-0": 1}
    assert "ConfigAttributeError" in rundir.log("chief-0").read_text()


def test_kill_leaves_nothing(tmp_path: Path, cluster: Cluster) -> None:
    launcher = Local(grace_seconds=5)
    launcher.start(broken(tmp_path, cluster), cluster)
    launcher.kill()
    assert not launcher.running(timeout=0)
    assert launcher.exit_codes()["chief-0"] in (-9, 1)


def test_an_idle_launcher_is_not_running() -> None:
    launcher = Local(grace_seconds=5)
    assert not launcher.running(timeout=0)
    launcher.stop()
    launcher.kill()
    assert launcher.exit_codes() == {}


def test_another_environment_gets_fresh_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """TensorFlow has read the server's environment: it cannot be changed by a fork."""
    assert module.warm(warm.ENVIRONMENT).get_start_method() == "forkserver"
    other = {**warm.ENVIRONMENT, "TF_ENABLE_ONEDNN_OPTS": "0"}
    assert module.warm(other).get_start_method() == "spawn"
    Local(5).prepare(Cluster((), "cpu", 1, other))
    assert "importing TensorFlow anew" in capsys.readouterr().err
    assert module.warm(warm.ENVIRONMENT).get_start_method() == "forkserver"


def test_the_environment_of_this_process_stays_as_it_is() -> None:
    before = dict(os.environ)
    module.warm(warm.ENVIRONMENT)
    assert dict(os.environ) == before
