"""What a task and its machine use: processors, memory, GPUs; and the memory that is free for us.

The names are those that MLflow gives to system metrics, which its UI shows on a page of their own.
Of the whole machine: ``system/cpu_utilization_percentage`` (100: all processors),
``system/system_memory_usage_megabytes``. Of this process and those that it has started, such as
readers of data: ``system/task_cpu_percentage`` (100: one processor),
``system/task_memory_megabytes``. Of each GPU of the machine: ``system/gpu_0_...``. Those of other
hosts than the chief's have its name in them: ``system/HOST/...``.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

#: Of the two versions of Linux' control groups: where they are, the files with the limit and the
#: usage, and the name of what of the usage is only a cache.
_CGROUPS = {
    "": ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": (
        "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}  # fmt: skip


def available() -> int:
    """Return the bytes of memory that are free for us."""
    free: list[float] = [psutil.virtual_memory().available]
    for line in _lines("/proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        for name in controllers.split(","):
            if name in _CGROUPS:
                root, limit, usage, cache = _CGROUPS[name]
                own = Path(root, group.lstrip("/"))
                folders = [each for each in (own, *own.parents) if each.is_relative_to(root)]
                free += [_free(folder, limit, usage, cache) for folder in folders]
    return int(min(free))


def _free(folder: Path, limit: str, usage: str, cache: str) -> float:
    """Return what a control group may take more."""
    [most], [used] = _lines(folder / limit) or ["max"], _lines(folder / usage) or ["0"]
    stat = dict(line.split() for line in _lines(folder / "memory.stat"))
    return max(0, int(most) - int(used) + int(stat.get(cache, 0))) if most != "max" else math.inf


def _lines(path: Path | str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:  # another system, or another version of control groups
        return []


def text(size: int) -> str:
    """Return a number of bytes as it is read."""
    return f"{size / 2**30:,.1f} GiB"


#: Of names of metrics that are of no model.
PREFIX = "system/"
#: Between two looks, in seconds.
EVERY = 10.0

_MEGA = 1e6


class Usage:
    """Looks at the machine, at most once in :data:`EVERY` seconds.

    Args:
        clock: tells seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._at = clock, clock()
        self._process = psutil.Process()
        psutil.cpu_percent()  # the next call is the mean since this one
        self._seconds, _ = self._own()
        self._gpus: Callable[[], dict[str, float]] | None = None

    @property
    def due(self) -> bool:
        """Whether it is time to look."""
        return self._clock() - self._at >= EVERY

    def metrics(self, due: bool | None = None) -> dict[str, float]:
        """Return values by name: means since the last look, or of now; empty before it is time.

        Args:
            due: whether it is; None: as :attr:`due` says.
        """
        if not (self.due if due is None else due):
            return {}
        now = self._clock()
        elapsed = max(now - self._at, 1e-3)
        if self._gpus is None:
            self._gpus = gpus()
        seconds, resident = self._own()
        memory = psutil.virtual_memory()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            # Less than before where a process has ended that nobody has waited for.
            "task_cpu_percentage": 100 * max(0.0, seconds - self._seconds) / elapsed,
            "system_memory_usage_megabytes": (memory.total - memory.available) / _MEGA,
            "task_memory_megabytes": resident / _MEGA,
            **self._gpus(),
        }
        self._at, self._seconds = now, seconds
        return {f"{PREFIX}{name}": value for name, value in values.items()}

    def _own(self) -> tuple[float, int]:
        """Return processor seconds and resident bytes of this process and its descendants."""
        seconds, resident = 0.0, 0
        for process in (self._process, *self._process.children(recursive=True)):
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
                resident += process.memory_info().rss
        return seconds, resident


def of_hosts(found: Sequence[tuple[str, dict[str, float]]]) -> dict[str, float]:
    """Return the values of all hosts, each once: those of the first under the names as they are.

    Args:
        found: of each task, its host and what it has seen.
    """
    first, values = found[0][0], dict(found[0][1])
    for host, seen in found[1:]:
        if host != first:  # what its first task has seen; of the machine that is the same
            named = {f"{PREFIX}{host}/{name.removeprefix(PREFIX)}": v for name, v in seen.items()}
            values = {**named, **values}
    return values


def gpus() -> Callable[[], dict[str, float]]:
    """Return what looks at NVIDIA's GPUs, by ``nvidia-ml-py`` where that is installed."""
    try:
        library: Any = importlib.import_module("pynvml")
        library.nvmlInit()
        handles = [
            library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())
        ]
    except Exception:  # not installed, no driver, or not allowed: there is nothing to look at
        return dict

    def look() -> dict[str, float]:
        found = {}
        for index, handle in enumerate(handles):
            name = f"gpu_{index}"
            with contextlib.suppress(library.NVMLError):
                rates = library.nvmlDeviceGetUtilizationRates(handle)
                found[f"{name}_utilization_percentage"] = float(rates.gpu)
            with contextlib.suppress(library.NVMLError):
                memory = library.nvmlDeviceGetMemoryInfo(handle)
                found[f"{name}_memory_usage_megabytes"] = memory.used / _MEGA
                found[f"{name}_memory_usage_percentage"] = 100 * memory.used / memory.total
            with contextlib.suppress(library.NVMLError):
                milliwatts = library.nvmlDeviceGetPowerUsage(handle)
                found[f"{name}_power_usage_watts"] = milliwatts / 1000
        return found

    return look
