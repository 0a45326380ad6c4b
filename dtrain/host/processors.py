"""The models of this machine's processor and GPUs, as the kernel names them."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

_CPU, _GPUS = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/gpus")


def processor() -> str:
    """Return the model of the processor; empty where that is not known."""
    return next(iter(_values([_CPU], "model name")), "") or platform.processor()


def gpus() -> list[str]:
    """Return the model of each NVIDIA GPU."""
    return _values(_GPUS.glob("*/information"), "Model")


def _values(files: Iterable[Path], name: str) -> list[str]:
    """Return the first value that each of the kernel's files has for a name."""
    first: list[str] = []
    for path in sorted(files):
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # another system
            continue
        values = (line.partition(":") for line in lines)
        first += [value.strip() for key, _, value in values if key.strip() == name][:1]
    return first
