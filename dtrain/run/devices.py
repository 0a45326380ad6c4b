"""What tasks run on: GPUs, counted without loading a driver, devices, threads; and what fits.

How many processes, made-up devices and threads, and how much memory: checked before a start.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import subprocess
from pathlib import Path

from dtrain.config.tree import Config
from dtrain.errors import refuse
from dtrain.files.fields import Values
from dtrain.host import usage
from dtrain.host.packages import version
from dtrain.run.cluster import Cluster
from dtrain.run.strategy_plan import StrategyPlan


@dataclasses.dataclass(frozen=True)
class Machine:
    """What tasks run on.

    Attributes:
        gpus: how many this machine has for us.
        cores: how many processor cores it has for us.
        shared: all tasks of a job run on this one machine.
        hosts: of a job: as many as commands were started for it; None where it is not known.
        beside: how many commands of a job share the cores, which nothing divides among them.
        threads: the environment says how many threads an operation has.
        one_task: each of the commands stands for one task, whose devices these are.
    """

    gpus: int
    cores: int
    shared: bool = True
    hosts: int | None = None
    beside: int = 1
    threads: bool = False
    one_task: bool = False


def machine() -> Machine:
    """Describe this machine, without asking TensorFlow, as what one command has to itself."""
    affinity = getattr(os, "sched_getaffinity", None)  # of Linux
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return Machine(count_gpus(), cores, threads=threads_are_given())


def device_kind(config: Config, kinds: tuple[str, ...], gpus: int) -> str:
    """Return ``cpu``, ``gpu`` or ``tpu``: what the tasks compute on.

    Args:
        config: resolved.
        kinds: that the strategy computes on.
        gpus: that this machine has.

    Raises:
        UsageError: the strategy does not compute on what is asked for.
    """
    kind: str = config.hardware.kind
    if kind == "auto":
        on_gpu = "gpu" in kinds and gpus
        return "gpu" if on_gpu else "cpu" if "cpu" in kinds else kinds[0]
    if kind not in kinds:
        refuse("hardware.kind", f"strategy={config.strategy.name} does not compute on it", kind,
               accepted=", ".join(["auto", *kinds]), typed="strategy=tpu hardware=tpu")  # fmt: skip
    return kind


def device_count(config: Config, strategy: StrategyPlan, kind: str, gpus: int, sharing: int) -> int:
    """Return how many devices each computing task has.

    Args:
        config: resolved.
        strategy: says how many where the configuration does not.
        kind: of :func:`device_kind`.
        gpus: that this machine has.
        sharing: tasks that it is divided among.

    Raises:
        UsageError: there are fewer GPUs.
    """
    devices: int | None = config.hardware.devices
    each = gpus // sharing
    if kind == "gpu" and (devices or 1) > each:
        tasks = f", which {sharing} tasks share" if sharing > 1 else ""
        if gpus == 0:
            refuse("hardware", "this machine has no GPU that nvidia-smi and TensorFlow see", "gpu",
                   accepted="cpu, or auto", typed="hardware=cpu")  # fmt: skip
        refuse("hardware.devices", f"this machine has {gpus} GPUs{tasks}", devices or 1,
               accepted=f"up to {each}, or the CPU",
               typed=f"hardware.devices={each}" if each else "hardware=cpu")  # fmt: skip
    return devices or strategy.devices(kind, each)


#: Seconds that ``nvidia-smi`` may take: it waits for a driver that is busy.
ANSWER_SECONDS = 20.0
#: NVIDIA's driver is somewhere about, though it has no ``/dev/nvidia0``: Windows' Linux (dxg), or a
#: container, which sees /proc of a host whose GPUs may not be its own.
_HINTS = ("dev/dxg", "dev/nvidiactl", "proc/driver/nvidia/gpus")
_WINDOWS = "usr/lib/wsl/lib/nvidia-smi"  # is on no path there


def count_gpus(root: Path = Path("/")) -> int:
    """Return how many GPUs TensorFlow may use here.

    Args:
        root: of the file system.
    """
    own = [p for p in (root / "dev").glob("nvidia*") if p.name.removeprefix("nvidia").isdigit()]
    if own:
        return _visible(len(own), "CUDA_VISIBLE_DEVICES")
    if any((root / hint).exists() for hint in _HINTS):
        listed = _listed(root)
        if listed:
            return _visible(listed, "CUDA_VISIBLE_DEVICES")
    if (root / "dev/nvhost-gpu").exists():  # of a Jetson: part of the processor
        return _visible(1, "CUDA_VISIBLE_DEVICES")
    # Any machine with AMD's graphics has this; TensorFlow computes on it in a build of its own.
    if (root / "dev/kfd").exists() and version("tensorflow-rocm") is not None:
        nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
        found = sum(node.read_text().strip() not in ("", "0") for node in nodes)
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            found = _visible(found, name)
        return found
    return 0


def _visible(found: int, variable: str) -> int:
    """Return how many of ``found`` GPUs an environment variable leaves."""
    chosen = os.environ.get(variable)
    if chosen is None:
        return found
    return min(found, sum(name.strip() not in ("", "-1") for name in chosen.split(",")))


def _listed(root: Path) -> int:
    """Return how many GPUs ``nvidia-smi`` finds: those that a process here can open."""
    windows = root / _WINDOWS
    program = shutil.which("nvidia-smi") or (str(windows) if windows.exists() else None)
    if program is None:
        return 0
    try:
        done = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False,
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return 0
    if done.returncode:
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


#: Variable by which a user gives TensorFlow the number.
THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"


def operation_threads(cores: int, replicas: int) -> int | None:
    """Return how many threads an operation has; None for TensorFlow's own choice, one a core.

    Where each core has a replica of its own (or there is one core), it is one thread: an operation
    is then computed where it was begun, and its parts are neither handed out nor waited for. With
    fewer replicas the best number is a matter of the model: ``experiment=speed`` compares some.

    A rule, and no measurement: the same on every start on a machine, so that a resumed run has the
    same bits.

    Args:
        cores: that one task has for itself.
        replicas: in this task.
    """
    return 1 if replicas >= cores else None


def threads_are_given() -> bool:
    """Say whether the environment tells TensorFlow how many threads an operation has."""
    return bool(os.environ.get(THREADS_VARIABLE))


#: Most logical CPU devices, most processes and most threads of a pool: so many a core, and as many
#: as the second number on any machine. More only wait for each other.
DEVICES = (8, 64)
PROCESSES = (4, 32)
THREADS = (16, 128)
#: How often the examples of dataset=synthetic lie in memory while they are made: two terms of a sum
#: and the sum.
_COPIES = 3
_FLOAT = 4  # bytes


def check_cluster(
    config: Config, cluster: Cluster, machine: Machine, size: tuple[str, int]
) -> None:
    """Compare what a job would start with what its machine can hold.

    Args:
        config: its values checked.
        cluster: of the job.
        machine: on which all its tasks run, or one, if it is not ``shared``.
        size: the key that decides how many tasks there are, and a small value of it.

    Raises:
        UsageError: it is too much.
    """
    tasks = cluster.tasks if machine.shared else cluster.tasks[:1]
    key, small = size
    _check(key, len(tasks), PROCESSES, machine, "processes", small)
    if cluster.device_kind == "cpu":
        devices = sum(task.devices for task in tasks)
        _check("hardware.devices", devices, DEVICES, machine, "devices of its CPU", 1)
    hardware = config.hardware
    for key, threads in (
        ("intra_op_threads", hardware.intra_op_threads),
        ("inter_op_threads", hardware.inter_op_threads),
    ):
        if threads is not None:
            _check(f"hardware.{key}", threads, THREADS, machine, "threads", machine.cores)


def check_workers(workers: int, cluster: Cluster, machine: Machine) -> None:
    """Compare what the workers of a command need with what their machine has.

    Args:
        workers: how many processes.
        cluster: of each of them.
        machine: that they share; of several machines the launcher knows.

    Raises:
        UsageError: it has less.
    """
    if not machine.shared:
        return
    _check("workers", workers, PROCESSES, machine, "processes", machine.cores)
    devices = cluster.tasks[0].devices
    if cluster.device_kind == "gpu" and workers * devices > machine.gpus:
        refuse("workers", f"each has {devices} of the {machine.gpus} GPUs of this machine", workers,
               accepted=f"up to {machine.gpus // max(1, devices)}",
               typed=f"workers={machine.gpus} strategy=one_device")  # fmt: skip


def _check(
    key: str, found: int, limit: tuple[int, int], machine: Machine, what: str, instead: int
) -> None:
    most = max(limit[0] * machine.cores, limit[1])
    if found > most:
        refuse(key, f"is more {what} than this machine of {machine.cores} cores can serve", found,
               accepted=f"up to {most} in all", typed=f"{key}={instead}")  # fmt: skip


def check_synthetic(node: Values) -> None:
    """Refuse a ``dataset=synthetic`` that this machine's memory cannot hold.

    Args:
        node: the ``dataset`` group, its values checked.

    Raises:
        UsageError: it is too large.
    """
    shape = node.get("shape") or [28, 28, 1]
    examples = node.get("examples", 10_000) + node.get("validation_examples", 1_000)
    rows = examples * _COPIES + node.get("classes", 10)
    needed, free = rows * math.prod(shape) * _FLOAT, usage.available()
    if needed > free:
        key, value = ("examples", examples) if math.prod(shape) < 2**20 else ("shape", shape)
        instead = {"examples": "dataset.examples=10000", "shape": "'dataset.shape=[28,28,1]'"}
        refuse(f"dataset.{key}",
               f"takes {usage.text(needed)} of memory, and {usage.text(free)} are free", value,
               typed=instead[key])  # fmt: skip
