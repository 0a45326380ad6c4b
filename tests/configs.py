"""Configurations of tests: of what they give, with the defaults of all else."""

from __future__ import annotations

from pathlib import Path

from dtrain.config import schema, tree
from dtrain.config.node import Node, Plain


def parsed(values: dict[str, Plain], path: Path = Path("config.yaml")) -> tree.Config:
    """Return the configuration that a file with some values, and the defaults of others, has."""
    whole = {key: each for key, each in schema.defaults(schema.Config).items() if each != "???"}
    for key, value in values.items():
        known = whole.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        whole[key] = {**known, **value} if both else value
    return tree.parse(whole, path)


def section(name: str, **changed: Plain) -> Plain:
    """Return a section, such as ``hardware``, with its defaults."""
    return Node({**schema.defaults(schema.sections()[name]), **changed})
