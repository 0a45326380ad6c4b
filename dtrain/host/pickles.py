"""Functions and classes of a caller's process: a file of cloudpickle each, which is a module here.

The name of the module, ``given_DIGEST``, says what is in the file. A file is loaded only where
:data:`FILES` lists it: the command that a user has signed names it (:mod:`dtrain.config.private`),
or it was made by the process that began this command. No other one is ever opened as a pickle.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import pickle
import re
import sys
import types
from collections.abc import Iterable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

#: The files that may be loaded.
FILES = "DTRAIN_GIVEN"
SUFFIX = ".pickle"
#: Bytes of a file: arrays do not travel so.
LARGEST = 8_000_000
#: Whose byte code a file holds.
PYTHON = ".".join(map(str, sys.version_info[:2]))


def name_of(data: bytes) -> str:
    """Return the name of the module that the contents of a file are."""
    return f"given_{hashlib.sha256(data).hexdigest()[:32]}"


def is_given(name: str) -> bool:
    """Say whether a module at the top is one that a caller gives."""
    return re.fullmatch(r"given_[0-9a-f]{32}", name) is not None


def file(folder: Path, name: str) -> Path:
    """Return the file of a module in a folder ``given/``."""
    return folder / f"{name}{SUFFIX}"


def find(name: str) -> str | None:
    """Return the file of a module, which need not be there; None where none may be loaded."""
    listed = os.environ.get(FILES, "").split(os.pathsep)
    found = [path for path in listed if os.path.basename(path) == name + SUFFIX]
    return next(filter(os.path.isfile, found), found[0] if found else None)


def offer(files: Iterable[str]) -> None:
    """Let this process, and those that it starts, load files."""
    listed = [*os.environ.get(FILES, "").split(os.pathsep), *files]
    os.environ[FILES] = os.pathsep.join(dict.fromkeys(filter(None, listed)))


def problem(name: str) -> str | None:
    """Return why a module cannot be loaded, as a clause; None where it can."""
    path = find(name)
    if path is None:
        return "was passed from Python to a run that your key has not signed"
    if not os.path.isfile(path):
        return f"was passed from Python, and {path} is not there"
    try:
        version = read(name)[0]["python"]
    except ImportError as error:
        return str(error)
    if version != PYTHON:
        return f"was passed from Python {version}, whose byte code this Python {PYTHON} cannot run"
    return None


def written(imports: Iterable[str], body: bytes) -> bytes:
    """Return the contents of a file.

    Args:
        imports: packages and modules at the top that it may import.
        body: the pickle of a name, what that means, all that is defined with it, and the texts of
            these by file and line.
    """
    first = json.dumps({"python": PYTHON, "imports": sorted(imports)})
    return first.encode() + b"\n" + body


def read(name: str) -> tuple[dict[str, Any], bytes]:
    """Return what stands before a pickle, its version of Python and what it imports, and that.

    Raises:
        ImportError: it may not be loaded, or the file is another one.
    """
    if (path := find(name)) is None:
        raise ImportError("may not be loaded", name=name)
    with open(path, "rb") as file:
        data = file.read(LARGEST + 1)
    if name_of(data) != name:
        raise ImportError(f"was passed from Python, and {path} was changed since", name=name)
    first, _, body = data.partition(b"\n")
    return json.loads(first), body


def spec(name: str) -> ModuleSpec | None:
    """Return how to import a module; None where it may not be."""
    path = find(name) if is_given(name) else None
    return None if path is None else spec_from_file_location(name, path, loader=_Loader())


class _Loader(Loader):
    """Loads a file whose digest is its name."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module.

        Raises:
            ImportError: the file is another one, or of another version of Python.
        """
        name = module.__name__
        if (why := problem(name)) is not None:
            raise ImportError(f"{name} {why}", name=name)
        called, value, defined, texts = pickle.loads(read(name)[1])
        for each in defined:
            each.__module__ = name  # it was __main__, which is another module here
            if isinstance(each, types.FunctionType):
                each.__globals__["__name__"] = name
            if each.__qualname__.isidentifier():
                setattr(module, each.__qualname__, each)
        setattr(module, called, value)
        for place, parts in texts.items():
            _TEXTS.setdefault(place, {}).update(parts)
            _pin(place, _TEXTS[place])


#: Of what was loaded, by file and first line.
_TEXTS: dict[str, dict[int, str]] = {}


def _pin(file: str, texts: dict[int, str]) -> None:
    """Have tracebacks, and AutoGraph, read the text of what was given, whatever is there by now.

    Args:
        file: that it was in, or the cell of a notebook.
        texts: by their first line, from 1.
    """
    parts = {first - 1: text.splitlines(keepends=True) for first, text in texts.items()}
    lines = list(linecache.getlines(file))
    if any(lines[at : at + len(part)] != part for at, part in parts.items()):
        # A statement, and no blank line, which the block before would seem to go on behind.
        lines = ["pass\n"] * max(at + len(part) for at, part in parts.items())
        for at, part in parts.items():
            lines[at : at + len(part)] = part
    linecache.cache[file] = sum(map(len, lines)), None, lines, file
