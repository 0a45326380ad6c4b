"""How much memory is free, for us: of the machine, and of the control group that we are in."""

from __future__ import annotations

import os
from pathlib import Path

#: Of the two versions of Linux' control groups: where they are, the files with the limit and the
#: usage, and the name of what of the usage is only a cache.
_CGROUPS = {
    "": ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": (
        "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}  # fmt: skip


def available() -> int | None:
    """Return the bytes of memory that are free for us; None where the system does not say."""
    found = [1024 * _number(Path("/proc/meminfo"), "MemAvailable:")]
    for line in _lines(Path("/proc/self/cgroup")):
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        for name in controllers.split(","):
            if name in _CGROUPS:
                root, limit, usage, cache = _CGROUPS[name]
                own = Path(root, group.lstrip("/"))
                for folder in (own, *own.parents):
                    if folder.is_relative_to(root):
                        found.append(_left(folder / limit, folder / usage, cache))
    known = [size for size in found if size >= 0]
    return min(known) if known else None


def mapped() -> int:
    """Return the bytes of files that are mapped into the memory of this process, and are in it."""
    words = " ".join(_lines(Path("/proc/self/statm"))).split()
    return int(words[2]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 2 else 0


def _left(limit: Path, usage: Path, cache: str) -> int:
    """Return what a control group may take more, negative where that is not limited."""
    most, used = _number(limit), _number(usage)
    if most < 0 or used < 0:
        return -1
    return max(0, most - used + max(0, _number(usage.with_name("memory.stat"), cache)))


def _number(path: Path, name: str = "") -> int:
    """Return the number in a file of the kernel's, beside ``name``; negative if there is none."""
    for line in _lines(path):
        words = line.removeprefix(name).split()
        if line.startswith(name) and words and words[0].isdigit():
            return int(words[0])
    return -1


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system, or another version of control groups
        return []


def text(size: int) -> str:
    """Return a number of bytes as it is read."""
    return f"{size / 2**30:,.1f} GiB"
