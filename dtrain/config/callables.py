"""What a function of dtrain's or Keras' takes, and whose the error is when it fails."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dtrain.errors import DtrainError, UsageError, nearest, refuse

#: dtrain, Keras, PyTorch and its metrics, of which some names may be given without trust, and all
#: only one by one. Their functions check their arguments, or fail over them.
KNOWN = ("dtrain", "keras", "torch", "torchmetrics")


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
    near = nearest(name, takes)
    hint = f"the command without {key}.{name}"
    if near is not None or name in missing:
        plus = "" if "[" in key else "+"  # a key that the option of the group does not have
        hint = plus + _hint(key, near or name, given.get(name, "VALUE"))
    refuse(f"{key}.{name}", f"{target} does not take these arguments ({reason})", given.get(name),
           accepted=", ".join(takes) or "no arguments", hint=hint)  # fmt: skip


def _hint(key: str, name: str, value: Any) -> str:
    """Return how a value is given: an override cannot name what is in a list."""
    return f"{name}:{value} in {key}" if "[" in key else f"{key}.{name}={value}"


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
               typed=_hint(key, name, str(default).lower()))  # fmt: skip


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
        given = {k: v for k, v in node.items() if k != "_target_" and v not in (None, False)}
        values = ", ".join(f"{name}={value}" for name, value in given.items())
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
