"""JSON schemas for editors, one for experiments and one for presets of each group.

An editor completes keys by them and marks those that are misspelt. They say less than dtrain
checks: a preset may have the keys of every option of its group, and a user's own function any.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any

from dtrain.config import schema
from dtrain.config.ranges import Each, Form, Range, accepted, optional, rule
from tests.options import nested, options

DRAFT = "http://json-schema.org/draft-07/schema#"
#: What may stand for any value: a reference, or the mark of what is missing.
REFERENCE = {"$ref": "#/definitions/reference"}
DEFINITIONS = {"reference": {"type": "string", "pattern": r"\$\{|^\?\?\?$"}}
TYPES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}
#: Sections that are no groups.
SECTIONS = ("checkpoint", "sweep")


def texts() -> dict[str, str]:
    """Return the text of each schema by its name: ``experiment``, and ``GROUP`` of presets."""
    made = {"experiment": experiment()}
    for group in schema.GROUPS:
        made[group.replace("/", "-")] = preset(group)
    return {name: json.dumps(each, indent=1) + "\n" for name, each in made.items()}


def preset(group: str) -> dict[str, Any]:
    """Return the schema of a file ``GROUP/OPTION.yaml``."""
    about = f"A preset of dtrain: {group}=NAME. {groups.help_of(group).help}"
    return {"$schema": DRAFT, "title": about, **_node(group), "definitions": DEFINITIONS}


def experiment() -> dict[str, Any]:
    """Return the schema of ``experiment/NAME.yaml``: all keys, with the groups inside."""
    keys: dict[str, Any] = {"defaults": _defaults(), "hydra": {"type": "object"}}
    given = groups.described(schema.Config, "")
    for field in dataclasses.fields(schema.Config):
        name = field.name
        if name in schema.GROUPS:
            keys[name] = {"$ref": f"{name}.json"}  # of the same folder
        elif name in SECTIONS:
            keys[name] = _closed(_fields(schema_of(name), name)) | {"description": given[name].help}
        else:
            keys[name] = _value(field, given[name])
    about = "An experiment of dtrain: experiment=NAME"
    return {"$schema": DRAFT, "title": about, **_closed(keys), "definitions": DEFINITIONS}


def schema_of(section: str) -> type:
    """Return the dataclass of a section."""
    found: Any = next(f for f in dataclasses.fields(schema.Config) if f.name == section)
    return found.default_factory


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
        for name, each in _fields(option.kind, prefix).items():
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
    found = set()
    for option in options(group):
        if option.kind is not None:
            of_kind = [f.default for f in dataclasses.fields(option.kind) if f.name == "_target_"]
            found |= {option.values.get("_target_"), *of_kind}
    return sorted(map(str, found - {None, "???"}))


def _any(several: list[Any]) -> dict[str, Any]:
    about = several[0].get("description", "")
    return {"description": about, "anyOf": [
        {name: value for name, value in each.items() if name != "description"} for each in several
    ]}  # fmt: skip


def _fields(kind: type, prefix: str) -> dict[str, Any]:
    given, inside = groups.described(kind, prefix), nested(kind)
    found = {}
    for field in dataclasses.fields(kind):
        if field.name in inside:
            name = f"{prefix}.{field.name}"
            made = _closed(_fields(inside[field.name], name))
            found[field.name] = made | {"description": given[field.name].help}
        else:
            found[field.name] = _value(field, given[field.name])
    return found


def _value(field: dataclasses.Field[Any], given: groups.Help) -> dict[str, Any]:
    """Return the schema of a key; with ``anyOf`` where a reference may stand for a number."""
    about = f"{given.help} Accepted: {accepted(field)}."
    made: dict[str, Any] = {"description": about}
    if given.default is not None:
        made["description"] += f" Default: {given.default}."
    plain = _plain(field)
    if plain is None:
        return made
    choices = [plain, REFERENCE]
    if optional(field):
        choices.insert(1, {"type": "null"})
    return {**made, "anyOf": choices}


def _plain(field: dataclasses.Field[Any]) -> dict[str, Any] | None:
    """Return the schema of the values themselves; None where any may stand."""
    if isinstance(field.default, enum.Enum):
        return {"enum": list(type(field.default).__members__)}
    kind = str(field.type).removesuffix(" | None")
    items = kind.removeprefix("list[").removesuffix("]")
    found = rule(field)
    if kind.startswith("list["):
        return {"type": "array", **_many(found, TYPES.get(items))}
    if kind not in TYPES:
        return None
    return {"type": TYPES[kind], **_one(found)}


def _one(found: Any) -> dict[str, Any]:
    if isinstance(found, Range):
        low = "exclusiveMinimum" if found.above else "minimum"
        high = "exclusiveMaximum" if found.below else "maximum"
        return {low: found.low, high: found.high}
    if isinstance(found, Form) and found.values:
        return {"enum": list(found.values)}
    return {}


def _many(found: Any, kind: str | None) -> dict[str, Any]:
    if not isinstance(found, Each):
        return {}
    item = {"type": kind} if kind else {}
    return {"items": {**item, **_one(found.rule)}, "minItems": found.least, "maxItems": found.most}
