"""What is installed: distributions by their folders' names, which takes milliseconds."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

_INFO = re.compile(r"(.+?)-([^-]+)\.(?:dist|egg)-info")


def installed(path: Sequence[str] | None = None) -> tuple[dict[str, str], list[str]]:
    """Return the versions of all distributions, and the folders of those that are editable.

    Args:
        path: folders to look in, in order, in place of ``sys.path``. Of two versions the first
            counts, as it does for an import.
    """
    versions: dict[str, str] = {}
    editable: list[str] = []
    for folder in sys.path if path is None else path:
        try:
            found = _of(folder or ".", os.stat(folder or ".").st_mtime_ns)
        except OSError:  # a zip file, or a folder that is not there
            continue
        for package, version, folders in found:
            if package not in versions:
                versions[package] = version
                editable += folders
    return versions, editable


@functools.lru_cache(maxsize=64)
def _of(folder: str, changed: int) -> list[tuple[str, str, list[str]]]:
    """Return name, version and editable folders of what is in a folder, read once a process.

    Args:
        folder: of ``sys.path``.
        changed: when something was put into it, in nanoseconds.

    Raises:
        OSError: it cannot be read.
    """
    found = []
    for name in sorted(entry.name for entry in os.scandir(folder)):
        info = _INFO.fullmatch(name)
        if info is not None:
            package = re.sub(r"[-_.]+", "-", info[1]).lower()
            place = os.path.join(folder, name, "direct_url.json")
            found.append((package, info[2], _editable(place)))
    return found


def _editable(path: str) -> list[str]:
    """Return the folder that a distribution is an editable installation of, if it is one."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found["dir_info"].get("editable"):
            return [unquote(urlsplit(found["url"]).path)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # it was installed from an index, or in a way that no standard describes
    return []
