"""A configuration in memory: dataclasses, plain values, and references that are resolved when read.

A secret stays a reference to the environment (``${oc.env:NAME}``) in what is written down. Its
value is looked up where it is used and nowhere else, so that a run folder can be read without it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

#: What is raised where a reference is read and what it refers to is not there.
Unresolvable = OmegaConfBaseException


@dataclasses.dataclass(frozen=True)
class Reference:
    """A value that is, or holds, a reference.

    Attributes:
        node: OmegaConf's container that it stands in.
        name: its name there.
    """

    node: Any
    name: Any

    def resolve(self) -> Any:
        """Return the value, as plain dicts, lists and scalars.

        Raises:
            OmegaConfBaseException: what it refers to is not there.
        """
        value = self.node[self.name]
        if not OmegaConf.is_config(value):
            return value
        return OmegaConf.to_container(value, resolve=True, enum_to_str=True)

    def written(self) -> Any:
        """Return the value with its references."""
        whole: Any = OmegaConf.to_container(self.node, resolve=False, enum_to_str=True)
        return whole[self.name]


class Section:
    """Base of the dataclasses of the schema: a reference is resolved when its field is read."""

    if not TYPE_CHECKING:  # a type checker would take every name for a field

        def __getattribute__(self, name: str) -> Any:
            value = object.__getattribute__(self, name)
            return value.resolve() if type(value) is Reference else value


class Node(Mapping[str, Any]):
    """A group without fields of its own, for which users bring YAML files: names and values.

    It does not change: :meth:`replaced` returns another.

    Args:
        values: plain, or references.
    """

    def __init__(self, values: dict[str, Any]):
        self._values = values

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        return value.resolve() if type(value) is Reference else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_values":  # of a copy that is being made
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        # It would be read as an attribute, and neither as an item nor where it is written down.
        if name != "_values":
            raise AttributeError(f"{name}: a node does not change; use replaced({name}=...)")
        super().__setattr__(name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def replaced(self, **values: Any) -> Node:
        """Return a node with other values under some names."""
        return Node({**self._values, **values})

    def written(self) -> dict[str, Any]:
        """Return all values, with their references."""
        return {name: written(value) for name, value in self._values.items()}


#: Type of a field that holds a :class:`Node`. OmegaConf takes any node there.
if TYPE_CHECKING:
    Open = Node
else:
    Open = Any


def written(value: Any) -> Any:
    """Return a value as it may be written: plain, and with references in the place of secrets."""
    if isinstance(value, Reference | Node):
        return value.written()
    if isinstance(value, Section):
        return {name: written(each) for name, each in vars(value).items()}
    return value.name if isinstance(value, enum.Enum) else value


def plain(value: Any) -> Any:
    """Return a value as plain dicts, lists and scalars, with references resolved."""
    if isinstance(value, Section):
        return {name: plain(getattr(value, name)) for name in vars(value)}
    if isinstance(value, Node):
        return dict(value)
    return value.name if isinstance(value, enum.Enum) else value


def flatten(node: Any, prefix: str = "") -> dict[str, str]:
    """Turn nested mappings into ``a.b.c: text``; lists stay whole."""
    if not isinstance(node, dict):
        return {prefix: str(node)}
    flat: dict[str, str] = {}
    for name, value in node.items():
        flat.update(flatten(value, f"{prefix}.{name}" if prefix else str(name)))
    return flat
