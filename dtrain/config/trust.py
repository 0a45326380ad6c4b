"""Which ``_target_`` may be called: from the name of a function or class to a call of it.

A configuration is data, and may come from elsewhere. At each place it may name things of one kind
(:class:`Kind`, ``kinds.yaml``), of dtrain's, Keras' and PyTorch's public names; where a part of a
training is wanted, what a module of the user's own project defines; and wherever something is
called, what the user names in this very command (:class:`Command`): anything of the project or of
an installed package, never of Python's own library. ``DTRAIN_TRUST`` opens more. A name is judged
by the module that defines what it stands for: it is checked importing nothing (the controller
imports no Keras), and what it stands for once it is imported, before it is called. It is no
sandbox: what is called may do anything, and so may a defect in TensorFlow, Keras or another library
that reads a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from dtrain.config.overrides import key_of
from dtrain.errors import UsageError, nearest, refuse
from dtrain.files import reading
from dtrain.host import pickles, python_path
from dtrain.host.python_path import TRUST

_REFERENCE = re.compile(r"\$\{\s*oc\.env\s*:\s*['\"]?(\w+)")
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.\w+)+")
_LARGEST = 1_000_000  # bytes of a file that names are looked for in
#: The name of a file, and not of what is in it.
_PATH = re.compile(r"[/\\]|\.py$")
#: A path that a callback writes to: fields of plain names alone, which no attribute is read by.
_FIELD = re.compile(r"\{\w+(:[\w.,]*)?\}")


# -- what may be named at each place


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of function or class.

    Attributes:
        what: it is, for messages.
        accepted: names, for messages.
        names: patterns of whole names.
        group: of the configuration: the names are the functions of its options.
        bases: Keras' classes, of one of which a class of Keras' must be.
        first: names of the first parameters of a function of Keras'; None: no function is taken.
        home: module that a function of Keras' is from, or below.
        package: whose classes and functions they are, in the place of Keras'.
    """

    what: str
    accepted: str
    names: Sequence[str] = ()
    group: str = ""
    bases: Sequence[str] = ()
    first: Sequence[str] | None = None
    home: str = ""
    package: str = "keras"

    def has(self, target: str) -> bool:
        """Say whether a thing of this name may be of this kind."""
        if self.group:
            from dtrain.config import schema  # with pydantic: a task calls nothing of a group

            return target in map(schema.target_of, schema.SCHEMAS[self.group].values())
        pattern = "|".join(self.names).replace("SAFE", _SAFE).replace("CLASS", r"[A-Z]\w*")
        return re.fullmatch(pattern, target) is not None


#: dtrain, Keras, PyTorch and its metrics, of which some names may be given without trust, and all
#: only one by one. Their functions check their arguments, or fail over them.
KNOWN = ("dtrain", "keras", "torch", "torchmetrics")
#: Keras' layers but those that run code which a file or an argument brings.
_SAFE = r"(?!(Lambda|TFSMLayer|TorchModuleWrapper|FlaxLayer|JaxLayer)$)CLASS"

_TABLE: Any = reading.read_plain(Path(__file__).with_name("kinds.yaml"))
_KINDS = {name: Kind(**{"what": name, **row}) for name, row in _TABLE["kinds"].items()}
#: What is called at each key.
PLACES = {key: tuple(_KINDS[name] for name in names) for key, names in _TABLE["places"].items()}
#: Groups, and keys, below which a function or class of the user's own project is called.
OWN = ("model", "dataset", "optimizer", "trainer", "action.function")
#: What may be an argument of what is called.
ARGUMENTS = tuple(_KINDS[name] for name in _TABLE["arguments"])
EVERY = tuple(_KINDS.values())
MODEL, CALLBACK = PLACES["model"][0], PLACES["trainer.callbacks"][0]
#: Keras' callbacks that neither send anything nor run code of an argument.
CALLBACKS = tuple(re.findall(r"[A-Z]\w+", " ".join(CALLBACK.names)))
#: Callbacks that write: the argument that says where, and Keras' default of it.
WRITES: dict[str, tuple[str, str | None]] = {
    name: tuple(argument) for name, argument in _TABLE["writes"].items()
}


