"""``launcher.apply=true``: the real client against a stateful stand-in of the API server."""

from __future__ import annotations

import os
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

pytest.importorskip("kubernetes")
pytest.importorskip("kmock")

from dtrain.controller.launchers.k8s import api, follow
from dtrain.controller.launchers.k8s.api import Api
from dtrain.controller.launchers.k8s.manifest import render
from dtrain.errors import UsageError
from tests.conftest import QUICK, Commands, Run
from tests.k8s_server import NAMESPACE, Server
from tests.test_k8s_manifest import HOSTS, launcher, workload

NAME = workload(HOSTS).name
COMMAND = (
    *QUICK, "launcher=k8s", "launcher.image=digits:1", "launcher.volume=runs",
    "launcher.apply=true", f"launcher.job_name={NAME}",
)  # fmt: skip
MULTI = ("strategy=multiworker", "hardware.hosts=2")
PREFIX = "jobset.sigs.k8s.io"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    server = Server()
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig")))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(follow, "INTERVAL", 0.05)
    yield server
    server.close()


def until(met: Callable[[], Any], what: str = "") -> Any:
    deadline = time.monotonic() + 60
    while not (found := met()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


def created(server: Server, **asked: Any) -> follow.Follower:
    """Create a job of three pods, without the command."""
    work = workload(HOSTS)
    objects = render(launcher(**asked), work, "k" * 64)
    api = Api(None, None)
    follow.create(api, objects)
    return follow.Follower(api, objects[-1], work.cluster, 1)


class Followed:
    """Follows a job without the command, whose composing takes the longest."""

    def __init__(self, server: Server, capfd: pytest.CaptureFixture[str]):
        self._server, self._capfd = server, capfd

    def __call__(self, does: Callable[[Server], None], **asked: Any) -> tuple[int, str]:
        plural = "jobs" if asked.get("kind") == "job" else "jobsets"
        waits = asked.get("queue") is not None
        follower = created(self._server, **asked)
        with Scripted(self._server, does, plural, waits):
            code = follower.run()
        found = self._capfd.readouterr()
        return code, found.out + found.err


@pytest.fixture
def followed(server: Server, capfd: pytest.CaptureFixture[str]) -> Followed:
    return Followed(server, capfd)


class Scripted:
    """Does to a cluster what a test says, as soon as a job is there, in a thread of its own."""

    def __init__(
        self, server: Server, does: Callable[[Server], None], plural: str = "jobsets",
        waits: bool = False,
    ):  # fmt: skip
        self._server, self._does, self._plural, self._waits = server, does, plural, waits
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            until(lambda: started(self._server, self._plural) or self._waits, "no job")
            self._does(self._server)
        except BaseException as error:
            self.error = error
            if self._server.find(self._plural, NAME) is None:
                self._server.close()
            else:  # what follows it would ask a server that is away for ever
                self._server.remove(self._plural, NAME)

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self.error is not None:
            raise self.error


def started(server: Server, plural: str = "jobsets") -> bool:
    found = server.find(plural, NAME)
    return found is not None and not found["spec"]["suspend"]


def pod(
    server: Server, role: str = "chief", index: int = 0, state: Any = None, suffix: str = "abcde",
    **status: Any,
) -> str:  # fmt: skip
    """Put a pod, or its next state, into the cluster; return its name."""
    name = f"{NAME}-{role}-{index}-0-{suffix}"
    labels = {
        "app.kubernetes.io/instance": NAME, "app.kubernetes.io/managed-by": "dtrain",
        f"{PREFIX}/jobset-name": NAME, f"{PREFIX}/replicatedjob-name": role,
        f"{PREFIX}/job-index": str(index),
    }  # fmt: skip
    if state is not None:
        status["containerStatuses"] = [{"name": "dtrain", "state": state}]
    server.put("pods", {"metadata": {"name": name, "labels": labels}, "status": status})
    return name


RUNNING = {"running": {"startedAt": "2026-11-23T00:00:00Z"}}


def ended(code: int, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, **more}}


def finish(server: Server, kind: str = "Completed", message: str = "", **status: Any) -> None:
    condition = {"type": kind, "status": "True", "message": message}
    job = server.find("jobsets", NAME)
    assert job is not None
    server.put("jobsets", {**job, "status": {"conditions": [condition], **status}})


