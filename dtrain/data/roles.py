"""Which columns of a table are inputs, targets and weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data.table import Table, described
from dtrain.errors import UsageError, nearest

#: Names of columns for one role: one, a list of numbers that are put side by side, or by name.
Names = str | Sequence[str] | Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Role:
    """Columns that are inputs, targets or weights.

    Attributes:
        names: as configured, without None.
        key: that names them.
    """

    names: Any
    key: str

    def columns(self) -> list[str]:
        """Return the names of all columns, each once."""
        return list(dict.fromkeys(flat(self.names)))

    def arrange(self, values: Mapping[str, Any]) -> Any:
        """Return the structure of arrays: a list of names becomes one array of their numbers."""
        return _arranged(self.names, values)


def flat(names: Names) -> Iterator[str]:
    """Yield the names of the columns of a role, or of none."""
    if isinstance(names, Mapping):
        for part in names.values():
            yield from flat(part)
    else:
        yield from [names] if isinstance(names, str) else names or ()


def _arranged(names: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(names, Mapping):
        return {str(key): _arranged(part, values) for key, part in names.items()}
    if isinstance(names, str):
        return values[names]
    return np.stack([values[name].astype(np.float32) for name in names], axis=1)


def role_of(names: Names, key: str, table: Table, cells: bool = False) -> Role:
    """Check the names of one role.

    Args:
        names: as configured.
        key: that names them.
        table: has the columns.
        cells: whether a list may have columns of dates and text, too.

    Raises:
        UsageError: the table has no such column, or several that are to be one array are no
            numbers.
    """
    whole = names

    def check(part: Any) -> None:
        if isinstance(part, Mapping):
            if not part:
                raise _form(key, whole)
            for each in part.values():
                check(each)
        elif isinstance(part, str):
            _known(part, key, table, alone=part is whole)
        elif isinstance(part, Sequence) and part and all(isinstance(n, str) for n in part):
            for name in part:
                _known(name, key, table, alone=False)
                column = table.columns[name]
                if not (column.is_cell if cells else column.is_number and not column.shape):
                    raise UsageError(
                        key, whole, f"the columns of a list become one array, and {name} holds "
                        f"{described(column)}",
                        "columns with one number a row in a list; others by a name: {NAME: COLUMN}",
                        f"'{key}={{{_by_names(part, table)}}}'",
                    )  # fmt: skip
        else:
            raise _form(key, whole)

    check(names)
    return Role(names, key)


def _by_names(names: Sequence[str], table: Table) -> str:
    """Return all columns of a list by names: those of one number a row are one array."""
    known = [name for name in names if name in table.columns]
    single = [n for n in known if table.columns[n].is_number and not table.columns[n].shape]
    others = [f"{name}:{name}" for name in known if name not in single]
    return ",".join([*([f"numbers:[{','.join(single)}]"] if single else []), *others])


def _form(key: str, value: Any) -> UsageError:
    return UsageError(
        key, value, "names no columns", "a column, a list of columns, or columns by name",
        f"{key}=COLUMN",
    )  # fmt: skip


def _known(name: str, key: str, table: Table, alone: bool) -> None:
    if name in table.refused:
        raise UsageError(
            key, name, table.refused[name],
            "columns of numbers, booleans, text, bytes, or lists of numbers, alike in all files",
            f"{key}=COLUMN",
        )  # fmt: skip
    if name not in table.columns:
        near = nearest(name, table.columns) or "COLUMN"
        raise UsageError(
            key, name, f"{table.files[0].name} has no such column",
            ", ".join(table.columns), f"{key}={near}" if alone else f"{near} in place of {name}",
        )  # fmt: skip


def check_weights(role: Role, table: Table) -> None:
    """Refuse columns of weights that are no numbers.

    Raises:
        UsageError: naming one.
    """
    for name in role.columns():
        column = table.columns[name]
        if not column.is_number or column.is_ragged:
            numbers = [n for n, c in table.columns.items() if c.is_number and not c.is_ragged]
            raise UsageError(
                role.key, name, f"holds {described(column)}, and weights are numbers",
                ", ".join(numbers) or "null", f"{role.key}=null",
            )  # fmt: skip
