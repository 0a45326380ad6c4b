"""SLURM's lists of hosts: ``n[1-2,05-10],x[1-2]y[3]`` and how many tasks each has: ``2(x3),1``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

#: Most hosts of one list, as in SLURM itself (MAX_RANGE of its hostlist.c).
MOST = 64 * 1024


def hosts(text: str) -> list[str]:
    """Return the names that a list stands for, in its order.

    A name may have several brackets; each of a bracket's numbers has as many digits as the first
    of its range.

    Args:
        text: as in ``SLURM_STEP_NODELIST``.

    Raises:
        ValueError: it is no such list; the message is a clause that says why.
    """
    found: list[str] = []
    for item in _items(text):
        parts = [_part(part) for part in re.split(r"(\[[^\[\]]*\])", item) if part]
        for names in itertools.product(*parts):
            found.append("".join(names))
            if len(found) > MOST:
                raise ValueError(f"stands for more than {MOST:,} hosts")
    if not found:
        raise ValueError("names no host")
    return found


def tasks(text: str) -> list[int]:
    """Return how many tasks each host has: ``2(x3),1`` is 2, 2, 2, 1.

    Args:
        text: as in ``SLURM_STEP_TASKS_PER_NODE``.

    Raises:
        ValueError: it is something else; the message is a clause.
    """
    counts: list[int] = []
    for item in text.split(","):
        parsed = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", item.strip())
        if parsed is None:
            raise ValueError(f"{item!r} is no number of tasks")
        counts += [int(parsed[1])] * int(parsed[2] or 1)
        if len(counts) > MOST:
            raise ValueError(f"stands for more than {MOST:,} hosts")
    return counts


def _items(text: str) -> Iterator[str]:
    """Yield what stands between the commas that are in no bracket."""
    if re.fullmatch(r"([^\[\]\s]|\[[^\[\]\s]*\])+", text) is None:
        raise ValueError("has a bracket that does not end, one in another, or a space")
    yield from re.findall(r"(?:[^\[\],]|\[[^\[\]]*\])+", text)


def _part(part: str) -> list[str]:
    """Return the texts that a bracket, or what stands between two, may be."""
    if not part.startswith("["):
        return [part]
    found: list[str] = []
    for item in part[1:-1].split(","):
        parsed = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", item)
        if parsed is None:
            raise ValueError(f"{item!r} in brackets is no range of numbers")
        first, last = int(parsed[1]), int(parsed[2] or parsed[1])
        if last < first or last - first >= MOST:
            raise ValueError(f"{item!r} in brackets is no range of up to {MOST:,} numbers")
        found += [str(number).zfill(len(parsed[1])) for number in range(first, last + 1)]
    return found
