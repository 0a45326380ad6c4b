"""``_target_``: from the name of a function or class in the configuration to a call of it.

A configuration is data, and may come from elsewhere. What it may name is written out in
:mod:`dtrain.config.kinds`: at each place what is meant to stand there, of dtrain's own and of
Keras' public names, and where a part of a training is wanted, of modules of the user's own project
(:func:`is_own_module`). Everything else is called only if ``DTRAIN_TRUST`` names its package, or
itself. That keeps mistakes and hostile files from running code. It is no sandbox: what is trusted
may do anything, and so may a defect in TensorFlow, Keras or another library that reads a file.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from dtrain.config import kinds
from dtrain.config.callables import KNOWN, bind, blame, check_kinds, signature_of
from dtrain.errors import UsageError, nearest, refuse
from dtrain.host import python_path
from dtrain.host.python_path import TRUST

#: The name of a file, and not of what is in it.
_PATH = re.compile(r"[/\\]|\.py$")
#: A path that a callback writes to: fields of plain names alone, which no attribute is read by.
_FIELD = re.compile(r"\{\w+(:[\w.,]*)?\}")


def plain(node: Any) -> Any:
    """Return a configuration node as plain dicts, lists and scalars."""
    if not OmegaConf.is_config(node):
        return node
    return OmegaConf.to_container(node, resolve=True, enum_to_str=True)


def is_trusted(target: str) -> bool:
    """Say whether ``DTRAIN_TRUST`` lists ``target``, or a package or module that it is below.

    All of dtrain or of Keras cannot be trusted by one word: a part of it can (``keras.utils``).
    """
    return any(
        f"{target}.".startswith(f"{root}.") for root in python_path.trusted() if root not in KNOWN
    )


def check(node: Any, key: str = "") -> None:
    """Refuse whatever below ``node`` may not be called, importing nothing.

    Args:
        node: a plain configuration: mappings, sequences and scalars.
        key: where ``node`` stands in the configuration.

    Raises:
        UsageError: naming the key and the way to allow it.
    """
    _check(node, key, argument=False, trusted=False)


def _check(node: Any, key: str, argument: bool, trusted: bool) -> None:
    if isinstance(node, Mapping):
        if "_target_" in node:
            _check_name(node["_target_"], f"{key}._target_" if key else "_target_", argument)
            trusted = is_trusted(node["_target_"])
            if not trusted:
                _check_arguments(node, key)
            argument = True
        elif not trusted and ("class_name" in node or "registered_name" in node):
            refuse(key, "Keras would make an object of it, of any module that it names", "...",
                   accepted="a node with _target_",
                   typed=f"{key}={{_target_:keras.layers.Dense,units:3}}")  # fmt: skip
        for name, value in node.items():
            _check(value, f"{key}.{name}" if key else str(name), argument, trusted)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for position, value in enumerate(node):
            _check(value, f"{key}[{position}]", argument, trusted)


def _check_name(target: Any, key: str, argument: bool) -> None:
    if target == "???":
        return  # a value is missing, which is reported as such
    wanted = kinds.at(key.removesuffix("_target_").rstrip("."), argument)
    accepted = "; ".join(kind.accepted for kind in wanted)
    if not isinstance(target, str) or "." not in target or _PATH.search(target):
        hint = f"{key}=keras.applications.MobileNetV2" if kinds.MODEL in wanted else f"{key}=NAME"
        module = os.path.basename(str(target)).removesuffix(".py")
        if kinds.CALLBACK in wanted and (near := nearest(str(target), kinds.CALLBACKS)):
            hint = f"_target_: keras.callbacks.{near}"
        elif isinstance(target, str) and (module != target or os.path.isfile(f"{module}.py")):
            hint = f"{key}={module}.NAME, of a function in {module}.py"
        refuse(key, "is not the dotted name of a function or class", target,
               accepted=accepted or "package.module.name", hint=hint)  # fmt: skip
    if not wanted:
        refuse(key, "nothing is called at this place", target, accepted=", ".join(kinds.PLACES),
               hint=f"the configuration without {key}")  # fmt: skip
    _allow(target, key, wanted)


def _allow(target: str, key: str, wanted: tuple[kinds.Kind, ...]) -> None:
    """Refuse a name that is neither trusted nor meant to stand at a place of these kinds."""
    takes_own = bool(wanted) and kinds.takes_own(key)
    if is_trusted(target) or (takes_own and _allow_own(target)):
        if any(part.startswith("__") for part in target.split(".")):
            refuse(key, "is a special name of Python's", target,
                   accepted="a function or class of a module",
                   typed=f"{key}=package.module.name")  # fmt: skip
    elif target.split(".")[0] not in KNOWN:
        raise _untrusted(key, target, target.split(".")[0], takes_own)
    elif not kinds.named(target, wanted):
        what = " or ".join(kind.what for kind in wanted) or "public name"
        hint = f"{_trust(target)} in front of the command, if you trust what it does"
        if kinds.CALLBACK in wanted:
            near = nearest(target.rpartition(".")[2], kinds.CALLBACKS)
            hint = f"_target_: keras.callbacks.{near}, or {hint}" if near else hint
        refuse(key, f"is no {what} that a configuration may name", target,
               accepted="; ".join(kind.accepted for kind in wanted or kinds.EVERY),
               hint=hint)  # fmt: skip


def _untrusted(key: str, target: str, package: str, takes_own: bool = False) -> UsageError:
    if takes_own and (reason := _not_own(target)) is not None:
        problem, hint = reason
        return UsageError(key, problem, target, accepted=f"a module that lies in {os.getcwd()}",
                          typed=hint)  # fmt: skip
    return UsageError(
        key, f"the package {package!r} is not trusted", target,
        accepted=f"names under {', '.join([*KNOWN, *python_path.trusted()])}",
        hint=f"{_trust(package)} in front of the command, if you trust its code",
    )  # fmt: skip


def imported(key: str, target: str, home: str) -> UsageError:
    """Return the refusal of a name of another module, which that of ``target`` only imports."""
    package = home.split(".")[0]
    if package not in KNOWN:
        return _untrusted(key, target, package)
    return UsageError(
        key, f"is {package}'s own ({home}), which {target.split('.')[0]} only imports", target,
        accepted=f"what is defined in your own module, or the name that {package} gives it",
        hint=f"{key}={package}.NAME",
    )  # fmt: skip


def _trust(name: str) -> str:
    return f"{TRUST}={','.join([*python_path.trusted(), name])}"


def _check_arguments(node: Mapping[str, Any], key: str) -> None:
    """Refuse arguments by which what needs no trust would leave this machine or its folder."""
    target = node["_target_"]
    for name, value in node.items():
        if target.startswith("keras.") and isinstance(value, str) and "://" in value:
            refuse(f"{key}.{name}", f"{target} would read or write elsewhere", value,
                   accepted="a file of this machine",
                   hint=f"{_trust(target)} in front of the command, if it may")  # fmt: skip
    place = written(target)
    if place is not None and not is_inside(node.get(place[0], place[1] or "")):
        refuse(
            f"{key}.{place[0]}", "a callback writes below its run folder", node.get(place[0]),
            accepted="a relative path without .., with fields of plain names such as {epoch}",
            hint=f"{place[0]}=best.keras, or {_trust(target)} in front of the command",
        )  # fmt: skip


def written(target: str) -> tuple[str, str | None] | None:
    """Return the argument by which a callback of Keras' writes, and its default; None of others."""
    head, _, name = target.rpartition(".")
    return kinds.WRITES.get(name) if head == "keras.callbacks" else None


