"""``[tool.dtrain]`` of the ``pyproject.toml`` in the current directory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from dtrain.errors import nearest, refuse
from dtrain.host import python_path

FILE = "pyproject.toml"
#: Of each key: what it takes, an example, and the pattern of a text, or of each one of a list.
_KEYS = {
    "config_dir": ("a folder of presets", '"conf"', r".+"),
    "output_dir": ("a folder, or an address", '"outputs"', r".+"),
    "defaults": ("a list of overrides", '["optimizer=adamw"]', r"[^-=][^=]*=.*"),
    "trust": ("a list of modules", '["mine"]', r"[^\W\d]\w*(\.[^\W\d]\w*)*"),
}


def read() -> dict[str, Any]:
    """Return what the table has; nothing where there is no such file, or no such table.

    Raises:
        UsageError: it has a key or a value that it cannot have, or the file is no TOML.
    """
    path = Path(FILE)
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if "dtrain" not in text:
        return {}
    import tomllib  # not above: few commands are typed beside such a table

    try:
        table: dict[str, Any] = dict(tomllib.loads(text).get("tool", {}).get("dtrain", {}))
    except (ValueError, TypeError, AttributeError) as error:
        refuse(FILE, f"cannot be read ({error})", accepted="TOML", hint="a table [tool.dtrain]")
    for key, value in table.items():
        name = f"{FILE}: tool.dtrain.{key}"
        if key not in _KEYS:
            near = nearest(key, _KEYS) or "the table without it"
            refuse(name, "there is no such key", value, accepted=", ".join(_KEYS), hint=near)
        accepted, example, pattern = _KEYS[key]
        values = value if example.startswith("[") else [value]
        if not isinstance(values, list) or not all(
            isinstance(each, str) and re.fullmatch(pattern, each) for each in values
        ):
            refuse(name, f"is not {accepted}", value, accepted=accepted, hint=f"{key} = {example}")
    return table


def output_dir() -> str:
    """Return where the runs of this directory are, if nothing that is typed says it.

    Raises:
        UsageError: of :func:`read`.
    """
    return str(read().get("output_dir", "outputs"))


def extend_trust() -> None:
    """Trust what the table says, as if it stood in ``DTRAIN_TRUST``.

    Raises:
        UsageError: of :func:`read`.
    """
    if names := read().get("trust"):
        os.environ[python_path.TRUST] = ",".join(dict.fromkeys([*python_path.trusted(), *names]))
