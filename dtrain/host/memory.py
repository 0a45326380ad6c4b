"""How much memory is free, for us: of the machine, and of the control group that we are in."""

from __future__ import annotations

import math
from pathlib import Path

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
