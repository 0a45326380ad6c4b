"""What the columns of a text table are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dtrain.errors import UsageError, nearest

#: What is typed for the separator that no shell has a plain way to type.
TAB = "tab"
_LISTED = 8  # columns that a message lists


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The columns of a table that are examples.

    Attributes:
        inputs: in their order.
        target: None for none.
    """

    inputs: tuple[str, ...]
    target: str | None

    def without(self, names: Sequence[str]) -> Chosen:
        """Return those of the same target, less the inputs of these names."""
        return Chosen(tuple(each for each in self.inputs if each not in names), self.target)

    def typed(self) -> str:
        """Return them as overrides."""
        listed = self.inputs if len(self.inputs) <= _LISTED else (*self.inputs[:_LISTED], "...")
        target = "" if self.target is None else f" dataset.label={self.target}"
        return f"'dataset.inputs=[{','.join(listed)}]'{target}"


@dataclasses.dataclass(frozen=True)
class Form:
    """How text tables are written, and which of their columns are examples.

    Attributes:
        separator: between columns.
        header: whether the first line has names; None: it has, and not of numbers alone.
        label: column of the target; None: the last one, or none where there are ``inputs``.
        inputs: columns of the inputs; None: all but the target.
    """

    separator: str
    header: bool | None = None
    label: str | None = None
    inputs: tuple[str, ...] | None = None

    @property
    def first(self) -> int:
        """The line of the first row, from 1."""
        return 1 if self.header is False else 2

    def columns(self, names: Sequence[str], path: str) -> Chosen:
        """Return the columns of a file that has those of these names.

        Raises:
            UsageError: it has no such column, or only one, or its first line is no header.
        """
        if len(names) == 1 and (self.inputs is None or self.inputs != tuple(names)):
            separators = (s for s in (*";|\t ,",) if s in names[0] and s != self.separator)
            raise UsageError(
                "dataset.separator", self.separator, f"leaves {path} with one column, {names[0]!r}",
                "what stands between the columns of the file", separated(next(separators, None)),
            )  # fmt: skip
        if self.header is None and _are_numbers(names):
            raise UsageError(
                "dataset.header", None, f"every name in the first line of {path} is a number "
                f"({', '.join(names[:3])}, ...), as in a file without a header",
                "false: the first line is an example, and the columns are called 0, 1, ...; true: "
                "it has their names", "dataset.header=false",
            )  # fmt: skip
        label = self.label
        if label is None and self.inputs is None:
            label = names[-1]
        if label is not None:
            _check(label, names, path, "dataset.label")
        for name in self.inputs or ():
            _check(name, names, path, "dataset.inputs")
        if label is not None and label in (self.inputs or ()):
            raise UsageError(
                "dataset.inputs", label, "is the label", "other columns", "dataset.inputs=null"
            )
        inputs = self.inputs or tuple(name for name in names if name != label)
        return Chosen(inputs, label)


def separated(separator: str | None) -> str:
    """Return the override of a separator as a shell takes it."""
    text = "CHARACTER" if separator is None else f"'{separator}'"
    if separator == "\t":  # no shell has a plain way to type it
        text = TAB
    return f'"dataset.separator={text}"' if "'" in text else f"dataset.separator={text}"


def _check(name: str, names: Sequence[str], path: str, key: str) -> None:
    if name not in names:
        near = nearest(name, names) or "COLUMN"
        raise UsageError(
            key, name, f"{path} has no such column", ", ".join(names),
            f"{key}={near}" if key == "dataset.label" else f"'{key}=[{near}, ...]'",
        )  # fmt: skip


def _are_numbers(names: Sequence[str]) -> bool:
    """Whether names are numbers, and not those of pandas' columns, 0, 1, 2, ..."""
    if list(names) == [str(number) for number in range(len(names))]:
        return False
    try:
        return all(float(name) is not None for name in names)
    except ValueError:
        return False
