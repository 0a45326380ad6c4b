"""The options of the groups as ``conf/`` has them: files, schemas and defaults of each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from dtrain.config import schema
from dtrain.config.fields import Group

CONF = schema.folder("conf")


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a group.

    Attributes:
        group: as it is typed, ``optimizer/schedule``.
        name: of the option.
        about: its first comment line.
        kind: model of its keys; None where the user's own function has them.
        values: what its file, and those that it includes, give to the keys.
        of_model: keys that shipped models give another default, ``rules`` of a mesh.
    """

    group: str
    name: str
    about: str
    kind: type[Group] | None
    values: dict[str, Any]
    of_model: tuple[str, ...] = ()


def options(group: str) -> list[Option]:
    """Return the options of a group, the default first."""
    files = sorted((CONF / group).glob("*.yaml"))
    found = [_option(group, path) for path in files]
    return sorted(found, key=lambda option: option.name != schema.GROUPS[group])


def _option(group: str, path: Path) -> Option:
    text = path.read_text(encoding="utf-8")
    comments = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    node = yaml.safe_load(text) or {}
    kind: type[Group] | None = schema.sections().get(group)
    values: dict[str, Any] = {}
    of_model: tuple[str, ...] = ()
    for each in node.pop("defaults", []):
        if isinstance(each, dict):
            assert list(each.values()) == ["${model}"], each
            of_model = tuple(name.split()[1].partition("@")[0] for name in each)
            continue
        if each == "_self_":
            continue
        if each.startswith(start := f"/schema/{group}/"):
            known = {**schema.SCHEMAS[group], **(schema.SINKS if group == "tracking" else {})}
            kind = known[each.removeprefix(start).partition("@")[0]]
        elif not each.startswith("/"):
            included = _option(group, path.with_name(f"{each}.yaml"))
            kind, values = kind or included.kind, values | included.values
    about = next(comment for comment in comments if not comment.startswith("@"))
    return Option(group, path.stem, about, kind, values | node, of_model)


def nested(kind: type[Group]) -> dict[str, type[Group]]:
    """Return the fields of a model that are models."""
    fields = kind.model_fields.items()
    return {name: type(each.default) for name, each in fields if isinstance(each.default, Group)}
