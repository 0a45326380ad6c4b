"""What a task and its machine use: processors, memory, GPUs; from ``/proc`` and NVIDIA's library.

The names are those that MLflow gives to system metrics, which its UI shows on a page of their own.
Of the whole machine: ``system/cpu_utilization_percentage`` (100: all processors),
``system/system_memory_usage_megabytes``. Of this process and those that it has started, such as
readers of data: ``system/task_cpu_percentage`` (100: one processor),
``system/task_memory_megabytes``. Of each GPU of the machine: ``system/gpu_0_...``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Of names of metrics that are of no model.
PREFIX = "system/"
#: Between two looks, in seconds.
EVERY = 10.0

_MEGA = 1e6


class Usage:
    """Looks at the machine, at most once in :data:`EVERY` seconds.

    Args:
        proc: where Linux says it; elsewhere nothing is found.
        clock: tells seconds.
    """

    def __init__(self, proc: Path = Path("/proc"), clock: Callable[[], float] = time.perf_counter):
        self._proc, self._clock = proc, clock
        self._at = clock()
        self._machine, self._own = self._busy(), self._processor_seconds()
        self._gpus: Callable[[], dict[str, float]] | None = None

    def metrics(self) -> dict[str, float]:
        """Return values by name: means since the last look, or of now; empty before it is time."""
        now = self._clock()
        seconds = now - self._at
        if seconds < EVERY:
            return {}
        self._at = now
        if self._gpus is None:
            self._gpus = gpus()
        found = {**self._processors(seconds), **self._memory(), **self._gpus()}
        return {f"{PREFIX}{name}": value for name, value in found.items()}

    def _processors(self, seconds: float) -> dict[str, float]:
        found = {}
        machine, own = self._busy(), self._processor_seconds()
        if machine is not None and self._machine is not None and machine[1] > self._machine[1]:
            busy, whole = (now - before for now, before in zip(machine, self._machine, strict=True))
            found["cpu_utilization_percentage"] = 100 * max(0.0, busy / whole)
        if own is not None and self._own is not None:
            # Less than before where a process has ended that nobody has waited for.
            found["task_cpu_percentage"] = 100 * max(0.0, own - self._own) / seconds
        self._machine, self._own = machine, own
        return found

    def _memory(self) -> dict[str, float]:
        found = {}
        with contextlib.suppress(OSError, ValueError, KeyError):
            lines = (self._proc / "meminfo").read_text().splitlines()
            sizes = {
                name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)
            }
            used = 1024 * (sizes["MemTotal"] - sizes["MemAvailable"])
            found["system_memory_usage_megabytes"] = used / _MEGA
        pages = [size for pid in self._processes() if (size := self._resident(pid)) is not None]
        if pages:
            found["task_memory_megabytes"] = sum(pages) * os.sysconf("SC_PAGE_SIZE") / _MEGA
        return found

    def _busy(self) -> tuple[float, float] | None:
        """Return how much the processors have worked, and how much there was of them."""
        try:
            first = (self._proc / "stat").read_text().split("\n", 1)[0].split()
            user, nice, system, idle, iowait, *rest = map(int, first[1:9])  # guests are in user
        except (OSError, ValueError):
            return None
        busy = user + nice + system + sum(rest)
        return float(busy), float(busy + idle + iowait)

    def _processor_seconds(self) -> float | None:
        """Return those of this process and of all that it has started."""
        found = []
        for pid in self._processes():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (self._proc / pid / "stat").read_text().rpartition(")")[2].split()
                found.append(sum(map(int, fields[11:15])))  # its own, and of those it waited for
        return sum(found) / os.sysconf("SC_CLK_TCK") if found else None

    def _resident(self, pid: str) -> int | None:
        try:
            return int((self._proc / pid / "statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None

    def _processes(self) -> Iterator[str]:
        """Yield the numbers of this process and of those that it has started, and so on."""
        waiting = [str(os.getpid())]
        while waiting:
            pid = waiting.pop()
            yield pid
            with contextlib.suppress(OSError):
                for thread in (self._proc / pid / "task").iterdir():
                    with contextlib.suppress(OSError):
                        waiting += (thread / "children").read_text().split()


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