def at(key: str, argument: bool = False) -> tuple[Kind, ...]:
    """Return the kinds of what may stand at ``key``.

    Args:
        key: of the node that has ``_target_``.
        argument: it is an argument of another such node.

    Returns:
        None at all where nothing is called.
    """
    parts = re.sub(r"\[\d+\]", "", key).split(".")
    if parts[:2] == ["dataset", "members"]:  # of a mixture
        return PLACES["dataset"]
    if parts[0] == "tracking" and len(parts) == 2:  # of several trackers
        return PLACES["tracking"]
    if argument and ".".join(parts) not in PLACES:  # `dataset.augment` is both
        return ARGUMENTS
    return PLACES.get(".".join(parts[:2]), ())


def takes_own(key: str) -> bool:
    """Say whether what is called at ``key``, or below it, may be of the user's own project."""
    return any(f"{key}.".replace("[", ".").startswith(f"{each}.") for each in OWN)


def named(target: str, kinds: tuple[Kind, ...]) -> list[Kind]:
    """Return those of ``kinds`` that a thing called ``target`` may be of."""
    return [kind for kind in kinds or EVERY if kind.has(target)]


def _is(value: Any, kind: Kind) -> bool:
    """Say whether what was imported is of a kind."""
    if inspect.isclass(value):
        package = sys.modules[kind.package]
        return issubclass(value, tuple(attrgetter(base)(package) for base in kind.bases))
    if kind.first is None or not inspect.isfunction(value):
        return False
    first = [*inspect.signature(value).parameters][: len(kind.first)]
    return first == kind.first and f"{value.__module__}.".startswith(f"{kind.home}.")


# -- what the user names


class Command(python_path.Granted):
    """What the user names in one command: in what he types, and in files of ``--config-dir``.

    Args:
        words: the command line as it was typed.
        config_dir: of ``--config-dir`` there.

    Attributes:
        variables: of the environment, which the configuration may read.
        names: dotted ones, those of functions and classes among them.
        read: variables that the configuration has read, with their values.
        typed: keys of the overrides; None where all are the user's own.
        handed: what may be called because the command that started this process has allowed it.
    """

    def __init__(self, words: Iterable[str] = (), config_dir: str | None = None):
        super().__init__()
        self.handed: frozenset[str] = frozenset()
        self.variables: set[str] = set()
        self.names: set[str] = set()
        self.read: dict[str, str] = {}
        self.typed: set[str] | None = None
        self.grant(words, config_dir)

    def grant(self, words: Iterable[str], config_dir: str | None = None) -> None:
        """Take what ``words`` and the files of ``config_dir`` name for named by the user."""
        texts = list(words)
        for path in Path(config_dir).rglob("*.yaml") if config_dir is not None else ():
            if path.is_file() and path.stat().st_size <= _LARGEST:
                texts.append(path.read_text(errors="replace"))
        for text in texts:
            self.variables.update(_REFERENCE.findall(text))
            self.names.update(_DOTTED.findall(text))

    def doubt(self, words: Iterable[str]) -> None:
        """Take only the keys of ``words`` for the user's own: others are from elsewhere."""
        self.typed = {*(self.typed or ()), *map(key_of, words)}

    def owns(self, key: str) -> bool:
        """Say whether the value of ``key`` is the user's choice, and no folder's from elsewhere."""
        return self.typed is None or key in self.typed


def begin(words: Iterable[str] = (), config_dir: str | None = None) -> Command:
    """Begin a command: what it names is the user's own. Nothing of another one is left."""
    python_path.forget()
    command = Command(words, config_dir)
    python_path.granted.set(command)
    return command


def command() -> Command:
    """Return the command of this thread; one that names nothing where none was begun.

    In a task it may call what the command has allowed that started it.
    """
    current = python_path.granted.get()
    if not isinstance(current, Command):
        python_path.granted.set(current := Command())
        current.handed = frozenset(current.called)
    return current


@contextlib.contextmanager
def begun() -> Iterator[None]:
    """Begin a command that names nothing, which ends with the block."""
    token = python_path.granted.set(Command())
    try:
        yield
    finally:
        python_path.granted.reset(token)


