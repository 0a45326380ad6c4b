"""A configuration that can be written down: references in the place of secrets.

A variable of the environment that is named like a secret, or stands where a secret does, stays a
reference (``${oc.env:NAME}``); any other becomes its value. A secret that was typed moves to a
variable of this process's environment, which the tasks inherit, and leaves a reference to it.
References are resolved where a value is used, never where it is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from dtrain import secrets
from dtrain.config import consent
from dtrain.config.consent import PREFIX
from dtrain.config.overrides import parse
from dtrain.errors import refuse

_REFERENCE = re.compile(r"\$\{oc\.env:\s*(['\"]?\w+['\"]?)\s*(,?)")
#: A reference that can be replaced in an override, and a value that needs no quotes there.
_SIMPLE, _UNQUOTED = re.compile(r"\$\{oc\.env:(\w+)\}"), re.compile(r"[\w./+-]+")
_SHORTEST = 4  # of a secret that is looked for in values which other values are part of


def resolve(config: DictConfig) -> None:
    """Resolve everything in ``config``, in place, but what must not be written.

    Raises:
        UsageError: a reference names a variable that the environment lacks, or that the user has
            not named.
    """
    before = {key: (node, name, raw) for key, node, name, raw in _leaves(config)}
    made = {key: raw for key, (_, _, raw) in before.items() if "${" in str(raw)}
    for key, raw in made.items():
        check(key, raw)
    consent.read.clear()
    OmegaConf.resolve(config)
    standing = set().union(*(_secret_names(key, raw) for key, raw in made.items()))
    hidden = {
        name: value
        for name, value in consent.read.items()
        if value and (name in standing or secrets.named(name))
    }
    for key, raw in made.items():
        node, name, _ = before[key]
        value = node._get_node(name)
        # Decoded: a number, or a whole node, of which no part is to be written.
        if hidden.keys() & variables(raw) and not isinstance(value._value(), str):
            node[name] = raw
    for key, node, name, value in list(_leaves(config)):
        own = key in before and key not in made  # as it was typed
        if isinstance(value, str) and not own and not key.endswith("_target_"):
            text = _referring(value, hidden, variables(str(made.get(key, ""))))
            if text != value:
                node[name] = text
                continue
        if "${" in str(value):
            continue
        if secrets.is_secret(value, key):
            node[name] = _move(key, value)
        elif isinstance(value, str) and (spans := secrets.passwords(value)):
            text = value
            for begin, end in reversed(spans):
                text = text[:begin] + _move(key, value[begin:end]) + text[end:]
            node[name] = text


def variables(raw: str) -> set[str]:
    """Return the variables of the environment that a text refers to."""
    return {match[1].strip("'\"") for match in _REFERENCE.finditer(raw)}


def _secret_names(key: str, raw: str) -> set[str]:
    """Return the variables of ``raw`` that are secrets by where they stand."""
    if secrets.named(key):
        return variables(raw)
    return set().union(*(variables(raw[begin:end]) for begin, end in secrets.passwords(raw)))


def _referring(value: str, hidden: dict[str, str], named: set[str]) -> str:
    """Return ``value`` with references in the place of secrets.

    Args:
        value: resolved.
        hidden: secrets, by the names of their variables.
        named: those that what was resolved names itself.
    """
    for name, secret in sorted(hidden.items(), key=lambda item: -len(item[1])):
        if name in named or len(secret) >= _SHORTEST:
            value = value.replace(secret, f"${{oc.env:{name}}}")
    return value


def check(key: str, text: str) -> None:
    """Refuse a ``text`` with a reference to a variable that is not there, or not to be read.

    Raises:
        UsageError: saying how to give it.
    """
    for quoted, default in _REFERENCE.findall(text):
        name = quoted.strip("'\"")
        if name in os.environ and not consent.allowed(name):
            raise consent.refusal(key, name)
        if name in os.environ or default:
            continue
        problem = f"the environment has no variable {name}"
        if name.startswith(PREFIX):
            problem = "it is a secret, which the run folder does not hold"
        refuse(key, problem, text, accepted="the value, given anew",
               hint=f"{name}=VALUE in front of the command")  # fmt: skip


def as_written(overrides: list[str], config: DictConfig) -> list[str]:
    """Return the overrides of a command line as they may be written.

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
    for override in overrides:
        given = parse(override)
        key, text = given.key, given.value or ""
        for path, (value, reference) in moved.items():
            if path == key:
                text = _quoted_as(text, reference)
            elif path.startswith(f"{key}.") and text[:1] in ("[", "{"):  # it is in there
                # Quoted with escapes it is not found as it is: it has to be given again.
                text = text.replace(str(value), reference) if str(value) in text else "???"
        kept.append(
            override if given.value is None else str(given._replace(value=_with_values(key, text)))
        )
    return kept


def _quoted_as(text: str, reference: str) -> str:
    """Return what has a reference in the place of a secret, in the quotes of what was typed."""
    quote = text[:1]
    if quote not in ("'", '"') or reference.startswith("${"):
        return reference
    return quote + reference.replace(quote, f"\\{quote}") + quote


def _with_values(key: str, text: str) -> str:
    """Put their values in the place of variables that are no secrets: elsewhere they are others."""
    secret = _secret_names(key, text)

    def replace(match: re.Match[str]) -> str:
        name, value = match[1], os.environ.get(match[1], "")
        keep = name in secret or secrets.named(name) or not _UNQUOTED.fullmatch(value)
        return match[0] if keep else value

    return _SIMPLE.sub(replace, text)


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
