"""What ``python -m dtrain serve`` takes: words with a type, a range and a default each."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from dtrain.config.overrides import parse
from dtrain.errors import UsageError, nearest

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the command.

    Attributes:
        follow: newer versions are taken as they appear.
        host: address to listen at.
        port: to listen at; 0 for a free one.
        name: of the model, in addresses.
        checkpoint: of a run: best, latest or a step.
        weights: of a run: raw or ema.
        max_batch: rows of a batch, at most.
        max_delay_ms: milliseconds that a request waits for others to share its batch.
        max_queue: rows that wait, and rows of a request, at most.
        max_body_mb: megabytes of the body of a request, at most.
        timeout: seconds until a request is given up.
        threads: of one batch; 0 for one on each core.
        uri: ``tracking.uri``, the store of a registered model.
    """

    follow: bool = False
    host: str = "127.0.0.1"
    port: int = 8080
    name: str | None = None
    checkpoint: str | None = None
    weights: str = "raw"
    max_batch: int = 64
    max_delay_ms: float = 0.0
    max_queue: int = 4096
    max_body_mb: float = 16.0
    timeout: float = 30.0
    threads: int = 0
    uri: str | None = None


#: The least and the most that a number may be.
_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "max_batch": (1, 65536),
    "max_delay_ms": (0, 10_000),
    "max_queue": (1, 10_000_000),
    "max_body_mb": (0.001, 4096),
    "timeout": (0.1, 86_400),
    "threads": (0, 1024),
}
#: Words whose name is not that of the field.
_NAMES = {"tracking.uri": "uri"}
#: What is typed, in order.
WORDS = tuple(
    {field: word for word, field in _NAMES.items()}.get(each.name, each.name)
    for each in dataclasses.fields(Options)
)


def taken(given: list[str], group: str | None) -> tuple[Options, list[str]]:
    """Return the options of a command line, and what of it is left for others.

    Args:
        given: words, and options that begin with ``-``.
        group: of overrides that are left, such as ``dataset``; None: no override is.

    Raises:
        UsageError: a word is not known, or its value cannot be.
    """
    values: dict[str, Any] = {}
    rest: list[str] = []
    for text in given:
        found = parse(text)
        if not found.sign and found.name in WORDS and found.value is not None:
            field = _NAMES.get(found.name, found.name)
            values[field] = _value(found.name, field, found.value.strip("'\""))
        elif text.startswith("-") or (group is not None and found.key.split(".")[0] == group):
            rest.append(text)
        else:
            near = nearest(found.name, WORDS)
            more = "" if group is None else f" and overrides of {group}"
            raise UsageError(
                found.name or text, found.value or "", "says nothing of a server",
                f"{', '.join(f'{word}=' for word in WORDS)}{more}",
                f"the command with {near}=" if near else f"the command without {text}",
            )  # fmt: skip
    return Options(**values), rest


def _value(word: str, field: str, text: str) -> Any:
    default = getattr(Options, field)
    if isinstance(default, bool):
        if text.lower() not in (*_TRUE, *_FALSE):
            raise UsageError(word, text, "is neither", "true or false", f"{word}=true")
        return text.lower() in _TRUE
    if isinstance(default, int | float):
        low, high = _RANGES[field]
        try:
            number = type(default)(text)
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            kind = "a whole number" if isinstance(default, int) else "a number"
            raise UsageError(
                word, text, "cannot be", f"{kind} from {low:g} to {high:,.10g}",
                f"{word}={default}",
            )  # fmt: skip
        return number
    return text
