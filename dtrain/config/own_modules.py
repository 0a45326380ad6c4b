"""Modules of the user's own project: those of the current directory, which need no trust.

Such a module is a file ``NAME.py``, or a package with an ``__init__.py``, and nothing that is
installed has its name: that would be imported instead. A folder of a run is no package of the
user's, whatever lies in it: it may come from elsewhere.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from dtrain.config.callables import KNOWN
from dtrain.host import python_path

#: One of them is in every folder that a command takes for a run or a sweep.
_OF_RUNS = ("command.json", "cluster.json", "sweep.json", "journal.jsonl")


def is_own(module: str) -> bool:
    """Say whether a module is of the user's project. Nothing is imported.

    Args:
        module: its dotted name; names of what is in it may follow.
    """
    folder = Path.cwd()
    first, *rest = module.split(".")
    if _other(first) is not None or "site-packages" in folder.parts:
        return False
    for part in (first, *rest):
        if not part.isidentifier():
            return False
        package = folder / part
        if not (package / "__init__.py").is_file():
            of_package = part is not first and not package.is_dir()
            return of_package or (folder / f"{part}.py").is_file()
        if any((package / name).exists() for name in _OF_RUNS):
            return False
        folder = package
    return True


def allow(target: str) -> bool:
    """Say whether a function or class is of the user's project; let it be imported if so."""
    own = is_own(target.rpartition(".")[0])
    if own:
        python_path.own.add(target.partition(".")[0])
    return own


def refused(target: str) -> tuple[str, str] | None:
    """Return why a name that looks like one of the project's is none, and what to do about it.

    Returns:
        None where it is of an installed package.
    """
    first = target.partition(".")[0]
    here = Path(f"{first}.py").is_file() or (Path(first) / "__init__.py").is_file()
    other = _other(first)
    if re.fullmatch(r"given_[0-9a-f]{32}", first):
        return None  # code that was given to a run from Python
    if other is not None:
        if not here or first in KNOWN:
            return None
        problem = f"{other} has the name {first!r}, too, and is imported before yours"
        return problem, f"another name for {first} in {os.getcwd()}"
    if here:
        return f"{target.rpartition('.')[0]!r} is in no package of your project", (
            "an __init__.py in each of its folders; a run's folder is no package"
        )
    if Path(first).is_dir() and first.isidentifier():
        return f"the folder {first} is no package", f"touch {first}/__init__.py"
    return f"there is no module {first!r}", f"a file {first}.py in {os.getcwd()}"


def _other(first: str) -> str | None:
    """Return what else has a name, and is imported before anything of the current directory."""
    if first in KNOWN or first in sys.stdlib_module_names:
        return first if first in KNOWN else "Python"
    spec = python_path.installed(first) if first.isidentifier() else None
    if spec is None:  # as a script's `__main__`, too, which is no module of a file
        return None
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    here = [os.path.abspath(path) for path in (f"{first}.py", f"{first}/__init__.py", first)]
    return None if set(places) <= {*here} else f"an installed package ({places[0]})"
