"""Python files that are read, and not imported: which names a module has, what a function takes.

It is known only where a file says it plainly: whatever could have been made in another way (a
decorator, a name that is bound twice, a base class that is not found) is for the task to find out.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from dtrain.config.callables import KNOWN

Definition = ast.FunctionDef | ast.ClassDef
#: Decorators that leave a function or a class what it is.
_PLAIN = ("keras_export", "register_keras_serializable")
#: The default of a parameter that is no plain value.
_HIDDEN = object()


def module(name: str) -> tuple[Path, int] | None:
    """Return the file of the module that a name begins with, and of how many parts its name is."""
    parts = name.split(".")
    path: list[str] = [*sys.path, os.getcwd()]
    file = None
    for depth in range(1, len(parts)):
        name = ".".join(parts[:depth])
        if name in sys.modules and parts[0] not in KNOWN:
            return None  # of the caller of the Python API, who may have changed it
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            break
        file = Path(spec.origin), depth
        if spec.submodule_search_locations is None:
            break
        path = list(spec.submodule_search_locations)
    return file if file is not None and file[0].suffix == ".py" else None


def tree(path: Path) -> ast.Module | None:
    """Return what a file says; None where it cannot be read."""
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


@functools.lru_cache(64)
def _parsed(path: Path, changed: int) -> ast.Module:
    return ast.parse(path.read_bytes())


def defined(path: Path) -> set[str] | None:
    """Return the names that a module defines; None where it may have others."""
    if (whole := tree(path)) is None:
        return None
    names: set[str] = set()
    for node in _outside(whole):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(each.asname or each.name).split(".")[0] for each in node.names}
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    changed = {"*", "__getattr__", "globals", "vars", "locals", "exec", "eval", "setattr"}
    return None if names & changed else names


def _outside(whole: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of a module that are not inside of a function or a class."""
    pending: list[ast.AST] = [whole]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            pending += ast.iter_child_nodes(node)


@dataclasses.dataclass(frozen=True)
class _Import:
    """What an import binds to a name: the dotted name of the thing."""

    target: str


class _Module:
    """A module's file."""

    def __init__(self, name: str, path: Path):
        self.name, self.path = name, path

    def bound(self, name: str) -> Definition | _Import | None:
        """Return what the module binds a name to at its top, where one statement alone does."""
        whole = tree(self.path)
        if whole is None:
            return None
        bindings: list[Definition | _Import | None] = []
        for node in _outside(whole):
            if isinstance(node, Definition) and node.name == name:
                bindings.append(node if node in whole.body else None)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                bindings += [_Import(self._imported(node, each)) for each in node.names
                             if (each.asname or each.name.split(".")[0]) == name]  # fmt: skip
            elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                bindings.append(None)
        return bindings[0] if len(bindings) == 1 else None

    def _imported(self, node: ast.Import | ast.ImportFrom, name: ast.alias) -> str:
        """Return the dotted name of what a part of an import binds."""
        if isinstance(node, ast.Import):
            return name.name if name.asname else name.name.split(".")[0]
        return f"{self._absolute(node)}.{name.name}".lstrip(".")

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + (self.path.name == "__init__.py")]
        return ".".join(filter(None, [*parts, node.module]))

    def named(self, expression: ast.expr) -> str | None:
        """Return the dotted name of what an expression names; None where it is not plain."""
        if isinstance(expression, ast.Attribute):
            of = self.named(expression.value)
            return None if of is None else f"{of}.{expression.attr}"
        if not isinstance(expression, ast.Name):
            return None
        bound = self.bound(expression.id)
        if isinstance(bound, _Import):
            return bound.target
        return f"{self.name}.{expression.id}" if isinstance(bound, Definition) else None


def definition(target: str, hops: int = 12) -> tuple[Definition, _Module] | None:
    """Return the definition of a function or class, and the module that has it.

    Args:
        target: its dotted name, which may be of a module that only imports it.
        hops: imports that are followed, at most.
    """
    parts = target.split(".")
    found = module(target)
    if found is None or not hops or found[1] != len(parts) - 1:
        return None
    place = _Module(".".join(parts[:-1]), found[0])
    bound = place.bound(parts[-1])
    if isinstance(bound, Definition):
        return bound, place
    return definition(bound.target, hops - 1) if isinstance(bound, _Import) else None


def imported(target: str, depth: int) -> str | None:
    """Return what stands behind the part ``depth`` of a name, if its module only imports that."""
    parts = target.split(".")
    found = module(target)
    if found is None or found[1] != depth:
        return None
    place = _Module(".".join(parts[:depth]), found[0])
    bound = place.bound(parts[depth])
    return bound.target if isinstance(bound, _Import) else None


