"""Free memory, as the kernel says."""

from __future__ import annotations

import pytest

from dtrain.host import usage

V2 = "/sys/fs/cgroup"
V1 = "/sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 3000),
        # The second version of control groups: no limit here, one above.
        (
            {
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
    files: dict[str, str], found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = type("Memory", (), {"available": 3000})
    monkeypatch.setattr(usage.psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(usage, "_lines", lambda path: files.get(str(path), "").splitlines())
    assert usage.available() == found


def test_here() -> None:
    assert usage.available() > 2**20
    assert usage.text(3 * 2**30) == "3.0 GiB"
