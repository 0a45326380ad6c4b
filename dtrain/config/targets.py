"""From a node with a ``_target_`` to a call of it: names and arguments, and whose the error is.

Who may be called is decided in :mod:`dtrain.config.trust`. A name of Keras or PyTorch is looked up
in the list of its package (``config/public``), without an import. Names of the user's modules, and
what a function or class takes, are known in the process that has the framework
(:func:`check_arguments`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from dtrain.config import trust
from dtrain.config.node import nodes
from dtrain.config.trust import KNOWN
from dtrain.data.options import divided
from dtrain.errors import DtrainError, UsageError, nearest, refuse
from dtrain.host.packages import version

#: Of the lists, one a package (``python -m tests.public_names`` writes them).
FOLDER = Path(__file__).with_name("public")
#: Metrics of classes that dtrain makes of Keras': a mean over the classes, or of all together.
SCORES = (
    "f1", "f1_macro", "f1_micro", "f1_weighted", "precision_macro", "precision_micro",
    "precision_weighted", "recall_macro", "recall_micro", "recall_weighted", "auc_macro",
    "auc_micro",
)  # fmt: skip
#: Begins the names of losses of PyTorch's, which are given as they are imported.
TORCH = "torch."
#: Value of ``trainer.loss`` and ``trainer.metrics``; and what the metrics may be.
AUTO, OF_AUTO = "auto", ("accuracy", "mae", "binary_accuracy")
#: By key of ``trainer``, what it is, and what is compiled as text beside the names of Keras'.
_TEXTS = {
    "loss": ("loss", "losses", (AUTO,)),
    "metrics": ("metric", "metrics", (AUTO, *SCORES, "accuracy", "acc", "crossentropy", "ce")),
}
#: Arguments of Keras' optimizers that optimizers of PyTorch's have here, too.
_OF_ALL = ("schedule", "learning_rate", "clipnorm", "global_clipnorm", "clipvalue")


def plain(node: Any) -> Any:
    """Return a configuration node as plain dicts, lists and scalars."""
    if not OmegaConf.is_config(node):
        return node
    return OmegaConf.to_container(node, resolve=True, enum_to_str=True)


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
            return instantiate(value, key, True)
        return {name: _value(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_value(item, f"{key}[{position}]") for position, item in enumerate(value)]
    return value


def instantiate(
    node: Mapping[str, Any], key: str, argument: bool = False, /, **derived: Any
) -> Any:
    """Call ``node._target_`` with the other keys of ``node`` as keyword arguments.

    Args:
        node: a plain mapping with ``_target_``; with ``_partial_: true`` the function is returned
            with its arguments bound, not called.
        key: where the node stands in the configuration, for messages.
        argument: it is an argument of another node.
        derived: arguments that are filled in where the callable takes them and the node leaves
            them out or null (``input_shape``, ``classes``); what is a function returns the value.
            None is filled in only where the callable has no default.

    Raises:
        UsageError: the target may not be named there, does not exist, or does not take these
            arguments.
    """
    function = trust.locate(node["_target_"], f"{key}._target_", argument)
    values = arguments(node, key)
    signature = signature_of(function)
    for name, value in derived.items():
        parameter = signature.parameters.get(name)
        if parameter is None or values.get(name) is not None:
            continue
        value = value() if callable(value) else value
        if value is not None or parameter.default is parameter.empty:
            values[name] = value  # else its own default says more
    partial = bool(node.get("_partial_"))
    bind(node["_target_"], signature, values, key, partial)
    if trust.module_of(function).split(".")[0] in KNOWN:
        check_kinds(node["_target_"], signature, values, key)
    if partial:
        return functools.partial(function, **values)
    if key.split(".")[0] in ("strategy", "launcher"):  # they start servers, and networks fail
        return function(**values)
    with blame(key, node, f"{trust.module_of(function)}."):
        return function(**values)


def bind(
    target: str, signature: inspect.Signature, given: Mapping[str, Any], key: str, partial: bool
) -> None:
    """Refuse arguments that a function does not take.

    Args:
        target: its name.
        signature: its parameters.
        given: the arguments.
        key: where the node stands in the configuration.
        partial: others follow once it is called.

    Raises:
        UsageError: naming the first one that is unknown, or missing.
    """
    try:
        (signature.bind_partial if partial else signature.bind)(**given)
        return
    except TypeError as error:
        reason = str(error)
    kinds = {name: each.kind for name, each in signature.parameters.items()}
    takes = [n for n, k in kinds.items() if k not in (k.VAR_POSITIONAL, k.VAR_KEYWORD)]
    is_open = inspect.Parameter.VAR_KEYWORD in kinds.values()
    unknown = [name for name in given if name not in takes and not is_open]
    missing = [
        name for name in takes
        if name not in given and signature.parameters[name].default is inspect.Parameter.empty
    ]  # fmt: skip
    name = next(iter(unknown or missing), "")
    if unknown:
        reason = f"got an unexpected keyword argument {name!r}"
    near = nearest(name, takes) if unknown else name
    advice = {"hint": f"the command without {key}.{name}"}
    if near is not None:  # a key that the option of the group does not have
        advice = _advice(f"+{key}", near, given.get(name, "VALUE"), typed=bool(unknown))
    refuse(f"{key}.{name}", f"{target} does not take these arguments ({reason})", given.get(name),
           accepted=", ".join(takes) or "no arguments", **advice)  # fmt: skip


def _advice(key: str, name: str, value: Any, typed: bool = True) -> dict[str, str]:
    """Return how a value is given: an override cannot name what is in a list."""
    from dtrain.config import fields  # with pydantic: a task that refuses nothing does without

    text = fields.typed(value)
    if "[" in key:
        return {"hint": f"{name}:{text} in {key.lstrip('+')}"}
    return {"typed" if typed else "hint": f"{key}.{name}={text}"}


def check_kinds(
    target: str, signature: inspect.Signature, given: Mapping[str, Any], key: str
) -> None:
    """Refuse a text or a node where the default of an argument is a number, or true or false.

    Much of Keras has no types, takes whatever it is given, and fails over it in the midst of a run.

    Raises:
        UsageError: for the first one found.
    """
    for name, value in given.items():
        parameter = signature.parameters.get(name)
        default = None if parameter is None else parameter.default
        if isinstance(default, bool) and not isinstance(value, bool | None):
            accepted = "true or false"
        elif isinstance(default, int | float) and isinstance(value, str | Mapping | bool):
            if isinstance(default, bool) or (isinstance(value, bool) and default in (0, 1)):
                continue  # some flags are numbers
            accepted = "a number"
        else:
            continue
        refuse(f"{key}.{name}", f"{target} takes {accepted} there", value, accepted=accepted,
               **_advice(key, name, default))  # fmt: skip


@contextlib.contextmanager
def blame(key: str, node: Mapping[str, Any], target: str) -> Iterator[None]:
    """Turn an error of dtrain's or Keras' own function into one of the values that it was given.

    That of a user's own function keeps its traceback: who wrote it has to see where it failed. So
    do errors of a disk, a network or the memory.

    Args:
        key: where the node stands in the configuration.
        node: the values.
        target: the name of the function.

    Raises:
        UsageError: in the place of such an error.
    """
    try:
        yield
    except (DtrainError, OSError, MemoryError):
        raise
    except Exception as error:
        if target.partition(".")[0] not in KNOWN:
            raise
        values = ", ".join(f"{name}={value}" for name, value in node.items()
                           if name != "_target_" and value not in (None, False))  # fmt: skip
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Keras prints in bold
        problem = " ".join(text.split())[:500] or type(error).__name__
        raise UsageError(key, f"cannot be made so ({problem})",
                         f"{node.get('_target_')}({values[:200]})", accepted="values that it takes",
                         hint=f"{key}.NAME=VALUE, or {key}=ANOTHER") from error  # fmt: skip


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters of a function; of one that does not say, any."""
    try:
        return inspect.signature(function)
    except ValueError:  # of a built-in that does not tell: it checks its arguments itself
        return inspect.Signature([inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)])


