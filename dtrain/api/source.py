"""The source of what a notebook or a script defines, as a module of its own.

The text holds the function or class, and what it uses of the names beside it: other functions and
classes, imports, plain values. What cannot be written down so is :class:`NoSource`.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dataclasses
import functools
import inspect
import linecache
import re
import symtable
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dtrain.files.fields import Values

_FUTURE = __future__.annotations.compiler_flag
#: A place in a module that was given, in a traceback and in an error.
_GIVEN = re.compile(
    r'(?P<head>File ")?[^\s"(]*/(?P<module>given_[0-9a-f]+)\.py"?, line (?P<line>\d+)'
)
_LONGEST = 2000  # characters of a plain value
#: What a module is written of.
Definition = types.FunctionType | type


class NoSource(Exception):
    """Something has no source that means the same elsewhere; the argument says why."""


def text_of(value: Definition) -> tuple[str, list[Place]]:
    """Return the text of a module that defines ``value``, a function or class, by its name.

    Returns:
        The text, and where its definitions come from.

    Raises:
        NoSource: it cannot be written down.
    """
    collected = _Collected()
    collected.add(value.__name__, value)
    future = ["from __future__ import annotations"] if collected.future else []
    head = f'"""{value.__name__}, as it was given to dtrain from Python."""'
    parts = [head, *future, "\n".join(sorted(collected.imports))]
    places, line = [], sum(part.count("\n") + 2 for part in parts) + 1
    for part in collected.parts:
        if part in collected.places:
            file, there = collected.places[part]
            places.append(Place(line, part.count("\n") + 1, file, there))
        line += part.count("\n") + 2
    return "\n\n".join([*parts, *collected.parts]) + "\n", places


@dataclasses.dataclass(frozen=True)
class Place:
    """Where lines of a module that was given stand in the file or the cell of the caller's.

    Attributes:
        line: the first of them in the module, from 1.
        count: how many they are.
        file, there: the caller's file, and the first of them in it.
    """

    line: int
    count: int
    file: str
    there: int


def placed(text: str, given: Mapping[str, Sequence[Place]]) -> str:
    """Return a text in which a place in a module that was given is the one of the caller's.

    Args:
        text: with places as a traceback or an error has them.
        given: the places by the name of the module.
    """

    def own(match: re.Match[str]) -> str:
        module, line = match["module"], int(match["line"])
        for place in given.get(module, ()):
            if place.line <= line < place.line + place.count:
                at = place.there + line - place.line
                cell = _cell(place.file)
                head = f'File "{place.file}"' if match["head"] else place.file
                return f"{cell or head}, line {at}"
        return match[0]

    return _GIVEN.sub(own, text)


def _cell(file: str) -> str | None:
    """Return how IPython calls the cell that a file stands for, None for another file."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(file)
    return None if named is None else " ".join(named)


def is_importable(value: object) -> bool:
    """Say whether another process finds a function or class by its module and name."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    spec = getattr(module, "__spec__", None)
    if module is None or spec is None or spec.origin is None or module.__name__ == "__main__":
        return False
    found: Any = module
    for name in getattr(value, "__qualname__", "<none>").split("."):
        found = getattr(found, name, None)
    return found is value


class _Collected:
    """What stands in the module: imports, and definitions in an order that works."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.parts: list[str] = []
        self.places: dict[str, tuple[str, int]] = {}  # file and first line of a part
        self.future = False
        self._done: dict[str, object] = {}

    def add(self, name: str, value: Any) -> None:
        """Have ``name`` mean ``value`` in the module."""
        if name in self._done:
            if self._done[name] is not value:
                raise NoSource(f"two things are called {name}")
            return
        self._done[name] = value
        if inspect.ismodule(value):
            self._module(name, value)
        elif isinstance(value, type | types.FunctionType) and not is_importable(value):
            self._definition(name, value)
        elif is_importable(value) and "." not in value.__qualname__:
            self.imports.add(f"from {value.__module__} import {value.__qualname__} as {name}")
        else:
            self.parts.append(f"{name} = {_plain(name, value)}")

    def _module(self, name: str, value: types.ModuleType) -> None:
        if sys.modules.get(value.__name__) is not value or value.__name__ == "__main__":
            raise NoSource(f"{name} is a module that cannot be imported")
        self.imports.add(f"import {value.__name__} as {name}")

    def _definition(self, name: str, value: Definition) -> None:
        if value.__name__ != name or value.__qualname__ != name:
            raise NoSource(f"{value.__qualname__} is not defined by itself")
        text, file, line = _source(value)
        codes = [function.__code__ for _, function in _functions(value)]
        future = any(code.co_flags & _FUTURE for code in codes)
        self.future |= future
        _check(text, value, future)
        space = vars(sys.modules[value.__module__]) if isinstance(value, type) else {}
        space = getattr(value, "__globals__", space)
        for used in sorted(_used(text)):
            if used in space and used != name:
                self.add(used, space[used])
            elif used not in space and not hasattr(builtins, used):
                raise NoSource(f"{name} uses {used}, which is not defined")
        self.parts.append(text)
        self.places[text] = file, line


