"""Lengths of time as they are typed: ``2h``, ``90m``, ``1h30m``, or seconds."""

from __future__ import annotations

import re
from typing import Any

from dtrain.config.ranges import YEAR, Form, Range

_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_TEXT = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _UNITS))


def seconds(value: Any) -> float | None:
    """Return how many seconds a value is; None where it is no length of time."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _TEXT.fullmatch(value) if isinstance(value, str) and value else None
    if match is None:
        return None
    return sum(float(n or 0) * of for n, of in zip(match.groups(), _UNITS.values(), strict=True))


def _problem(value: Any) -> str | None:
    duration = seconds(value)
    if duration is None:
        return "is no length of time"
    return Range(0, YEAR, above=True).problem(duration)


FORM = Form("null, or a time: 2h, 90m, 1h30m, or seconds up to a year", _problem, "2h")
