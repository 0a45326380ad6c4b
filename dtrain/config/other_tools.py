"""Words of other tools and of earlier versions, and what is typed here: ``other_tools.yaml``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TypeAlias

import yaml

#: What a refusal says to do: ``typed`` as it stands, or a ``hint``; nothing where none is near.
Advice: TypeAlias = dict[str, str]
#: Tables of other things than keys.
_OTHERS = ("function", "keyword", "command", "option of ")


@functools.cache
def tables() -> dict[str, dict[str, Advice]]:
    """Return for each tool what is typed there, and what here; read where something is refused."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return {
        tool: {str(theirs): ours if isinstance(ours, dict) else {"typed": ours}
               for theirs, ours in rows.items()}
        for tool, rows in yaml.safe_load(text).items()
    }  # fmt: skip


def tools() -> dict[str, dict[str, Advice]]:
    """Return the tables of keys, and of values of keys here, by tool."""
    return {tool: rows for tool, rows in tables().items() if not tool.startswith(_OTHERS)}


@functools.cache
def rows() -> dict[str, Advice]:
    """Return what all tools have instead of keys, and of values of keys here."""
    return {theirs: ours for rows in tools().values() for theirs, ours in rows.items()}
