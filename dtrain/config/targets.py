"""From a node with a ``_target_`` to a call of it: its arguments, and whose the error is.

Who may be called is decided in :mod:`dtrain.config.trust`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from dtrain.config import trust
from dtrain.config.trust import KNOWN
from dtrain.errors import DtrainError, UsageError, nearest, refuse


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
    function = trust.locate(node["_target_"], f"{key}._target_", argument)
    values = arguments(node, key)
    signature = signature_of(function)
    for name, value in (derived or {}).items():
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
