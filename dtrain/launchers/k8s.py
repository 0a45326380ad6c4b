"""``launcher=k8s``: its settings, and the objects of Kubernetes that a job is.

The fields are those of https://kubernetes.io/docs/reference/kubernetes-api (1.29 and newer) and of
https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2 (JobSet 0.10 and newer).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from dtrain.errors import refuse
from dtrain.files.fields import Values
from dtrain.launchers.base import Elsewhere, run_of
from dtrain.launchers.env import READY
from dtrain.launchers.platforms.numbered import VARIABLES
from dtrain.launchers.rendezvous import cluster_key
from dtrain.run.cluster import Cluster
from dtrain.run.devices import Machine
from dtrain.run.outcome import Outcome

Object = dict[str, Any]

INSTANCE, MANAGED, COMPONENT = (
    f"app.kubernetes.io/{part}" for part in ("instance", "managed-by", "component")
)
#: Annotation by which a job that is in the cluster is known to be the very same.
SAME = "dtrain-manifest"
#: Seconds that a command has after its tasks were ended by force, for its result and the tracker.
MARGIN = 30


class Kubernetes(Elsewhere):
    """Hands a whole job to a cluster of Kubernetes: commands in the pods start its tasks."""

    several = False
    sees_data = False
    where = "a pod of its own"
    patience = 600.0

    def part(self, machine: Machine) -> Machine:
        """Return what each pod has, as far as it is declared."""
        cores = machine.cores if self.settings.cpus is None else math.ceil(self.settings.cpus)
        return dataclasses.replace(super().part(machine), cores=cores, gpus=self.settings.gpus)

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Return the cluster as it is: its addresses are known in the pods alone.

        Raises:
            UsageError: there is no image to start.
        """
        if self.settings.image is None:
            refuse("launcher.image", "pods start from an image, with dtrain and your code", "null",
                   accepted="the name of an image that the cluster can pull",
                   hint="launcher.image=NAME")  # fmt: skip
        return cluster

    def show(self, spec: Any) -> None:
        """Print the manifest."""
        self.delegate(spec.cluster)(spec)

    def delegate(self, cluster: Cluster) -> Callable[[Any], Outcome]:
        """Return what writes the manifest, or creates the job and follows it."""
        return run_of("dtrain.job.k8s_job")


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
    template = _template(launcher, work, key=key)
    names = ["secret"] if work.meets and launcher.settings.key_from is None else []
    names += ["policy"] if work.meets else []
    names += ["service"] if work.meets and launcher.settings.kind == "job" else []
    job: Object = template[launcher.settings.kind]
    if launcher.settings.kind == "job":
        _fill(job["spec"]["template"], launcher, work, None)
    else:
        roles = [task.role for task in work.cluster.tasks]
        for role in dict.fromkeys(roles):
            part = _template(launcher, work, role=role, count=roles.count(role))
            part["replicated"]["template"]["spec"] = part["job"]["spec"]
            _fill(part["job"]["spec"]["template"], launcher, work, role)
            job["spec"]["replicatedJobs"].append(part["replicated"])
    if launcher.settings.queue is not None:
        job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = launcher.settings.queue
        job["spec"]["suspend"] = True  # Kueue starts it
    text = json.dumps(job, sort_keys=True).encode()
    job["metadata"]["annotations"] = {SAME: hashlib.sha256(text).hexdigest()[:32]}
    return [*(template[name] for name in names), job]


def _template(
    launcher: Kubernetes, work: Workload, role: str = "", count: int = 0, key: str = ""
) -> Object:
    """Return the objects of ``k8s.yaml``, of a replicated job where there is a role."""
    labels = {"app.kubernetes.io/name": "dtrain", INSTANCE: work.name, MANAGED: "dtrain"}
    pods = 1 if role else len(work.cluster.tasks)
    text = string.Template(Path(__file__).with_suffix(".yaml").read_text()).substitute(
        name=work.name, labels=json.dumps(labels), key=key, role=role, count=count, pods=pods,
        backoff=0 if role else launcher.max_restarts * pods, free="FailJob" if role else "Ignore",
        restarts=launcher.max_restarts, grace=math.ceil(launcher.grace_seconds) + MARGIN,
        user=launcher.settings.user,
    )  # fmt: skip
    template: Object = yaml.safe_load(text)
    return template


def _fill(template: Object, launcher: Kubernetes, work: Workload, role: str | None) -> None:
    """Fill in the template of the pods of a role, or of all pods if None."""
    pods, spec = launcher.settings, template["spec"]
    [container], volumes = spec["containers"], spec["volumes"]
    container["image"] = pods.image
    # Kubernetes would put variables in the place of `$(NAME)`.
    container["args"] = [argument.replace("$(", "$$(") for argument in work.arguments]
    container["env"] += _variables(launcher, work, role)
    tasks = [task for task in work.cluster.tasks if role in (None, task.role)]
    computes = work.cluster.device_kind == "gpu" and any(task.devices for task in tasks)
    container["resources"] = _resources(pods, computes)
    mounts = container["volumeMounts"]
    mounts[-1]["mountPath"] = work.output_dir
    if role in (None, "chief"):
        volumes[-1] = {"name": "runs", "persistentVolumeClaim": {"claimName": pods.volume}}
    claims = {path: claim for claim, _, path in (each.partition(":") for each in pods.mounts)}
    for number, (path, claim) in enumerate(claims.items()):
        source = {"claimName": claim, "readOnly": True}
        volumes.append({"name": f"mount-{number}", "persistentVolumeClaim": source})
        mounts.append({"name": f"mount-{number}", "mountPath": path, "readOnly": True})
    if pods.variables_from:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in pods.variables_from]
    if work.meets:
        container["readinessProbe"] = _template(launcher, work)["ready"]
    if role is not None:
        template["metadata"]["labels"][COMPONENT] = role
    elif work.meets:
        spec["subdomain"] = work.name
    template["spec"] = _merged(spec, pods.pod or {})


def _resources(pods: SimpleNamespace, computes: bool) -> Object:
    """Return what a pod asks for; it gets no more, and so is among the last to be evicted."""
    limits: Object = {}
    if pods.cpus is not None:
        limits["cpu"] = f"{pods.cpus:g}"
    if pods.memory is not None:
        limits["memory"] = pods.memory
    if pods.gpus and computes:
        limits[pods.gpu_resource] = str(pods.gpus)
    return {"requests": limits, "limits": limits} if limits else {}


def _variables(launcher: Kubernetes, work: Workload, role: str | None) -> list[Object]:
    """Return the variables of a pod, by which its command finds its task, and the key."""
    plain = {**work.environment, **({READY: "/scratch/met"} if work.meets else {})}
    variables: list[Object] = [{"name": name, "value": value} for name, value in plain.items()]
    if not work.meets:
        return variables
    for name, label in VARIABLES.items() if role is not None else ():
        path = f"metadata.labels['jobset.sigs.k8s.io/{label}']"
        variables.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    secret = {"name": launcher.settings.key_from or f"{work.name}-key", "key": "key"}
    variables.append({"name": cluster_key.VARIABLE, "valueFrom": {"secretKeyRef": secret}})
    return variables


def _merged(spec: Object, more: Values) -> Object:
    """Return ``spec`` with the user's fields: mappings are merged, lists are joined."""
    merged = {**spec, **more}
    for name, here in spec.items():
        if isinstance(here, dict) and isinstance(more.get(name), Mapping):
            merged[name] = _merged(here, more[name])
        elif isinstance(here, list) and isinstance(more.get(name), list | tuple):
            merged[name] = [*here, *more[name]]
    return merged
