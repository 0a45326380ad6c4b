"""Forms of what launchers pass on to other programs."""

from __future__ import annotations

import re
from typing import Any

from dtrain.config.forms import CHARACTERS, text, words
from dtrain.config.ranges import Each, Form, short


def _options(value: Any) -> str | None:
    """Say why ``value`` cannot be options of a command, by their names."""
    if not isinstance(value, dict):
        return "is no mapping from options to their values"
    for name, each in value.items():
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,99}", str(name)):
            return f"{short(name)} is not the name of an option"
        if not isinstance(each, bool | int | float) and words(each, CHARACTERS) is not None:
            return f"{name}: {short(each)} {words(each, CHARACTERS)}"
    return None


LINES = Each(text(CHARACTERS), 0, 1000, "[]")
OPTIONS = Form("null, or options by name", _options, "{exclusive: true}")