# -- names and arguments that there are, without a call -------------------------------------------


def check_names(config: Mapping[str, Any]) -> None:
    """Refuse names of Keras and PyTorch that do not exist, where their lists say so.

    Args:
        config: plain, and what may be called in it is known to be trusted.

    Raises:
        UsageError: naming the key, with the nearest name.
    """
    own = False  # whose code may register names
    for key, node, _ in nodes(config, ""):
        _check_public(f"{key}._target_", node["_target_"])
        own = own or node["_target_"].split(".")[0] not in KNOWN
    for name in () if own else _TEXTS:
        for text in _texts((config.get("trainer") or {}).get(name)):
            _check_text(name, text)


@functools.cache
def _public(package: str) -> dict[str, list[str]]:
    """Return the names of each module of a package that its list has."""
    file = FOLDER / f"{package}.txt"
    lines = file.read_text(encoding="utf-8").splitlines()[1:] if file.is_file() else []
    return {line.partition(": ")[0]: line.partition(": ")[2].split() for line in lines}


@functools.cache
def _is_of_this_version(package: str) -> bool:
    """Say whether a package is installed in the version that its list was made for."""
    with (FOLDER / f"{package}.txt").open(encoding="utf-8") as file:
        return file.readline().split() == [package, str(version(package)).partition("+")[0]]


