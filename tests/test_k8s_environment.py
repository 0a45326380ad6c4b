"""Pods of Kubernetes as a cluster environment: what their variables and names say."""

from __future__ import annotations

import pytest

from dtrain.errors import UsageError
from dtrain.launchers import env
from dtrain.launchers.platforms import numbered
from dtrain.launchers.platforms.base import Started
from dtrain.launchers.platforms.numbered import read_pod

#: Of every pod.
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
DOMAIN = "digits.team.svc.cluster.local"
OURS = {
    **POD, "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "digits-worker-1-0", "JOBSET_NAME": "digits",
    "REPLICATED_JOB_NAME": "worker", "JOB_GLOBAL_INDEX": "2", "GLOBAL_REPLICAS": "4",
}  # fmt: skip
#: A user's own indexed Job of several pods, with a headless Service called digits.
OWN = {**POD, "JOB_COMPLETION_INDEX": "3", "HOSTNAME": "train-3"}
#: A user's own JobSet of one indexed Job.
ONE = {
    **POD, "JOB_COMPLETION_INDEX": "1", "HOSTNAME": "digits-node-0-1", "JOBSET_NAME": "digits",
    "REPLICATED_JOB_NAME": "node",
}  # fmt: skip


def found(environ: dict[str, str], name: str) -> tuple[int, int | None, tuple[str, ...]]:
    started = read_pod(environ, name)
    assert isinstance(started, Started)
    assert started.job == started.chief[0]
    return started.rank, started.number, started.chief


@pytest.mark.parametrize(
    ("environ", "name", "expected"),
    [
        (OURS, f"digits-worker-1-0.{DOMAIN}", (2, 4, ("digits-chief-0-0.digits",))),
        # Where the hosts file does not have the whole name.
        (OURS, "digits-worker-1-0", (2, 4, ("digits-chief-0-0.digits",))),
        ({**OURS, "HOSTNAME": "digits-chief-0-0", "REPLICATED_JOB_NAME": "chief",
          "JOB_GLOBAL_INDEX": "0"}, "", (0, 4, ("digits-chief-0-0.digits",))),
        # A replicated job of another name: its first job is the chief.
        ({**OURS, "REPLICATED_JOB_NAME": "host", "HOSTNAME": "digits-host-2-0"}, "",
         (2, 4, ("digits-host-0-0.digits",))),
        (OWN, f"train-3.{DOMAIN}", (3, None, ("train-0.digits",))),
        ({**OWN, "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "train-0"}, f"train-0.{DOMAIN}",
         (0, None, ("train-0.digits",))),
        ({**OWN, "HOSTNAME": "train-1-3"}, f"train-1-3.{DOMAIN}",
         (3, None, ("train-1-0.digits",))),
        (ONE, f"digits-node-0-1.{DOMAIN}", (1, None, ("digits-node-0-0.digits",))),
        ({**ONE, "GLOBAL_REPLICAS": "1", "JOB_GLOBAL_INDEX": "0"}, "",
         (1, None, ("digits-node-0-0.digits",))),
        # HOSTNAME is cut at 63 characters by some images, and may have the domain in others.
        ({**OWN, "HOSTNAME": f"train-3.{DOMAIN}"}, f"train-3.{DOMAIN}",
         (3, None, ("train-0.digits",))),
    ],
)  # fmt: skip
def test_where_a_pod_is(
    environ: dict[str, str], name: str, expected: tuple[int, int | None, tuple[str, ...]]
) -> None:
    assert found(environ, name) == expected


def test_pods_that_do_not_find_each_other_are_each_by_itself() -> None:
    assert read_pod(OWN, "train-3") is None


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({**OWN, "JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX=x: is not a number, in a pod"),
        ({**OWN, "JOB_COMPLETION_INDEX": ""}, r"JOB_COMPLETION_INDEX=: is not"),
        ({**OWN, "JOB_COMPLETION_INDEX": "٣"}, "JOB_COMPLETION_INDEX=٣: is not a number"),
        ({**OWN, "HOSTNAME": "gpu-box"}, "HOSTNAME=gpu-box: is not JOB-3, "),
        (
            {**OURS, "JOB_GLOBAL_INDEX": "4"},
            "JOB_GLOBAL_INDEX=4: GLOBAL_REPLICAS=4 has no such rank",
        ),
        ({**OURS, "GLOBAL_REPLICAS": "-1"}, "GLOBAL_REPLICAS=-1: is not a number"),
    ],
)
def test_what_cannot_be_is_said(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_pod(environ, f"{environ['HOSTNAME']}.{DOMAIN}")


@pytest.mark.parametrize("missing", ["JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"])
def test_a_pod_of_another_kind_is_by_itself(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def resolve() -> str:
        raise AssertionError("no name is looked up outside of such a pod")

    monkeypatch.setattr(numbered.socket, "getfqdn", resolve)
    for name, value in OWN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    assert env.found() is None


def test_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered.socket, "getfqdn", lambda: f"digits-worker-1-0.{DOMAIN}")
    for name, value in OURS.items():
        monkeypatch.setenv(name, value)
    platform = env.found()
    assert platform is not None
    assert platform[1].what == "JobSet digits"
