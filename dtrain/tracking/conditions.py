"""Conditions of a promotion: ``val_accuracy>=@champion and test/loss<0.5``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dtrain.errors import refuse
from dtrain.run.registry import Measured

_WORD = re.compile(r"\s*([\w./:-]+)\s*(>=|<=|==|>|<)\s*(@?[\w.+-]+)\s*")
_AND = re.compile(r"\s+and\s+")
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


class Condition(NamedTuple):
    """A comparison of a metric of the model.

    Attributes:
        metric: its name.
        relation: one of ``>=``, ``<=``, ``==``, ``>``, ``<``.
        alias: of the version that it is compared with; None for a number.
        number: that it is compared with.
    """

    metric: str
    relation: str
    alias: str | None
    number: float

    def __str__(self) -> str:
        return f"{self.metric}{self.relation}{self.operand}"

    @property
    def operand(self) -> str:
        """What it is compared with, as it is typed."""
        return f"{self.number:g}" if self.alias is None else f"@{self.alias}"


class Other(NamedTuple):
    """The version that an alias names.

    Attributes:
        version: its number.
        run: the folder of its run, as far as that is known.
        metrics: by name.
    """

    version: str
    run: str
    metrics: Mapping[str, Measured]


def parse(text: str) -> list[Condition]:
    """Return the conditions that all have to hold.

    Args:
        text: of ``if=``; empty for none.

    Raises:
        UsageError: it is none.
    """
    return [_parse(part, text) for part in _AND.split(text)] if text.strip() else []


def _parse(part: str, text: str) -> Condition:
    match = _WORD.fullmatch(part)
    operand = match[3] if match else ""
    try:
        number = 0.0 if operand.startswith("@") else float(operand)
    except ValueError:
        number = math.nan
    if match is None or operand == "@" or math.isnan(number):
        refuse("if", "is no condition (a shell takes > and < for itself, without quotes)", text,
               accepted="METRIC, one of >= <= == > <, and @ALIAS or a number; several with 'and'",
               typed="'if=val_accuracy>=@champion'")  # fmt: skip
    alias = operand[1:] if operand.startswith("@") else None
    return Condition(match[1], match[2], alias, number)


def check_metrics(conditions: list[Condition], known: Mapping[str, Measured]) -> None:
    """Refuse conditions on metrics that the model does not have.

    Args:
        conditions: of :func:`parse`.
        known: metrics of the model.

    Raises:
        UsageError: one is not known, or not a number.
    """
    for each in conditions:
        if each.metric not in known:
            refuse("if", f"the checkpoint has no number {each.metric!r} of known data", each,
                   accepted=", ".join(sorted(known)) or "what validation and evaluate have added",
                   hint="python -m dtrain evaluate RUN, which adds test/NAME")  # fmt: skip


def failure(condition: Condition, own: Measured, other: Other | None) -> str | None:
    """Return why a condition does not hold, as a sentence; None where it does.

    Args:
        condition: one of :func:`parse`.
        own: the metric of the model.
        other: the version that it names, where it names one.
    """
    name, value = condition.metric, condition.number
    who = ""
    if other is not None:
        known = other.metrics.get(name)
        whose = f"version {other.version} ({condition.operand})"
        hint = f"python -m dtrain evaluate {other.run or 'RUN'}"
        if known is None:
            return f"{whose} has no number {name!r} of known data; {hint} adds test/NAME"
        if known.data != own.data:
            return (
                f"{name} of {whose} is of other data than that of this model; evaluate both on "
                f"the same: {hint} dataset...=..., and this run too"
            )
        value, who = known.value, f" of {whose}"
    if _HOLDS[condition.relation](own.value, value):
        return None
    return f"{name} is {own.value:.6g}, which is not {condition.relation} {value:.6g}{who}"
