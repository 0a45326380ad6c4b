"""The YAML files of ``--config-dir`` that a command chooses, looked at before Hydra reads them.

Hydra answers a damaged one with a traceback, one that includes itself with a full stack, and one
whose aliases multiply with all of the memory. Here each ends in a sentence with file and line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import yaml
from hydra.core.override_parser.types import Override

from dtrain.config.fields import Plain
from dtrain.config.overrides import parse
from dtrain.errors import refuse

#: Most bytes of a file, and most values in it, an alias counting as all that it stands for.
BYTES = 2**20
VALUES = 100_000
#: Most files that one preset leads to, each counted as often as it is named: Hydra composes it so.
FILES = 1000
DEPTH = 32
_PLAIN = ("str", "int", "float", "bool", "null", "seq", "map", "merge", "timestamp")
_TAG = "tag:yaml.org,2002:"


def check(config_dir: str | None, overrides: Iterable[Override]) -> None:
    """Refuse files that are no presets.

    Args:
        config_dir: the folder of presets, if there is one.
        overrides: which choose options of groups.

    Raises:
        UsageError: naming file and line.
    """
    numbers: dict[Path, int] = {}
    for override in () if config_dir is None else overrides:
        value = parse(override.input_line or "").value or ""
        for option in value.strip("[]").split(",") if "." not in override.key_or_group else ():
            place = Path(str(config_dir), override.key_or_group, option.strip(" '\""))
            _check_file(Path(str(config_dir)), place, (), numbers)


def _check_file(
    folder: Path, place: Path, above: tuple[Path, ...], numbers: dict[Path, int]
) -> int:
    """Check a file and those that its defaults name, and return how many they all are.

    Args:
        folder: of all presets.
        place: of the file, without its ending; where none is, it is one of dtrain's own.
        above: the files that led here.
        numbers: of those that were looked at.
    """
    path = place.with_name(f"{place.name.removesuffix('.yaml')}.yaml")
    if path in above:
        names = " -> ".join(str(each.relative_to(folder)) for each in (*above, path))
        _refuse(path, f"its defaults lead back to it ({names})", "defaults without a circle")
    if path.is_file() and path not in numbers:
        if len(above) > DEPTH:
            _refuse(path, f"more than {DEPTH} presets lead to it", "fewer")
        named = _defaults(folder, path, _read(path))
        number = 1 + sum(_check_file(folder, each, (*above, path), numbers) for each in named)
        if number > FILES:
            _refuse(path, f"its defaults lead to more than {FILES:,} files", "fewer")
        numbers[path] = number
    return numbers.get(path, 1)


def _defaults(folder: Path, path: Path, body: dict[str, Plain]) -> Iterator[Path]:
    """Yield the places of the options that a list of defaults names."""
    defaults = body.get("defaults", [])
    if not isinstance(defaults, list):
        _refuse(path, "its defaults are no list", "a list")
    for item in defaults:
        for head, named in item.items() if isinstance(item, dict) else [("", item)]:
            for option in named if isinstance(named, list) else [named]:
                if isinstance(option, list | dict):
                    _refuse(path, "a default is no name", "names of presets")
                group = (str(head).split() or [""])[-1].partition("@")[0]
                below = folder if f"{group}{option}".startswith("/") else path.parent
                yield below / group.strip("/") / str(option).partition("@")[0].strip("/")


def _read(path: Path) -> dict[str, Plain]:
    """Return what is in a file."""
    try:
        if (size := path.stat().st_size) > BYTES:
            _refuse(path, f"has {size:,} bytes", f"up to {BYTES:,} bytes")
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if isinstance(root, yaml.MappingNode) and root.value:
            _count(path, root, (), {})
            body: dict[str, Plain] = loader.construct_document(root)
            return body
    except UnicodeDecodeError as error:
        _refuse(path, f"is no UTF-8 (at byte {error.start})", "a text in UTF-8")
    except OSError as error:
        _refuse(path, f"cannot be read ({error.strerror})", "a readable file")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _refuse(path, str(error.problem or error.context), "YAML, with blanks and no tabs",
                mark.line if mark else None)  # fmt: skip
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        _refuse(path, f"is no YAML ({' '.join(str(error).split())[:200]})", "YAML")
    is_list = isinstance(root, yaml.SequenceNode)
    kind = "is a list" if is_list else "is empty" if root is None else "is a single value"
    _refuse(path, kind, "keys and values")


def _count(path: Path, node: Plain, above: tuple[int, ...], numbers: dict[int, int]) -> int:
    """Return how many values a node stands for; refuse what no preset has."""
    line = node.start_mark.line
    if id(node) in above:
        _refuse(path, "an alias stands inside of what it names", "values that end", line)
    if id(node) in numbers:
        return numbers[id(node)]
    if len(above) > DEPTH:
        _refuse(path, f"is nested more than {DEPTH} deep", "less", line)
    if node.tag.removeprefix(_TAG) not in _PLAIN:
        _refuse(path, f"has the tag {node.tag!r}", "plain texts, numbers and lists", line)
    below, names = [], set()
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            # Classes and epochs, inside of a key, are whole numbers.
            kinds = ("str", "merge", "int") if above else ("str", "merge")
            if key.tag.removeprefix(_TAG) not in kinds:
                text = key.value if isinstance(key, yaml.ScalarNode) else "a list or a node"
                _refuse(path, f"{text} is no name of a key", "a text, in quotes", line)
            if key.value in names and key.tag != f"{_TAG}merge":
                at = key.start_mark.line
                _refuse(path, f"the key {key.value} is there twice", "each key once", at)
            names.add(key.value)
            below.append(value)
    elif isinstance(node, yaml.SequenceNode):
        below = node.value
    inside = (*above, id(node))
    numbers[id(node)] = 1 + sum(_count(path, each, inside, numbers) for each in below)
    if numbers[id(node)] > VALUES:
        _refuse(path, f"stands for more than {VALUES:,} values", "fewer", line)
    return numbers[id(node)]


def _refuse(path: Path, problem: str, accepted: str, line: int | None = None) -> NoReturn:
    where = str(path) if line is None else f"{path}, line {line + 1}"
    refuse("--config-dir", problem, where, accepted=accepted,
           hint="another preset, or mend this one")  # fmt: skip
