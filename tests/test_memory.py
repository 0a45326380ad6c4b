"""Free memory, as the kernel says."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtrain.host import memory

INFO = "MemTotal: 4000 kB\nMemFree: 10 kB\nMemAvailable: 3000 kB\n"
V2 = "/sys/fs/cgroup"
V1 = "/sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({"/proc/meminfo": INFO}, 3000 * 1024),
        ({"/proc/meminfo": "damaged"}, None),
        # The second version of control groups: no limit here, one above.
        (
            {
                "/proc/meminfo": INFO,
                "/proc/self/cgroup": "0::/a/b\n",
                f"{V2}/a/b/memory.max": "max",
                f"{V2}/a/b/memory.current": "100",
                f"{V2}/a/memory.max": "1000",
                f"{V2}/a/memory.current": "700",
                f"{V2}/a/memory.stat": "anon 5\ninactive_file 200\n",
            },
            500,
        ),
        # The first version.
        (
            {
                "/proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n",
                f"{V1}/x/memory.limit_in_bytes": "900",
                f"{V1}/x/memory.usage_in_bytes": "1000",
            },
            0,
        ),
    ],
)
def test_the_least_of_what_is_left(
    files: dict[str, str], found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_lines", lambda path: files.get(str(path), "").splitlines())
    assert memory.available() == found


def test_here() -> None:
    if Path("/proc/meminfo").exists():
        found = memory.available()
        assert found is not None
        assert found > 2**20
    assert memory.text(3 * 2**30) == "3.0 GiB"
