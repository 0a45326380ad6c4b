"""``launcher.apply=true``: a real ``kubectl`` against a stand-in of the API server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.errors import TrainingError
from dtrain.host import terminal
from dtrain.job import k8s_job
from dtrain.launchers.k8s import render
from tests.conftest import QUICK, Commands, Run
from tests.k8s_server import Server
from tests.test_k8s_manifest import HOSTS, launcher, workload

NAME = workload(HOSTS).name
COMMAND = (
    *QUICK, "launcher=k8s", "launcher.image=digits:1", "launcher.volume=runs",
    "launcher.apply=true", f"launcher.job_name={NAME}",
)  # fmt: skip
LABELS = {"app.kubernetes.io/instance": NAME, "app.kubernetes.io/component": "chief"}
RUNNING = {"running": {"startedAt": "2026-11-23T00:00:00Z"}}


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Following a job changes what requests to stop do."""
    before = {number: signal.getsignal(number) for number in terminal.STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    server = Server()
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig")))
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))
    monkeypatch.setattr(k8s_job, "_AGAIN", 0.1)
    monkeypatch.setattr(k8s_job, "_LOOK", 1)
    yield server
    server.close()


def until(met: Callable[[], Any], what: str = "") -> Any:
    deadline = time.monotonic() + 60
    while not (value := met()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return value


def job(**asked: Any) -> k8s_job.KubernetesJob:
    return k8s_job.KubernetesJob(None, None, render(launcher(**asked), workload(HOSTS), "k" * 64))


@pytest.fixture
def followed(server: Server, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Create a job without the command, and follow it while a thread plays the cluster."""

    def follow(does: Callable[[Server], None], **asked: Any) -> tuple[int, str]:
        of_pods = job(**asked)
        of_pods.create()
        thread = threading.Thread(target=does, args=(server,), daemon=True)
        thread.start()
        code = of_pods.follow(1.0)
        thread.join()
        printed = capfd.readouterr()
        return code, printed.out + printed.err

    return follow


def pod(server: Server, state: Any = None, name: str = "digits-chief-0", **status: Any) -> str:
    """Put a pod, or its next state, into the cluster; return its name."""
    if state is not None:
        status["containerStatuses"] = [{"name": "dtrain", "state": state}]
    labels = {**LABELS, "batch.kubernetes.io/job-completion-index": "0"}
    server.put("pods", {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": "2026-11-23T00:00:00Z"},
        "spec": {"containers": [{"name": "dtrain"}]}, "status": status,
    })  # fmt: skip
    return name


def finish(server: Server, condition: str = "Completed", plural: str = "jobsets") -> None:
    conditions = [{"type": condition, "status": "True"}]
    server.put(plural, {"metadata": {"name": NAME}, "status": {"conditions": conditions}})


def watched(server: Server) -> bool:
    return ("get", "pods", "") in server.requests


def test_a_job_is_created_followed_and_done(dtrain: Commands, server: Server) -> None:
    def does() -> None:
        until(lambda: watched(server), "it is not followed")
        server.write(pod(server, RUNNING, phase="Running"), "epoch 1/2", "epoch 2/2")
        finish(server)

    thread = threading.Thread(target=does)
    thread.start()
    done = dtrain(*COMMAND, "strategy=multiworker", "hardware.hosts=2")
    thread.join()
    assert done.code == 0, done.output
    assert "epoch 1/2\nepoch 2/2\n" in done.output
    assert f"dtrain: {NAME} is done" in done.output
    assert "digits is applied; run folder: /outputs/kubernetes/digits" in done.output
    # The pods are started when all that belongs to the job is there.
    assert [each[1] for each in server.requests if each[0] == "apply"] == [
        "secrets", "networkpolicies", "jobsets",
    ]  # fmt: skip
    assert not Path("outputs").exists()


def test_a_plain_job_is_followed_too(
    followed: Callable[..., tuple[int, str]], server: Server
) -> None:
    def does(server: Server) -> None:
        server.write(pod(server, RUNNING, phase="Running"), "epoch 1/1")
        finish(server, "Complete", "jobs")

    code, output = followed(does, kind="job")
    assert code == 0, output
    assert "epoch 1/1\n" in output
    assert server.names("services") == [NAME]


@pytest.mark.parametrize(
    ("codes", "code"), [([2], 2), ([75, 1], 1), ([137, 75], 137), ([75], 1), ([], 1)]
)
def test_the_exit_code_of_the_job_is_that_of_the_command(
    followed: Callable[..., tuple[int, str]], codes: list[int], code: int
) -> None:
    def does(server: Server) -> None:
        for number, each in enumerate(codes):
            pod(server, {"terminated": {"exitCode": each}}, f"digits-chief-{number}")
        finish(server, "Failed")

    found, output = followed(does)
    assert found == code, output
    assert f"digits failed with exit code {code}; type: kubectl describe jobset/digits" in output


def test_a_log_that_breaks_off_is_read_on(followed: Callable[..., tuple[int, str]]) -> None:
    def does(server: Server) -> None:
        name = pod(server, RUNNING, phase="Running")
        server.writing.add(name)
        server.write(name, "one", "two")
        until(lambda: ("log", "pods", name) in server.requests)
        server.cut()
        server.write(name, "three")
        time.sleep(0.5)
        server.writing.discard(name)
        finish(server)

    code, output = followed(does)
    assert code == 0, output
    assert re.findall(r"^(one|two|three)$", output, re.M) == ["one", "two", "three"]


def test_a_new_chief_is_heard(followed: Callable[..., tuple[int, str]]) -> None:
    def does(server: Server) -> None:
        for name, lines in (("digits-chief-0", ("a",)), ("digits-chief-1", ("a", "b"))):
            server.write(pod(server, RUNNING, name, phase="Running"), *lines)
            until(lambda name=name: ("log", "pods", name) in server.requests)
        finish(server)

    code, output = followed(does)
    assert code == 0, output
    assert re.findall(r"^(a|b)$", output, re.M) == ["a", "b"]


def test_a_server_that_is_away_is_said_once_and_asked_again(
    followed: Callable[..., tuple[int, str]],
) -> None:
    def does(server: Server) -> None:
        until(lambda: watched(server))
        server.down()
        time.sleep(3)
        server.up()
        finish(server)

    code, output = followed(does)
    assert code == 0, output
    lines = re.findall(r".*the job goes on, and kubectl asks again", output)
    assert lines, output
    assert len(lines) == len(set(lines)), output


def test_a_job_that_waits_in_a_queue_is_not_started_by_us(server: Server) -> None:
    job(queue="gpus").create()
    [jobset] = server.all("jobsets")
    assert jobset["spec"]["suspend"] is True


def test_a_job_that_another_has_deleted(followed: Callable[..., tuple[int, str]]) -> None:
    def does(server: Server) -> None:
        until(lambda: watched(server))
        server.remove("jobsets", NAME)

    code, output = followed(does)
    assert code == 1
    assert "dtrain: digits was deleted" in output


# --- what is refused


def refused(run: Run, code: int = 2) -> str:
    assert run.code == code, run.output
    [line] = [line for line in run.output.splitlines() if line.startswith("error: ")]
    return line


def test_a_name_that_is_taken(dtrain: Commands, server: Server) -> None:
    assert dtrain(*COMMAND, "launcher.follow=false").code == 0
    other = dtrain(*COMMAND, "seed=1", "launcher.follow=false")
    assert "launcher.job_name=digits: the cluster has another job of this name" in refused(other)
    applied = len([each for each in server.requests if each[0] == "apply"])
    same = dtrain(*COMMAND, "launcher.follow=false")
    assert same.code == 0, same.output
    assert len([each for each in server.requests if each[0] == "apply"]) == applied


@pytest.mark.parametrize("plural", ["jobsets", "secrets"])
def test_what_the_cluster_refuses_is_a_sentence(server: Server, plural: str) -> None:
    server.refusals[("apply", plural)] = (403, f'{plural} is forbidden: User "me" cannot patch')
    with pytest.raises(TrainingError, match=f"kubectl apply: .*{plural} is forbidden") as caught:
        job().create()
    assert "\n" not in str(caught.value)
    left = [name for kind in ("jobsets", "secrets") for name in server.names(kind)]
    assert not left, "something is left"


def test_a_cluster_that_is_not_there(dtrain: Commands, server: Server) -> None:
    server.down()
    line = refused(dtrain(*COMMAND), 1)
    assert line.startswith("error: kubectl get: The connection to the server 127.0.0.1:"), line
    server.up()
    assert "context: other" in refused(dtrain(*COMMAND, "launcher.context=other"), 1)


def test_kubectl_is_refused_by_name_where_it_is_missing(
    dtrain: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    line = refused(dtrain(*COMMAND))
    assert line.startswith("error: launcher.apply=true: needs kubectl on PATH")


# --- requests to stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_deletes_the_job_and_nothing_else_does(
    server: Server, tmp_path: Path, number: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dtrain", *COMMAND], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        until(lambda: watched(server), "it is not followed")
        server.writing.add(pod(server, RUNNING, phase="Running"))
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 75, output
    deleted = number == signal.SIGINT
    assert ("digits is deleted; its run folder stays" in output) == deleted
    left = [name for kind in ("jobsets", "pods") for name in server.names(kind)]
    assert (not left) == deleted