def is_trusted(target: str) -> bool:
    """Say whether ``DTRAIN_TRUST`` lists ``target``, or a package or module that it is below.

    All of dtrain or of Keras cannot be trusted by one word: a part of it can (``keras.utils``).
    What was passed from Python is trusted by its file alone (:mod:`dtrain.host.pickles`).
    """
    if pickles.is_given(top := target.partition(".")[0]):
        return pickles.problem(top) is None
    roots = [root for root in python_path.trusted() if root not in KNOWN]
    return any(f"{target}.".startswith(f"{root}.") for root in roots)


def is_installed(name: str) -> bool:
    """Say whether a dotted name is of an installed package, and none of Python's or of ours."""
    top = name.partition(".")[0]
    if top in KNOWN or top in sys.stdlib_module_names:
        return False
    from importlib import metadata  # which few need

    try:
        return bool(metadata.distribution(top))
    except (metadata.PackageNotFoundError, ValueError):  # most have the name of their package
        return top in metadata.packages_distributions()


def is_named(target: str, key: str) -> bool:
    """Say whether the user names ``target``, called at ``key``, in this command.

    What is named is granted to the tasks (:class:`dtrain.host.python_path.Granted`), which have no
    command line to look at.
    """
    current, parts = command(), re.split(r"[.\[]", key)
    owned = any(current.owns(".".join(parts[:n])) for n in range(1, len(parts) + 1))
    named = target in current.handed or (owned and target in current.names)
    if not named or not (_is_own(target) or is_installed(target)):
        return False
    current.called.add(target)
    return True


# -- from a name to what it stands for


def check(node: Any, key: str = "", argument: bool = False, trusted: bool = False) -> None:
    """Refuse whatever below ``node`` may not be called, importing nothing.

    Args:
        node: a plain configuration: mappings, sequences and scalars.
        key: where ``node`` stands in the configuration.
        argument: it is an argument of what is called.
        trusted: that is trusted by name.

    Raises:
        UsageError: naming the key and the way to allow it.
    """
    if isinstance(node, Mapping):
        if "_target_" in node:
            target, place = node["_target_"], f"{key}._target_".lstrip(".")
            if not at(key, argument):
                refuse(place, "nothing is called at this place", target,
                       accepted=", ".join(PLACES),
                       hint=f"the configuration without {place}")  # fmt: skip
            if target != "???":  # else a value is missing, which is reported as such
                _allow(target, place, argument)
            trusted = is_trusted(target)
            if not trusted:
                _check_arguments(node, key)
            argument = True
        elif not trusted and ("class_name" in node or "registered_name" in node):
            refuse(key, "Keras would make an object of it, of any module that it names", "...",
                   accepted="a node with _target_",
                   typed=f"{key}={{_target_:keras.layers.Dense,units:3}}")  # fmt: skip
        for name, value in node.items():
            check(value, f"{key}.{name}" if key else str(name), argument, trusted)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for position, value in enumerate(node):
            check(value, f"{key}[{position}]", argument, trusted)


def _allow(target: Any, key: str, argument: bool) -> tuple[Kind, ...]:
    """Return the kinds of what may stand at ``key``; refuse a name that may not.

    Args:
        target: the name.
        key: of ``_target_``.
        argument: it is of an argument of another target.
    """
    wanted = at(key.removesuffix("_target_").rstrip("."), argument)
    name = str(target).rpartition(".")[2]
    near = nearest(name, CALLBACKS) if CALLBACK in wanted else None
    callback = near and f"_target_: keras.callbacks.{near}"
    if not isinstance(target, str) or "." not in target or _PATH.search(target):
        module = os.path.basename(str(target)).removesuffix(".py")
        hint = f"{key}=keras.applications.MobileNetV2" if MODEL in wanted else f"{key}=NAME"
        if module != str(target) or os.path.isfile(f"{module}.py"):
            hint = f"{key}={module}.NAME, of a function in {module}.py"
        refuse(key, "is not the dotted name of a function or class", target,
               accepted=_accepted(wanted), hint=callback or hint)  # fmt: skip
    may_be_own = bool(wanted) and takes_own(key)
    if is_trusted(target) or (may_be_own and _is_own(target)) or is_named(target, key):
        if any(part.startswith("__") for part in target.split(".")):
            refuse(key, "is a special name of Python's", target,
                   accepted="a function or class of a module",
                   typed=f"{key}=package.module.name")  # fmt: skip
    elif target.split(".")[0] not in KNOWN:
        raise _untrusted(key, target, target, may_be_own)
    elif not named(target, wanted):
        raise _of_other_kind(key, target, wanted, callback)
    return wanted


