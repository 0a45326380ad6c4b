"""What a project says of every command in its folder, in front of what is typed.

That is ``[tool.dtrain]`` of its ``pyproject.toml``, and a folder ``conf`` or ``presets`` of its
own. The overrides and options of these are put before those that are typed, and a run records them
all: it is resumed, swept and submitted with the same, whatever the project says by then.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from dtrain.config import schema
from dtrain.config.overrides import CONFIG_NAME, key_of, parse
from dtrain.errors import UsageError, refuse
from dtrain.host import pyproject

#: Where presets are, if nothing says it.
_FOLDERS = ("conf", "presets")
#: Hydra would have a + in front of one that is new.
_OF_PROJECT = re.compile(r"project\.[^=]+=")
#: Keys that name a run or a sweep, whose own words are recorded.
_NAMING = ("resume", "fork", "sweep.resume")


def words(given: list[str]) -> list[str]:
    """Return a command line with what the project says in front of what is typed.

    A command that names a run, or a sweep, has the words of that one instead.

    Args:
        given: the command line, without the program's name.

    Raises:
        UsageError: the project's file is wrong.
    """
    given = [f"++{word}" if _OF_PROJECT.match(word) else word for word in given]
    name, given = _take(given, "--config-name", "-cn")
    if name is not None:  # an override is recorded
        given = [*given, f"{CONFIG_NAME}={name}"]
    typed = {each.key: each.value for each in map(parse, given)}
    if any(typed.get(key) not in (None, "null", "auto") for key in _NAMING):
        return given
    flags, folder, table = [], config_dir(given), pyproject.read()
    if folder is not None and typed_config_dir(given) is None:
        flags = ["--config-dir", folder]
    whole = Path(folder or "", "config.yaml")
    if folder is not None and whole.is_file():
        print(f"note: {whole} is not read, as dtrain has a config.yaml of its own: rename it to "
              "NAME.yaml, and type --config-name NAME", file=sys.stderr)  # fmt: skip
    defaults = [*table.get("defaults", ())]
    if "output_dir" in table:
        escaped = table["output_dir"].replace("'", "\\'")
        defaults.insert(0, f"output_dir='{escaped}'")
    if any(word.startswith(("--shell-completion", "-sc")) for word in given):
        defaults = []  # the words of this option are no overrides
    return in_front(flags, [word for word in defaults if not _is_replaced(word, typed)], given)


def _is_replaced(override: str, keys: Iterable[str]) -> bool:
    """Say whether one of some keys is that of an override, or the group that its key is in."""
    name = parse(override).name
    return any(key_of(override) == key or name.startswith(f"{key}.") for key in keys)


def note(key: str) -> str | None:
    """Return a line that says that the override of a key is one of the project's, if it is."""
    with contextlib.suppress(UsageError):
        for word in pyproject.read().get("defaults", ()):
            if key_of(word) == key and word in sys.argv:
                return f"note: {word} is one of the defaults in {pyproject.FILE}"
    return None


def in_front(flags: list[str], overrides: list[str], given: list[str]) -> list[str]:
    """Return a command line with options and overrides in front of its own."""
    # ORDER: flags stand before the first override: Hydra takes no two groups of overrides.
    first = next((i for i, w in enumerate(given) if "=" in w and not w.startswith("-")), 0)
    return [*flags, *given[:first], *overrides, *given[first:]]


def config_dir(given: list[str]) -> str | None:
    """Return the folder of presets of a command: the typed one, else the project's; None of none.

    Raises:
        UsageError: the project's file is wrong.
    """
    if (typed := typed_config_dir(given)) is not None:
        return typed
    if (named := pyproject.read().get("config_dir")) is not None:
        if not Path(named).is_dir():
            refuse(f"{pyproject.FILE}: tool.dtrain.config_dir", "is no folder", named,
                   accepted="a folder of presets", hint=f"mkdir -p {named}/experiment")  # fmt: skip
        return str(named)
    return next((name for name in _FOLDERS if _has_presets(Path(name))), None)


def _has_presets(folder: Path) -> bool:
    """Say whether a folder has options of groups, and is not dtrain's own, of a checkout."""
    whole = folder / "config.yaml"
    if whole.is_file() and "config_schema" in whole.read_text(errors="replace"):
        return False
    groups = (*schema.GROUPS, *schema.OWN_GROUPS)
    return any(path for name in groups for path in (folder / name).glob("*.yaml"))


def typed_config_dir(given: list[str]) -> str | None:
    """Return the folder of ``--config-dir``; what is wrong with the options is said later."""
    return _take(given, "--config-dir", "-cd")[0]


def _take(given: list[str], *option: str) -> tuple[str | None, list[str]]:
    """Return the value of an option, if it is there, and the command line without it."""
    for place, word in enumerate(given):
        head, equals, value = word.partition("=")
        if head in option and equals:
            return value, [*given[:place], *given[place + 1 :]]
        if word in option and given[place + 1 :]:
            return given[place + 1], [*given[:place], *given[place + 2 :]]
    return None, given
