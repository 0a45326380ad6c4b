"""What an attacker does to files: forged words, spoilt values, things that are no files."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.hostile.harness import Place

#: A model that is in order, for presets that replace the whole of `model`.
MODEL = {"_target_": "dtrain.models.mlp", "input_shape": None, "classes": None, "units": [16],
         "dropout": 0.0, "l2": 0.0}  # fmt: skip
#: More than any file of a run, and no byte of it on the disk.
HUGE = 10 << 30


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    """Replace what a JSON file holds by what ``change`` makes of it, or has made in it."""
    value = json.loads(path.read_text())
    changed = change(value)
    path.write_text(json.dumps(value if changed is None else changed))


def edit_yaml(path: Path, change: Callable[[Any], Any]) -> None:
    """Replace what a YAML file holds likewise."""
    value = yaml.safe_load(path.read_text())
    changed = change(value)
    path.write_text(yaml.safe_dump(value if changed is None else changed, sort_keys=False))


def forge_words(place: Place, *words: str, config_dir: Any = None) -> None:
    """Append words to those that a run, and those that a sweep, was composed of."""

    def of_a_run(command: dict[str, Any]) -> None:
        command["overrides"] += words
        if config_dir is not None:
            command["config_dir"] = config_dir

    edit(place.stopped / "command.json", of_a_run)
    edit(place.sweep / "sweep.json", lambda sweep: of_a_run(sweep["command"]))


def preset(place: Place, group: str, text: str | bytes, name: str = "evil") -> Path:
    """Write a preset of the user's presets."""
    path = place.presets / group / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def remove(path: Path) -> None:
    """Make room at ``path``."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace(path: Path, by: str, place: Place) -> None:
    """Put something else in the place of a file or a folder: see :data:`KINDS`."""
    folder = path.is_dir()
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    KINDS[by](path, place, folder)


def _link(path: Path, place: Place, folder: bool) -> None:
    path.symlink_to(place.canary / ("folder" if folder else "file" + _suffix(path)))


def _suffix(path: Path) -> str:
    return path.suffix if path.suffix in (".json", ".yaml") else ".txt"


def _dangling(path: Path, place: Place, folder: bool) -> None:
    path.symlink_to(place.canary / "new")


def _loop(path: Path, place: Place, folder: bool) -> None:
    path.symlink_to(path.name)


def _pipe(path: Path, place: Place, folder: bool) -> None:
    os.mkfifo(path)


def _socket(path: Path, place: Place, folder: bool) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is at most 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def _endless(path: Path, place: Place, folder: bool) -> None:
    path.symlink_to("/dev/zero")


def _other(path: Path, place: Place, folder: bool) -> None:
    if folder:
        path.write_text("a file\n")
    else:
        path.mkdir()


def _huge(path: Path, place: Place, folder: bool) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


def _empty(path: Path, place: Place, folder: bool) -> None:
    path.write_bytes(b"")


#: What may stand in the place of a file or a folder.
KINDS: dict[str, Callable[[Path, Place, bool], None]] = {
    "a link to a file elsewhere": _link,
    "a link to nothing elsewhere": _dangling,
    "a link to itself": _loop,
    "a pipe": _pipe,
    "a socket": _socket,
    "a link to an endless device": _endless,
    "a file for a folder, a folder for a file": _other,
    "a huge file": _huge,
    "an empty file": _empty,
}
