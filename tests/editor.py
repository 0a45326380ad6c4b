"""JSON schemas for editors, one for experiments and one for presets of each group.

An editor completes keys by them and marks those that are misspelt. They say less than dtrain
checks: a preset may have the keys of every option of its group, and a user's own function any.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import TypeAdapter

from dtrain.config import schema
from dtrain.config.fields import Group, key_of
from dtrain.config.help import Help, described, help_of
from tests.options import nested, options

DRAFT = "http://json-schema.org/draft-07/schema#"
#: What may stand for any value: a reference, or the mark of what is missing.
REFERENCE = {"$ref": "#/definitions/reference"}
DEFINITIONS = {"reference": {"type": "string", "pattern": r"\$\{|^\?\?\?$"}}


def texts() -> dict[str, str]:
    """Return the text of each schema by its name: ``experiment``, and ``GROUP`` of presets."""
    made = {"experiment": experiment()}
    for group in schema.GROUPS:
        made[group.replace("/", "-")] = preset(group)
    return {name: json.dumps(each, indent=1) + "\n" for name, each in made.items()}


def preset(group: str) -> dict[str, Any]:
    """Return the schema of a file ``GROUP/OPTION.yaml``."""
    about = f"A preset of dtrain: {group}=NAME. {help_of(group).help}"
    return {"$schema": DRAFT, "title": about, **_node(group), "definitions": DEFINITIONS}


def experiment() -> dict[str, Any]:
    """Return the schema of ``experiment/NAME.yaml``: all keys, with the groups inside."""
    keys: dict[str, Any] = {"defaults": _defaults(), "hydra": {"type": "object"}}
    for name, each in _fields(schema.Config, "").items():
        # Groups have files of their own, in the same folder.
        keys[name] = {"$ref": f"{name}.json"} if name in schema.GROUPS else each
    about = "An experiment of dtrain: experiment=NAME"
    return {"$schema": DRAFT, "title": about, **_closed(keys), "definitions": DEFINITIONS}


def _defaults() -> dict[str, Any]:
    return {
        "type": "array",
        "description": "options that this file begins with, and `_self_` for its own place",
    }


def _closed(keys: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": keys}


def _node(group: str) -> dict[str, Any]:
    """Return the schema of what stands at a group: known keys, unless a function is one's own."""
    prefix = group.replace("/", ".")
    keys: dict[str, list[Any]] = {}
    for option in options(group):
        if option.kind is None:
            continue
        inside = f"{prefix}.{option.name}" if option.kind in schema.SINKS.values() else prefix
        if inside != prefix:  # what its file has stands in a node of its own elsewhere
            keys[option.name] = [_closed(_fields(option.kind, inside))]
        for name, each in _fields(option.kind, inside).items():
            if each not in keys.setdefault(name, []):
                keys[name].append(each)
    if group == "optimizer":
        keys["schedule"] = [{"anyOf": [{"$ref": "optimizer-schedule.json"}, {"type": "null"}]}]
    if group == "optimizer/schedule":  # constant is the lack of one
        keys["schedule"] = [{"type": "null"}]
    properties = {name: each[0] if len(each) == 1 else _any(each) for name, each in keys.items()}
    own = {"required": ["_target_"], "properties": {"_target_": {"not": {"enum": known(group)}}}}
    names = {"enum": sorted({"defaults", *properties})}
    return {
        "type": "object",
        "properties": {"defaults": _defaults(), **properties},
        "if": own if group not in ("hardware", "trainer") else False,
        "else": {"propertyNames": names},
    }


def known(group: str) -> list[str]:
    """Return all functions and classes that the options of a group name."""
    names = {option.values.get("_target_") for option in options(group)}
    names |= {schema.target_of(option.kind) for option in options(group) if option.kind}
    return sorted(map(str, names - {None, "???"}))


def _any(several: list[Any]) -> dict[str, Any]:
    about = several[0].get("description", "")
    return {"description": about, "anyOf": [
        {name: value for name, value in each.items() if name != "description"} for each in several
    ]}  # fmt: skip


def _fields(kind: type[Group], prefix: str) -> dict[str, Any]:
    given, inside = described(kind, prefix), nested(kind)
    keys = {}
    for name, field in kind.model_fields.items():
        key = key_of(name, field)
        if name in inside:
            made = _closed(_fields(inside[name], f"{prefix}.{name}".lstrip(".")))
            keys[key] = made | {"description": given[key].help}
        else:
            whole: Any = field.annotation
            for mark in field.metadata:
                whole = Annotated[whole, mark]
            keys[key] = _value(whole, given[key])
    return keys


def _value(annotation: Any, given: Help) -> dict[str, Any]:
    """Return the schema of a key; a reference may stand for any value."""
    about = f"{given.help} Accepted: {given.accepted}."
    if given.default is not None:
        about += f" Default: {given.default}."
    plain = TypeAdapter(annotation).json_schema()
    if not plain.keys() - {"title", "description"}:
        return {"description": about}
    inner = plain.pop("$defs", None)
    if inner is not None:  # a model in it: its keys are for dtrain to check
        return {"description": about}
    choices = plain.get("anyOf", [plain])
    if {} in choices:
        return {"description": about}
    return {"description": about, "anyOf": [*choices, REFERENCE]}
