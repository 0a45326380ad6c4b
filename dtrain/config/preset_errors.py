"""Hydra's errors about a preset or an experiment, with the file and what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dtrain.config import suggest
from dtrain.errors import UsageError, nearest

#: OmegaConf's names of types, and ours.
_TYPES = {"Integer": "whole numbers", "Float": "numbers", "bool": "true or false"}


def explained(
    error: Exception, folder: str | None, options: Mapping[str, list[str]]
) -> UsageError | None:
    """Return what is wrong in a file, None where the error is about something else.

    Args:
        error: of Hydra.
        folder: of ``--config-dir``, or None.
        options: of each group.
    """
    found = re.match(r"In '([^']+)': (.*)", str(error), re.S)
    if found is None:
        return None
    file, text = found[1], found[2]
    group = file.rpartition("/")[0]
    missing = re.match(r"Could not find '([^'@]+)", text)
    if missing is not None:
        return _no_option(_place(file, folder), group, missing[1], options)
    unmatched = re.match(r"Could not override '([^'@]+)", text)
    if unmatched is not None and unmatched[1] in options:  # Hydra puts it below its own folder
        return _no_package(_place(file, folder), group)
    if unmatched is not None:
        name = unmatched[1].removeprefix(f"{group}/")
        near = nearest(name, options)
        return UsageError(
            *_place(file, folder), f"its defaults override {unmatched[1]}, which is no group",
            ", ".join(sorted(options)), f"- override /{near or 'GROUP'}: OPTION in its defaults",
        )  # fmt: skip
    unknown = re.search(r"Key '([^']+)' not in '(\w+)'\s+full_key: (\S+)", text)
    if unknown is not None:
        return _no_key(file, folder, unknown[1], unknown[2], unknown[3])
    option = re.search(r"is not a subclass of \w+\. value: (\w+)", text)
    if option is not None:
        holding = [name for name, known in options.items() if option[1] in known]
        return UsageError(
            *_place(file, folder), f"gives a group the value {option[1]}, and a group has options",
            "an option, in the list of defaults",
            f"- override /{holding[0] if holding else 'GROUP'}: {option[1]} in its defaults",
        )  # fmt: skip
    wrong = re.search(r"composing config:\n(.+?)\s+full_key: (\S+)", text)
    if wrong is not None:
        return UsageError(
            *_place(file, folder), f"its {wrong[2]} has the wrong type ({wrong[1]})",
            accepted(wrong[1]), f"python -m dtrain --help {wrong[2]}",
        )  # fmt: skip
    return None


def accepted(text: str) -> str:
    """Read from OmegaConf's message which values it would take."""
    options = re.search(r"expected one of \[(.*?)\]", text)
    if options:
        return options.group(1)
    kind = re.search(r"converted to (\w+)|not a valid (bool)", text)
    if kind is None and "ListConfig" in text:
        return "a list: [A,B]"
    if kind is None:
        return "a value of the default's type"
    name = kind.group(1) or kind.group(2)
    return _TYPES.get(name, name)


def _no_option(
    place: tuple[str, str], group: str, name: str, options: Mapping[str, list[str]]
) -> UsageError:
    of, _, option = name.rpartition("/")
    inner = of.removeprefix(f"{group}/")
    if of not in options and inner in options:
        return UsageError(
            *place, f"its defaults look for {name}, as there is no override before {inner}",
            f"options of groups, after the word override and with a slash: override /{inner}",
            f"- override /{inner}: {option} in its defaults",
        )  # fmt: skip
    known = sorted(options.get(of, []))
    near = nearest(option, known) or "OPTION"
    own = f"- {near} in its defaults" if of == group else f"{of}={near}"
    if of and (of != group or not place[1]):
        place = (of, option)
    return UsageError(
        *place, f"there is no option {name}", ", ".join(known) or "options of a group", own
    )


def _no_key(file: str, folder: str | None, key: str, kind: str, whole: str) -> UsageError:
    group, names = file.split("/")[0], suggest.keys_of_type(kind)
    parent = whole.rpartition(".")[0]
    if kind == "Config" and key == group:
        return _no_package(_place(file, folder), group)
    right = suggest.meant(f"{parent}.{key}" if parent else key, suggest.VALUE, names) or ""
    right = right.removesuffix(f"={suggest.VALUE}")
    return UsageError(
        *_place(file, folder), f"has {whole}, and there is no such key",
        ", ".join(names), f"{right} in its place" if right else "the file without it",
    )  # fmt: skip


def _no_package(place: tuple[str, str], group: str) -> UsageError:
    return UsageError(
        *place, f"its keys are read as keys of the group {group}, which has none",
        "keys of the whole configuration", "# @package _global_ as its first line",
    )  # fmt: skip


def _place(file: str, folder: str | None) -> tuple[str, str]:
    """Return what stands before and behind the ``=`` of a message about a file."""
    path = Path(folder or "", f"{file}.yaml")
    if folder is not None and path.is_file():
        return "--config-dir", str(path)
    group, _, option = file.rpartition("/")
    return group or "config", option
