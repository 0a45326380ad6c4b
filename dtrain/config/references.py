"""References between keys (``${key}``): to what is there, and not to ever more of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain.errors import UsageError

#: Most characters, and most references, that a value may stand for once all is resolved.
MOST = 100_000
ENDLESS = f"stands for more than {MOST:,} characters and references"
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
        raise UsageError(key, "${...}", ENDLESS, "references that end", f"{key}=VALUE")


def endless(config: DictConfig) -> str | None:
    """Return the first key whose references double and double again; None if there is none.

    Args:
        config: not yet resolved.
    """
    plain = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    known: dict[str, int] = {}
    return next(
        (key for key, _, _ in _references(config, "") if _size(plain, key, known) > MOST), None
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
    known[key] = min(size, 2 * MOST)
    return known[key]


def check(config: DictConfig) -> None:
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
            raise UsageError(
                key, raw[name], f"cannot be resolved ({problem})",
                "a value, or a reference to a key that has one", f"{key}=VALUE",
            ) from None  # fmt: skip


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