def _accepted(wanted: Sequence[Kind]) -> str:
    return "; ".join(kind.accepted for kind in wanted or EVERY)


def _of_other_kind(
    key: str, target: str, wanted: Sequence[Kind], instead: str | None = None
) -> UsageError:
    what = " or ".join(kind.what for kind in wanted) or "public name"
    hint = f"{_trust(target)} in front of the command, if you trust what it does"
    hint = f"{instead}, or {hint}" if instead else hint
    problem = f"is no {what} that a configuration may name"
    return UsageError(key, problem, target, accepted=_accepted(wanted), hint=hint)


def _untrusted(key: str, target: str, module: str, may_be_own: bool = False) -> UsageError:
    """Return the refusal of a name of a ``module`` that is neither known nor the user's own."""
    top, folder = module.split(".")[0], os.getcwd()
    if pickles.is_given(top):
        return UsageError(key, str(pickles.problem(top)), target,
                          accepted="what you have passed, under the same version of Python",
                          hint=f"{key}=MODULE.NAME, of a module of your own")  # fmt: skip
    other, accepted = python_path.other(top), f"a module that lies in {folder}"
    is_here = Path(f"{top}.py").is_file() or (top.isidentifier() and Path(top).is_dir())
    if may_be_own and is_here and other is not None:
        problem = f"{other} has the name {top!r}, too, and is imported before yours"
        hint = f"another name for {top} in {folder}"
    elif may_be_own and is_here:
        problem = f"{target.rpartition('.')[0]!r} is in no package of your project"
        hint = "an __init__.py in each of its folders; a run's folder is no package"
    elif may_be_own and other is None:
        problem, hint = f"there is no module {top!r}", f"a file {top}.py in {folder}"
    else:
        problem = f"the package {top!r} is not trusted"
        accepted = f"names under {', '.join([*KNOWN, *python_path.trusted()])}"
        hint = f"{_trust(top)} in front of the command, if you trust its code"
    return UsageError(key, problem, target, accepted=accepted, hint=hint)


def _trust(name: str) -> str:
    return f"{TRUST}={','.join([*python_path.trusted(), name])}"


def _check_arguments(node: Mapping[str, Any], key: str) -> None:
    """Refuse arguments by which what needs no trust would leave this machine or its folder."""
    target = node["_target_"]
    hint = f"{_trust(target)} in front of the command, if it may"
    for name, value in node.items():
        if target.startswith("keras.") and isinstance(value, str) and "://" in value:
            refuse(f"{key}.{name}", f"{target} would read or write elsewhere", value,
                   accepted="a file of this machine", hint=hint)  # fmt: skip
    name, default = written(target) or ("", None)
    if name and not is_inside(node.get(name, default)):
        refuse(f"{key}.{name}", "a callback writes below its run folder", node.get(name),
               accepted="a relative path without .., with fields of plain names such as {epoch}",
               hint=f"{name}=best.keras, or {hint}")  # fmt: skip


def written(target: str) -> tuple[str, str | None] | None:
    """Return the argument by which a callback of Keras' writes, and its default; None of others."""
    head, _, name = target.rpartition(".")
    return WRITES.get(name) if head == "keras.callbacks" else None


def is_inside(path: Any) -> bool:
    """Say whether a path, which may have fields to be filled in, stays below a folder."""
    text = _FIELD.sub("0", path) if isinstance(path, str) else ""
    return not {"", ".", ".."}.intersection(text.split("/")) and not re.search(r"[{}\\~\0]", text)


