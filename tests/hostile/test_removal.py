"""Only :mod:`dtrain.files.writing` removes, cuts off or writes over: all sources, read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dtrain

SOURCE = Path(dtrain.__file__).parent
#: Functions of modules that remove, cut off or write over what has a name.
FUNCTIONS = {
    "os": {"remove", "unlink", "rmdir", "removedirs", "rename", "renames", "replace", "truncate",
           "ftruncate"},
    "shutil": {"rmtree", "move", "copy", "copy2", "copyfile", "copytree"},
    "pathlib": {"Path.unlink"},
}  # fmt: skip
#: Methods that do, of a path or an open file. `replace` and `rename` of one argument are a path's.
METHODS = {"unlink", "rmdir", "rmtree", "truncate", "write_text", "write_bytes", "touch"}
#: Names of functions that may be imported alone.
ALONE = {name for names in FUNCTIONS.values() for name in names}


def removals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Find what removes; the line, and what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in FUNCTIONS:
            for each in node.names:
                if each.name in ALONE:
                    yield node.lineno, f"from {node.module} import {each.name}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if name in FUNCTIONS.get(owner, ()):
                yield node.lineno, f"{owner}.{name}"
            if owner == "os" and name == "O_TRUNC":
                yield node.lineno, "os.O_TRUNC"
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        named = isinstance(function, ast.Name) and function.id == "open"
        if isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            if owner == "writing":
                continue
            if function.attr in METHODS and owner not in ("os", "shutil"):
                yield node.lineno, f".{function.attr}()"
            one = len(node.args) == 1 and not node.keywords
            if (
                function.attr in ("replace", "rename")
                and one
                and owner not in ("os", "dataclasses")
            ):
                yield node.lineno, f".{function.attr}()"
        if named or (isinstance(function, ast.Attribute) and function.attr in ("open", "fdopen")):
            modes = [
                each.value
                for each in [*node.args, *(k.value for k in node.keywords)]
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
            if any("w" in mode and set(mode) <= set("rwxabt+") for mode in modes):
                yield node.lineno, "open(..., 'w')"


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.remove(a)", "os.replace(a, b)", "os.ftruncate(a, 0)", "shutil.rmtree(a)",
        "from os import unlink", "from shutil import rmtree as gone", "path.unlink()",
        "path.unlink(missing_ok=True)", "path.rmdir()", "(a / b).replace(c)", "a.rename(b)",
        "path.open('w')", "open(a, mode='wb')", "path.write_text('')", "(a / b).write_bytes(c)",
        "os.open(a, os.O_WRONLY | os.O_TRUNC)", "file.truncate()", "remove = os.unlink",
        "os.fdopen(a, 'w')", "os.rename(a, b)",
    ],
)  # fmt: skip
def test_it_is_found(code: str) -> None:
    assert list(removals(ast.parse(code)))


def test_one_module_removes() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{line}: {what}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path != SOURCE / "files" / "writing.py"
        for line, what in removals(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not found
