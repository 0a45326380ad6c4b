"""A configuration in memory: nodes of names and values, and references that are resolved when read.

A secret stays a reference to the environment (``${oc.env:NAME}``) in what is written down. Its
value is looked up where it is used and nowhere else, so that a run folder can be read without it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

#: Texts, numbers, lists and mappings of them.
Plain: TypeAlias = Any
#: What is raised where a reference is read and what it refers to is not there.
Unresolvable = OmegaConfBaseException


@dataclasses.dataclass(frozen=True)
class Reference:
    """A value that is, or holds, a reference.

    Attributes:
        node: OmegaConf's container that it stands in.
        name: its name there.
    """

    node: Plain
    name: Plain

    def resolve(self) -> Plain:
        """Return the value, as plain dicts, lists and scalars.

        Raises:
            OmegaConfBaseException: what it refers to is not there.
        """
        value = self.node[self.name]
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value

    def written(self) -> Plain:
        """Return the value with its references."""
        whole: Plain = OmegaConf.to_container(self.node, resolve=False)
        return whole[self.name]


class Node(Mapping[str, Plain]):
    """A group of the configuration: names and values, which are its attributes as well.

    Args:
        values: plain, nodes, or references.
    """

    def __init__(self, values: Mapping[str, Plain] = {}, **more: Plain):  # is copied
        vars(self)["_values"] = {**values, **more}

    def __getitem__(self, name: str) -> Plain:
        value = self._values[name]
        return value.resolve() if type(value) is Reference else value

    def __getattr__(self, name: str) -> Plain:
        if name.startswith("__") or name == "_values":  # of a copy that is being made
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Plain) -> None:
        self._values[name] = value

    def __getstate__(self) -> dict[str, Plain]:
        return {"_values": dict(self._values)}  # a copy has values of its own

    def __setstate__(self, state: dict[str, Plain]) -> None:
        vars(self).update(state)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Node({self.written()})"

    def setdefault(self, name: str) -> Plain:
        """Return what stands under a name, None if nothing does, which stands there afterwards."""
        return self[name] if name in self else self._values.setdefault(name)

    def replaced(self, **values: Plain) -> Node:
        """Return a node with other values under some names."""
        return Node(self._values, **values)

    def written(self) -> dict[str, Plain]:
        """Return all values, with their references."""
        return {name: written(value) for name, value in self._values.items()}


def written(value: Plain) -> Plain:
    """Return a value as it may be written: plain, and with references in the place of secrets."""
    return value.written() if isinstance(value, Reference | Node) else value


def to_plain(value: Plain) -> Plain:
    """Return a value as plain dicts, lists and scalars, with references resolved."""
    return {name: to_plain(value[name]) for name in value} if isinstance(value, Node) else value


def nodes(node: Plain, key: str, inner: bool = False) -> Iterator[tuple[str, Plain, bool]]:
    """Yield what names a function or class, by its key, and whether it is an argument of another.

    Args:
        node: of the configuration.
        key: of it.
        inner: it is an argument.
    """
    if isinstance(node, Mapping):
        if isinstance(target := node.get("_target_"), str) and "." in target:
            yield key, node, inner
            inner = True
        for name, value in node.items():
            yield from nodes(value, f"{key}.{name}" if key else str(name), inner)
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from nodes(value, f"{key}[{index}]", inner)


# -- lengths of time ----------------------------------------------------------------------------

_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_TEXT = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _UNITS))


def seconds(value: object) -> float | None:
    """Return how many seconds ``2h``, ``1h30m`` or a number is; None of what is no length."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _TEXT.fullmatch(value) if isinstance(value, str) and value else None
    if match is None:
        return None
    return sum(float(n or 0) * of for n, of in zip(match.groups(), _UNITS.values(), strict=True))
