"""YAML as dtrain writes it: plain scalars, lists and mappings; read with bounds, by libyaml.

What a scalar is, a number or a text, is decided as OmegaConf decides it, whose reader takes ten
times as long and has no bounds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from dtrain.errors import DamagedFile

#: How deep a file may be nested: libyaml recurses.
DEPTH = 64

_FLOAT = re.compile(
    r"""^(?:
     [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.X,
)
_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Fast):
    """A loader that refuses a key that is there twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Return the mapping of a node."""
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {key.value}", problem_mark=key.start_mark
                )
            keys.add(key.value)
        return super().construct_mapping(node, deep=deep)


# A time is a text, and 1e-3 a number.
_Loader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def parse(data: bytes, path: Path) -> dict[Any, Any]:
    """Return the mapping that ``data`` is, from the file ``path``.

    Raises:
        DamagedFile: it is none, too deep, or has an alias.
    """
    try:
        text = data.decode()
        _check(text, path)
        found = yaml.load(text, Loader=_Loader)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise damaged(path, error) from None
    if not isinstance(found, dict):
        raise DamagedFile(path, "is not a mapping")
    return found


def damaged(path: Path, error: Exception) -> DamagedFile:
    """Return an error of a YAML parser, or of OmegaConf, in a sentence."""
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}: " if mark is not None else ""
    reason = getattr(error, "problem", None) or str(error).strip().split("\n")[0]
    return DamagedFile(path, f"is not valid YAML ({place}{reason[:200]})")


def _check(document: str, path: Path) -> None:
    """Refuse YAML whose tree may be far larger or deeper than its text, before a tree is made."""
    depth = 0
    for event in yaml.parse(document, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise DamagedFile(path, f"has an alias (*{event.anchor}), which dtrain never writes")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH:
            raise DamagedFile(path, f"is nested deeper than {DEPTH}")
