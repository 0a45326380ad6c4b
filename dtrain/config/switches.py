"""Keys that are true, false or ``auto``: as was measured for the model here, else as the default.

Once a configuration is settled they are true or false: what nobody looks for is the default.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from dtrain.config.ranges import Form

AUTO = "auto"
#: Type of such a field. OmegaConf takes anything there, and :data:`SWITCH` what is none.
if TYPE_CHECKING:
    Switch = bool
else:
    Switch = Any
#: Values that a reference to a variable of the environment becomes.
_TEXTS = {"true": True, "false": False}


def _problem(value: Any) -> str | None:
    known = isinstance(value, bool) or (isinstance(value, str) and value in (*_TEXTS, AUTO))
    return None if known else "is not one of these"


SWITCH = Form("true, false or auto", _problem, "false")


def names(kind: type) -> list[str]:
    """Return the names of such fields of a dataclass."""
    return [each.name for each in dataclasses.fields(kind) if each.type == "Switch"]


def settle(section: Any) -> None:
    """Give such fields of a section their values, in place: for ``auto`` the default."""
    for field in dataclasses.fields(section):
        if field.type == "Switch":
            value = getattr(section, field.name)
            found = field.default if value == AUTO else _TEXTS.get(value, value)
            setattr(section, field.name, found)
