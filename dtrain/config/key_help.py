"""What each key of the configuration is: its type, default, accepted values, and a line of help.

The lines are the ``Attributes`` of the docstrings of :mod:`dtrain.config.schema`,
:mod:`dtrain.config.presets` and :mod:`dtrain.config.strategies`.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Any, NamedTuple

from dtrain.config import groups, schema, strategies
from dtrain.config.ranges import accepted, typed
from dtrain.errors import UsageError

#: An attribute of a docstring, with the lines that are further in than its name.
_LINE = re.compile(r"^( +)(\w+): (.+(?:\n\1 +.+)*)$", re.M)


class Help(NamedTuple):
    """What is known of one key.

    Attributes:
        type: of its values.
        default: as it is typed; None where the user has to give a value.
        accepted: the values, in words.
        help: a sentence or two.
    """

    type: str
    default: str | None
    accepted: str
    help: str


def help_of(key: str) -> Help:
    """Return the help of a key, such as ``trainer.batch_size``, ``model.units`` or ``strategy``.

    A key that several options of a group have is that of the group's default option, where it has
    it, else of the first one that has it.

    Args:
        key: dotted.

    Raises:
        UsageError: no option has such a key.
    """
    group, _, name = key.replace("/", ".").rpartition(".")
    for kind in kinds(group):
        field = next((each for each in dataclasses.fields(kind) if each.name == name), None)
        if field is not None:
            return _help(kind, field, key)
    raise UsageError(
        "--help", key, "there is no such key", "the keys that --cfg job prints",
        "python -m dtrain --cfg job",
    )  # fmt: skip


def keys() -> list[str]:
    """Return all keys that have a help: of the whole and of every option of every group."""
    found = []
    for group in ("", *sections(), *_groups()):
        for kind in kinds(group):
            found += [f"{group}.{field.name}" if group else field.name
                      for field in dataclasses.fields(kind)]  # fmt: skip
    return list(dict.fromkeys(found))


def lines(kind: type) -> dict[str, str]:
    """Return the help of each field of a dataclass, those that it inherits as well."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        _, _, attributes = (each.__doc__ or "").partition("Attributes:\n")
        found |= {name: " ".join(text.split()) for _, name, text in _LINE.findall(attributes)}
    return found


def described(kind: type, group: str) -> dict[str, Help]:
    """Return the help of each field of a dataclass that stands at ``group``, ``""`` for the top."""
    return {
        field.name: _help(kind, field, f"{group}.{field.name}".lstrip("."))
        for field in dataclasses.fields(kind)
    }


def _help(kind: type, field: dataclasses.Field[Any], key: str) -> Help:
    line = lines(kind)[field.name]
    group = key.replace(".", "/")
    if group in groups.GROUPS:
        return Help("group", groups.GROUPS[group], ", ".join(groups.options(group)), line)
    if key in sections():
        return Help("group", None, f"{key}.KEY=VALUE", line)
    return Help(_type(field), _default(field), accepted(field), line)


def sections() -> dict[str, Any]:
    """Return the dataclasses of groups that are not open, and of what is in them."""
    return {
        field.name: field.default_factory
        for field in dataclasses.fields(schema.Config)
        if dataclasses.is_dataclass(field.default_factory)
    }


def _groups() -> list[str]:
    return [*(group.replace("/", ".") for group in groups.SCHEMAS), "strategy.mesh"]


def kinds(group: str) -> list[type]:
    """Return the dataclasses of what may stand at ``group``, that of the default option first."""
    if not group:
        return [schema.Config]
    if group == "strategy.mesh":
        return [strategies.Mesh]
    if group in sections():
        return [sections()[group]]
    path = group.replace(".", "/")
    options = groups.SCHEMAS.get(path, {})
    first = groups.GROUPS.get(path)
    return [options[name] for name in sorted(options, key=lambda name: name != first)]


def _type(field: dataclasses.Field[Any]) -> str:
    if isinstance(field.default, enum.Enum):
        return "one of several names"
    words = str(field.type).replace("list[", "list of ").replace("]", "").split(" | ")
    names = {"str": "text", "None": "null", "Any": "any value", "bool": "true or false",
             "Switch": "true, false or auto",
             "int": "whole number", "float": "number", "list of int": "list of whole numbers",
             "list of str": "list of texts", "list of Any": "list"}  # fmt: skip
    return " or ".join(names.get(word, word) for word in words)


def _default(field: dataclasses.Field[Any]) -> str | None:
    value = field.default
    if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    return None if value == "???" else typed(value)
