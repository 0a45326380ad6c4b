"""What a backend has, and what its framework needs here, before anything is started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from dtrain.errors import refuse
from dtrain.host import frameworks
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.host.packages import installed, version
from dtrain.run.cluster import Cluster

#: Packages by which JAX computes on NVIDIA GPUs.
_GPU_PLUGIN = re.compile(r"jax-cuda\d+-plugin")
#: What JAX calls the devices of a kind.
_PLATFORMS = {"cpu": {"cpu"}, "gpu": {"gpu", "cuda"}, "tpu": {"tpu"}}


def check_here(cluster: Cluster) -> None:
    """Refuse a framework that is not installed here, and variables that contradict the plan.

    Raises:
        UsageError: naming the package or the variable.
    """
    framework = frameworks.of(cluster.environment)
    if any(version(package) is None for package in framework.packages):
        refuse("backend", f"{framework.title} is not installed",
               cluster.environment[frameworks.VARIABLE], typed=framework.install)  # fmt: skip
    on_gpu = cluster.device_kind == "gpu"
    if framework is FRAMEWORKS["torch"] and on_gpu and str(version("torch")).endswith("+cpu"):
        refuse("hardware", f"PyTorch {version('torch')} is a build for CPUs", "gpu",
               accepted="cpu, or a build for GPUs (pytorch.org)", typed="hardware=cpu")  # fmt: skip
    if framework is FRAMEWORKS["jax"]:
        if on_gpu and not any(map(_GPU_PLUGIN.match, installed()[0])):
            refuse("hardware", "JAX has no plugin for NVIDIA GPUs", "gpu",
                   accepted="cpu, or gpu with it", typed="pip install 'jax[cuda12]'")  # fmt: skip
        for key, value, why, accepted, typed in _collisions(cluster):
            refuse(key, why, value, accepted=accepted, typed=typed)


def _collisions(cluster: Cluster) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the arguments of an error for each variable of JAX that contradicts the cluster."""
    kind, devices = cluster.device_kind, max(1, cluster.chief.devices)
    flag = "--xla_force_host_platform_device_count"
    counts = re.findall(rf"{flag}=(\S+)", os.environ.get("XLA_FLAGS", ""))
    variable = "JAX_NUM_CPU_DEVICES"
    for name, value in [*(("XLA_FLAGS", f"{flag}={n}") for n in counts[-1:]),
                        *((variable, n) for n in [os.environ.get(variable)] if n)]:  # fmt: skip
        number = value.rpartition("=")[2]
        if kind == "cpu" and number != str(devices):
            yield (
                name, value, f"the run has {devices} CPU devices (hardware.devices)",
                f"{devices}, or no such variable", f"hardware.devices={number}",
            )  # fmt: skip
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not _PLATFORMS[kind] & set(platforms.split(",")):
        yield (
            "JAX_PLATFORMS", platforms, f"the run computes on {kind} (hardware.kind)",
            f"{kind}, or no such variable", "unset JAX_PLATFORMS",
        )  # fmt: skip
    wide = os.environ.get("JAX_ENABLE_X64", "")
    if wide.lower() in ("1", "true", "t", "yes", "y", "on"):
        yield (
            "JAX_ENABLE_X64", wide, "types of 64 bits make other numbers than "
            "hardware.precision says", "0, or no such variable", "unset JAX_ENABLE_X64",
        )  # fmt: skip
