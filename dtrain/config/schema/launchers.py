"""The keys of launchers, and the forms of hosts, options and objects of clusters in them."""

import ipaddress
import re
from typing import Annotated, Literal

from dtrain.config import fields as f


def _network(value: f.Plain) -> str | None:
    problem = f.line_problem(value, 64)
    if problem is None and "/" in value:
        try:
            ipaddress.ip_network(value, strict=False)
        except ValueError as error:
            return f"is no network ({error})"
    elif problem is None and not re.fullmatch(r"[\w.:@-]{1,15}", value):
        return "is no name of an interface"
    return problem


def _options(value: f.Plain) -> str | None:
    """Say why ``value`` cannot be options of a command, by their names."""
    if not isinstance(value, dict):
        return "is no mapping from options to their values"
    for name, each in value.items():
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,99}", str(name)):
            return f"{f.short(name)} is not the name of an option"
        is_number = isinstance(each, bool | int | float)
        if not is_number and (problem := f.line_problem(each, f.CHARACTERS)) is not None:
            return f"{name}: {f.short(each)} {problem}"
    return None


Timeout = Annotated[float, f.within(1, f.YEAR)]
Restarts = Annotated[int, f.within(0, 10_000)]
Network = Annotated[
    str, f.Form("a network such as 10.0.0.0/8, or the name of an interface", _network, "10.0.0.0/8")
]
Host = Annotated[str, f.matching("the name or address of a host", r"[\w.:-]+",
                                 "is no name or address of a host", 253, "n1")]  # fmt: skip
# --- ssh
_HOST = r"([\w.+-]+@)?(\w[\w.-]*|\[[\w:.%]+\])(:\d+)?"
_Host = Annotated[str, f.matching("[user@]host, or host:2 for two tasks", _HOST, "is no host", 300)]
Hosts = Annotated[list[_Host], f.items(0, 1000)]
_Variable = Annotated[str, f.matching("the name of a variable", r"[A-Za-z_]\w*",
                                      "is not the name of a variable", 200)]  # fmt: skip
Variables = Annotated[list[_Variable], f.items(0, 1000)]
Commands = Annotated[list[Annotated[str, f.line(10_000)]], f.items(0, 100)]
# --- SLURM
Options = Annotated[f.Plain, f.Form("options by name", _options, "{exclusive: true}")]
# --- Kubernetes
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUANTITY = r"[0-9]+(\.[0-9]+)?([kMGTP]|[KMGTP]i)?"
_OBJECT = rf"{_LABEL}(\.{_LABEL})*"
#: Of a job: its pods' names have a role, two numbers and five letters after it, in 63 characters.
JobName = Annotated[
    str, f.matching("up to 40 small letters, digits and hyphens, the first one a letter",
                    r"[a-z]([-a-z0-9]*[a-z0-9])?", "is no name that Kubernetes takes for a job",
                    40, "digits"),
]  # fmt: skip
Namespace = Annotated[str, f.matching("up to 63 small letters, digits and hyphens", _LABEL,
                                      "is no name of a namespace", 63, "default")]  # fmt: skip
Object = Annotated[
    str, f.matching("the name of an object of Kubernetes: small letters, digits, hyphens and dots",
                    _OBJECT, "is no name of an object of Kubernetes", 253, "NAME"),
]  # fmt: skip
Quantity = Annotated[
    str, f.matching("a quantity of Kubernetes, such as 512Mi or 16Gi", _QUANTITY,
                    "is no quantity of memory", 30, "16Gi"),
]  # fmt: skip
_Claim = Annotated[str, f.matching("CLAIM:/PATH", rf"{_OBJECT}:/[^:]+", "is not CLAIM:/PATH", 4096)]
Claims = Annotated[list[_Claim], f.items(0, 100)]
Resource = Annotated[
    str, f.matching("the name of a resource of nodes, such as nvidia.com/gpu",
                    r"[a-z0-9.-]+/[A-Za-z0-9._-]+", "is no name of a resource", 300,
                    "nvidia.com/gpu"),
]  # fmt: skip


class Launcher(f.Group, scope="command"):
    """What starts the tasks, and how long it waits for them."""

    target_: f.Target
    """Class of the launcher."""
    grace_seconds: f.Seconds = 30.0
    """Seconds from the request to stop to SIGKILL."""
    start_timeout: Timeout | None = 60.0
    """Seconds until every task has joined the cluster; null: 60, on hosts 600."""
    stall_timeout: Timeout | None = 1800.0
    """Seconds without a step after which the job is ended; null: never."""
    max_restarts: Restarts = 0
    """Restarts after a task's death, each from the last checkpoint."""
    peer_timeout: Annotated[float, f.within(5, f.YEAR)] = 45.0
    """Seconds of silence after which another host is lost."""


class Local(Launcher, target="dtrain.launchers.Local"):
    """Starts a process of this machine for each task."""


class Inline(Local, target="dtrain.launchers.Inline"):
    """Trains in the process of the command."""


class Auto(Launcher, target="dtrain.launchers.auto"):
    """The cluster that this command was started in, or this machine."""

    start_timeout: Timeout | None = None
    """Seconds to wait for all tasks; null: 60, or 600 on several hosts."""
    network: Network | None = None
    """Network between the tasks, 10.0.0.0/8 or eth0; null: that of the commands."""
    chief: Host | None = None
    """Host of task 0; null: that of the platform."""


class Env(Auto, target="dtrain.launchers.Env"):
    """Starts one task of a cluster that another program starts."""

    start_timeout: Timeout | None = 600.0
    """Seconds to wait for the commands on all hosts; null: 600."""
    environment: f.Node
    """Finds which task this command is, and the addresses of the others."""