def is_inside(path: Any) -> bool:
    """Say whether a path, which may have fields to be filled in, stays below a folder."""
    if not isinstance(path, str):
        return False
    text = _FIELD.sub("0", path)
    parts = text.split("/")
    return not ({"", ".", ".."}.intersection(parts) or re.search(r"[{}\\~\0]", text))


def missing(key: str, target: str, position: int, names: Iterable[str]) -> UsageError:
    """Return what to raise for a name whose part at ``position`` is none of ``names``."""
    parts = target.split(".")
    near = nearest(parts[position], sorted(name for name in names if not name.startswith("_")))
    whole = ".".join([*parts[:position], near or "NAME", *parts[position + 1 :]])
    return UsageError(
        key, f"{parts[position]!r} does not exist", target,
        accepted="a function or class that can be imported from here",
        hint=f"_target_: {whole}, in its place" if "[" in key else f"{key}={whole}",
    )  # fmt: skip


def locate(target: str, key: str, argument: bool = False) -> Callable[..., Any]:
    """Import and return what ``target`` names.

    Args:
        target: the name.
        key: of ``target`` in the configuration: it decides what is wanted.
        argument: it is of an argument of another target.

    Raises:
        UsageError: it may not be named there, does not exist, or cannot be called.
    """
    if not isinstance(target, str) or "." not in target:
        _check_name(target, key, argument)
    wanted = kinds.at(key.removesuffix("_target_").rstrip("."), argument)
    _allow(target, key, wanted)
    python_path.offer()
    parts = target.split(".")
    found: Any = None
    depth = 0
    for depth in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:depth])
        try:
            found = importlib.import_module(module)
            break
        except ModuleNotFoundError as error:
            # Only "this very module is absent" may be passed over; an import that fails
            # inside it is the user's own error and must be seen as it is.
            if not error.name or not f"{module}.".startswith(f"{error.name}."):
                raise
    start = depth if found is not None else 0
    trusted = target.split(".")[0] not in KNOWN or is_trusted(target)
    for position, name in enumerate(parts[start:], start):
        names = [n for n in dir(found) if not n.startswith("_")] if found is not None else []
        if found is None or not hasattr(found, name):
            if found is None:
                refuse(
                    key, f"there is no module {name!r}", target,
                    accepted=f"a module that is installed, or a file of {os.getcwd()}",
                    hint=f"{key}=MODULE.NAME, of a file MODULE.py in the current directory",
                )  # fmt: skip
            raise missing(key, target, position, names)
        found = getattr(found, name)
        # A trusted module may hold what is not: `mine.os.system`, `mine.keras.utils.get_file`.
        # A partial is its own, whatever it calls.
        bound = isinstance(found, functools.partial)
        if trusted and not bound and (callable(found) or inspect.ismodule(found)):
            home = _home(found)
            if not is_home_trusted(home, target):
                raise imported(key, target, home)
    if not callable(found):
        refuse(key, "cannot be called", target, accepted="a function or class", hint=f"{key}=...")
    suited = kinds.named(target, wanted)
    if not trusted and not kinds.fits(found, target, suited):
        refuse(
            key, f"is no {' or '.join(kind.what for kind in suited)}", target,
            accepted="; ".join(kind.accepted for kind in suited),
            hint=f"{_trust(target)} in front of the command, if you trust what it does",
        )  # fmt: skip
    return found


