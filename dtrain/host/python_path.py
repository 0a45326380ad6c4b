"""Where Python looks for code: the current directory comes after everything that is installed.

``dtrain/__init__.py`` takes it from the front of ``sys.path``, where ``python -m`` has put it;
:func:`offer` then finds there what nothing installed has, and only for a name that the user trusts
or his command calls (:class:`Granted`), or for code that is itself from there.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from dtrain.host import pickles

TRUST = "DTRAIN_TRUST"
#: Folder in a run folder of what a caller of the Python API has given to it.
FOLDER = "given"
#: The folder of the run, or of the sweep, that a caller has made for this command.
RESERVED = "DTRAIN_RESERVED"
#: What the command has granted that started this process (:class:`Granted`).
_CALLED, _OWN = "DTRAIN_TRUSTED", "DTRAIN_OWN"
#: Of an interpreter that dtrain started: its variables below are dtrain's, and not the user's.
_STARTED = "DTRAIN_STARTED"
_SAFE = "PYTHONSAFEPATH"
#: One of them is in every folder that a command takes for a run or a sweep.
_OF_RUNS = ("command.json", "cluster.json", "sweep.json", "journal.jsonl")
#: Where dtrain itself is.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
#: Holds :data:`_ROOT` where dtrain is found by nothing but the current directory.
_checkout: list[str] = []


class Granted:
    """What is called, and imported from the current directory, because a command names it.

    Of a process that a command starts it is what the command had: it is handed down.

    Attributes:
        called: functions and classes that the user has named.
        modules: at the top of the current directory, that a configuration names where it may.
    """

    def __init__(self) -> None:
        self.called, self.modules = _listed(_CALLED), _listed(_OWN)


#: Of the command of this thread; None in a process, or a thread, that has what was handed down.
granted: ContextVar[Granted | None] = ContextVar("granted", default=None)


def _listed(variable: str) -> set[str]:
    return set(filter(None, os.environ.get(variable, "").split(",")))


def handed() -> dict[str, str]:
    """Return variables by which a process that is started here is granted the same."""
    found = granted.get() or Granted()
    return {_CALLED: ",".join(sorted(found.called)), _OWN: ",".join(sorted(found.modules))}


def forget() -> None:
    """Forget what was handed down to this process: it begins a command."""
    for name in (_CALLED, _OWN):
        os.environ.pop(name, None)


def settle(taken: bool = False) -> None:
    """See to it that dtrain itself is found, after all that is installed.

    Args:
        taken: the current directory was the first place to look, and is none any more.
    """
    if taken and _ROOT not in sys.path:  # a checkout that is not installed
        sys.path.append(_ROOT)
        _checkout.append(_ROOT)
    started = os.environ.pop(_STARTED, None)
    if started is not None:
        os.environ.pop(_SAFE, None)
        if started:
            sys.path[:] = [*(path for path in sys.path if path != _ROOT), _ROOT]
            _checkout.append(_ROOT)
            before = os.environ.pop("PYTHONPATH", "").rpartition(os.pathsep)[0]
            if before:
                os.environ["PYTHONPATH"] = before


def environment() -> dict[str, str]:
    """Return variables for an interpreter that this one starts: it looks where this one does."""
    found = {name: value for name, value in handed().items() if value}
    if os.environ.get(_SAFE):
        return found
    found |= {_SAFE: "1", _STARTED: ""}
    if _checkout:
        before = os.environ.get("PYTHONPATH")
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (before, _ROOT)))
        found[_STARTED] = "checkout"
    return found


def trusted() -> list[str]:
    """Return the names that the user trusts, whatever is below them included."""
    return [name for part in os.environ.get(TRUST, "").split(",") if (name := part.strip())]


class _Finder:
    """Finds what was pickled, and modules in one folder, after every other finder."""

    folder = ""

    def __init__(self) -> None:
        #: What functions import that were passed from Python, and are loaded.
        self.imports: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module at the top, for those who may have it."""
        if (given := pickles.spec(name)) is not None:
            self.imports.update(pickles.read(name)[0]["imports"])
            return given
        # Else an optional import of any package would run a file of that name in the folder.
        if path is not None or not (name in tops() or self._asks()):
            return None
        return PathFinder.find_spec(name, [self.folder])

    def _asks(self) -> bool:
        """Whether the code that imports is from the folder."""
        frame = sys._getframe(2)
        while frame.f_back and frame.f_code.co_filename.startswith(("<frozen imp", _IMPORTLIB)):
            frame = frame.f_back
        file = frame.f_code.co_filename  # that of an environment in the folder is installed
        return file.startswith(self.folder + os.sep) and not file.startswith(_INSTALLED)


_INSTALLED = sys.prefix + os.sep
_IMPORTLIB = os.path.dirname(importlib.__file__) + os.sep
_finder = _Finder()


class _ForChildren(str):
    """A place in ``sys.path``, which processes that this one starts by multiprocessing are given.

    It is no folder, and nothing is found by it. Where it is unpickled, :func:`offer` is called: a
    function of the user's is pickled by the name of its module.
    """

    def __reduce__(self) -> tuple[object, ...]:
        if _checkout:  # dtrain itself is found in no other place
            return str, (_finder.folder,)
        return _offered, (handed(),)


def _offered(variables: dict[str, str]) -> str:
    os.environ.update(variables)
    offer()
    return _for_children


_for_children = _ForChildren("<current directory, where trusted>")


def tops() -> set[str]:
    """Return the modules of the current directory that may be imported."""
    found = granted.get() or Granted()
    return found.modules | _finder.imports | {name.split(".")[0] for name in trusted()}


def installed(name: str) -> ModuleSpec | None:
    """Return what a name at the top is found by, but for what is offered; it is not imported."""
    if (module := sys.modules.get(name)) is not None:
        return module.__spec__
    finders = (each for each in sys.meta_path if each is not _finder)
    found = (each.find_spec(name, None) for each in finders)
    return next((spec for spec in found if spec is not None), None)


def other(top: str) -> str | None:
    """Return what else has a name, and is imported before anything of the current directory."""
    if top in sys.stdlib_module_names:
        return "Python"
    spec = installed(top) if top.isidentifier() else None
    if spec is None:  # as a script's `__main__`, too, which is no module of a file
        return None
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    here = [os.path.abspath(path) for path in (f"{top}.py", f"{top}/__init__.py", top)]
    return None if set(places) <= {*here} else f"an installed package ({places[0]})"


def is_own(module: str) -> bool:
    """Say whether a module is of the user's project. Nothing is imported.

    It is a file ``NAME.py`` of the current directory, or in a package with an ``__init__.py``, and
    nothing that is installed has its name: that would be imported instead. A folder of a run is no
    package of the user's, whatever lies in it: it may come from elsewhere.

    Args:
        module: its dotted name; names of what is in it may follow.
    """
    folder = Path.cwd()
    top, *rest = module.split(".")
    if other(top) is not None or "site-packages" in folder.parts:
        return False
    for part in (top, *rest):
        if not part.isidentifier():
            return False
        package = folder / part
        if not (package / "__init__.py").is_file():
            of_package = part is not top and not package.is_dir()
            return of_package or (folder / f"{part}.py").is_file()
        if any((package / name).exists() for name in _OF_RUNS):
            return False
        folder = package
    return True


def offer() -> None:
    """Find modules of the current directory too, after everything else."""
    _finder.folder = os.getcwd()
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)
    if _for_children not in sys.path:
        sys.path.append(_for_children)