def _check_public(key: str, target: str) -> None:
    """Refuse a name that a module does not have, as far as there is a list."""
    package, *_ = parts = target.split(".")
    for position in range(1, len(parts)):
        names = _public(package).get(".".join(parts[:position]))
        if names is not None and parts[position] not in names and _is_of_this_version(package):
            raise trust.missing(key, target, position, names)


def _texts(value: Any) -> Iterator[str]:
    """Yield the losses or metrics of all outputs that are texts."""
    if isinstance(value, str):
        yield value
    elif not isinstance(value, Mapping):
        for each in value or ():
            yield from _texts(each)
    elif "_target_" not in value:
        yield from _texts([*value.values()])


def _check_text(name: str, value: str) -> None:
    """Refuse a loss or a metric that is a text and none of Keras'."""
    key, (what, module, more) = f"trainer.{name}", _TEXTS[name]
    if value.startswith(TORCH):
        trust.check({"_target_": value}, key)
        _check_public(key, value)
        return
    names = {*_public("keras")[f"keras.{module}.get"], *more}
    if value in names or not _is_of_this_version("keras"):
        return
    from dtrain.config import suggest  # with pydantic: a task that refuses nothing does without

    near = nearest(value, sorted(each for each in names if each == each.lower()))
    advice = suggest.rows().get(f"{key}={value.lower()}")
    typed = near and (f"{key}={near}" if name == "loss" else f"'{key}=[{near}]'")
    refuse(key, f"is no {what} that Keras knows", value,
           accepted=f"names of keras.{module}, or nodes with _target_",
           **(advice or ({"typed": typed} if typed else {"hint": f"{key}=NAME"})))  # fmt: skip


def check_arguments(config: Mapping[str, Any]) -> None:
    """Refuse names and arguments that there are not: what is named is imported, and not called.

    Args:
        config: plain; groups of a configuration.

    Raises:
        UsageError: naming the key, with the nearest name or argument.
    """
    for key, node, inner in nodes(config, ""):
        if trust.takes_own(key):
            function = trust.locate(node["_target_"], f"{key}._target_", inner)
            _check_arguments(key, node, function)


def _check_arguments(key: str, node: Mapping[str, Any], function: Any) -> None:
    target, signature = node["_target_"], _signature(function, key)
    is_class = key.startswith("trainer.callbacks") and inspect.isclass(function)
    if is_class and not hasattr(function, "set_model"):
        refuse(f"{key}._target_", "is a class that is no callback", target,
               accepted="a subclass of keras.callbacks.Callback",
               hint="class NAME(keras.callbacks.Callback)")  # fmt: skip
    arguments = divided(node)[0] if key == "dataset" or key.startswith("dataset.members") else node
    passed = ("_target_", "_partial_", *(_OF_ALL if key == "optimizer" else ()))
    given = {
        name: object() if isinstance(value, Mapping) and "_target_" in value else value
        for name, value in arguments.items() if name not in passed
    }  # fmt: skip
    bind(target, signature, given, key, partial=True)  # a run fills in others
    if target.split(".")[0] in KNOWN:
        check_kinds(target, signature, given, key)


def _signature(function: Any, key: str) -> inspect.Signature:
    """Return the parameters; of Keras' optimizers those behind ``**kwargs``, too."""
    signature = signature_of(function)
    module = str(getattr(function.__init__, "__module__", ""))
    if key != "optimizer" or not module.startswith("keras."):
        return signature
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    base = next(each for each in function.__mro__ if each.__name__ == "BaseOptimizer")
    names = inspect.signature(base.__init__).parameters.keys() - {"self", "kwargs", *_OF_ALL}
    more = sorted(names - signature.parameters.keys())
    return inspect.Signature(
        [*own, *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in more)]
    )
