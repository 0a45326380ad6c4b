"""What a task and its machine use, from a ``/proc`` of the test's own and from the real one."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from dtrain.host import usage

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def process(proc: Path, pid: int, seconds: float, pages: int, *children: int) -> None:
    """Write what Linux says of a process; its name is chosen to be read wrongly."""
    thread = proc / str(pid) / "task" / str(pid)
    thread.mkdir(parents=True, exist_ok=True)
    (thread / "children").write_text("".join(f"{child} " for child in children))
    fields = ["S", *["0"] * 10, f"{int(seconds * TICKS)}", *["0"] * 30]
    (proc / str(pid) / "stat").write_text(f"{pid} (a ) b) {' '.join(fields)}\n")
    (proc / str(pid) / "statm").write_text(f"{9 * pages} {pages} 0 0 0 0 0\n")


def machine(proc: Path, busy: int, idle: int) -> None:
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 7 7\ncpu0 1 2 3\n")
    (proc / "meminfo").write_text("MemTotal: 8000 kB\nMemFree: 1 kB\nMemAvailable: 3000 kB\n")


def test_means_since_the_last_look_at_a_bounded_rate(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(usage, "gpus", lambda: lambda: {"gpu_0_power_usage_watts": 5.0})
    clock, own = Clock(), os.getpid()
    machine(tmp_path, 100, 100)
    process(tmp_path, own, 1.0, 10, own + 1)
    process(tmp_path, own + 1, 2.0, 20)
    found = usage.Usage(tmp_path, clock)
    machine(tmp_path, 400, 200)
    process(tmp_path, own, 6.0, 10, own + 1)
    process(tmp_path, own + 1, 12.0, 20)
    clock.now = usage.EVERY - 0.1
    assert found.metrics() == {}
    clock.now = usage.EVERY
    assert found.metrics() == {
        "system/cpu_utilization_percentage": 75.0,
        "system/task_cpu_percentage": 100 * 15.0 / usage.EVERY,
        "system/system_memory_usage_megabytes": 5000 * 1024 / 1e6,
        "system/task_memory_megabytes": 30 * PAGE / 1e6,
        "system/gpu_0_power_usage_watts": 5.0,
    }
    assert found.metrics() == {}, "it was looked at just now"


def test_a_child_that_is_gone_takes_nothing_away(tmp_path: Path) -> None:
    clock, own = Clock(), os.getpid()
    machine(tmp_path, 100, 100)
    process(tmp_path, own, 1.0, 10, own + 1)
    process(tmp_path, own + 1, 50.0, 20)
    found = usage.Usage(tmp_path, clock)
    process(tmp_path, own, 2.0, 10, own + 2)  # a child that nobody has a file of
    clock.now = usage.EVERY
    values = found.metrics()
    assert values["system/task_cpu_percentage"] == 0.0
    assert "system/cpu_utilization_percentage" not in values, "no time has passed there"


def test_without_proc_nothing_is_found(tmp_path: Path) -> None:
    clock = Clock()
    found = usage.Usage(tmp_path / "none", clock)
    clock.now = usage.EVERY
    assert found.metrics() == {}


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    found = usage.Usage(clock=clock)
    clock.now = usage.EVERY
    values = found.metrics()
    assert values["system/task_memory_megabytes"] > 1
    assert values["system/task_cpu_percentage"] >= 0
    assert values["system/system_memory_usage_megabytes"] > 1


def test_gpus_by_nvidias_library(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        """As the library has it."""

    def power(handle: int) -> int:
        if handle:
            raise NVMLError("not supported")
        return 70_000

    library: Any = types.ModuleType("pynvml")
    library.NVMLError, library.nvmlInit = NVMLError, lambda: None
    library.nvmlDeviceGetCount = lambda: 2
    library.nvmlDeviceGetHandleByIndex = lambda index: index
    library.nvmlDeviceGetUtilizationRates = lambda _: types.SimpleNamespace(gpu=40)
    library.nvmlDeviceGetMemoryInfo = lambda _: types.SimpleNamespace(used=2e9, total=8e9)
    library.nvmlDeviceGetPowerUsage = power
    monkeypatch.setitem(sys.modules, "pynvml", library)
    one = {"utilization_percentage": 40.0, "memory_usage_megabytes": 2000.0,
           "memory_usage_percentage": 25.0}  # fmt: skip
    assert usage.gpus()() == {
        **{f"gpu_{i}_{name}": value for i in (0, 1) for name, value in one.items()},
        "gpu_0_power_usage_watts": 70.0,
    }


def test_without_gpus_or_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert usage.gpus()() == {}
    broken: Any = types.ModuleType("pynvml")

    def fails() -> None:
        raise RuntimeError("no driver")

    broken.nvmlInit = fails
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    assert usage.gpus()() == {}
