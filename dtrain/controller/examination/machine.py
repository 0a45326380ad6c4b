"""The machine: versions, cores, memory, GPUs, disks."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
from pathlib import Path

import psutil

from dtrain.controller.examination.finding import Finding, size
from dtrain.controller.resources import devices
from dtrain.data import cache
from dtrain.host import memory
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.host.packages import version

#: Less free memory or disk than this is too little for TensorFlow, or for some checkpoints.
_MEMORY, _DISK = 1_500_000_000, 1_000_000_000
#: Least number of files that a process may have open: connections, shards, logs.
_FILES = 1024
_VERSIONS = {
    "dtrain": "dtrain", "TensorFlow": "tensorflow", "Keras": "keras", "MLflow": "mlflow",
    "Hydra": "hydra-core", "NumPy": "numpy",
}  # fmt: skip


def look() -> list[Finding]:
    """Return what this machine offers, without importing a framework."""
    return [_system(), _versions(), _cores(), _memory(), _gpus(), _files()]


def disk(name: str, path: Path) -> Finding:
    """Return how much room there is where a folder is, or would be made.

    Args:
        name: of the folder, for the report.
        path: of it.
    """
    known = path.absolute()
    while not known.exists():
        known = known.parent
    try:
        free = shutil.disk_usage(known).free
    except OSError as error:
        return Finding(name, str(path), f"it cannot be looked at: {error.strerror}")
    doubt = ""
    if not os.access(known, os.W_OK | os.X_OK):
        doubt = f"nothing can be written in {known}"
    elif free < _DISK:
        doubt = f"only {size(free)} are free for checkpoints and logs"
    return Finding(name, f"{path}: {size(free)} free{_kind(known)}", doubt)


def _kind(path: Path) -> str:
    """Return the type of file system that a path is on, as a clause."""
    every = psutil.disk_partitions(all=True)
    mounts = [each for each in every if path.is_relative_to(each.mountpoint)]
    mounts.sort(key=lambda each: len(each.mountpoint))  # of two at one place the last one counts
    return f", {mounts[-1].fstype}" if mounts else ""


def _system() -> Finding:
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    doubt = "" if sys.platform == "linux" else "dtrain is tested on Linux alone"
    return Finding("machine", f"{platform.node()}, {system}", doubt)


def _versions() -> Finding:
    found = {name: version(package) for name, package in _VERSIONS.items()}
    others = {each.title: version(each.packages[0]) for each in FRAMEWORKS.values()}
    found |= {name: text for name, text in others.items() if text is not None}
    missing = [name for name, known in found.items() if known is None]
    text = ", ".join(f"{name} {known or '(missing)'}" for name, known in found.items())
    return Finding("versions", text, f"{missing[0]} is not installed" if missing else "")


def _cores() -> Finding:
    own, all_of_them = devices.machine().cores, os.cpu_count() or 1
    text = f"{own}" if own == all_of_them else f"{own} of {all_of_them}"
    quota = _quota()
    if quota is None or quota >= own:
        return Finding("cores", text)
    doubt = (
        f"the container has the time of {quota:g}: hardware.intra_op_threads={max(1, int(quota))}"
    )
    return Finding("cores", text, doubt)


def _quota() -> float | None:
    """Return how many cores the control group may use, None where it is not limited."""
    try:
        most, period, *_ = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(most) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _memory() -> Finding:
    free = memory.available()
    doubt = "TensorFlow alone takes about 0.5 GB for each task" if free < _MEMORY else ""
    return Finding("memory", f"{size(free)} free", doubt)


def _gpus() -> Finding:
    count = devices.machine().gpus
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    text = f"{count or 'none'}"
    if visible is not None:
        text += f" (CUDA_VISIBLE_DEVICES={visible})"
    return Finding("GPUs", text)


def _files() -> Finding:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    doubt = f"few: ulimit -n {_FILES} before the command" if 0 <= most < _FILES else ""
    cached = disk("", cache.folder())
    return Finding("open files", f"up to {most:,}; cache of data in {cached.found}", doubt)