def _plain(name: str, value: object) -> str:
    """Return a value as it is written in Python."""
    text = repr(value)
    try:
        same = len(text) <= _LONGEST and ast.literal_eval(text) == value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        same = False
    if same is not True:
        raise NoSource(f"{name} is {type(value).__name__}, and no plain value")
    return text


def _functions(value: Definition) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the functions that a function or class consists of, with their qualified names."""
    if isinstance(value, types.FunctionType):
        yield value.__qualname__, value
        return
    for part in vars(value).values():
        part = part.fget if isinstance(part, property) else getattr(part, "__func__", part)
        if isinstance(part, types.FunctionType) and part.__module__ == value.__module__:
            found = inspect.unwrap(part)
            if found.__qualname__.startswith(f"{value.__qualname__}."):
                yield found.__qualname__, found


def _source(value: Definition) -> tuple[str, str, int]:
    """Return the lines of a definition, its file, and its first line there."""
    if isinstance(value, types.FunctionType):
        if value.__closure__ or value.__name__ == "<lambda>":
            raise NoSource(f"{value.__name__} has values of a function around it")
        if hasattr(value, "__wrapped__"):
            raise NoSource(f"{value.__name__} is wrapped by another function")
        try:
            lines, first = inspect.getsourcelines(value)
            return textwrap.dedent("".join(lines)).rstrip(), value.__code__.co_filename, first
        except (OSError, TypeError, SyntaxError):
            raise NoSource(f"{value.__name__} was typed where no source is kept") from None
    for _, function in _functions(value):
        code = function.__code__
        lines = linecache.getlines(code.co_filename)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef) or node.name != value.__name__:
                continue
            if node.lineno <= code.co_firstlineno <= (node.end_lineno or 0):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                text = textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip()
                return text, code.co_filename, first
    raise NoSource(f"{value.__name__} was typed where no source is kept")


def _check(text: str, value: Definition, future: bool) -> None:
    """Refuse a text that is not what runs here: a file was changed since it was read."""
    flags = _FUTURE if future else 0
    try:
        tree = ast.parse(text).body[0]
        for name, function in _functions(value):
            code = function.__code__
            # Of the whole file: how a call is compiled depends on what the module imports.
            whole = "".join(linecache.getlines(code.co_filename))
            made = compile(whole, code.co_filename, "exec", flags=flags, dont_inherit=True)
            places = {(each.co_qualname, each.co_firstlineno): each for each in _codes(made)}
            found = places.get((name, code.co_firstlineno))
            if found is None or _same(found) != _same(code):
                raise NoSource(f"the file of {value.__name__} has changed since it was run")
    except SyntaxError:
        raise NoSource(f"{value.__name__} does not stand by itself") from None
    if isinstance(tree, ast.FunctionDef):
        for default in [*tree.args.defaults, *filter(None, tree.args.kw_defaults)]:
            try:
                ast.literal_eval(default)
            except (ValueError, TypeError):  # it was computed then, and may be another now
                raise NoSource(f"{value.__name__} has a default that is computed") from None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield part
            yield from _codes(part)


def _same(code: types.CodeType) -> Any:
    """Return what two codes have in common that do the same."""
    consts = tuple(
        _same(part) if isinstance(part, types.CodeType) else (type(part).__name__, repr(part))
        for part in code.co_consts
    )
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, consts


def _used(text: str) -> set[str]:
    """Return the names that a definition takes from outside of it."""
    whole = symtable.symtable(text, "<given>", "exec")
    found = {each.get_name() for each in whole.get_symbols() if each.is_referenced()}

    def look(table: symtable.SymbolTable) -> None:
        for child in table.get_children():
            found.update(each.get_name() for each in child.get_symbols() if each.is_global())
            look(child)

    look(whole)
    return found


def arguments_of(value: object) -> tuple[Any, Values]:
    """Return what a ``functools.partial`` of names calls, with its arguments; else ``value``."""
    if isinstance(value, functools.partial) and not value.args:
        return value.func, value.keywords
    return value, {}
