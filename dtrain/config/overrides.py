"""The one parser of overrides as they are typed: ``key=value``, ``+key=value``, ``~key``.

What the value means is Hydra's grammar; this only splits one argument of the command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: The primary configuration, as ``--config-name`` says it.
CONFIG_NAME = "hydra.job.config_name"
#: Hydra's own keys that say what a configuration is composed from.
_SOURCES = ("hydra.searchpath", CONFIG_NAME)


class Override(NamedTuple):
    """One override.

    Attributes:
        sign: ``+``, ``++`` or ``~`` that stands before the key.
        name: what is overridden, as it is typed: a key, or a group (``optimizer/schedule``).
        value: as it is typed; None where there is no ``=``.
    """

    sign: str
    name: str
    value: str | None

    @property
    def key(self) -> str:
        """The name with dots alone, and without spaces, which Hydra passes over."""
        return self.name.replace("/", ".").strip()

    def __str__(self) -> str:
        head = f"{self.sign}{self.name}"
        return head if self.value is None else f"{head}={self.value}"


def parse(text: str) -> Override:
    """Take an override apart; also of what is none, such as an option, without a value."""
    head, equals, value = text.partition("=")
    name = head.lstrip("+~")
    return Override(head[: len(head) - len(name)], name, value if equals else None)


def key_of(text: str) -> str:
    """Return the key of an override, with dots alone."""
    return parse(text).key


def of_sources(overrides: Iterable[str]) -> list[str]:
    """Return those of Hydra's overrides that say what a configuration is composed from."""
    return [override for override in overrides if key_of(override) in _SOURCES]