def test_a_job_is_created_followed_and_done(dtrain: Commands, server: Server) -> None:
    def does(server: Server) -> None:
        pod(server, phase="Pending")
        pod(server, "worker", phase="Pending")
        name = pod(server, phase="Running", state=RUNNING)
        server.writing.add(name)
        server.write(name, "epoch 1/2", "epoch 2/2")
        server.writing.discard(name)
        pod(server, phase="Succeeded", state=ended(0))
        finish(server)

    with Scripted(server, does):
        done = dtrain(*COMMAND, *MULTI)
    assert done.code == 0, done.output
    assert "epoch 1/2\nepoch 2/2\n" in done.output
    assert f"dtrain: {NAME} is done" in done.output
    assert "run folder: /outputs/kubernetes/digits of the claim runs" in done.output
    job = server.find("jobsets", NAME)
    assert job is not None
    # All that belongs to it goes with it.
    for plural, name in (("secrets", f"{NAME}-key"), ("networkpolicies", NAME)):
        found = server.find(plural, name)
        assert found is not None
        [owner] = found["metadata"]["ownerReferences"]
        assert owner["uid"] == job["metadata"]["uid"]
    assert not Path("outputs").exists()
    # The pods are started when all is there, and not before.
    verbs = [(verb, plural) for verb, plural, _ in server.requests if verb != "get"]
    assert verbs == [
        ("create", "jobsets"), ("create", "secrets"), ("create", "networkpolicies"),
        ("patch", "jobsets"),
    ]  # fmt: skip


def test_a_plain_job_is_followed_too(followed: Followed, server: Server) -> None:
    def does(server: Server) -> None:
        labels = {
            "app.kubernetes.io/instance": NAME, "app.kubernetes.io/managed-by": "dtrain",
            "batch.kubernetes.io/job-completion-index": "1",
        }  # fmt: skip
        status = {"phase": "Running", "containerStatuses": [{"name": "dtrain", "state": RUNNING}]}
        server.put("pods", {"metadata": {"name": "p", "labels": labels}, "status": status})
        job = server.find("jobs", NAME)
        assert job is not None
        condition = {"type": "Complete", "status": "True"}
        until(lambda: sum(r == ("get", "pods", None) for r in server.requests) > 2)
        server.put("jobs", {**job, "status": {"conditions": [condition]}})

    code, output = followed(does, kind="job")
    assert code == 0, output
    assert "dtrain: worker-0: has started (p)" in output
    assert server.names("services") == [NAME]


def test_follow_false_returns_at_once(dtrain: Commands, server: Server) -> None:
    done = dtrain(*COMMAND, "launcher.follow=false")
    assert done.code == 0, done.output
    assert server.names("jobsets") == [NAME]


