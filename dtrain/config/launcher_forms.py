"""Forms of the launchers' keys: hosts, networks, and what is passed on to other programs."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from dtrain.config.forms import CHARACTERS, text, words
from dtrain.config.ranges import Each, Form, short


def _matching(
    accepted: str, pattern: str, problem: str, most: int, example: str | None = None
) -> Form:
    """Return the form of a text of at most ``most`` characters that a pattern fits."""

    def why(value: Any) -> str | None:
        wrong = words(value, most)
        return wrong or (None if re.fullmatch(pattern, value) else problem)

    return Form(accepted, why, example)


def _network(value: Any) -> str | None:
    problem = words(value, 64)
    if problem is None and "/" in value:
        try:
            ipaddress.ip_network(value, strict=False)
        except ValueError as error:
            return f"is no network ({error})"
    elif problem is None and not re.fullmatch(r"[\w.:@-]{1,15}", value):
        return "is no name of an interface"
    return problem


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


def _mapping(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "is no mapping"
    return next((f"{name!r} is no text" for name in value if not isinstance(name, str)), None)


NETWORK = Form(
    "null, a network such as 10.0.0.0/8, or the name of an interface", _network, "10.0.0.0/8"
)
HOST = _matching(
    "null, or the name or address of a host", r"[\w.:-]+", "is no name or address of a host", 253,
    "n1",
)  # fmt: skip

# --- ssh
HOSTS = Each(
    _matching(
        "[user@]host, or host:2 for two tasks",
        r"([\w.+-]+@)?(\w[\w.-]*|\[[\w:.%]+\])(:\d+)?", "is no host", 300, "HOST",
    ), 0, 1000, "[]",
)  # fmt: skip
VARIABLES = Each(
    _matching(
        "the name of a variable", r"[A-Za-z_]\w*", "is not the name of a variable", 200
    ), 0, 1000, "[]",
)  # fmt: skip
COMMANDS = Each(
    Form("a command of the shell, in one line", lambda value: words(value, 10_000)), 0, 100, "[]"
)

# --- SLURM
LINES = Each(text(CHARACTERS), 0, 1000, "[]")
OPTIONS = Form("null, or options by name", _options, "{exclusive: true}")

# --- Kubernetes
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
#: Of a job: its pods' names have a role, two numbers and five letters after it, in 63 characters.
JOB_NAME = _matching(
    "up to 40 small letters, digits and hyphens, the first one a letter",
    r"[a-z]([-a-z0-9]*[a-z0-9])?", "is no name that Kubernetes takes for a job", 40, "digits",
)  # fmt: skip
NAMESPACE = _matching(
    "up to 63 small letters, digits and hyphens", _LABEL, "is no name of a namespace", 63,
    "default",
)  # fmt: skip
OBJECT = _matching(
    "the name of an object of Kubernetes: small letters, digits, hyphens and dots",
    rf"{_LABEL}(\.{_LABEL})*", "is no name of an object of Kubernetes", 253, "NAME",
)  # fmt: skip
SECRETS = Each(OBJECT, 0, 100, "[NAME]")
QUANTITY = _matching(
    "a quantity of Kubernetes, such as 512Mi or 16Gi", r"[0-9]+(\.[0-9]+)?([kMGTP]|[KMGTP]i)?",
    "is no quantity of memory", 30, "16Gi",
)  # fmt: skip
CLAIMS = Each(
    _matching(
        "CLAIM:/PATH", rf"{_LABEL}(\.{_LABEL})*:/[^:]+", "is not CLAIM:/PATH", 4096, "data:/data"
    ), 0, 100, "[data:/data]",
)  # fmt: skip
RESOURCE = _matching(
    "the name of a resource of nodes, such as nvidia.com/gpu", r"[a-z0-9.-]+/[A-Za-z0-9._-]+",
    "is no name of a resource", 300, "nvidia.com/gpu",
)  # fmt: skip
POD_SPEC = Form("null, or a mapping of fields of a pod's spec", _mapping, "{nodeSelector: {}}")