def is_class(target: str) -> bool:
    """Say whether a name is known to be of a class."""
    found = definition(target)
    return found is not None and isinstance(found[0], ast.ClassDef)


def signature(target: str) -> inspect.Signature | None:
    """Return the parameters of a function or class; None where its file does not say them all."""
    found = definition(target)
    if found is None or not all(map(_is_plain, found[0].decorator_list)):
        return None
    node, place = found
    if isinstance(node, ast.FunctionDef):
        return _signature(node.args)
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    if node.keywords or ("__new__" in methods and place.name.split(".")[0] not in KNOWN):
        return None
    bases = [place.named(base) for base in node.bases]
    if "__init__" not in methods:
        return _of_bases(bases, place)
    init = methods["__init__"]
    if init.decorator_list:
        return None
    made = _signature(init.args, skip=1)
    rest = _passed_on(init)
    if rest is None or init.args.kwarg is None:
        return made
    names, call = rest
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_HIDDEN)
            for name in names]  # fmt: skip
    if call is not None:
        of_base = _of_bases(bases, place)
        if of_base is None:
            return made
        passed = {each.arg for each in call.keywords}
        more += [each.replace(kind=each.KEYWORD_ONLY)
                 for each in list(of_base.parameters.values())[len(call.args) :]
                 if each.name not in passed and each.kind is not each.VAR_KEYWORD]  # fmt: skip
        if any(each.kind is each.VAR_KEYWORD for each in of_base.parameters.values()):
            return made
    own = [each for each in made.parameters.values() if each.kind is not each.VAR_KEYWORD]
    others: dict[str, inspect.Parameter] = {}
    for each in more:
        others.setdefault(each.name, each)
    for each in own:
        others.pop(each.name, None)
    return inspect.Signature([*own, *others.values()])


def _is_plain(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).split(".")[-1] in _PLAIN


def _of_bases(bases: list[str | None], place: _Module) -> inspect.Signature | None:
    """Return the parameters of the first base class that has its own."""
    if not bases:
        return inspect.Signature()
    for base in bases:
        found = None if base is None else signature(base)
        if found is not None:
            return found
        if place.name.split(".")[0] not in KNOWN:  # of Keras', one depends on the backend
            return None
    return None


def _signature(arguments: ast.arguments, skip: int = 0) -> inspect.Signature:
    kinds = inspect.Parameter
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    found = [
        kinds(each.arg, kinds.POSITIONAL_OR_KEYWORD, default=_value(default))
        for each, default in zip(plain, [*defaults, *arguments.defaults], strict=True)
    ][skip:]
    if arguments.vararg:
        found.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    found += [
        kinds(each.arg, kinds.KEYWORD_ONLY, default=_value(default))
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        found.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(found)


def _value(default: ast.expr | None) -> Any:
    if default is None:
        return inspect.Parameter.empty
    try:
        return ast.literal_eval(default)
    except ValueError:
        return _HIDDEN


def _passed_on(init: ast.FunctionDef) -> tuple[list[str], ast.Call | None] | None:
    """Return what a constructor does with its ``**kwargs``.

    Returns:
        The names that it takes out of them, and the call of the base's constructor that gets the
        rest, None where the rest is refused. None where it does anything else with them.
    """
    name = init.args.kwarg.arg if init.args.kwarg else ""
    names: list[str] = []
    calls: list[ast.Call | None] = []
    understood = 0
    for node in ast.walk(init):
        if isinstance(node, ast.If) and ast.unparse(node.test) == name:
            if any(isinstance(each, ast.Raise) for each in node.body):
                understood += sum(_is(each, name) for each in ast.walk(node))
                calls.append(None)
        elif isinstance(node, ast.Call):
            function = node.func
            method = ""
            if isinstance(function, ast.Attribute) and _is(function.value, name):
                method = function.attr
            if method in ("pop", "get"):
                if not node.args or not isinstance(node.args[0], ast.Constant):
                    return None
                names.append(str(node.args[0].value))
                understood += 1
            elif any(each.arg is None and _is(each.value, name) for each in node.keywords):
                if ast.unparse(function) != "super().__init__":
                    return None
                calls.append(node)
                understood += 1
        elif isinstance(node, ast.Compare) and ast.unparse(node).endswith(f" in {name}"):
            understood += 1
    uses = sum(_is(node, name) for node in ast.walk(init))
    if understood != uses or len(calls) != 1:
        return None
    return names, calls[0]


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