class Ssh(Launcher, target="dtrain.launchers.Ssh"):
    """Starts tasks on hosts by OpenSSH."""

    start_timeout: Timeout | None = 120.0
    """Seconds until a host has answered, and again until its tasks have joined."""
    hosts: Hosts = []
    """Hosts as [user@]host[:tasks], the chief's first."""
    hostfile: f.Path | None = None
    """File with lines "host slots=N", instead of hosts."""
    python: f.Path | None = None
    """Interpreter on the hosts, with dtrain; null: the path of this one."""
    folder: f.Path | None = None
    """Working directory on the hosts; null: this folder, or else the home."""
    setup: Commands = []
    """Shell commands on the hosts, before the interpreter."""
    ssh_config: f.Path | None = None
    """Configuration of the client (ssh -F); null: the user's own."""
    variables: Variables = []
    """Names of environment variables to pass to the tasks."""
    sync: bool = False
    """Send this folder, without data, for the code of the tasks."""
    network: Network | None = None
    """Network between the hosts, 10.0.0.0/8 or eth0; null: that of ssh."""


class Kubernetes(Launcher, target="dtrain.launchers.Kubernetes"):
    """Writes a job of Kubernetes, a pod for each task, or creates it and follows it."""

    start_timeout: Timeout | None = 600.0
    """Seconds to wait for the commands in all pods; null: 600."""
    max_restarts: Restarts = 3
    """Restarts of all pods after a failure; evictions and exit code 75 do not count."""
    kind: Literal["jobset", "job"] = "jobset"
    """jobset: of JobSet 0.10 or newer; job: an indexed Job, which every cluster has."""
    image: f.Line | None = None
    """Image of the pods, with dtrain, and your files in its working directory."""
    job_name: JobName | None = None
    """Name of the job, and of its run folder; null: the run's name and the time."""
    namespace: Namespace | None = None
    """Where the job is created; null: the namespace of the context."""
    context: f.Line | None = None
    """Context of the kubeconfig; null: the current one."""
    apply: bool = False
    """Create the job by kubectl; false: write its manifest."""
    follow: Annotated[bool, f.scope("command", "once")] = True
    """Print the progress of the created job until it ends."""
    cpus: Annotated[float, f.within(0, 10_000, above=True)] | None = None
    """Cores of each pod; null: what its node has left."""
    memory: Quantity | None = None
    """Memory of each pod, such as 16Gi; null: what its node has left."""
    gpus: Annotated[int, f.within(0, 1000)] = 0
    """GPUs of each pod that computes gradients."""
    gpu_resource: Resource = "nvidia.com/gpu"
    """Name of the GPU resource on the nodes."""
    volume: Object | None = None
    """PersistentVolumeClaim of the run folders, mounted in the chief's pod at output_dir."""
    mounts: Claims = []
    """More claims, CLAIM:/PATH, mounted read-only in every pod."""
    variables_from: Annotated[list[Object], f.items(0, 100)] = []
    """Secrets, each key of which becomes a variable in every pod."""
    key_from: Object | None = None
    """Secret with the cluster's key at `key`; null: one is made with the job."""
    queue: Object | None = None
    """Local queue of Kueue, which starts the job; null: it starts at once."""
    user: Annotated[int, f.within(1, f.SEED)] = 1000
    """User id of the pods, not root."""
    pod: dict[str, f.Plain] | None = None
    """More fields of the pods' spec, such as {nodeSelector: {disk: ssd}}."""


class Slurm(Auto, target="dtrain.launchers.slurm.choose"):
    """Submits to SLURM; in a step of SLURM it trains."""

    grace_seconds: f.Seconds = 60.0
    """Seconds from the request to stop to SIGKILL."""
    partition: Annotated[str, f.line(200)] | None = None
    """Partition, as sbatch's --partition; null: the cluster's default."""
    time: Annotated[str, f.line(40)] | None = None
    """Time limit of a start, as sbatch's --time, such as 4:00:00; null: the cluster's."""
    account: Annotated[str, f.line(200)] | None = None
    """Account that is charged; null: the user's default."""
    nodes: Annotated[int, f.within(1, 100_000)] | None = None
    """Machines of a job; null: one for each process."""
    gpus_per_node: Annotated[int, f.within(1, 1000)] | None = None
    """GPUs of each node; null: none."""
    cpus_per_task: Annotated[int, f.within(1, 100_000)] | None = None
    """Cores of each process; null: the cluster's default."""
    memory: Annotated[str, f.line(40)] | None = None
    """Memory of each node, such as 16G; null: the cluster's default."""
    setup: Annotated[list[Annotated[str, f.line(f.CHARACTERS)]], f.items(0, 1000)] = []
    """Lines of shell before the command, such as module load cuda."""
    extra: Options | None = None
    """Further options of sbatch, such as {qos: high, exclusive: true}."""
    follow: Annotated[bool, f.scope("command", "once")] = True
    """Follow the job to its end; false: return when it is submitted."""
    max_requeues: f.Index = 5
    """Consecutive starts without a new checkpoint, after which the job ends."""


class Ray(Launcher, target="dtrain.launchers.Ray"):
    """Starts tasks on the nodes of a Ray cluster."""

    start_timeout: Timeout = 120.0
    """Seconds to wait for resources, and again for the tasks to join."""
    address: Annotated[str, f.line(300)] | None = None
    """Address of the cluster; null: RAY_ADDRESS, or the one of this machine."""
    cpus_per_task: Annotated[float, f.within(0.001, 10_000)] = 1.0
    """Ray's CPUs of a task, which may be a part of one."""
    gpus_per_task: Annotated[int, f.within(0, 1000)] = 0
    """GPUs of a task."""
    placement: Literal["auto", "pack", "spread", "strict_pack", "strict_spread"] = "auto"
    """Ray's strategy; auto: a node for each host of multiworker, else pack."""
