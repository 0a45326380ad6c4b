"""Every key of ``conf/`` is read by code: the type checker says where, of each class and field."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.config import groups, schema, strategies
from dtrain.config.presets import launchers
from dtrain.data.holdout import Holdout
from dtrain.data.options import Options
from tests.strategies import OF_TENSORFLOW
from tests.test_schema import composed

PACKAGE = Path(schema.__file__).parent.parent
SCHEMA = Path("config/schema.py")
LAUNCHER = Path("controller/launchers/base.py")
#: Each without the fields of a class the type checker reports every place that reads one of them.
#: Those of Config apart from the others: where ``config.trainer`` is unknown, its fields are too.
PASSES: list[dict[Path, tuple[str, ...]]] = [
    {SCHEMA: ("Config",)},
    {
        SCHEMA: ("Hardware", "Trainer", "Checkpointing", "Sweep", "Init", "FineTuning"),
        LAUNCHER: ("Launcher",),
    },
]
_ERROR = re.compile(r'^(.+?):(\d+):(\d+): error: "(\w+)" has no attribute "(\w+)"', re.M)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def without_fields(path: Path, classes: tuple[str, ...]) -> str:
    """Return a module whose classes declare nothing and keep no argument."""
    lines = path.read_text().split("\n")
    for node in tree(path).body:
        if not isinstance(node, ast.ClassDef) or node.name not in classes:
            continue
        kept = [s for s in ast.walk(node) if isinstance(s, ast.Assign)
                and ast.unparse(s.targets[0]).startswith("self.")]  # fmt: skip
        declared = [s for s in node.body if isinstance(s, ast.AnnAssign)]
        for statement in [*kept, *declared]:
            first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
            lines[first:last] = [" " * statement.col_offset + "pass"] * (last - first)
    return "\n".join(lines)


def is_read(path: Path, line: int, column: int, name: str) -> bool:
    """Say whether the attribute at a place is read, and not assigned to."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
        and (node.lineno, node.col_offset + 1) == (line, column)
        for node in ast.walk(tree(path))
    )  # fmt: skip


def reads(folder: Path, package: Path = PACKAGE) -> set[tuple[str, str]]:
    """Return the classes and fields that code reads."""
    found = set()
    for number, files in enumerate(PASSES):
        shadows = []
        for path, classes in files.items():
            shadow = folder / f"{number}_{path.name}"
            shadow.write_text(without_fields(package / path, classes))
            shadows += ["--shadow-file", str(package / path), str(shadow)]
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=skip",
             f"--cache-dir={folder / 'cache'}", "--ignore-missing-imports", "--no-error-summary",
             "--show-column-numbers", *shadows, str(package)],
            capture_output=True, text=True, cwd=package.parent,
        )  # fmt: skip
        for place, line, column, owner, name in _ERROR.findall(done.stdout):
            if is_read(package.parent / place, int(line), int(column), name):
                found.add((owner, name))
    return found


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    return reads(tmp_path_factory.mktemp("types"))


@pytest.mark.parametrize(
    "kind",
    [
        schema.Config,
        schema.Hardware,
        schema.Trainer,
        schema.Checkpointing,
        schema.Sweep,
        schema.Init,
        schema.FineTuning,
    ],
)
def test_every_field_of_a_section_is_read(kind: type, known: set[tuple[str, str]]) -> None:
    dead = {f.name for f in dataclasses.fields(kind)} - {n for o, n in known if o == kind.__name__}
    assert not dead, f"nothing reads {sorted(dead)} of {kind.__name__}"


def test_every_key_of_a_launcher_is_read(known: set[tuple[str, str]]) -> None:
    classes = {"Launcher", "Local", "Env", "Inline"}
    dead = keys(schema.Launcher) - {n for owner, n in known if owner in classes}
    assert not dead, f"nothing reads {sorted(dead)} of a launcher"
    assert "environment" in used("dtrain.controller.launchers.Env")
    assert not keys(launchers.Ssh) - keys(schema.Launcher) - used("dtrain.controller.launchers.Ssh")


# --- keys that a function or class of dtrain takes by their names


def keys(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)} - {"_target_"}


