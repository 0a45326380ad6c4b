"""What a task and its machine use."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest

from dtrain.host import usage
from dtrain.run.cluster import Task
from tests.test_strategies import together


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_this_task_with_its_children_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "gpus", lambda: lambda: {"gpu_0_power_usage_watts": 5.0})
    clock = Clock()
    found = usage.Usage(clock)
    clock.now = usage.EVERY - 0.1
    assert found.metrics() == {}
    clock.now = usage.EVERY
    alone = found.metrics()
    assert alone.keys() == {
        f"system/{name}"
        for name in ("cpu_utilization_percentage", "task_cpu_percentage", "task_memory_megabytes",
                     "system_memory_usage_megabytes", "gpu_0_power_usage_watts")
    }  # fmt: skip
    assert found.metrics() == {}, "it was looked at just now"
    # A child of a child, which has taken memory and time.
    code = "x = b'1' * 200_000_000; sum(range(5_000_000)); print(len(x), flush=True); input()"
    with subprocess.Popen(
        ["sh", "-c", f'{sys.executable} -c "{code}"; true'],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None and child.stdout.readline() == "200000000\n"
        clock.now = 2 * usage.EVERY
        values = found.metrics()
        child.communicate("\n")
    memory = "system/task_memory_megabytes"
    assert values[memory] > alone[memory] + 150
    assert values["system/task_cpu_percentage"] > 0
    assert values["system/system_memory_usage_megabytes"] > values[memory]
    clock.now = 3 * usage.EVERY
    assert found.metrics()["system/task_cpu_percentage"] >= 0, "the child is gone"


def test_hosts_have_their_names() -> None:
    """Each host once, whichever of its tasks looks; the chief's has the names of one alone."""
    seen = {"system/cpu_utilization_percentage": 1.0, "system/task_cpu_percentage": 2.0}
    other = {name: 3.0 for name in seen}
    found = usage.of_hosts([("a", seen), ("b", other), ("b", seen), ("a", other)])
    assert found == seen | {
        "system/b/cpu_utilization_percentage": 3.0, "system/b/task_cpu_percentage": 3.0,
    }  # fmt: skip


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


def _trained(cluster: Any, task: Any, devices: list[str], folder: str) -> list[str]:
    """Look from two tasks, each on a host of its own name; return the names of the values."""
    import platform
    from pathlib import Path

    from dtrain.task.strategies import MultiWorker
    from dtrain.task.train.recorder import NullRecords
    from tests.test_recorder import made

    platform.node = lambda: f"node {task.index}-{task.role}"
    tasks = MultiWorker(devices, cluster, task, "auto").tasks
    chief = task.role == "chief"
    records = made(Path(folder) / "run") if chief else NullRecords(None)
    assert records.usage(tasks, False) == {}
    return sorted(records.usage(tasks, True))


def test_the_chief_has_what_other_hosts_use(tmp_path: Any) -> None:
    tasks = [Task("chief", 0, 1), Task("worker", 0, 1)]
    chief, other = together(_trained, tasks, 2, folder=str(tmp_path))
    names = ("cpu_utilization_percentage", "system_memory_usage_megabytes",
             "task_cpu_percentage", "task_memory_megabytes")  # fmt: skip
    assert {*chief} == {f"system/{host}{name}" for host in ("", "node_0-worker/") for name in names}
    assert chief == other
