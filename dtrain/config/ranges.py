"""Rules of values: what a field of the schema declares beside its type.

A field is written ``epochs: int = within(1, 1, 1000)`` or ``name: str = formed("x", FILE_NAME)``.
OmegaConf checks its kind; :mod:`dtrain.config.values` looks its rule up here and checks that.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from typing import Any

#: Where a field keeps its rule.
METADATA = "dtrain"

#: Largest count of anything (steps, epochs, examples): what is far below the 64 bits of TensorFlow.
MANY = 10**9
#: Largest seed: TensorFlow takes 31 bits.
SEED = 2**31 - 1
#: Longest time of any kind, in seconds: a year.
YEAR = 31_536_000
#: Largest width of a layer, and number of classes.
WIDE = 2**24
#: Largest clipping norm, scale and the like: far below where float32 ends.
LARGE = 1e12


@dataclasses.dataclass(frozen=True)
class Range:
    """Finite numbers between two bounds.

    Attributes:
        low, high: the bounds.
        above: ``low`` itself is none of them.
        below: likewise ``high``.
        whole: only whole numbers.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    whole: bool = False

    @property
    def accepted(self) -> str:
        """The bounds, in words."""
        low = f"above {_text(self.low)}," if self.above else _text(self.low)
        return f"{low} {'up to but not' if self.below else 'to'} {_text(self.high)}"

    def problem(self, value: Any) -> str | None:
        """Return which bound ``value`` misses."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "is not a number"
        if math.isnan(value):
            return "is not a number"
        if math.isinf(value):
            return "is infinite"
        if value < self.low or (self.above and value == self.low):
            return f"must be {'above' if self.above else 'at least'} {_text(self.low)}"
        if value > self.high or (self.below and value == self.high):
            return f"must be {'below' if self.below else 'at most'} {_text(self.high)}"
        return "is not a whole number" if self.whole and not isinstance(value, int) else None

    def instead(self, value: Any) -> Any:
        """Return the bound that ``value`` misses, or a number beside it."""
        if isinstance(value, int | float) and value > self.high and not self.below:
            return _text(self.high)
        return _text(self.low if not self.above else min(1.0, (self.low + self.high) / 2))


@dataclasses.dataclass(frozen=True)
class Form:
    """Strings, or nodes of YAML, of one form.

    Attributes:
        accepted: what they are, in words.
        problem: returns why a value is none of them, None where it is one.
        example: one of them.
        values: all of them, where they can be listed.
    """

    accepted: str
    problem: Callable[[Any], str | None]
    example: str | None = None
    values: tuple[str, ...] = ()

    def instead(self, value: Any) -> Any:
        """Return the example."""
        return self.example


@dataclasses.dataclass(frozen=True)
class Each:
    """Lists, each of whose items follows a rule.

    Attributes:
        rule: of an item.
        least, most: how many items there may be.
        example: such a list.
        whole: returns why a list is none of them although its items are.
    """

    rule: Rule
    least: int
    most: int
    example: str
    whole: Callable[[list[Any]], str | None] = lambda items: None

    @property
    def accepted(self) -> str:
        """The items, in words."""
        number = f"{self.least} to {self.most}" if self.least < self.most else str(self.least)
        return f"a list of {number} items, each {self.rule.accepted}"

    def problem(self, value: Any) -> str | None:
        """Return what is wrong with the list, or with its first item that is."""
        if not isinstance(value, list):
            return "is not a list"
        if not self.least <= len(value) <= self.most:
            return f"has {len(value)} items"
        for item in value:
            problem = self.rule.problem(item)
            if problem is not None:
                return f"{short(item)} {problem}"
        return self.whole(value)

    def instead(self, value: Any) -> Any:
        """Return the example."""
        return self.example


#: Which values a field takes, of those of its type: ``accepted`` in words, ``problem`` of one that
#: is none, and ``instead`` one that is, as it is typed.
Rule = Range | Form | Each


def within(
    default: Any, low: float, high: float, *, above: bool = False, below: bool = False
) -> Any:
    """Return a field of a dataclass for a number from ``low`` to ``high``.

    Args:
        default: the field's, which None is beside the numbers where its type says so.
        low, high, above, below: as of :class:`Range`.
    """
    return dataclasses.field(default=default, metadata={METADATA: Range(low, high, above, below)})


def formed(default: Any, rule: Rule) -> Any:
    """Return a field of a dataclass whose values follow ``rule``."""
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=default.copy, metadata={METADATA: rule})
    return dataclasses.field(default=default, metadata={METADATA: rule})


def rule(field: dataclasses.Field[Any]) -> Rule | None:
    """Return what a field of a dataclass declares, None where it declares nothing."""
    found: Rule | None = field.metadata.get(METADATA)
    return found


def accepted(field: dataclasses.Field[Any]) -> str:
    """Return the values that a field takes, in words."""
    found = rule(field)
    if isinstance(field.default, enum.Enum):
        words = ", ".join(type(field.default).__members__)
    elif field.type == "bool":
        words = "true or false"
    else:
        words = "a value" if found is None else found.accepted
    return f"{words}, or null" if optional(field) and "null" not in words else words


def optional(field: dataclasses.Field[Any]) -> bool:
    """Say whether None is among the values of a field."""
    # Of those without a type that None is one of, those that say "none" by it.
    none = ("schedule", "augment", "loss", "class_weight")
    return "None" in str(field.type) or field.name in none


def typed(value: Any) -> str:
    """Return a value as it is typed in an override."""
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    return str(value)


def _text(number: float) -> str:
    """Return a bound as it is typed."""
    if float(number).is_integer() and abs(number) < 1e15:
        return str(int(number))
    return f"{number:g}"


def short(value: Any) -> str:
    """Return a value as text, of 60 characters at most."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