def definition(target: str) -> tuple[Any, list[Path]]:
    """Return the function or class that a target names, and the files that are its own."""
    *parts, name = target.split(".")[1:]
    place = PACKAGE.joinpath(*parts)
    if parts == ["task", "strategies"]:  # a registry of the backend's
        place = PACKAGE / "task" / "backends" / "tensorflow"
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    for path in [*paths, PACKAGE / "data" / "text.py"]:  # which datasets import
        for node in tree(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                alone = path.parent in (place, place.parent)
                return node, [path] if alone else sorted(path.parent.glob("*.py"))
    raise LookupError(target)


def loaded(node: ast.AST, kind: type) -> Iterator[Any]:
    """Yield the names, attributes or items that code reads."""
    yield from (n for n in ast.walk(node) if isinstance(n, kind) and isinstance(n.ctx, ast.Load))


def used(target: str) -> set[str]:
    """Return the parameters that a function, a class or a base of it uses.

    One that is only kept (``self._x = x``) is used where the files of its own read the attribute.
    """
    node, files = definition(target)
    found: set[str] = set()
    if isinstance(node, ast.ClassDef):
        for base in map(ast.unparse, node.bases):
            with contextlib.suppress(LookupError):
                found |= used(".".join([*target.split(".")[:-1], base]))
        made = [each for each in node.body if getattr(each, "name", "") == "__init__"]
        if not made:
            return found
        node = made[0]
    attributes = {each.attr for path in files for each in loaded(tree(path), ast.Attribute)}
    kept = {
        each.value: targets[0].attr
        for each in ast.walk(node)
        if isinstance(each, ast.Assign | ast.AnnAssign)
        and isinstance((targets := getattr(each, "targets", None) or [each.target])[0],
                       ast.Attribute)
    }  # fmt: skip
    if "Holdout(**holdout)" in ast.unparse(node):
        found |= keys(Holdout)
    return found | {
        each.id for each in loaded(node, ast.Name) if each not in kept or kept[each] in attributes
    }


#: Of every dataset: the task reads them, as attributes; the controller reads `test` of the node.
OPTIONS = {field.name for field in dataclasses.fields(Options)}


def test_every_option_of_datasets_is_read() -> None:
    paths = [*(PACKAGE / "task").rglob("*.py"), *(PACKAGE / "data").rglob("*.py")]
    read = {
        each.attr
        for path in paths
        for each in loaded(tree(path), ast.Attribute)
        if ast.unparse(each.value).endswith("options")
    }
    assert '"test"' in (PACKAGE / "controller" / "derived.py").read_text()
    assert not OPTIONS - read - {"test"}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=f"{group}={name}")
        for group in ("model", "dataset", "optimizer/schedule")
        for name, kind in groups.SCHEMAS[group].items()
    ],
)
def test_every_key_of_a_preset_is_used_by_its_function(kind: Any) -> None:
    [target] = [f.default for f in dataclasses.fields(kind) if f.name == "_target_"]
    dead = keys(kind) - OPTIONS - used(str(target))
    assert not dead, f"{target} does not use {sorted(dead)}"


def test_a_parameter_that_is_only_kept_is_not_used(tmp_path: Path) -> None:
    code = "class A:\n def __init__(self, a, b, c):\n  self._a = a\n  self._b = b\n"
    (tmp_path / "m.py").write_text(f"{code} def get(self):\n  return self._a\n")
    global PACKAGE
    before, PACKAGE = PACKAGE, tmp_path
    try:
        assert used("dtrain.m.A") == {"self", "a"}
    finally:
        PACKAGE = before


# --- keys that are read from a node


@functools.cache
def nodes() -> set[str]:
    """Return what is read of a node: ``tracking.uri``, ``node['schedule']``, ``pop('x')``."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for each in loaded(tree(path), ast.Attribute):
            found.add(".".join(ast.unparse(each).split(".")[-2:]))
        for each in loaded(tree(path), ast.Subscript):
            found.add(ast.unparse(each))
        for call in (n for n in ast.walk(tree(path)) if isinstance(n, ast.Call) and n.args):
            found.add(f"{getattr(call.func, 'attr', '')}({ast.unparse(call.args[0])})")
    return found


def test_every_key_of_the_trackers_is_read() -> None:
    dead = {key for key in keys(schema.MLflow) if f"tracking.{key}" not in nodes()}
    assert not dead, f"nothing reads {sorted(dead)} of tracking"


def test_nodes_in_groups_are_read() -> None:
    assert "options.augment" in nodes()
    assert {"node['schedule']", "pop('schedule')", "get('schedule')"} & nodes()


@pytest.mark.parametrize("name", OF_TENSORFLOW)
def test_every_key_of_a_strategy_is_used_by_its_class_or_its_plan(name: str) -> None:
    strategy = composed(f"strategy={name}").strategy
    taken = used(strategy["_target_"]) | used(strategy["plan"]["_target_"])
    dead = set(strategy) - {"_target_", "plan", "name"} - taken
    assert not dead, f"strategy={name} does not use {sorted(dead)}"
    assert "strategy.name" in nodes()
    assert {f"mesh['{axis}']" for axis in keys(strategies.Mesh)} <= nodes()
