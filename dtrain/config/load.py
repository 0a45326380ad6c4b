"""From OmegaConf's nodes to the typed configuration, and from that to ``config.yaml``."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain import secrets
from dtrain.config import section, strategies
from dtrain.config.schema import Backend, Config
from dtrain.config.section import Node, Reference, Section
from dtrain.errors import DamagedFile, UsageError, refuse
from dtrain.files import reading

#: Groups that users bring YAML files of their own for.
_OPEN = [field.name for field in dataclasses.fields(Config) if field.type == "Open"]
#: The group that an ordinary training has none of, once its configuration is settled.
_ABSENT = "debug"
T = TypeVar("T", bound=Section)


class _NoMapping(ValueError):
    """A value stands where there should be names and values; its only argument is the key."""


def typed(node: DictConfig) -> Config:
    """Return a configuration with the types of the schema.

    What ``node`` lacks has the default of the schema; a group that it lacks is None. What no code
    reads is left out. ``backend`` is a framework, and ``objective_mode`` is ``max``, ``min``, or
    ``auto`` with ``objective=auto``.

    Raises:
        ValueError: it has a group or a value of the wrong kind.
    """
    config = _section(node, Config, "")
    config.objective_mode = config.objective_mode.of(config.objective)
    if config.backend is Backend.auto:
        strategy: Any = config.strategy or {}
        target = str(strategy.get("_target_"))
        config.backend = Backend[strategies.backends(target)[0]]
    return config


def read(path: Path, hidden: bool = False) -> Config:
    """Return the configuration of a run, from its ``config.yaml``.

    Args:
        path: the file.
        hidden: without secrets, references to them included.

    Raises:
        DamagedFile: it is not as dtrain writes it.
        OSError: there is none, or it cannot be read.
    """
    found: Any = reading.read_plain(path)
    return parse(secrets.hide(found) if hidden else found, path)


def parse(values: Mapping[str, Any], path: Path) -> Config:
    """Return the configuration that plain values from the file ``path`` are.

    Raises:
        DamagedFile: they are none.
    """
    try:
        node = OmegaConf.create(dict(values))
    except (ValueError, RecursionError, OmegaConfBaseException) as error:
        raise reading.not_yaml(path, error) from None
    if (key := endless(node)) is not None:
        raise DamagedFile(path, ENDLESS, key)
    try:
        return typed(node)
    except _NoMapping as error:
        raise DamagedFile(path, "is not what a run has there", str(error)) from None
    except (ValueError, OmegaConfBaseException) as error:
        reason = str(error).strip().split("\n")[0]
        raise DamagedFile(path, f"is not the configuration of a run ({reason})") from None


def written(config: Config) -> dict[str, Any]:
    """Return a configuration as plain values that may be written: references stay references.

    ``sweep`` is left out: how many jobs run at once is no property of one.
    """
    found: dict[str, Any] = section.written(config)
    absent = [name for name in _OPEN if found[name] is None]  # in the file of a run, too
    return {name: value for name, value in found.items() if name not in ("sweep", *absent)}


def flatten(node: Any, prefix: str = "") -> dict[str, str]:
    """Turn nested mappings into ``a.b.c: text``, uncut; lists stay whole."""
    if not isinstance(node, dict):
        return {prefix: str(node)}
    flat: dict[str, str] = {}
    for name, value in node.items():
        flat.update(flatten(value, f"{prefix}.{name}" if prefix else str(name)))
    return flat


def to_yaml(config: Config) -> str:
    """Return the text of ``config.yaml``."""
    return OmegaConf.to_yaml(OmegaConf.create(written(config)))


def address(config: Config) -> str | None:
    """Return ``tracking.uri`` as it may be written; None where there is none."""
    uri: str | None = config.tracking.written().get("uri")
    return uri


def select(config: Config, key: str) -> Any:
    """Return what stands at a dotted key, plain; None where there is nothing."""
    found: Any = config
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    return section.plain(found)


def _section(node: DictConfig, kind: type[T], key: str) -> T:
    """Return an instance of a dataclass with what a node has for its fields."""
    if not isinstance(node, DictConfig):
        raise _NoMapping(key)
    types, present, made = get_type_hints(kind), {str(name): name for name in node}, kind()
    for field in dataclasses.fields(kind):  # type: ignore[arg-type] # each Section is one
        where = f"{key}.{field.name}" if key else field.name
        if field.name in present:
            value = _value(node, present[field.name])
            wanted = types[field.name]
            if isinstance(wanted, type) and issubclass(wanted, Section):
                value = _section(node[field.name], wanted, where)
            elif isinstance(wanted, type) and issubclass(wanted, enum.Enum):
                value = _member(value, wanted, where)
            elif not key and field.name in _OPEN and not (value is None and field.name == _ABSENT):
                value = _node(node, field.name, where)
            setattr(made, field.name, value)
        elif not key and field.name in _OPEN:
            setattr(made, field.name, None)
    return made


def _node(node: DictConfig, name: str, key: str) -> Node:
    child = None if OmegaConf.is_missing(node, name) else node[name]
    if not isinstance(child, DictConfig):
        raise _NoMapping(key)
    names: Any = child  # of `class_weight` and the like they are numbers
    values = {each: _value(child, each) for each in names}
    return Node(
        {
            each: value.name if isinstance(value, enum.Enum) else value
            for each, value in values.items()
        }
    )


def _value(node: DictConfig, name: Any) -> Any:
    """Return what a node has under a name: plain, or a reference."""
    if OmegaConf.is_missing(node, name):
        return "???"
    if OmegaConf.is_interpolation(node, name):
        return Reference(node, name)
    value = node[name]
    if not OmegaConf.is_config(value):
        return value
    plain = OmegaConf.to_container(value, resolve=False, enum_to_str=True)
    return Reference(node, name) if _refers(plain) else plain


def _refers(value: Any) -> bool:
    """Say whether plain values hold a reference."""
    if isinstance(value, dict):
        return any(_refers(each) for each in value.values())
    if isinstance(value, list):
        return any(_refers(each) for each in value)
    return isinstance(value, str) and "${" in value


def _member(value: Any, kind: type[enum.Enum], key: str) -> Any:
    """Return the member of an enumeration that a file has the name of."""
    if isinstance(value, Reference):
        value = value.resolve()
    if isinstance(value, kind):
        return value
    if not isinstance(value, str) or value not in kind.__members__:
        raise ValueError(f"{key}: {value} is none of {', '.join(kind.__members__)}")
    return kind[value]


# -- references between keys --------------------------------------------------------------------

#: Most characters, and most references, that a value may stand for once all is resolved.
MOST_REFERRED = 100_000
ENDLESS = f"stands for more than {MOST_REFERRED:,} characters and references"
_REFERENCE = re.compile(r"\$\{([^${}:]+)\}")


def check_sizes(config: DictConfig) -> None:
    """Refuse values whose references double and double again: resolving them would not end.

    Args:
        config: not yet resolved.

    Raises:
        UsageError: for the first one found.
    """
    key = endless(config)
    if key is not None:
        refuse(key, ENDLESS, "${...}", accepted="references that end", hint=f"{key}=VALUE")


def endless(config: DictConfig) -> str | None:
    """Return the first key whose references double and double again; None if there is none.

    Args:
        config: not yet resolved.
    """
    plain = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    known: dict[str, int] = {}
    return next(
        (key for key, _, _ in _references(config, "") if _size(plain, key, known) > MOST_REFERRED),
        None,
    )


def _size(plain: Any, key: str, known: dict[str, int]) -> int:
    """Return how much a key stands for, at least."""
    if key in known:
        return known[key]
    known[key] = 0  # if it comes back to itself OmegaConf says so
    value = plain
    for part in filter(None, re.split(r"[.\[\]]", key)):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            value = None
    size = 1
    if isinstance(value, dict | list):
        names = value if isinstance(value, dict) else range(len(value))
        size += sum(_size(plain, f"{key}.{name}", known) for name in names)
    elif isinstance(value, str):
        size += len(value)
        for target in _REFERENCE.findall(value):
            dots = len(target) - len(target.lstrip("."))
            above = key.split(".")[:-dots] if dots else []
            size += _size(plain, ".".join([*above, target.lstrip(".")]), known)
    known[key] = min(size, 2 * MOST_REFERRED)
    return known[key]


def check_references(config: DictConfig) -> None:
    """Refuse what refers to a key that is not there, or to itself.

    Args:
        config: not yet resolved.

    Raises:
        UsageError: for the first one found.
    """
    for key, node, name in _references(config, ""):
        try:
            node[name]
        except OmegaConfBaseException as error:
            raw: Any = OmegaConf.to_container(node, resolve=False)
            problem = str(error).split("\n")[0]
            raise UsageError(key, f"cannot be resolved ({problem})", raw[name],
                             accepted="a value, or a reference to a key that has one",
                             hint=f"{key}=VALUE") from None  # fmt: skip


def _references(node: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield where references stand: their key, the node that they are in, and their name there."""
    for name in node if isinstance(node, DictConfig) else range(len(node)):
        where = ".".join(filter(None, (key, str(name))))
        if OmegaConf.is_interpolation(node, name):  # type: ignore[arg-type]
            yield where, node, name
        elif not OmegaConf.is_missing(node, name):
            child = node[name]
            if isinstance(child, DictConfig | ListConfig):
                yield from _references(child, where)
