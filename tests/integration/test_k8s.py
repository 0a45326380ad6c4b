"""Pods of real commands, made from the rendered manifests by a test kubelet (tests/kubelet.py).

``pytest -n 0 -m "faults or not faults" tests/integration/test_k8s.py`` needs root, some minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtrain.config import schema
from dtrain.run import journal
from dtrain.run.folder import RunDir, read_json
from tests import kubelet, network
from tests.conftest import QUICK, Commands
from tests.integration.test_failures import until
from tests.kubelet import Cluster

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(kubelet.lacking() is not None, reason=str(kubelet.lacking())),
]

TRAINING = (*QUICK, "hardware=cpu", "trainer.batch_size=24", "trainer.epochs=2")
STRATEGIES = {
    "multiworker": ("strategy=multiworker", "hardware.hosts=3"),
    "ps": ("strategy=ps", "strategy.update=sync", "strategy.workers=2", "strategy.servers=1"),
}
#: Long enough to be hurt.
LONG = ("trainer.epochs=60", "checkpoint.every_steps=5", "checkpoint.keep=2")


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Render a manifest by the command, as a user does, and run it."""
    app, folder = tmp_path / "app", tmp_path / "cluster"
    app.mkdir()
    folder.mkdir()
    app.chmod(0o777)
    started: list[Cluster] = []
    with network.switch() as hosts:

        def start(*arguments: str, **more: Any) -> Cluster:
            done = subprocess.run(
                [sys.executable, "-m", "dtrain", *arguments, "launcher=k8s",
                 "launcher.image=digits:1", "launcher.volume=runs", "launcher.job_name=digits",
                 "dry_run=true"],
                capture_output=True, text=True, check=False, cwd=app,
                env={**os.environ, "PYTHONPATH": str(schema.folder("conf").parent)},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            objects = list(yaml.safe_load_all(done.stdout))
            started.append(Cluster(hosts, folder, objects, app, **more))
            return started[-1]

        yield start
        for cluster in started:
            cluster.close()


def the_run(cluster: Cluster) -> RunDir:
    return RunDir(cluster.folder / "claims/runs/kubernetes/digits")


def losses(rundir: RunDir) -> dict[int, float]:
    return {
        each["step"]: each["metrics"]["loss"]
        for each in journal.read(rundir.journal)
        if each["event"] == "metrics" and "loss" in each["metrics"]
    }


def steps(cluster: Cluster) -> int:
    rundir = the_run(cluster)
    return max(losses(rundir), default=0) if rundir.journal.exists() else 0


def equal(cluster: Cluster, dtrain: Commands, *arguments: str) -> None:
    """Compare a run with the same on one device."""
    alone = dtrain(*TRAINING, *arguments, "strategy=one_device", "launcher=local")
    assert alone.code == 0, alone.output
    found = losses(the_run(cluster))
    assert found == pytest.approx(alone.points("loss"), rel=1e-5)
    assert (read_json(the_run(cluster).result) or {})["status"] == "FINISHED"


@pytest.mark.parametrize("kind", ["jobset", "job"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_manifest_trains_as_one_device(
    pods: Callable[..., Cluster], dtrain: Commands, strategy: str, kind: str
) -> None:
    cluster = pods(*TRAINING, *STRATEGIES[strategy], f"launcher.kind={kind}")
    cluster.until(lambda: all(pod.is_ready() for pod in cluster.pods))
    assert cluster.run() == "Completed", cluster.said()
    assert cluster.restarts == 0, cluster.said()
    equal(cluster, dtrain)


def test_a_job_of_one_pod(pods: Callable[..., Cluster], dtrain: Commands) -> None:
    """It is recorded in the store beside the run folders, as it is anywhere."""
    cluster = pods(*TRAINING[1:], "strategy=one_device")
    assert cluster.run() == "Completed", cluster.said()
    equal(cluster, dtrain)
    assert (cluster.folder / "claims/runs/mlflow.db").is_file(), cluster.said()
    assert (read_json(the_run(cluster).tracking) or {}).get("run_id"), cluster.said()


@pytest.mark.parametrize("kind", ["jobset", "job"])
@pytest.mark.parametrize("task", ["chief", "worker"])
def test_a_killed_pod_restarts_the_job_which_goes_on(
    pods: Callable[..., Cluster], dtrain: Commands, kind: str, task: str
) -> None:
    cluster = pods(
        *TRAINING, *STRATEGIES["multiworker"], *LONG, f"launcher.kind={kind}",
        "launcher.peer_timeout=10",
    )  # fmt: skip
    cluster.until(lambda: steps(cluster) >= 20)
    number = {"chief": 0, "worker": 1}[task]
    cluster.pods[number].kill()
    assert cluster.run() == "Completed", cluster.said()
    assert cluster.restarts >= 1
    assert cluster.counted >= 1
    resumed = [e for e in journal.read(the_run(cluster).journal) if e["event"] == "start"]
    assert resumed[-1]["step"] >= 15, cluster.said()
    equal(cluster, dtrain, *LONG)


def test_an_eviction_costs_no_restart_and_no_step(
    pods: Callable[..., Cluster], dtrain: Commands
) -> None:
    cluster = pods(*TRAINING, *STRATEGIES["multiworker"], *LONG, "launcher.max_restarts=0")
    cluster.until(lambda: steps(cluster) >= 20)
    cluster.evict("worker-1")
    assert cluster.run() == "Completed", cluster.said()
    assert (cluster.restarts, cluster.counted) == (1, 0), cluster.said()
    assert 75 in {pod.code for pod in cluster.past}, cluster.said()
    equal(cluster, dtrain, *LONG)


def test_names_that_are_late_are_waited_for(pods: Callable[..., Cluster], dtrain: Commands) -> None:
    cluster = pods(*TRAINING, *STRATEGIES["multiworker"], slow={"chief-0": 12.0, "worker-0": 20.0})
    assert cluster.run() == "Completed", cluster.said()
    assert cluster.restarts == 0, cluster.said()
    equal(cluster, dtrain)


def test_a_wrong_configuration_fails_once(pods: Callable[..., Cluster]) -> None:
    """The data is looked at in the pods, which alone have it."""
    cluster = pods(*TRAINING[1:4], "dataset=npz", "dataset.path=/data/none.npz", "tracking=none")
    assert cluster.run() == "Failed", cluster.said()
    assert [pod.code for pod in cluster.past] == [2]
    assert cluster.restarts == 0


def test_a_job_that_is_applied_trains_and_is_followed(
    tmp_path: Path, dtrain: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of a user, its ``kubectl``, and real pods: all but the cluster itself."""
    from tests.k8s_server import NAMESPACE, Server

    server = Server()
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig")))
    app, folder = tmp_path / "app", tmp_path / "cluster"
    app.mkdir()
    folder.mkdir()
    command = subprocess.Popen(
        [sys.executable, "-m", "dtrain", *TRAINING, *STRATEGIES["multiworker"], "launcher=k8s",
         "launcher.image=digits:1", "launcher.volume=runs", "launcher.job_name=digits",
         "launcher.apply=true"],
        cwd=app, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": str(schema.folder("conf").parent)},
    )  # fmt: skip

    with network.switch() as hosts:
        until(lambda: server.names("jobsets") or command.poll() is not None, lambda: "no job", 60)
        jobset = server.find("jobsets", "digits")
        assert jobset is not None, command.communicate()[0]
        secret = server.find("secrets", "digits-key")
        assert secret is not None
        cluster = Cluster(hosts, folder, [secret, jobset], app)
        try:
            shown: dict[str, dict[str, Any]] = {}

            def show() -> bool:
                for pod in [*cluster.past, *cluster.pods]:
                    name = f"{pod.name}-{pod.folder.name[4:7].rstrip('-')}"
                    state: dict[str, Any] = {"running": {}}
                    if pod.code is not None:
                        state = {"terminated": {"exitCode": pod.code}}
                    body = {
                        "metadata": {"name": name, "namespace": NAMESPACE, "labels": pod.labels},
                        "spec": {"containers": [{"name": "dtrain"}]},
                        "status": {"containerStatuses": [{"name": "dtrain", "state": state}]},
                    }
                    lines = pod.log.read_text().splitlines()
                    server.write(name, *lines[len(server.logs.get(name, [])) :])
                    (server.writing.discard if pod.code is not None else server.writing.add)(name)
                    if shown.get(name) != body:
                        server.put("pods", body)
                    shown[name] = body
                return False

            cluster.until(show)
            show()
        finally:
            cluster.close()
        done = {"type": "Completed", "status": "True"}
        server.put("jobsets", {**jobset, "status": {"conditions": [done]}})
        output, _ = command.communicate(timeout=60)
    server.close()
    assert cluster.state == "Completed", cluster.said()
    assert command.returncode == 0, output
    assert "FINISHED: step" in output
    assert "dtrain: digits is done" in output
    equal(cluster, dtrain)
