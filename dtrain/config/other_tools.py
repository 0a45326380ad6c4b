"""Names of other tools, and what is typed here in their place: the table ``other_tools.txt``."""

from __future__ import annotations

import re
from pathlib import Path


def rows(file: str) -> list[list[str]]:
    """Return the rows of a table of this folder: texts with ``|`` between them."""
    lines = Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines()
    return [re.split(r" \| ?", line) for line in lines if line and not line.startswith("#")]


#: By tool, what is typed there and here; ``command``, and ``option of COMMAND``, are such, too.
_ROWS: dict[str, dict[str, str]] = {}
for _tool, _theirs, _ours in rows("other_tools.txt"):
    _ROWS.setdefault(_tool, {})[_theirs] = _ours
#: Commands of other tools; what is typed behind them stays.
COMMANDS = _ROWS.pop("command")
#: Options that other tools have, by the command here; and the words that are typed for them.
WORDS = {
    each.removeprefix("option of "): _ROWS.pop(each)
    for each in [*_ROWS] if each.startswith("option of ")
}  # fmt: skip
TOOLS = _ROWS
_ALL = {theirs: ours for each in TOOLS.values() for theirs, ours in each.items()}
#: Keys of other tools, and values of keys here.
KEYS = {theirs: ours for theirs, ours in _ALL.items() if "=" not in theirs}
VALUES = {theirs: ours for theirs, ours in _ALL.items() if "=" in theirs}
