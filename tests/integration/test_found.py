"""``launcher=auto`` on hosts: a step of SLURM in namespaces of their own, and a real ``mpirun``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtrain.run.folder import RunDir, read_json
from tests import network
from tests.conftest import QUICK, Commands
from tests.integration.test_failures import until
from tests.network import Network, switch

#: A proxy that nothing answers for: the network of the tests ends before it.
PROXY = "http://10.77.0.99:3128"
PROXIES = {
    name: PROXY
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "grpc_proxy",
        "ALL_PROXY",
    )
}
STRATEGIES = {
    "multiworker": ("strategy=multiworker",),
    "ps": ("strategy=ps", "strategy.workers=1", "strategy.update=sync"),
}
namespaces = pytest.mark.skipif(network.lacking() is not None, reason=str(network.lacking()))


def step(rank: int, number: int) -> dict[str, str]:
    """Return what the task of a step has, whose nodes are named by their addresses."""
    return {
        "SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(number), "SLURM_STEP_NODELIST": f"10.77.0.[1-{number}]",
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{number})", "SLURM_NODEID": str(rank),
        "SLURM_LOCALID": "0",
    }  # fmt: skip


def the_run(folder: Path) -> RunDir:
    [found] = folder.glob("outputs/*/*/result.json")
    return RunDir(found.parent)


def loss(rundir: RunDir) -> float:
    value: float = (read_json(rundir.result) or {})["metrics"]["loss"]
    return value


def on_hosts(
    hosts: Network, number: int, folder: Path, *arguments: str, **variables: str
) -> RunDir:
    """Run the tasks of a step, each on a host, and return the chief's run folder."""
    names = [f"n{rank}" for rank in range(number)]
    commands = [
        hosts.host(name).start(folder, None, *arguments, **step(rank, number), **variables)
        for rank, name in enumerate(names)
    ]
    codes = [command.process.wait(240) for command in commands]
    assert codes == [0] * number, [command.output for command in commands]
    until(lambda: not hosts.processes(), hosts.processes)  # what serves forks is at its end
    return the_run(folder / "n0")


@namespaces
@pytest.mark.faults
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_on_hosts_with_a_proxy_in_the_environment(
    name: str, tmp_path: Path, dtrain: Commands
) -> None:
    words = (*QUICK, "hardware=cpu", "trainer.batch_size=24", *STRATEGIES[name])
    with switch() as hosts:
        number = 3
        rundir = on_hosts(hosts, number, tmp_path / "hosts", *words, **PROXIES)
    tasks: list[dict[str, Any]] = (read_json(rundir.cluster) or {})["tasks"]
    found = [str(task["address"]).partition(":")[0] for task in tasks]
    assert found == [f"10.77.0.{rank + 1}" for rank in range(number)]
    alone = dtrain(*QUICK, "trainer.batch_size=24", "strategy=one_device")
    assert loss(rundir) == pytest.approx(alone.result["metrics"]["loss"], rel=1e-5)


@pytest.mark.faults
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
@pytest.mark.parametrize("name", STRATEGIES)
def test_mpirun(name: str, tmp_path: Path, dtrain: Commands) -> None:
    words = (*QUICK, "hardware=cpu", "trainer.batch_size=24", *STRATEGIES[name])
    number = 3 if name == "ps" else 2
    done = subprocess.run(
        ["mpirun", "-n", str(number), "--oversubscribe", sys.executable, "-m", "dtrain",
         *words, "hydra.run.dir=run"],
        capture_output=True, text=True, check=False, timeout=240,
        env={**os.environ, "HOME": str(tmp_path), "OMPI_ALLOW_RUN_AS_ROOT": "1",
             "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"dtrain: Open MPI: {number} tasks on this machine" in done.stderr
    rundir = RunDir(tmp_path / "run")
    alone = dtrain(*QUICK, "trainer.batch_size=24", "strategy=one_device")
    assert loss(rundir) == pytest.approx(alone.result["metrics"]["loss"], rel=1e-5)
