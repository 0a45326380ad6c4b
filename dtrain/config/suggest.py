"""Which key was meant by one that stands at the wrong place, or has the name of another tool."""

from __future__ import annotations

import dataclasses
import re

from dtrain.config import groups
from dtrain.config.key_help import keys, kinds, sections
from dtrain.errors import nearest

#: Usual names of other tools, by the last part of the key here.
_USUAL = {"lr": "learning_rate", "gpus": "devices"}


def keys_named(name: str) -> list[str]:
    """Return the keys whose last part is, or is most like, ``name``; none where none is near.

    Args:
        name: without a dot, such as ``epochs`` or ``lr``.
    """
    known: dict[str, list[str]] = {}
    for key in keys():
        if key.startswith(("debug.", "action.")):
            continue
        if (group := key.replace(".", "/")) in groups.GROUPS:
            key = group
        known.setdefault(re.split(r"[./]", key)[-1], []).append(key)
    near = nearest(_USUAL.get(name, name), known, cutoff=0.75)
    found = [] if near is None else known[near]
    # What stands alone, as a group does, is meant before what stands below one.
    return [key for key in found if "." not in key] or found


def assigned(name: str, value: str) -> str | None:
    """Return overrides of the keys that are most like ``name``, as advice; None where none is."""
    return " or ".join(f"{key}={value}" for key in keys_named(name)[:3]) or None


def options_with(group: str, name: str) -> list[str]:
    """Return the options of a group that have a key ``name``."""
    schemas = groups.SCHEMAS.get(group, {})
    having = {each for each, kind in schemas.items() if name in _fields(kind)}
    found = []
    for path in sorted((groups.folder("conf") / group).glob("*.yaml")):
        of_file = re.search(rf"^  - /schema/{group}/(\w+)@_here_$", path.read_text(), re.M)
        if of_file is not None and of_file[1] in having:
            found.append(path.stem)
    return found


def key_like(name: str, names: list[str]) -> str | None:
    """Return the one of the keys of a group that was meant, None where none is near."""
    return nearest(_USUAL.get(name, name), names)


def keys_of_type(name: str) -> list[str]:
    """Return the keys of a dataclass of the configuration, by its name as OmegaConf prints it."""
    known = [kind for options in groups.SCHEMAS.values() for kind in options.values()]
    known += [kind for group in ("", *sections()) for kind in kinds(group)]
    found = next((kind for kind in known if kind.__name__ == name), None)
    return [] if found is None else sorted(_fields(found))


def _fields(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}