def missing(key: str, target: str, position: int, names: Iterable[str]) -> UsageError:
    """Return what to raise for a name whose part at ``position`` is none of ``names``."""
    parts = target.split(".")
    near = nearest(parts[position], sorted(name for name in names if not name.startswith("_")))
    whole = ".".join([*parts[:position], near or "NAME", *parts[position + 1 :]])
    advice = {"typed" if near else "hint": f"{key}={whole}"}
    if "[" in key:  # an override cannot name what is in a list
        advice = {"hint": f"_target_: {whole}, in its place"}
    return UsageError(key, f"{parts[position]!r} does not exist", target,
                      accepted="a function or class that can be imported from here",
                      **advice)  # fmt: skip


def locate(target: str, key: str, argument: bool = False) -> Callable[..., Any]:
    """Import and return what ``target`` names.

    Args:
        target: the name.
        key: of ``target`` in the configuration: it decides what is wanted.
        argument: it is of an argument of another target.

    Raises:
        UsageError: it may not be named there, does not exist, or cannot be called.
    """
    wanted = _allow(target, key, argument)
    python_path.offer()
    parts = target.split(".")
    value, depth = _import_module(parts)
    if value is None:
        refuse(key, f"there is no module {parts[0]!r}", target,
               accepted=f"a module that is installed, or a file of {os.getcwd()}",
               hint=f"{key}=MODULE.NAME, of a file MODULE.py in the current directory")  # fmt: skip
    trusted = parts[0] not in KNOWN or is_trusted(target)
    for position, name in enumerate(parts[depth:], depth):
        if not hasattr(value, name):
            raise missing(key, target, position, dir(value))
        value = getattr(value, name)
        # A trusted module may hold what is not: `mine.os.system`, `mine.keras.utils.get_file`.
        # A partial is its own, whatever it calls, and what the user has passed is his.
        bound = isinstance(value, functools.partial) or pickles.is_given(parts[0])
        if trusted and not bound and (callable(value) or inspect.ismodule(value)):
            _check_home(module_of(value), target, key)
    if not callable(value):
        refuse(key, "cannot be called", target, accepted="a function or class", hint=f"{key}=...")
    suited = named(target, wanted)
    # dtrain's own names are written out in the table, and need no look.
    fits = target.startswith("dtrain.") or any(_is(value, kind) for kind in suited)
    if not trusted and not fits:
        raise _of_other_kind(key, target, suited)
    return value


def _import_module(parts: list[str]) -> tuple[Any, int]:
    """Import the longest part of a name that is a module; return it, and how long that is."""
    for depth in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:depth])
        try:
            return importlib.import_module(module), depth
        except ModuleNotFoundError as error:
            # Only "this very module is absent" may be passed over; an import that fails
            # inside it is the user's own error and must be seen as it is.
            if not error.name or not f"{module}.".startswith(f"{error.name}."):
                raise
    return None, 0


def module_of(value: Any) -> str:
    """Return the module that ``value`` is from, or that of its type where it says nothing."""
    if isinstance(value, types.FunctionType):  # not __module__: functools.wraps takes another's
        return str(value.__globals__.get("__name__"))
    module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    return str(module or type(value).__module__)


def _check_home(module: str, target: str, key: str) -> None:
    """Refuse what is defined in another ``module`` than ``target`` may reach.

    Of the user's packages any part may define what another one offers, and what the user names may
    be of any that is installed. Not so dtrain and Keras, which a module of his may have imported.
    """
    top, first = module.split(".")[0], target.split(".")[0]
    tops = {root.split(".")[0] for root in python_path.trusted()}
    if top in {*tops.difference(KNOWN), first} or python_path.is_own(module):
        return
    if top in KNOWN:
        refuse(key, f"is {top}'s own ({module}), which {first} only imports", target,
               accepted=f"what is defined in your own module, or the name that {top} gives it",
               hint=f"{key}={top}.NAME")  # fmt: skip
    if not (is_named(target, key) and is_installed(module)):
        raise _untrusted(key, target, module)


def _is_own(target: str) -> bool:
    """Say whether a function or class is of the user's project; let it be imported if so."""
    top, own = target.partition(".")[0], python_path.is_own(target.rpartition(".")[0])
    if own and top not in KNOWN:
        command().modules.add(top)
    return own and top not in KNOWN
