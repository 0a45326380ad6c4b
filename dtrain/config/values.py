"""The values of a configuration: each against what the schema declares for its key, in one place.

:func:`settle` makes of what Hydra has composed a configuration in order: resolved, checked, typed.

Nodes that a user's own preset makes have no schema; those whose ``_target_`` is one that dtrain
ships a schema for are held to that. Of all else it is known only that no number is NaN, infinite or
beyond 64 bits, and that texts and nesting end.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain.config import groups, load, names, private, schema, strategies, suggest, targets, trust
from dtrain.config.presets.datasets import Dataset
from dtrain.config.presets.debug import TRAIN
from dtrain.config.ranges import Range, Rule, accepted, optional, rule, typed
from dtrain.config.schema import Config
from dtrain.data.files import is_address
from dtrain.errors import UsageError, refuse
from dtrain.files import addresses

_CHARACTERS = 100_000  # of a text that no rule knows
_DEPTH = 32  # of nodes in nodes
_INTEGER = 2**63
#: Groups of which the controller itself reads keys.
_READ: dict[str, type] = {
    "strategy": strategies.Strategy,
    "launcher": schema.Launcher,
    "tracking": schema.Tracking,
}
#: Groups of whose keys some are dtrain's own, and may be left out.
_SHARED: dict[str, type] = {"dataset": Dataset}


def check(config: DictConfig) -> None:
    """Refuse keys that are gone, values of the wrong kind, and values out of range.

    Args:
        config: resolved, but for references to secrets.

    Raises:
        UsageError: for the first one found.
    """
    _node(config, "", schema.Config)


def check_node(node: DictConfig, key: str) -> None:
    """Refuse the same in a node that has a schema of its own, such as ``hydra.sweeper``.

    Raises:
        UsageError: for the first one found.
    """
    _node(node, key, _kind(node))


def refuse_unknown(config: DictConfig) -> None:
    """Refuse keys that ``+key=value`` has put beside those that code reads.

    Raises:
        UsageError: for the first one found. Keys of models, datasets... are checked where the
            function is called that takes them.
    """
    kinds = {"": schema.Config, "hardware": schema.Hardware, "trainer": schema.Trainer,
             "checkpoint": schema.Checkpointing,
             "sweep": schema.Sweep}  # fmt: skip
    for prefix, kind in kinds.items():
        names = sorted(_fields(kind))
        for name in map(str, OmegaConf.select(config, prefix) if prefix else config):
            if name not in names:
                key = f"{prefix}.{name}" if prefix else name
                value = OmegaConf.select(config, key)
                refuse(
                    key, "nothing reads this key", value, accepted=", ".join(names),
                    hint=suggest.meant(key, typed(value), names) or f"the command without +{key}",
                )  # fmt: skip


def check_overrides(config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse overrides whose kind is another than their key's, where OmegaConf would convert them.

    It takes ``dry_run=7`` for true, ``hardware.kind=2`` for the second of its names, and a text of
    digits of any alphabet for a number.

    Args:
        config: what the overrides made.
        overrides: in Hydra's grammar.

    Raises:
        UsageError: for the first one found.
    """
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key, value = override.key_or_group, override.value()
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
        field = _fields(_kind(node)).get(name) if isinstance(node, DictConfig) else None
        if field is None or isinstance(value, Sweep):
            continue
        words = str(field.type).split(" | ")
        text = isinstance(value, str) and "${" not in value
        number = isinstance(value, int | float) and not isinstance(value, bool)
        problem = None
        if text and words[0] in ("int", "float"):
            problem = "is a text"
        elif number and (words[0] == "bool" or isinstance(field.default, enum.Enum)):
            problem = "is a number"
        if problem is not None:
            refuse(key, problem, value, accepted=accepted(field),
                   typed=f"{key}={typed(field.default)}")  # fmt: skip


def check_group(config: DictConfig, key: str) -> None:
    """Refuse the same in one group, such as ``sweep``.

    Raises:
        UsageError: for the first one found.
    """
    _field(config, key, key, _fields(schema.Config)[key])


def _node(node: DictConfig, key: str, kind: type | None) -> None:
    """Check all keys of a node.

    Args:
        node: a mapping.
        key: where it stands; empty for the whole configuration.
        kind: the dataclass with its fields, None where there is none.
    """
    fields = _fields(kind)
    present = set(node)  # `in` passes over those that are missing
    for name in fields:
        if name not in present:
            raise _removed(_join(key, name), fields[name])
    for each in node:
        name = str(each)
        if name in fields:
            _field(node, name, _join(key, name), fields[name])
        elif key.endswith(".members") and isinstance(node[each], DictConfig):  # of a mixture
            _known(node[each], _join(key, name), None)
        else:
            _any(_plain(node, each), _join(key, name), 1)


def _field(node: DictConfig, name: str, key: str, field: dataclasses.Field[Any]) -> None:
    if OmegaConf.is_missing(node, name):
        refuse(key, "has no value yet", accepted=accepted(field), hint=f"{key}=VALUE")
    child = node[name]
    if isinstance(child, DictConfig):
        kind = _kind(child)
        if field.type in ("Any", "Open"):
            _known(child, key, kind)
        _node(child, key, kind)
    found = rule(field)
    value = _plain(node, name)
    if found is None or (value is None and optional(field)):
        return
    if not isinstance(found, Range):
        _any(value, key, 1)
    problem = found.problem(value)
    if problem is not None:
        refuse(key, problem, _shown(node, name, value), accepted=accepted(field),
               typed=_hint(key, value, field, found))  # fmt: skip


