"""One line of the report of ``python -m dtrain doctor``."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        name: of what was looked at.
        found: as text.
        doubt: what may go wrong because of it, as a sentence; empty where nothing does.
    """

    name: str
    found: str
    doubt: str = ""


def size(count: float) -> str:
    """Return a number of bytes as text."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = 0
    while count >= 1000 and power < len(units) - 1:
        count, power = count / 1000, power + 1
    return (
        f"{count:.0f} {units[power]}" if count >= 10 or not power else f"{count:.1f} {units[power]}"
    )
