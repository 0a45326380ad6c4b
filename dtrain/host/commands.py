"""The commands that there are, found without an import of them: a task process may ask."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parents[1] / "cli" / "commands"
#: The first line of a command's module.
_FIRST = re.compile(r'"""``python -m dtrain (.+)``: (.+)\.')


class Summary(NamedTuple):
    """A command in a line: what is typed, and what it does."""

    usage: str
    does: str


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all commands."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("[!_]*.py")))


def summary(name: str) -> Summary:
    """Return what the first line of a command's module says."""
    with (_FOLDER / f"{name}.py").open(encoding="utf-8") as file:
        match = _FIRST.match(file.readline())
    assert match is not None, name
    return Summary(match[1], match[2])
