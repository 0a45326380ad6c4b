"""How many GPUs this machine has for us, without TensorFlow and without loading a driver."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from dtrain.host.packages import version

#: Seconds that ``nvidia-smi`` may take: it waits for a driver that is busy.
ANSWER_SECONDS = 20.0
#: NVIDIA's driver is somewhere about, though it has no ``/dev/nvidia0``: Windows' Linux (dxg), or a
#: container, which sees /proc of a host whose GPUs may not be its own.
_HINTS = ("dev/dxg", "dev/nvidiactl", "proc/driver/nvidia/gpus")
_WINDOWS = "usr/lib/wsl/lib/nvidia-smi"  # is on no path there


def count(root: Path = Path("/")) -> int:
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