STATES: list[tuple[dict[str, Any], str]] = [
    (
        {"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }]},
        "chief-0: waits for a node: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    ),
    (
        {"phase": "Pending", "state": {"waiting": {
            "reason": "ImagePullBackOff", "message": 'Back-off pulling image "digits:1"',
        }}},
        'chief-0: its image cannot be pulled: Back-off pulling image "digits:1"',
    ),
    (
        {"phase": "Pending", "state": {"waiting": {
            "reason": "CreateContainerConfigError", "message": 'secret "store" not found',
        }}},
        'chief-0: its container cannot be made: secret "store" not found',
    ),
    (
        {"phase": "Failed", "state": ended(137, reason="OOMKilled")},
        "chief-0: used more memory than it may (launcher.memory), and was ended",
    ),
    (
        {"phase": "Failed", "reason": "Evicted",
         "message": "The node was low on resource: ephemeral-storage."},
        "chief-0: was evicted: The node was low on resource: ephemeral-storage.",
    ),
    (
        {"phase": "Failed", "state": ended(75), "conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": "default-scheduler: preempting to accommodate a higher priority pod",
        }]},
        "chief-0: was ended: a pod of higher priority took its place: default-scheduler: ",
    ),
    ({"phase": "Failed", "state": ended(75)}, "chief-0: was asked to stop, and has saved a "),
    (
        {"phase": "Failed", "state": ended(1, message="Traceback\nValueError: bang\n\n")},
        "chief-0: ended with exit code 1: ValueError: bang",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("status", "said"), STATES, ids=[said[:30] for _, said in STATES])
def test_what_becomes_of_a_pod_is_said_once(
    followed: Followed, server: Server, status: dict[str, Any], said: str
) -> None:
    def does(server: Server) -> None:
        pod(server, **status)
        looks = len(server.requests)
        until(lambda: len(server.requests) > looks + 8)
        finish(server, "Failed", "jobset failed due to one or more job failures")

    code, output = followed(does)
    assert code == 1, output
    assert output.count(f"dtrain: {said}") == 1
    assert "dtrain: digits failed: jobset failed due to one or more job failures" in output


def test_a_command_that_is_refused_in_its_pod_is_refused_here(
    dtrain: Commands, server: Server
) -> None:
    def does(server: Server) -> None:
        pod(server, phase="Failed", state=ended(2, message="error: dataset.path=x: is not there"))
        looks = len(server.requests)
        until(lambda: len(server.requests) > looks + 4)
        finish(server, "Failed", "matching FailJob rule at index 0")

    with Scripted(server, does):
        done = dtrain(*COMMAND)
    assert done.code == 2, done.output
    assert "chief-0: ended with exit code 2: error: dataset.path=x: is not there" in done.output


def test_a_restart_is_said_and_the_new_chief_is_heard(followed: Followed, server: Server) -> None:
    def does(server: Server) -> None:
        for suffix in ("aaaaa", "bbbbb"):
            name = pod(server, phase="Running", state=RUNNING, suffix=suffix)
            server.write(name, f"of {suffix}")
            looks = len(server.requests)  # one that came before may have found an empty log
            pod(server, phase="Failed", state=ended(1), suffix=suffix)
            until(lambda name=name, at=looks: ("get", "pods", name) in server.requests[at:])
            if suffix == "aaaaa":
                server.remove("pods", name)
                job = server.find("jobsets", NAME)
                assert job is not None
                server.put("jobsets", {**job, "status": {"restarts": 1}})
                until(lambda: sum(r == ("get", "pods", None) for r in server.requests) > 6)
        finish(server, restarts=1)

    code, output = followed(does)
    assert code == 0
    assert "of aaaaa\n" in output
    assert "of bbbbb\n" in output
    assert "all pods are started again (1 in all), from the last checkpoint" in output


def test_a_log_that_breaks_off_is_read_on(followed: Followed, server: Server) -> None:
    def does(server: Server) -> None:
        name = pod(server, phase="Running", state=RUNNING)
        server.writing.add(name)
        server.write(name, "one", "two")
        until(lambda: ("get", "pods", name) in server.requests)
        server.down()
        server.write(name, "three")
        server.up()
        server.writing.discard(name)
        finish(server)

    code, output = followed(does)
    assert code == 0, output
    assert re.findall(r"^(one|two|three)$", output, re.M) == ["one", "two", "three"]


def test_a_log_that_the_server_ends_is_read_on(followed: Followed, server: Server) -> None:
    """It does so when it restarts, and after hours; only the pod's end is that of its log."""
    lines = [f"line {number}" for number in range(7)]

    def does(server: Server) -> None:
        name = pod(server, phase="Running", state=RUNNING)
        server.writing.add(name)
        for line in lines:
            server.cut = True
            until(lambda: not server.cut)
            server.write(name, line)
        server.writing.discard(name)
        server.write(name, "the last")
        pod(server, phase="Succeeded", state=ended(0))
        finish(server)

    code, output = followed(does)
    assert code == 0, output
    assert re.findall(r"^(line \d|the last)$", output, re.M) == [*lines, "the last"]
    assert "of the log" not in output and "cannot be read" not in output


def test_a_silent_log_is_asked_for_again(
    followed: Followed, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was forgotten on its way is silent for ever."""
    monkeypatch.setattr(api, "SILENCE", (5.0, 0.2))

    def does(server: Server) -> None:
        name = pod(server, phase="Running", state=RUNNING)
        server.writing.add(name)
        server.write(name, "one")
        until(lambda: server.requests.count(("get", "pods", name)) > 2)
        server.write(name, "two")
        server.writing.discard(name)
        pod(server, phase="Succeeded", state=ended(0))
        finish(server)

    code, output = followed(does)
    assert code == 0, output
    assert re.findall(r"^(one|two)$", output, re.M) == ["one", "two"]


def test_a_server_that_is_away_is_said_once_and_asked_again(
    followed: Followed, server: Server
) -> None:
    def does(server: Server) -> None:
        pod(server, phase="Running", state=RUNNING)
        until(lambda: sum(r == ("get", "pods", None) for r in server.requests) > 1)
        server.refusals[("get", "jobsets")] = (503, "the server is currently unable")
        seen = sum(r[:2] == ("get", "jobsets") for r in server.requests)
        until(lambda: sum(r[:2] == ("get", "jobsets") for r in server.requests) > seen + 3)
        del server.refusals[("get", "jobsets")]
        finish(server)

    code, output = followed(does)
    assert code == 0, output
    assert output.count("answers 503: the server is currently unable; the job goes on") == 1
    assert output.count("the API server answers again") == 1


def test_a_job_that_waits_in_a_queue_is_not_started_by_us(
    followed: Followed, server: Server
) -> None:
    def does(server: Server) -> None:
        until(lambda: sum(r == ("get", "pods", None) for r in server.requests) > 3)
        finish(server)

    code, output = followed(does, queue="gpus")
    assert code == 0, output
    assert output.count("digits waits in the queue gpus") == 1
    assert not [r for r in server.requests if r[0] == "patch"]


# --- what the cluster refuses


def refused(run: Run) -> str:
    assert run.code == 2, run.output
    [line] = [line for line in run.output.splitlines() if line.startswith("error: ")]
    return line


def test_a_name_that_is_taken(dtrain: Commands, server: Server) -> None:
    assert dtrain(*COMMAND, "launcher.follow=false").code == 0
    other = dtrain(*COMMAND, "seed=1", "launcher.follow=false")
    assert "launcher.job_name=digits: the cluster has another JobSet of this name" in refused(other)
    same = dtrain(*COMMAND, "launcher.follow=false")
    assert same.code == 0, same.output
    assert "digits is in the cluster already: it is followed" in same.output
    assert server.names("jobsets") == [NAME]


@pytest.mark.parametrize(
    ("what", "status", "message", "said"),
    [
        (("create", "jobsets"), 403, 'jobsets is forbidden: User "me" cannot create resource',
         f"launcher.namespace={NAMESPACE}: you may not create jobsets there: jobsets is forbidden"),
        (("create", "secrets"), 403, "secrets is forbidden",
         f"launcher.namespace={NAMESPACE}: you may not create secrets there"),
        (("create", "jobsets"), 401, "Unauthorized", "the cluster does not know who you are"),
        (("create", "jobsets"), 404, "", "launcher.kind=jobset: the cluster has no JobSet"),
        (("create", "jobsets"), 404, 'namespaces "team" not found',
         f"launcher.namespace={NAMESPACE}: is not there"),
        (("create", "jobsets"), 400, 'strict decoding error: unknown field "spec.failurePolicy"',
         "the cluster refuses to create jobsets (400): strict decoding error"),
        (("create", "jobsets"), 422, "JobSet is invalid: spec.x", "(422): JobSet is invalid"),
    ],
)  # fmt: skip
def test_what_the_cluster_refuses_is_a_sentence(
    server: Server, what: tuple[str, str], status: int, message: str, said: str
) -> None:
    server.refusals[what] = (status, message)
    with pytest.raises(UsageError) as caught:
        created(server)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    for plural in ("jobsets", "secrets", "networkpolicies"):
        assert not server.names(plural), "something is left"


def test_a_cluster_that_is_not_there(dtrain: Commands, server: Server) -> None:
    server.down()
    done = dtrain(*COMMAND)
    server.up()
    assert done.code == 1, done.output
    [line] = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert f"the API server at http://127.0.0.1:{server.port} does not answer" in line


def test_a_context_that_is_not_there(dtrain: Commands, server: Server) -> None:
    said = refused(dtrain(*COMMAND, "launcher.context=other"))
    assert "launcher.context=other: it is not known how a cluster is reached" in said


def test_no_kubeconfig_at_all(
    dtrain: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    said = refused(dtrain(*COMMAND))
    assert "launcher.context=null: it is not known how a cluster is reached" in said


def test_without_the_client(dtrain: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert "the client of Kubernetes is not installed" in refused(dtrain(*COMMAND))


def test_a_job_that_another_has_deleted(followed: Followed, server: Server) -> None:
    def does(server: Server) -> None:
        until(lambda: sum(r == ("get", "pods", None) for r in server.requests) > 1)
        server.remove("jobsets", NAME)

    code, output = followed(does)
    assert code == 1
    assert "dtrain: digits was deleted" in output


# --- Ctrl-C


@pytest.fixture
def command(server: Server, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that follows a job whose chief runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dtrain", *COMMAND], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ),
    )  # fmt: skip
    until(lambda: started(server), "no job")
    pod(server, phase="Running", state=RUNNING)
    until(lambda: sum(r == ("get", "pods", None) for r in server.requests) > 1)
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_leaves_the_job(server: Server, command: subprocess.Popen[str]) -> None:
    command.send_signal(signal.SIGINT)
    output, _ = command.communicate(timeout=60)
    assert command.returncode == 0, output
    assert "digits goes on without this command" in output
    assert server.names("jobsets") == [NAME]


def test_ctrl_c_twice_deletes_the_job(server: Server, command: subprocess.Popen[str]) -> None:
    command.send_signal(signal.SIGINT)
    assert command.stdout is not None
    lines = iter(command.stdout.readline, "")
    assert any("goes on without this command" in line for line in lines)
    command.send_signal(signal.SIGINT)
    output, _ = command.communicate(timeout=60)
    assert command.returncode == 75, output
    assert "digits is deleted; its run folder stays" in output
    assert not server.names("jobsets")
    assert not server.names("pods")
