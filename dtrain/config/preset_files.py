"""The YAML files of ``--config-dir`` that a command chooses, looked at before Hydra reads them.

Hydra answers a damaged one with a traceback, one that includes itself with a full stack, and one
whose aliases multiply with all of the memory. Here each ends in a sentence with its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from hydra.core.override_parser.types import Override

from dtrain.config.fields import Plain
from dtrain.config.overrides import CONFIG_NAME, parse
from dtrain.errors import DamagedFile
from dtrain.files.reading import read_plain

#: Most files that one preset leads to, each counted as often as it is named: Hydra composes it so.
FILES = 1000
DEPTH = 32


def check(config_dir: str | None, overrides: Iterable[Override]) -> None:
    """Refuse files that are no presets.

    Args:
        config_dir: the folder of presets, if there is one.
        overrides: which choose options of groups.

    Raises:
        DamagedFile: naming file and line.
    """
    numbers: dict[Path, int] = {}
    for override in () if config_dir is None else overrides:
        value = parse(override.input_line or "").value or ""
        if override.key_or_group == CONFIG_NAME:
            _check_file(Path(str(config_dir)), Path(str(config_dir), value), (), numbers)
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
        raise DamagedFile(path, f"has defaults that lead back to it ({names})")
    if path.is_file() and path not in numbers:
        if len(above) > DEPTH:
            raise DamagedFile(path, f"is led to by more than {DEPTH} presets")
        named = _defaults(folder, path, read_plain(path, aliases=True).get("defaults", []))
        number = 1 + sum(_check_file(folder, each, (*above, path), numbers) for each in named)
        if number > FILES:
            raise DamagedFile(path, f"has defaults that lead to more than {FILES:,} files")
        numbers[path] = number
    return numbers.get(path, 1)


def _defaults(folder: Path, path: Path, defaults: Plain) -> Iterator[Path]:
    """Yield the places of the options that a list of defaults names."""
    if not isinstance(defaults, list):
        raise DamagedFile(path, "has defaults that are no list")
    for item in defaults:
        if isinstance(item, list):
            raise DamagedFile(path, "has a default that is no name of a preset")
        for head, named in item.items() if isinstance(item, dict) else [("", item)]:
            for option in named if isinstance(named, list) else [named]:
                if isinstance(option, list | dict):
                    raise DamagedFile(path, "has a default that is no name of a preset")
                group = (str(head).split() or [""])[-1].partition("@")[0]
                below = folder if f"{group}{option}".startswith("/") else path.parent
                yield below / group.strip("/") / str(option).partition("@")[0].strip("/")
