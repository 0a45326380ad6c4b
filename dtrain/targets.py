"""``_target_``: from the name of a function or class in the configuration to a call of it.

Only names under ``dtrain``, ``keras`` and what the environment variable ``DTRAIN_TRUST`` lists are
imported: a configuration is data, and may come from somebody else.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from dtrain import errors
from dtrain.errors import UsageError, nearest

TRUST = "DTRAIN_TRUST"
#: Packages whose functions check their arguments, or fail over them.
OWN = ("dtrain", "keras")


def plain(node: Any) -> Any:
    """Return a configuration node as plain dicts, lists and scalars."""
    if not OmegaConf.is_config(node):
        return node
    return OmegaConf.to_container(node, resolve=True, enum_to_str=True)


def trusted() -> list[str]:
    """Return the top-level packages whose functions a configuration may name."""
    extra = [name.strip() for name in os.environ.get(TRUST, "").split(",")]
    return ["dtrain", "keras", *filter(None, extra)]


def check(node: Any, key: str = "") -> None:
    """Refuse every ``_target_`` below ``node`` that is not trusted, importing nothing.

    Args:
        node: a plain configuration: mappings, sequences and scalars.
        key: where ``node`` stands in the configuration, for the message.

    Raises:
        UsageError: naming the key and the way to allow it.
    """
    if isinstance(node, Mapping):
        if "_target_" in node:
            _check_name(node["_target_"], f"{key}._target_" if key else "_target_")
        for name, value in node.items():
            check(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for position, value in enumerate(node):
            check(value, f"{key}[{position}]")


def _check_name(target: Any, key: str) -> None:
    roots = trusted()
    if not isinstance(target, str) or "." not in target:
        raise UsageError(
            key,
            target,
            "is not the dotted name of a function or class",
            f"package.module.name under {', '.join(roots)}",
            f"{key}=keras.applications.MobileNetV2",
        )
    if not any(target.startswith(f"{root}.") for root in roots):
        raise _untrusted(key, target, target.split(".")[0])


def _untrusted(key: str, target: str, package: str) -> UsageError:
    roots = trusted()
    return UsageError(
        key,
        target,
        f"the package {package!r} is not trusted",
        f"names under {', '.join(roots)}",
        f"{TRUST}={','.join([*roots[2:], package])} in front of the command, if you trust its code",
    )


def locate(target: str, key: str) -> Callable[..., Any]:
    """Import and return what ``target`` names.

    Raises:
        UsageError: it is not trusted, does not exist, or cannot be called.
    """
    _check_name(target, key)
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
            # inside it is the person's own error and must be seen as it is.
            if not error.name or not f"{module}.".startswith(f"{error.name}."):
                raise
    start = depth if found is not None else 0
    for position, name in enumerate(parts[start:], start):
        names = [n for n in dir(found) if not n.startswith("_")] if found is not None else []
        if found is None or not hasattr(found, name):
            near = nearest(name, names)
            whole = ".".join([*parts[:position], near or "NAME", *parts[position + 1 :]])
            raise UsageError(
                key,
                target,
                f"{name!r} does not exist",
                "a function or class that can be imported from here",
                f"{key}={whole}",
            )
        found = getattr(found, name)
        # A trusted module may hold one that is not: `keras.x.os.system`.
        if callable(found) or inspect.ismodule(found):
            home = _home(found)
            if home not in {root.split(".")[0] for root in trusted()}:
                raise _untrusted(key, target, home)
    if not callable(found):
        raise UsageError(key, target, "cannot be called", "a function or class", f"{key}=...")
    return found


def _home(value: Any) -> str:
    """Return the top-level package that ``value`` is from, or its type where it says nothing."""
    module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    return (module or type(value).__module__).split(".")[0]


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
            return instantiate(value, key)
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
            them out or null (``input_shape``, ``classes``).

    Raises:
        UsageError: the target is not trusted, does not exist, or does not take these arguments.
    """
    function = locate(node["_target_"], f"{key}._target_")
    given = arguments(node, key)
    signature = _signature(function)
    for name, value in derived.items():
        if name in signature.parameters and given.get(name) is None:
            given[name] = value
    partial = bool(node.get("_partial_"))
    try:
        (signature.bind_partial if partial else signature.bind)(**given)
    except TypeError as error:
        kinds = {n: p.kind for n, p in signature.parameters.items()}
        takes = [n for n, k in kinds.items() if k not in (k.VAR_POSITIONAL, k.VAR_KEYWORD)]
        open_ended = inspect.Parameter.VAR_KEYWORD in kinds.values()
        unknown = [n for n in given if n not in takes and not open_ended]
        missing = [
            n
            for n in takes
            if n not in given and signature.parameters[n].default is inspect.Parameter.empty
        ]
        name = next(iter(unknown or missing), "")
        near = nearest(name, takes)
        raise UsageError(
            f"{key}.{name}",
            given.get(name),
            f"{node['_target_']} does not take these arguments ({error})",
            ", ".join(takes),
            f"{key}.{near or (takes[0] if takes else name)}=...",
        ) from None
    if _home(function) in OWN:
        _check_kinds(node["_target_"], signature, given, key)
    if partial:
        return functools.partial(function, **given)
    with blame(key, node, f"{_home(function)}."):
        return function(**given)


def _check_kinds(
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
        raise UsageError(
            f"{key}.{name}", value, f"{target} takes {accepted} there", accepted,
            f"{key}.{name}={str(default).lower()}",
        )  # fmt: skip


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
    except (errors.DtrainError, OSError, MemoryError):
        raise
    except Exception as error:
        if target.partition(".")[0] not in OWN:
            raise
        given = {k: v for k, v in node.items() if k != "_target_" and v not in (None, False)}
        values = ", ".join(f"{name}={value}" for name, value in given.items())
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Keras prints in bold
        problem = " ".join(text.split())[:500] or type(error).__name__
        raise UsageError(
            key, f"{node.get('_target_')}({values[:200]})", f"cannot be made so ({problem})",
            "values that it takes", f"{key}.NAME=VALUE, or {key}=ANOTHER",
        ) from error  # fmt: skip


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:  # of a built-in that does not tell: it checks its arguments itself
        return inspect.Signature([inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)])
