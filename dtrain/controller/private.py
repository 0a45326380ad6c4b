"""A configuration that can be written down: references in the place of secrets.

What comes from the environment (``${oc.env:NAME}``) stays that reference. A secret that was typed
moves to a variable of this process's environment, which the tasks inherit, and leaves a reference
to it. References are resolved where a value is used, never where it is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from dtrain import secrets
from dtrain.errors import UsageError

#: Variables that hold what was typed: this, and the key.
PREFIX = "DTRAIN_SECRET_"
_REFERENCE = re.compile(r"\$\{oc\.env:\s*([^{},\s]+)\s*(,?)")
_SHORTEST = 4  # of a value of the environment that is looked for in other values


def written(config: DictConfig) -> dict[str, Any]:
    """Return ``config`` as plain values that may be written: references stay references."""
    plain: Any = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    return plain


def resolve(config: DictConfig) -> None:
    """Resolve everything in ``config``, in place, but what must not be written.

    Raises:
        UsageError: a reference names a variable that the environment lacks.
    """
    references = {
        key: raw
        for key, _, _, raw in _leaves(config)
        if isinstance(raw, str) and _REFERENCE.search(raw)
    }
    for key, raw in references.items():
        check(key, raw)
    names = {match[1] for raw in references.values() for match in _REFERENCE.finditer(raw)}
    values = {os.environ.get(name, "") for name in names}
    values = {value for value in values if len(value) >= _SHORTEST}
    OmegaConf.resolve(config)
    for key, node, name, value in list(_leaves(config)):
        if key in references:
            if isinstance(value, str):  # a number was checked with its type, and is no secret
                node[name] = references[key]
        elif secrets.is_secret(value, key) or (
            isinstance(value, str) and any(each in value for each in values)
        ):
            node[name] = _move(key, value)
        elif isinstance(value, str) and (spans := secrets.passwords(value)):
            text = value
            for begin, end in reversed(spans):
                text = text[:begin] + _move(key, value[begin:end]) + text[end:]
            node[name] = text


def check(key: str, text: str) -> None:
    """Refuse a ``text`` with a reference to a variable that the environment lacks.

    Raises:
        UsageError: saying how to give it.
    """
    for name, default in _REFERENCE.findall(text):
        if name in os.environ or default:
            continue
        problem = f"the environment has no variable {name}"
        if name.startswith(PREFIX):
            problem = "it is a secret, which the run folder does not hold"
        raise UsageError(
            key, text, problem, "the value, given anew", f"{name}=VALUE in front of the command"
        )


def words(overrides: list[str], config: DictConfig) -> list[str]:
    """Return the words of a command line as they may be written.

    Args:
        overrides: ``key=value`` each.
        config: what they make, after :func:`resolve`.
    """
    moved = {
        key: (node[name], raw)
        for key, node, name, raw in _leaves(config)
        if isinstance(raw, str) and PREFIX in raw
    }
    kept = []
    for word in overrides:
        head, equals, text = word.partition("=")
        key = head.lstrip("+~").replace("/", ".")
        for path, (value, reference) in moved.items():
            if path == key:
                text = reference
            elif path.startswith(f"{key}.") and text[:1] in ("[", "{"):  # it is in there
                # Quoted with escapes it is not found as it is: it has to be given again.
                text = text.replace(str(value), reference) if str(value) in text else "???"
        kept.append(f"{head}{equals}{text}")
    return kept


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield every scalar: its key, the node and name it stands at, and what is written there."""
    names: Any = node if isinstance(node, DictConfig) else range(len(node))
    for name in names:
        child = node._get_node(name)
        key = f"{prefix}.{name}" if prefix else str(name)
        if not isinstance(child, DictConfig | ListConfig):
            yield key, node, name, child._value()
        elif isinstance(child._value(), dict | list):
            yield from _leaves(child, key)
        else:  # nothing, or an interpolation
            yield key, node, name, child._value()


def _move(key: str, value: Any) -> str:
    """Put a value into the environment and return the reference to it."""
    name, text = PREFIX + re.sub(r"\W+", "_", key).upper(), str(value)
    while os.environ.get(name, text) != text:  # of another job of this process
        name += "_"
    os.environ[name] = text
    return f"${{oc.env:{name}}}" if isinstance(value, str) else f"${{oc.decode:${{oc.env:{name}}}}}"