def _known(node: DictConfig, key: str, own: type | None) -> None:
    """Hold a node to the schema of its ``_target_``, where there is one that is not its ``own``.

    What the plan and the supervisor read has to be there whoever wrote the class.
    """
    needed = _READ.get(key)
    kind = _by_target().get(str(node.get("_target_")), needed or _SHARED.get(key))
    if kind is None or (own is not None and issubclass(own, kind)):
        return
    declared = OmegaConf.structured(kind)
    for name, field in _fields(kind).items():
        if name not in node:
            if needed is not None and name in _fields(needed):
                raise _removed(f"{key}.{name}", field)
            continue
        try:
            OmegaConf.update(declared, name, _plain(node, name), merge=False)
        except OmegaConfBaseException as error:
            reason = str(error).split("\n")[0]
            raise UsageError(
                f"{key}.{name}", f"has the wrong type ({reason})", _shown(node, name, node[name]),
                accepted=accepted(field), typed=f"{key}.{name}={typed(getattr(declared, name))}",
            ) from None  # fmt: skip
        _field(node, name, f"{key}.{name}", field)


def _any(value: Any, key: str, depth: int) -> None:
    """Check a value that nothing is declared for."""
    problem = None
    if depth > _DEPTH:
        problem, value = f"is nested more than {_DEPTH} deep", "..."
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _any(item, f"{key}.{name}", depth + 1)
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _any(item, f"{key}[{position}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        problem = "is not a number" if math.isnan(value) else "is infinite"
    elif isinstance(value, int) and not -_INTEGER <= value < _INTEGER:
        problem, value = "does not fit into 64 bits", f"{str(value)[:40]}"
    elif isinstance(value, str) and len(value) > _CHARACTERS:
        problem, value = f"is {len(value):,} characters long", f"{value[:40]}..."
    elif isinstance(value, str) and "\0" in value:
        problem, value = "holds the character NUL", value.replace("\0", "\\0")
    elif isinstance(value, bytes):
        problem, value = "is binary", "..."
    if problem is not None:
        refuse(key, problem, value, accepted="finite numbers and texts", hint=f"{key}=VALUE")


def _removed(key: str, field: dataclasses.Field[Any]) -> UsageError:
    return UsageError(key, "cannot be left out", "(nothing)", accepted=accepted(field),
                      hint=f"+{key}=VALUE")  # fmt: skip


def _kind(node: DictConfig) -> type | None:
    kind = OmegaConf.get_type(node)
    return kind if dataclasses.is_dataclass(kind) and isinstance(kind, type) else None


def _by_target() -> dict[str, type]:
    """Return the schemas of what a ``_target_`` names."""
    kinds = [kind for group in groups.SCHEMAS.values() for kind in group.values()]
    found = {_fields(kind)["_target_"].default: kind for kind in kinds}
    return {name: kind for name, kind in found.items() if isinstance(name, str) and "." in name}


def _fields(kind: type | None) -> dict[str, dataclasses.Field[Any]]:
    if kind is None:
        return {}
    return {field.name: field for field in dataclasses.fields(kind)}


def _plain(node: DictConfig, name: Any) -> Any:
    value = node[name]
    if isinstance(value, DictConfig | ListConfig):
        return targets.plain(value)
    return value


def _hint(key: str, value: Any, field: dataclasses.Field[Any], found: Rule) -> str:
    """Return what to type."""
    if (meant := suggest.corrected(key, typed(value))) is not None:
        return meant
    default = field.default
    node = found.instead(value) if isinstance(value, dict) else None
    if node is not None:
        instead = node
    elif default is not dataclasses.MISSING and default != "???" and default is not None:
        instead = typed(default)
    else:
        instead = found.instead(value)
        if instead is None:
            instead = "null" if optional(field) else "VALUE"
    text = f"{key}={instead}"
    return f"'{text}'" if "[" in text or "{" in text else text


def _shown(node: DictConfig, name: str, value: Any) -> str:
    """Return a value for a message: the reference that stands for a secret, and never too long."""
    raw = OmegaConf.to_container(node, resolve=False, enum_to_str=True)
    written = raw[name] if isinstance(raw, dict) else None
    text = str(value) if isinstance(value, list) else typed(value)
    if isinstance(written, str) and "${" in written:
        text = written
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def settle(node: DictConfig) -> Config:
    """Resolve a configuration that Hydra has composed, and refuse what is wrong with it.

    Args:
        node: is resolved in place.

    Raises:
        UsageError: it has a key that nothing reads, a reference to what is not there, or a value
            that its key does not take.
    """
    if HydraConfig.initialized():
        groups.refuse_removed(HydraConfig.get().runtime.choices)
    refuse_unknown(node)
    load.check_sizes(node)
    try:
        private.resolve(node)
    except OmegaConfBaseException:
        load.check_references(node)  # finds the key, which the exception does not say
        raise
    plain = targets.plain(node)
    trust.check(plain)
    check(node)
    names.check(plain)
    if HydraConfig.initialized():
        check_overrides(node, HydraConfig.get().overrides.task)
    config = load.typed(node)
    if is_address(config.output_dir):
        config.output_dir = str(addresses.local(config.output_dir, "output_dir"))
    config.output_dir = str(Path(config.output_dir).absolute())
    if config.debug["_target_"] == TRAIN:  # the file of a training has no such group
        config.debug = None  # type: ignore[assignment]
    return config
