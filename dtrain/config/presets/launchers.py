"""Schemas of launchers beside those of :mod:`dtrain.config.schema`, and forms of their keys."""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import re
from typing import Any

from omegaconf import MISSING

from dtrain.config.forms import CHARACTERS, NODE, PATH, matching, target, text, words
from dtrain.config.ranges import MANY, YEAR, Each, Form, formed, short, within
from dtrain.config.schema import Launcher


def _network(value: Any) -> str | None:
    problem = words(value, 64)
    if problem is None and "/" in value:
        try:
            ipaddress.ip_network(value, strict=False)
        except ValueError as error:
            return f"is no network ({error})"
    elif problem is None and not re.fullmatch(r"[\w.:@-]{1,15}", value):
        return "is no name of an interface"
    return problem


def _options(value: Any) -> str | None:
    """Say why ``value`` cannot be options of a command, by their names."""
    if not isinstance(value, dict):
        return "is no mapping from options to their values"
    for name, each in value.items():
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,99}", str(name)):
            return f"{short(name)} is not the name of an option"
        if not isinstance(each, bool | int | float) and words(each, CHARACTERS) is not None:
            return f"{name}: {short(each)} {words(each, CHARACTERS)}"
    return None


def _mapping(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "is no mapping"
    return next((f"{name!r} is no text" for name in value if not isinstance(name, str)), None)


NETWORK = Form(
    "null, a network such as 10.0.0.0/8, or the name of an interface", _network, "10.0.0.0/8"
)
HOST = matching(
    "null, or the name or address of a host", r"[\w.:-]+", "is no name or address of a host", 253,
    "n1",
)  # fmt: skip

# --- ssh
HOSTS = Each(
    matching(
        "[user@]host, or host:2 for two tasks",
        r"([\w.+-]+@)?(\w[\w.-]*|\[[\w:.%]+\])(:\d+)?", "is no host", 300, "HOST",
    ), 0, 1000, "[]",
)  # fmt: skip
VARIABLES = Each(
    matching(
        "the name of a variable", r"[A-Za-z_]\w*", "is not the name of a variable", 200
    ), 0, 1000, "[]",
)  # fmt: skip
COMMANDS = Each(
    Form("a command of the shell, in one line", lambda value: words(value, 10_000)), 0, 100, "[]"
)

# --- SLURM
LINES = Each(text(CHARACTERS), 0, 1000, "[]")
OPTIONS = Form("null, or options by name", _options, "{exclusive: true}")

# --- Kubernetes
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
#: Of a job: its pods' names have a role, two numbers and five letters after it, in 63 characters.
JOB_NAME = matching(
    "up to 40 small letters, digits and hyphens, the first one a letter",
    r"[a-z]([-a-z0-9]*[a-z0-9])?", "is no name that Kubernetes takes for a job", 40, "digits",
)  # fmt: skip
NAMESPACE = matching(
    "up to 63 small letters, digits and hyphens", _LABEL, "is no name of a namespace", 63,
    "default",
)  # fmt: skip
OBJECT = matching(
    "the name of an object of Kubernetes: small letters, digits, hyphens and dots",
    rf"{_LABEL}(\.{_LABEL})*", "is no name of an object of Kubernetes", 253, "NAME",
)  # fmt: skip
SECRETS = Each(OBJECT, 0, 100, "[NAME]")
QUANTITY = matching(
    "a quantity of Kubernetes, such as 512Mi or 16Gi", r"[0-9]+(\.[0-9]+)?([kMGTP]|[KMGTP]i)?",
    "is no quantity of memory", 30, "16Gi",
)  # fmt: skip
CLAIMS = Each(
    matching(
        "CLAIM:/PATH", rf"{_LABEL}(\.{_LABEL})*:/[^:]+", "is not CLAIM:/PATH", 4096, "data:/data"
    ), 0, 100, "[data:/data]",
)  # fmt: skip
RESOURCE = matching(
    "the name of a resource of nodes, such as nvidia.com/gpu", r"[a-z0-9.-]+/[A-Za-z0-9._-]+",
    "is no name of a resource", 300, "nvidia.com/gpu",
)  # fmt: skip
POD_SPEC = Form("null, or a mapping of fields of a pod's spec", _mapping, "{nodeSelector: {}}")


@dataclasses.dataclass
class Env(Launcher):
    """Starts one task of a cluster that another program starts.

    Attributes:
        start_timeout: seconds to wait for the commands on all hosts; null: 600.
        network: network between the tasks, 10.0.0.0/8 or eth0; null: that of the commands.
        chief: host of task 0; null: that of the platform.
        environment: finds which task this command is, and the addresses of the others.
    """

    start_timeout: float | None = within(600.0, 1, YEAR)
    network: str | None = formed(None, NETWORK)
    chief: str | None = formed(None, HOST)
    environment: Any = formed(MISSING, NODE)


@dataclasses.dataclass
class Auto(Launcher):
    """The cluster that this command was started in, or this machine.

    Attributes:
        start_timeout: seconds to wait for all tasks; null: 60, or 600 on several hosts.
        network: network between the tasks, 10.0.0.0/8 or eth0; null: that of the commands.
        chief: host of task 0; null: that of the platform.
    """

    _target_: str = target("dtrain.controller.launchers.auto")
    start_timeout: float | None = within(None, 1, YEAR)
    network: str | None = formed(None, NETWORK)
    chief: str | None = formed(None, HOST)


@dataclasses.dataclass
class Ssh(Launcher):
    """Starts tasks on hosts by OpenSSH.

    Attributes:
        start_timeout: seconds until a host has answered, and again until its tasks have joined.
        hosts: hosts as [user@]host[:tasks], the chief's first.
        hostfile: file with lines "host slots=N", instead of hosts.
        python: interpreter on the hosts, with dtrain; null: the path of this one.
        folder: working directory on the hosts; null: this folder, or else the home.
        setup: shell commands on the hosts, before the interpreter.
        ssh_config: configuration of the client (ssh -F); null: the user's own.
        variables: names of environment variables to pass to the tasks.
        sync: send this folder, without data, for the code of the tasks.
        network: network between the hosts, 10.0.0.0/8 or eth0; null: that of ssh.
    """

    _target_: str = target("dtrain.controller.launchers.Ssh")
    start_timeout: float | None = within(120.0, 1, YEAR)
    hosts: list[str] = formed([], HOSTS)
    hostfile: str | None = formed(None, PATH)
    python: str | None = formed(None, PATH)
    folder: str | None = formed(None, PATH)
    setup: list[str] = formed([], COMMANDS)
    ssh_config: str | None = formed(None, PATH)
    variables: list[str] = formed([], VARIABLES)
    sync: bool = False
    network: str | None = formed(None, NETWORK)


#: What the pods of a job are made by (:mod:`dtrain.controller.launchers.k8s`).
PodsOf = enum.Enum("PodsOf", ["jobset", "job"])


@dataclasses.dataclass
class Kubernetes(Launcher):
    """Writes a job of Kubernetes, a pod for each task, or creates it and follows it.

    Attributes:
        start_timeout: seconds to wait for the commands in all pods; null: 600.
        max_restarts: restarts of all pods after a failure; evictions and exit code 75 do not count.
        kind: jobset: of JobSet 0.10 or newer; job: an indexed Job, which every cluster has.
        image: image of the pods, with dtrain, and your files in its working directory.
        job_name: name of the job, and of its run folder; null: the run's name and the time.
        namespace: where the job is created; null: the namespace of the context.
        context: context of the kubeconfig; null: the current one.
        apply: create the job by kubectl; false: write its manifest.
        follow: print the progress of the created job until it ends.
        cpus: cores of each pod; null: what its node has left.
        memory: memory of each pod, such as 16Gi; null: what its node has left.
        gpus: GPUs of each pod that computes gradients.
        gpu_resource: name of the GPU resource on the nodes.
        volume: PersistentVolumeClaim of the run folders, mounted in the chief's pod at output_dir.
        mounts: more claims, CLAIM:/PATH, mounted read-only in every pod.
        variables_from: Secrets, each key of which becomes a variable in every pod.
        key_from: Secret with the cluster's key at `key`; null: one is made with the job.
        queue: local queue of Kueue, which starts the job; null: it starts at once.
        user: user id of the pods, not root.
        pod: more fields of the pods' spec, such as {nodeSelector: {disk: ssd}}.
    """

    _target_: str = target("dtrain.controller.launchers.Kubernetes")
    start_timeout: float | None = within(600.0, 1, YEAR)
    max_restarts: int = within(3, 0, 10_000)
    kind: PodsOf = PodsOf.jobset
    image: str | None = formed(None, text(1000))
    job_name: str | None = formed(None, JOB_NAME)
    namespace: str | None = formed(None, NAMESPACE)
    context: str | None = formed(None, text())
    apply: bool = False
    follow: bool = True
    cpus: float | None = within(None, 0, 10_000, above=True)
    memory: str | None = formed(None, QUANTITY)
    gpus: int = within(0, 0, 1_000)
    gpu_resource: str = formed("nvidia.com/gpu", RESOURCE)
    volume: str | None = formed(None, OBJECT)
    mounts: list[str] = formed([], CLAIMS)
    variables_from: list[str] = formed([], SECRETS)
    key_from: str | None = formed(None, OBJECT)
    queue: str | None = formed(None, OBJECT)
    user: int = within(1000, 1, 2**31 - 1)
    pod: Any | None = formed(None, POD_SPEC)


@dataclasses.dataclass
class Slurm(Auto):
    """Submits to SLURM; in a step of SLURM it trains.

    Attributes:
        grace_seconds: seconds from the request to stop to SIGKILL.
        partition: partition, as sbatch's --partition; null: the cluster's default.
        time: time limit of a start, as sbatch's --time, such as 4:00:00; null: the cluster's.
        account: account that is charged; null: the user's default.
        nodes: machines of a job; null: one for each process.
        gpus_per_node: GPUs of each node; null: none.
        cpus_per_task: cores of each process; null: the cluster's default.
        memory: memory of each node, such as 16G; null: the cluster's default.
        setup: lines of shell before the command, such as module load cuda.
        extra: further options of sbatch, such as {qos: high, exclusive: true}.
        follow: follow the job to its end; false: return when it is submitted.
        max_requeues: consecutive starts without a new checkpoint, after which the job ends.
    """

    _target_: str = target("dtrain.controller.launchers.slurm.choose")
    grace_seconds: float = within(60.0, 0, YEAR)
    partition: str | None = formed(None, text(200))
    time: str | None = formed(None, text(40))
    account: str | None = formed(None, text(200))
    nodes: int | None = within(None, 1, 100_000)
    gpus_per_node: int | None = within(None, 1, 1000)
    cpus_per_task: int | None = within(None, 1, 100_000)
    memory: str | None = formed(None, text(40))
    setup: list[str] = formed([], LINES)
    extra: Any | None = formed(None, OPTIONS)
    follow: bool = True
    max_requeues: int = within(5, 0, MANY)


#: Strategies of Ray for placement groups.
Placement = enum.Enum("Placement", ["auto", "pack", "spread", "strict_pack", "strict_spread"])


@dataclasses.dataclass
class Ray(Launcher):
    """Starts tasks on the nodes of a Ray cluster.

    Attributes:
        start_timeout: seconds to wait for resources, and again for the tasks to join.
        address: address of the cluster; null: RAY_ADDRESS, or the one of this machine.
        cpus_per_task: Ray's CPUs of a task, which may be a part of one.
        gpus_per_task: GPUs of a task.
        placement: Ray's strategy; auto: a node for each host of multiworker, else pack.
    """

    _target_: str = target("dtrain.controller.launchers.Ray")
    start_timeout: float = within(120.0, 1, YEAR)
    address: str | None = formed(None, text(300))
    cpus_per_task: float = within(1.0, 0.001, 10_000)
    gpus_per_task: int = within(0, 0, 1000)
    placement: Placement = Placement.auto
