"""Variables of this command's environment that go along to the tasks on other hosts."""

from __future__ import annotations

import os
import re

#: How their names begin: what the user trusts and allows, and secrets that were typed.
_OWN = ("DTRAIN_TRUST", "DTRAIN_ENV", "DTRAIN_SECRET_", "TF_CPP_MIN_LOG_LEVEL")
_REFERENCE = re.compile(r"\$\{\s*oc\.env\s*:\s*['\"]?(\w+)")


def own() -> dict[str, str]:
    """Return those that every task has."""
    return {name: value for name, value in os.environ.items() if name.startswith(_OWN)}


def referred(text: str) -> dict[str, str]:
    """Return those that a configuration refers to: secrets are not written there.

    Args:
        text: of ``config.yaml``.
    """
    return {name: os.environ[name] for name in _REFERENCE.findall(text) if name in os.environ}
