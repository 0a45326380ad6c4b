"""Keys, options, values and commands of earlier versions: each is refused, with what to type."""

from __future__ import annotations

from collections.abc import Iterable

from dtrain.config.other_tools import rows
from dtrain.config.overrides import parse
from dtrain.errors import ALONE, UsageError

#: What stands in the place of each, and what to type.
REMOVED = {name: (instead, hint) for name, instead, hint in rows("removed.txt")}


def check(words: Iterable[str], command: str | None = None) -> None:
    """Refuse the first word that has such a name.

    Args:
        words: of a command line, as they were typed.
        command: whose words they are; None for a training's.

    Raises:
        UsageError: with what stands in its place.
    """
    for word in words:
        name = f"{command} {word.partition('=')[0]}"
        if word.startswith("-") and name in REMOVED:
            raise _error(word, ALONE, *REMOVED[name])
        override = parse(word)
        if override.sign == "~" and override.value is None and override.key in REMOVED:
            raise _error(word, ALONE, *REMOVED[override.key])
        for value in [] if override.value is None else override.value.split(","):  # of a sweep
            if (error := refusal(override.key, value)) is not None:
                raise error


def check_command(name: str) -> None:
    """Refuse a command of an earlier version.

    Raises:
        UsageError: with what stands in its place.
    """
    if name in REMOVED:
        raise _error(name, ALONE, *REMOVED[name])


def refusal(key: str, value: object, where: str | None = None) -> UsageError | None:
    """Return what to raise where a user writes ``key``; None where it is one of today's.

    Args:
        key: dotted.
        value: of it.
        where: file and line, if it is not an override.
    """
    parts = key.split(".")
    above = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    name = next((each for each in (f"{key}={value}", *above) if each in REMOVED), None)
    return None if name is None else _error(key, value, *REMOVED[name], where)


def _error(
    key: str, value: object, instead: str, hint: str, where: str | None = None
) -> UsageError:
    place = f" ({where})" if where else ""
    if value is not ALONE:
        hint = hint.replace("RUN_DIR", str(value)).replace("VALUE", str(value))
    return UsageError(key, f"is not in this version any more{place}", value, accepted=instead,
                      typed=hint)  # fmt: skip
