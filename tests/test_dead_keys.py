"""Every key of ``conf/`` is read by code: as an attribute, an item, or a parameter."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any

import pytest

from dtrain.config import schema
from dtrain.config.fields import key_of
from tests.test_schema import KINDS

PACKAGE = Path(schema.__file__).parent.parent.parent


@functools.cache
def read() -> set[str]:
    """Return the names that code reads: attributes, variables, and texts that are a name."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if "config" in path.relative_to(PACKAGE).parts:  # where they are declared
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                names.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value.rpartition(".")[2])
    return names


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_key_is_read(kind: Any) -> None:
    if kind in schema.SCHEMAS["optimizer"].values():
        return
    dead = {key_of(*each) for each in kind.model_fields.items()} - read() - {"project"}
    assert not dead, f"nothing reads {sorted(dead)} of {kind.__name__}"