def _home(value: Any) -> str:
    """Return the module that ``value`` is from, or that of its type where it says nothing."""
    if isinstance(value, types.FunctionType):  # not __module__: functools.wraps takes another's
        return str(value.__globals__.get("__name__"))
    module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    return str(module or type(value).__module__)


def is_home_trusted(home: str, target: str) -> bool:
    """Say whether what is defined in the module ``home`` may be reached by the trusted ``target``.

    Of the user's packages any part may define what another one offers. Not so dtrain and Keras,
    which a module of the user's may have imported.
    """
    tops = {root.split(".")[0] for root in python_path.trusted()}
    known = {*tops.difference(KNOWN), target.split(".")[0]}
    return home.split(".")[0] in known or is_own_module(home)


def arguments(node: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the keyword arguments that ``node`` declares, nested targets called."""
    return {
        name: _value(value, f"{key}.{name}")
        for name, value in node.items()
        if name not in ("_target_", "_partial_")
    }


def _value(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return _make(value, key, argument=True)
        return {name: _value(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_value(item, f"{key}[{position}]") for position, item in enumerate(value)]
    return value


def instantiate(node: Mapping[str, Any], key: str, **derived: Any) -> Any:
    """Call ``node._target_`` with the other keys of ``node`` as keyword arguments.

    Args:
        node: a plain mapping with ``_target_``; with ``_partial_: true`` the function is returned
            with its arguments bound, not called.
        key: where the node stands in the configuration, for messages.
        derived: arguments that are filled in where the callable takes them and the node leaves
            them out or null (``input_shape``, ``classes``); what is a function returns the value.
            None is filled in only where the callable has no default.

    Raises:
        UsageError: the target may not be named there, does not exist, or does not take these
            arguments.
    """
    return _make(node, key, False, derived)


def _make(
    node: Mapping[str, Any], key: str, argument: bool, derived: Mapping[str, Any] | None = None
) -> Any:
    function = locate(node["_target_"], f"{key}._target_", argument)
    given = arguments(node, key)
    signature = signature_of(function)
    for name, value in (derived or {}).items():
        parameter = signature.parameters.get(name)
        if parameter is None or given.get(name) is not None:
            continue
        value = value() if callable(value) else value
        if value is not None or parameter.default is parameter.empty:
            given[name] = value  # else its own default says more
    partial = bool(node.get("_partial_"))
    bind(node["_target_"], signature, given, key, partial)
    if _home(function).split(".")[0] in KNOWN:
        check_kinds(node["_target_"], signature, given, key)
    if partial:
        return functools.partial(function, **given)
    if key.split(".")[0] in ("strategy", "launcher"):  # they start servers, and networks fail
        return function(**given)
    with blame(key, node, f"{_home(function)}."):
        return function(**given)


# -- modules of the user's own project ----------------------------------------------------------
#
# Such a module is a file ``NAME.py`` of the current directory, or a package with an
# ``__init__.py``, and nothing that is installed has its name: that would be imported instead. A
# folder of a run is no package of the user's, whatever lies in it: it may come from elsewhere.

#: One of them is in every folder that a command takes for a run or a sweep.
_OF_RUNS = ("command.json", "cluster.json", "sweep.json", "journal.jsonl")


def is_own_module(module: str) -> bool:
    """Say whether a module is of the user's project. Nothing is imported.

    Args:
        module: its dotted name; names of what is in it may follow.
    """
    folder = Path.cwd()
    first, *rest = module.split(".")
    if _another(first) is not None or "site-packages" in folder.parts:
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


def _allow_own(target: str) -> bool:
    """Say whether a function or class is of the user's project; let it be imported if so."""
    own = is_own_module(target.rpartition(".")[0])
    if own:
        python_path.own.add(target.partition(".")[0])
    return own


def _not_own(target: str) -> tuple[str, str] | None:
    """Return why a name that looks like one of the project's is none, and what to do about it.

    Returns:
        None where it is of an installed package.
    """
    first = target.partition(".")[0]
    here = Path(f"{first}.py").is_file() or (Path(first) / "__init__.py").is_file()
    other = _another(first)
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


def _another(first: str) -> str | None:
    """Return what else has a name, and is imported before anything of the current directory."""
    if first in KNOWN or first in sys.stdlib_module_names:
        return first if first in KNOWN else "Python"
    spec = python_path.installed(first) if first.isidentifier() else None
    if spec is None:  # as a script's `__main__`, too, which is no module of a file
        return None
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    here = [os.path.abspath(path) for path in (f"{first}.py", f"{first}/__init__.py", first)]
    return None if set(places) <= {*here} else f"an installed package ({places[0]})"
