"""What of a record is another thing by now: packages, variables, the machine."""

from __future__ import annotations

import dataclasses
from typing import Any

from dtrain.controller.code import recorder
from dtrain.host import packages
from dtrain.host.columns import aligned
from dtrain.run.code import Record

#: Rows of a table; the others are counted.
_MOST = 40
_ABSENT = "-"


@dataclasses.dataclass(frozen=True)
class Change:
    """One thing that differs.

    Attributes:
        kind: ``package``, ``variable`` or ``machine``.
        name: of it.
        then, now: its values; ``-`` where there is none.
    """

    kind: str
    name: str
    then: str
    now: str


def since(record: Record) -> list[Change]:
    """Return what differs between a record and this process, machine first, then packages.

    Variables are not among it: the replay gets those of the record.
    """
    now: dict[str, dict[str, str]] = {
        "machine": recorder.machine(), "package": packages.installed()[0],
    }  # fmt: skip
    then = {"machine": record["machine"], "package": record["packages"]}
    return [change for kind in now for change in _between(kind, then[kind], now[kind])]


def variables(record: Record) -> list[Change]:
    """Return the variables of this process that the replay has otherwise: as the run had them."""
    return _between("variable", record["environment"], recorder.environment())


def _between(kind: str, then: dict[str, str], now: dict[str, str]) -> list[Change]:
    names = sorted({*then, *now})
    pairs = [(name, then.get(name, _ABSENT), now.get(name, _ABSENT)) for name in names]
    return [Change(kind, name, one, other) for name, one, other in pairs if one != other]


def table(changes: list[Change]) -> list[str]:
    """Return lines with a row for each change."""
    rows: list[list[Any]] = [["", "", "then", "now"]]
    rows += [[each.kind, each.name, each.then, each.now] for each in changes[:_MOST]]
    lines = aligned(rows)
    more = len(changes) - _MOST
    return [*lines, f"and {more:,} others"] if more > 0 else lines
