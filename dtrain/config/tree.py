"""From OmegaConf's nodes to the configuration in memory, and from that to ``config.yaml``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain import secrets
from dtrain.config import node as nodes
from dtrain.config import objective
from dtrain.config.node import Node, Plain, Reference
from dtrain.errors import DamagedFile, UsageError, refuse
from dtrain.files import reading
from dtrain.host.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from dtrain.config.schema import Config as Config
    from dtrain.config.schema.running import Tracking as Tracking
    from dtrain.config.schema.training import FineTuning as FineTuning
    from dtrain.config.schema.training import Hardware as Hardware
    from dtrain.config.schema.training import Trainer as Trainer
else:  # a task knows the configuration without the models that have checked it
    Config = Tracking = FineTuning = Hardware = Trainer = Node

#: Groups that the configuration of every run has.
GROUPS = ("dataset", "model", "optimizer", "strategy", "trainer", "hardware", "launcher",
          "tracking", "action", "init", "finetune", "checkpoint")  # fmt: skip


def typed(tree: DictConfig) -> Config:
    """Return a configuration in memory; ``debug`` is None where it has none.

    ``objective_mode`` is ``max``, ``min``, or ``auto`` with ``objective=auto``.

    Raises:
        ValueError: it lacks a group, or a value is of another kind; with the key.
    """
    config = Node({str(name): _value(tree, name) for name in tree})
    for name in GROUPS:
        if not isinstance(config.setdefault(name), Node | None):
            raise ValueError(name)
    if config.setdefault("backend") == "auto":
        from dtrain.config.schema import strategies  # the file of a run has none: see above

        config.backend = strategies.backends(str((config.strategy or {}).get("_target_")))[0]
    if config["backend"] not in (None, *FRAMEWORKS):
        raise ValueError("backend")
    if config.setdefault("objective") is not None:
        config.objective_mode = objective.mode_of(config["objective_mode"], config["objective"])
    config.setdefault("debug")
    return config  # type: ignore[return-value] # a tree, whose types the models are


def read(path: Path, hidden: bool = False) -> Config:
    """Return the configuration of a run, from its ``config.yaml``.

    Args:
        path: the file.
        hidden: without secrets, references to them included.

    Raises:
        DamagedFile: it is not as dtrain writes it.
        OSError: there is none, or it cannot be read.
    """
    plain: Plain = reading.read_plain(path)
    return parse(secrets.hide(plain) if hidden else plain, path)


def parse(values: Mapping[str, Plain], path: Path) -> Config:
    """Return the configuration that plain values from the file ``path`` are.

    Raises:
        DamagedFile: they are none.
    """
    try:
        tree = OmegaConf.create(dict(values))
    except (ValueError, RecursionError, OmegaConfBaseException) as error:
        raise reading.not_yaml(path, error) from None
    if (key := endless(tree)) is not None:
        raise DamagedFile(path, ENDLESS, key)
    try:
        return typed(tree)
    except KeyError as error:
        raise DamagedFile(path, "is not the configuration of a run", str(error.args[0])) from None
    except ValueError as error:
        raise DamagedFile(path, "is not what a run has there", str(error)) from None
    except OmegaConfBaseException as error:
        reason = str(error).strip().split("\n")[0]
        raise DamagedFile(path, f"is not the configuration of a run ({reason})") from None


def written(config: Config) -> dict[str, Plain]:
    """Return a configuration as plain values that may be written: references stay references.

    ``sweep`` is left out: how many jobs run at once is no property of one.
    """
    plain: dict[str, Plain] = nodes.written(config)
    absent = {"sweep", *(["debug"] if plain["debug"] is None else [])}
    return {key: value for key, value in plain.items() if key not in absent}


def flatten(values: Plain, prefix: str = "") -> dict[str, str]:
    """Turn nested mappings into ``a.b.c: text``, uncut; lists stay whole."""
    if not isinstance(values, dict):
        return {prefix: str(values)}
    flat: dict[str, str] = {}
    for name, value in values.items():
        flat.update(flatten(value, f"{prefix}.{name}" if prefix else str(name)))
    return flat


def to_yaml(config: Config) -> str:
    """Return the text of ``config.yaml``."""
    return OmegaConf.to_yaml(OmegaConf.create(written(config)))


def address(config: Config) -> str | None:
    """Return ``tracking.uri`` as it may be written; None where there is none."""
    return config.tracking.written().get("uri")


def places(config: Config) -> Plain:
    """Return what says where a run is recorded, as it may be written; None where nothing does.

    That is ``tracking.uri``, and the trackers in nodes of their own.
    """
    uri, plain = address(config), config.tracking.written()
    inner = {name: plain[name] for name in trackers(config.tracking)}
    return [uri, inner] if inner else uri


def trackers(tracking: Node | DictConfig) -> list[str]:
    """Return the names of those nodes of ``tracking`` that are trackers by themselves.

    A node below the tracker of a user's own is an argument of that one, unless it is of dtrain's.
    """
    plain: Plain = tracking.written() if isinstance(tracking, Node) else None
    plain = OmegaConf.to_container(tracking, resolve=False) if plain is None else plain
    main = str(plain.get("_target_", "???"))
    ours = "" if main.startswith(("dtrain.", "???")) else "dtrain."
    return [
        str(name)
        for name, each in plain.items()
        if isinstance(each, dict) and "_target_" in each and str(each["_target_"]).startswith(ours)
    ]


def select(config: Config, key: str) -> Plain:
    """Return what stands at a dotted key, plain; None where there is nothing."""
    return nodes.to_plain(at(config, key))


def at(value: Plain, key: str) -> Plain:
    """Return what stands at a key such as ``a.b[0]``; None where there is nothing."""
    for part in re.findall(r"[^.\[\]]+", key):
        if isinstance(value, list) and part.isdigit():
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _value(tree: DictConfig, name: Plain, depth: int = 0) -> Plain:
    """Return what a node has under a name: plain, a node, or a reference."""
    if OmegaConf.is_missing(tree, name):
        return "???"
    if OmegaConf.is_interpolation(tree, name):
        return Reference(tree, name)
    value = tree[name]
    if not OmegaConf.is_config(value):
        return value
    if depth == 0 and isinstance(value, DictConfig):
        return Node({str(each): _value(value, each, 1) for each in value})
    plain = OmegaConf.to_container(value, resolve=False)
    return Reference(tree, name) if _refers(plain) else plain


def _refers(value: Plain) -> bool:
    """Say whether plain values hold a reference."""
    if isinstance(value, dict | list):
        return any(map(_refers, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and "${" in value


# -- references between keys --------------------------------------------------------------------

#: Most characters, and most references, that a value may stand for once all is resolved.
MOST_REFERRED = 100_000
ENDLESS = f"stands for more than {MOST_REFERRED:,} characters and references"
_REFERENCE = re.compile(r"\$\{([^${}:]+)\}")


def check_sizes(tree: DictConfig) -> None:
    """Refuse values whose references double and double again: resolving them would not end.

    Args:
        tree: not yet resolved.

    Raises:
        UsageError: for the first one found.
    """
    if (key := endless(tree)) is not None:
        refuse(key, ENDLESS, "${...}", accepted="references that end", hint=f"{key}=VALUE")


def endless(tree: DictConfig) -> str | None:
    """Return the first key whose references double and double again; None if there is none.

    Args:
        tree: not yet resolved.
    """
    plain = OmegaConf.to_container(tree, resolve=False)
    sizes: dict[str, int] = {}
    keys = (key for key, _, _ in _references(tree, ""))
    return next((key for key in keys if _size(plain, key, sizes) > MOST_REFERRED), None)


def _size(plain: Plain, key: str, sizes: dict[str, int]) -> int:
    """Return how much a key stands for, at least."""
    if key in sizes:
        return sizes[key]
    sizes[key] = 0  # if it comes back to itself OmegaConf says so
    value, size = at(plain, key), 1
    if isinstance(value, dict | list):
        names = value if isinstance(value, dict) else range(len(value))
        size += sum(_size(plain, f"{key}.{name}", sizes) for name in names)
    elif isinstance(value, str):
        size += len(value)
        for target in _REFERENCE.findall(value):
            dots = len(target) - len(target.lstrip("."))
            above = key.split(".")[:-dots] if dots else []
            size += _size(plain, ".".join([*above, target.lstrip(".")]), sizes)
    sizes[key] = min(size, 2 * MOST_REFERRED)
    return sizes[key]


def check_references(tree: DictConfig) -> None:
    """Refuse what refers to a key that is not there, or to itself.

    Args:
        tree: not yet resolved.

    Raises:
        UsageError: for the first one found.
    """
    for key, node, name in _references(tree, ""):
        try:
            node[name]
        except OmegaConfBaseException as error:
            raw: Plain = OmegaConf.to_container(node, resolve=False)
            problem = str(error).split("\n")[0]
            raise UsageError(key, f"cannot be resolved ({problem})", raw[name],
                             accepted="a value, or a reference to a key that has one",
                             hint=f"{key}=VALUE") from None  # fmt: skip


def _references(node: Plain, key: str) -> Iterator[tuple[str, Plain, Plain]]:
    """Yield where references stand: their key, the node that they are in, and their name there."""
    for name in node if isinstance(node, DictConfig) else range(len(node)):
        where = ".".join(filter(None, (key, str(name))))
        if OmegaConf.is_interpolation(node, name):  # type: ignore[arg-type] # an index, of a list
            yield where, node, name
        elif not OmegaConf.is_missing(node, name):
            child = node[name]
            if isinstance(child, DictConfig | ListConfig):
                yield from _references(child, where)
