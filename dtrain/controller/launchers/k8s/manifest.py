"""The objects of Kubernetes that a job is: plain mappings, as its API takes them.

The fields are those of https://kubernetes.io/docs/reference/kubernetes-api (1.29 and newer) and of
https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2 (JobSet 0.10 and newer).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from dtrain import errors
from dtrain.controller.launchers.cluster_env.kubernetes import VARIABLES
from dtrain.controller.launchers.external import READY
from dtrain.controller.launchers.k8s.launcher import Kubernetes
from dtrain.controller.launchers.rendezvous import cluster_key
from dtrain.run.cluster import Cluster

Object = dict[str, Any]

CONTAINER = "dtrain"
INSTANCE, MANAGED, COMPONENT = (
    f"app.kubernetes.io/{part}" for part in ("instance", "managed-by", "component")
)
QUEUE = "kueue.x-k8s.io/queue-name"
#: Annotation by which a job that is in the cluster is known to be the very same.
SAME = "dtrain-manifest"
#: In every pod: the home of its user, for caches; gone with the pod.
SCRATCH = "/scratch"
#: Seconds that a command has after its tasks were ended by force, for its result and the tracker.
MARGIN = 30
#: Of the rules for pods that failed: the first one is of pods that fail again, whatever is done.
_FATAL = 0


@dataclasses.dataclass(frozen=True)
class Workload:
    """What runs in the pods.

    Attributes:
        name: of the job.
        cluster: its tasks.
        arguments: of ``python -m dtrain`` in each pod.
        output_dir: absolute path of the run folders there.
        environment: plain variables of each pod.
    """

    name: str
    cluster: Cluster
    arguments: list[str]
    output_dir: str
    environment: Mapping[str, str]

    @property
    def roles(self) -> dict[str, int]:
        """The number of tasks of each role, the chief first."""
        names = [task.role for task in self.cluster.tasks]
        return {role: names.count(role) for role in dict.fromkeys(names)}

    @property
    def meets(self) -> bool:
        """Whether there are several pods, which meet."""
        return len(self.cluster.tasks) > 1


def render(launcher: Kubernetes, work: Workload, key: str) -> list[Object]:
    """Return the objects of a job, the JobSet or Job itself last.

    Args:
        launcher: with the user's settings.
        work: what runs in the pods.
        key: the cluster's, for a Secret of its own.
    """
    found: list[Object] = []
    if work.meets:
        if launcher.key_from is None:
            secret = _object("v1", "Secret", f"{work.name}-key", work)
            found.append({**secret, "type": "Opaque", "stringData": {"key": key}})
        found.append(_policy(work))
        if launcher.kind == "job":
            found.append(_service(work))
    job = _jobset(launcher, work) if launcher.kind == "jobset" else _job(launcher, work)
    meta: Object = job["metadata"]
    if launcher.queue is not None:
        meta["labels"] = {**meta["labels"], QUEUE: launcher.queue}
        job["spec"]["suspend"] = True  # Kueue starts it
    text = json.dumps(job, sort_keys=True).encode()
    meta["annotations"] = {SAME: hashlib.sha256(text).hexdigest()[:32]}
    return [*found, job]


def labels(name: str) -> dict[str, str]:
    """Return the labels of all objects of a job."""
    return {"app.kubernetes.io/name": "dtrain", INSTANCE: name, MANAGED: "dtrain"}


def _object(version: str, kind: str, name: str, work: Workload) -> Object:
    meta = {"name": name, "labels": labels(work.name)}
    return {"apiVersion": version, "kind": kind, "metadata": meta}


def _policy(work: Workload) -> Object:
    """Return what closes all ports of the pods to all but each other."""
    pods = {"matchLabels": {INSTANCE: work.name}}
    policy = _object("networking.k8s.io/v1", "NetworkPolicy", work.name, work)
    spec = {"podSelector": pods, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": pods}]}]}  # fmt: skip
    return {**policy, "spec": spec}


def _service(work: Workload) -> Object:
    """Return what gives the pods of a Job their names; a JobSet makes its own."""
    spec = {
        "clusterIP": "None", "selector": {INSTANCE: work.name}, "publishNotReadyAddresses": True,
    }  # fmt: skip
    return {**_object("v1", "Service", work.name, work), "spec": spec}


def _jobset(launcher: Kubernetes, work: Workload) -> Object:
    """Return a JobSet with a replicated job for each role, all of which restart together."""
    again = {"onJobFailureReasons": ["PodFailurePolicy"]}
    fatal = {**again, "onJobFailureMessagePatterns": [f"rule at index {_FATAL}$"]}
    spec = {
        "network": {
            "enableDNSHostnames": True, "subdomain": work.name, "publishNotReadyAddresses": True,
        },
        # The others end with the chief: what is left of them then has nothing to do.
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["chief"]},
        "failurePolicy": {
            "maxRestarts": launcher.max_restarts,
            # ORDER: a new chief must not find the old one at work in the run folder.
            "restartStrategy": "BlockingRecreate",
            "rules": [
                {"name": "usage", "action": "FailJobSet", **fatal},
                {"name": "interrupted", "action": "RestartJobSetAndIgnoreMaxRestarts", **again},
            ],
        },
        "replicatedJobs": [
            {
                "name": role,
                "replicas": count,  # one pod each: the number of a job is that of a task
                "template": {
                    "metadata": {"labels": labels(work.name)},
                    "spec": {
                        **_indexed(1), "backoffLimit": 0,
                        "podFailurePolicy": {"rules": _rules("FailJob")},
                        "template": _pod(launcher, work, role),
                    },
                },
            }
            for role, count in work.roles.items()
        ],
    }  # fmt: skip
    return {**_object("jobset.x-k8s.io/v1alpha2", "JobSet", work.name, work), "spec": spec}


def _job(launcher: Kubernetes, work: Workload) -> Object:
    """Return an indexed Job: each command ends when another is lost, and all meet again."""
    number = len(work.cluster.tasks)
    spec = {
        **_indexed(number),
        "backoffLimit": launcher.max_restarts * number,
        "podFailurePolicy": {"rules": _rules("Ignore")},
        "template": _pod(launcher, work, None),
    }
    return {**_object("batch/v1", "Job", work.name, work), "spec": spec}


def _indexed(number: int) -> Object:
    return {"completionMode": "Indexed", "completions": number, "parallelism": number}


def _rules(free: str) -> list[Object]:
    """Return what is done about pods that failed.

    Args:
        free: action for those that count as no failure: interrupted with a checkpoint (exit code
            75), evicted, preempted, their node lost.
    """

    def code(number: int) -> Object:
        found = {"containerName": CONTAINER, "operator": "In", "values": [number]}
        return {"onExitCodes": found}

    disrupted = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return [
        {"action": "FailJob", **code(errors.USAGE)},  # its place is _FATAL
        {"action": free, **code(errors.INTERRUPTED)},
        {"action": free, **disrupted},
    ]


def _pod(launcher: Kubernetes, work: Workload, role: str | None) -> Object:
    """Return the template of the pods of a role, or of all pods if None."""
    tasks = [task for task in work.cluster.tasks if role in (None, task.role)]
    keeps = role in (None, "chief") and launcher.volume is not None
    claims = {path: claim for claim, _, path in (each.partition(":") for each in launcher.mounts)}
    volumes: list[Object] = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "runs", **(_claim(str(launcher.volume)) if keeps else {"emptyDir": {}})},
    ]
    mounts: list[Object] = [
        {"name": "scratch", "mountPath": SCRATCH},
        {"name": "memory", "mountPath": "/dev/shm"},  # 64 MiB otherwise: too little for NCCL
        {"name": "runs", "mountPath": work.output_dir},
    ]
    for number, (path, claim) in enumerate(claims.items()):
        volumes.append({"name": f"mount-{number}", **_claim(claim, readOnly=True)})
        mounts.append({"name": f"mount-{number}", "mountPath": path, "readOnly": True})
    container: Object = {
        "name": CONTAINER,
        "image": launcher.image,
        "command": ["python", "-m", "dtrain"],
        # Kubernetes would put variables in the place of `$(NAME)`.
        "args": [argument.replace("$(", "$$(") for argument in work.arguments],
        "env": _variables(launcher, work, role),
        "resources": _resources(launcher, any(t.devices for t in tasks), work.cluster.device_kind),
        "volumeMounts": mounts,
        # A sentence of the end of the log stands in the pod's state, which is kept longer.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
        },
    }  # fmt: skip
    if launcher.variables_from:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in launcher.variables_from]
    if work.meets:
        met = {"exec": {"command": ["test", "-e", f"{SCRATCH}/met"]}}
        container["readinessProbe"] = {**met, "periodSeconds": 5}
    spec: Object = {
        "restartPolicy": "Never",  # another pod takes its place
        "terminationGracePeriodSeconds": math.ceil(launcher.grace_seconds) + MARGIN,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": launcher.user, "runAsGroup": launcher.user,
            "fsGroup": launcher.user, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": volumes,
        "containers": [container],
    }  # fmt: skip
    if role is None and work.meets:
        spec["subdomain"] = work.name
    component = {} if role is None else {COMPONENT: role}
    meta = {"labels": {**labels(work.name), **component}}
    return {"metadata": meta, "spec": _merged(spec, launcher.pod or {})}


def _claim(name: str, **more: Any) -> Object:
    return {"persistentVolumeClaim": {"claimName": name, **more}}


def _resources(launcher: Kubernetes, computes: bool, kind: str) -> Object:
    """Return what a pod asks for; it gets no more, and so is among the last to be evicted."""
    found: Object = {}
    if launcher.cpus is not None:
        found["cpu"] = f"{launcher.cpus:g}"
    if launcher.memory is not None:
        found["memory"] = launcher.memory
    if launcher.gpus_of_a_pod and computes and kind == "gpu":
        found[launcher.gpu_resource] = str(launcher.gpus_of_a_pod)
    return {"requests": found, "limits": dict(found)} if found else {}


def _variables(launcher: Kubernetes, work: Workload, role: str | None) -> list[Object]:
    """Return the variables of a pod, by which its command finds its task, and the key."""
    # A user without a name has no home either.
    given = {"HOME": SCRATCH, "USER": "dtrain", "PYTHONUNBUFFERED": "1", **work.environment}
    if work.meets:
        given[READY] = f"{SCRATCH}/met"
    found: list[Object] = [{"name": name, "value": value} for name, value in given.items()]
    if not work.meets:
        return found
    if role is not None:
        for name, label in VARIABLES.items():
            path = f"metadata.labels['jobset.sigs.k8s.io/{label}']"
            found.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    secret = {"name": launcher.key_from or f"{work.name}-key", "key": "key"}
    found.append({"name": cluster_key.VARIABLE, "valueFrom": {"secretKeyRef": secret}})
    return found


def _merged(spec: Object, more: Mapping[str, Any]) -> Object:
    """Return ``spec`` with the user's fields: mappings are merged, lists are joined."""
    found = dict(spec)
    for name, value in more.items():
        here = found.get(name)
        if isinstance(here, dict) and isinstance(value, Mapping):
            found[name] = _merged(here, value)
        elif isinstance(here, list) and isinstance(value, list | tuple):
            found[name] = [*here, *value]
        else:
            found[name] = value
    return found
