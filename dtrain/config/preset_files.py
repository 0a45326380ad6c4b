"""The YAML files of ``--config-dir`` that a command chooses, looked at before Hydra reads them.

Hydra answers a damaged one with a traceback, one that includes itself with a full stack, and one
whose aliases multiply with all of the memory. Here each ends in a sentence with file and line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dtrain.config import command_line, overrides, removed, schema, suggest
from dtrain.errors import UsageError, refuse

#: Most bytes of a file, and most values in it, an alias counting as all that it stands for.
BYTES = 2**20
VALUES = 100_000
#: Most files that one preset leads to, each counted as often as it is named: Hydra composes it so.
FILES = 1000
DEPTH = 32
_PLAIN = ("str", "int", "float", "bool", "null", "seq", "map", "merge", "timestamp")
_TAG = "tag:yaml.org,2002:"


def check(arguments: list[str]) -> None:
    """Refuse a command that chooses no option of a group, or a file which is no preset.

    Args:
        arguments: the command line, without the program's name.

    Raises:
        UsageError: naming file and line.
    """
    removed.check(arguments)
    known = command_line.parsed(arguments)
    if not known.shell_completion:
        command_line.check(known.overrides, known.multirun)
    for override in known.overrides:
        _check_option(override)
    if known.config_dir is None:
        return
    folder, sound = Path(known.config_dir), dict[Path, int]()
    for override in known.overrides:
        _, group, options = overrides.parse(override)
        if group == overrides.CONFIG_NAME and (path := _file(folder, "", "", options or "")):
            _check_file(folder, path, (), sound)
            if "defaults" not in [key.value for key, _ in _read(path).value]:
                raise _refused(path, "has none of dtrain's keys", "defaults: [config, _self_]")
        if options is not None and not group.startswith("-") and "." not in group:
            for option in options.split(","):
                name = option.strip(" '\"[]")
                _check_file(folder, _file(folder, "", group, name), (), sound)


def _check_option(override: str) -> None:
    """Refuse ``GROUP=null`` and the like, over which Hydra raises a ValueError."""
    sign, group, given = overrides.parse(override)
    option = given or ""
    if "~" in sign or option == "null":
        schema.refuse_left_out({**schema.GROUPS, group: None})
    known = group in ("experiment", "project", "hydra/sweeper", "hydra/launcher", *schema.GROUPS)
    number = re.fullmatch(r"[+-]?[\d._]+(e[+-]?\d+)?|[+-]?inf|nan|null|true|false", option, re.I)
    if known and number:
        refuse(
            group, "is not the name of an option", option,
            accepted=", ".join(schema.options(group)) or "one of its options",
            hint=suggest.corrected(group, option) or f"the command without {group}=",
        )  # fmt: skip


def _file(folder: Path, below: str, group: str, option: str) -> Path | None:
    """Return the file of an option, None where the folder has none.

    Args:
        folder: of all presets.
        below: the group that ``group`` is relative to, unless it begins with a slash.
        group: as in a list of defaults, ``override`` and the like before it.
        option: as there.
    """
    words = group.split()
    name = words[-1].partition("@")[0] if words else ""
    parts = [name.lstrip("/") if name.startswith("/") else f"{below}/{name}"]
    path = folder.joinpath(*parts[0].strip("/").split("/"), option.partition("@")[0])
    path = path.with_name(f"{path.name.removesuffix('.yaml')}.yaml")
    return path if os.path.isfile(path) else None


def _check_file(
    folder: Path, path: Path | None, above: tuple[Path, ...], sound: dict[Path, int]
) -> int:
    """Check a file and those that its defaults name, and return how many they all are.

    Args:
        folder: of all presets.
        path: the file; None for one of dtrain's own.
        above: the files that led here.
        sound: those that were looked at, with that number.
    """
    if path is None:
        return 1
    if path in sound:
        return sound[path]
    if path in above:
        names = " -> ".join(str(each.relative_to(folder)) for each in (*above, path))
        raise _refused(path, f"its defaults lead back to it ({names})", "defaults without a circle")
    if len(above) > DEPTH:
        raise _refused(path, f"more than {DEPTH} presets lead to it", "fewer")
    root, found = _read(path), 1
    group = str(path.parent.relative_to(folder)).replace("/", ".")
    _check_keys(path, "" if group in (".", "experiment") else group, root)
    for file in _defaults(folder, path, root):
        found += _check_file(folder, file, (*above, path), sound)
    if found > FILES:
        raise _refused(path, f"its defaults lead to more than {FILES:,} files", "fewer")
    sound[path] = found
    return found


def _check_keys(path: Path, key: str, node: yaml.Node) -> None:
    """Refuse keys that are gone."""
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        full = f"{key}.{name.value}" if key else str(name.value)
        where = f"{path}, line {name.start_mark.line + 1}"
        scalar = value.value if isinstance(value, yaml.ScalarNode) else "..."
        gone = removed.refusal(full, scalar, where)
        if gone is not None:
            raise gone
        _check_keys(path, full, value)


def _read(path: Path) -> yaml.MappingNode:
    """Return the nodes of a file."""
    try:
        size = path.stat().st_size
        if size > BYTES:
            raise _refused(path, f"has {size:,} bytes", f"up to {BYTES:,} bytes")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _refused(path, f"is no UTF-8 (at byte {error.start})", "a text in UTF-8") from None
    except OSError as error:
        raise _refused(path, f"cannot be read ({error.strerror})", "a readable file") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark is not None else None
        raise _refused(path, str(error.problem or error.context), "YAML", line) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problem = " ".join(str(error).split())[:200]
        raise _refused(path, f"is no YAML ({problem})", "YAML") from None
    if root is None or (isinstance(root, yaml.MappingNode) and not root.value):
        raise _refused(path, "is empty", "keys and values")
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise _refused(path, f"is {kind}", "keys and values", root.start_mark.line)
    _count(path, root, (), {})
    return root


def _count(path: Path, node: Any, above: tuple[int, ...], known: dict[int, int]) -> int:
    """Return how many values a node stands for; refuse what no preset has."""
    line = node.start_mark.line
    if id(node) in above:
        raise _refused(path, "an alias stands inside of what it names", "values that end", line)
    if id(node) in known:
        return known[id(node)]
    if len(above) > DEPTH:
        raise _refused(path, f"is nested more than {DEPTH} deep", "less", line)
    if node.tag.removeprefix(_TAG) not in _PLAIN:
        raise _refused(path, f"has the tag {node.tag!r}", "plain texts, numbers and lists", line)
    inside, total = (*above, id(node)), 1
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            at = key.start_mark.line
            # Classes and epochs, inside of a key, are whole numbers.
            kinds = ("str", "merge", "int") if above else ("str", "merge")
            if key.tag.removeprefix(_TAG) not in kinds:
                text = key.value if isinstance(key, yaml.ScalarNode) else "a list or a node"
                raise _refused(path, f"{text} is no name of a key", "a text, in quotes", at)
            if key.value in seen and key.tag != f"{_TAG}merge":
                raise _refused(path, f"the key {key.value} is there twice", "each key once", at)
            seen.add(key.value)
            total += _count(path, value, inside, known)
    elif isinstance(node, yaml.SequenceNode):
        total += sum(_count(path, item, inside, known) for item in node.value)
    if total > VALUES:
        raise _refused(path, f"stands for more than {VALUES:,} values", "fewer", line)
    known[id(node)] = total
    return total


def _defaults(folder: Path, path: Path, root: yaml.MappingNode) -> Iterator[Path | None]:
    """Yield the files that a list of defaults names."""
    group = str(path.parent.relative_to(folder))
    for key, value in root.value:
        if key.value != "defaults":
            continue
        if not isinstance(value, yaml.SequenceNode):
            raise _refused(path, "its defaults are no list", "a list", value.start_mark.line)
        for item in value.value:
            pairs = item.value if isinstance(item, yaml.MappingNode) else [(None, item)]
            for head, options in pairs:
                several = head is not None and isinstance(options, yaml.SequenceNode)
                for option in options.value if several else [options]:
                    if not isinstance(option, yaml.ScalarNode):
                        line = option.start_mark.line
                        raise _refused(path, "a default is no name", "names of presets", line)
                    if head is not None:
                        yield _file(folder, group, head.value, option.value)
                    elif option.value != "_self_":
                        yield _file(folder, group, *_absolute(option.value))


def _absolute(name: str) -> tuple[str, str]:
    """Split a default without a group in the group and the option."""
    group, slash, option = name.partition("@")[0].rpartition("/")
    return f"{group}{'' if group else slash}", option


def _refused(path: Path, problem: str, accepted: str, line: int | None = None) -> UsageError:
    where = str(path) if line is None else f"{path}, line {line + 1}"
    return UsageError("--config-dir", problem, where, accepted=accepted,
                      hint="another preset, or mend this one")  # fmt: skip
