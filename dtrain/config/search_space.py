"""What a search chooses from: the overrides of its command line, by Hydra's grammar.

=============================================  =================================================
``model=mlp,cnn`` ``optimizer.beta_1=choice(0.8,0.9)``   one of these
``model.dropout=interval(0,0.5)``              a number, evenly
``optimizer.learning_rate=tag(log,interval(1e-4,1e-1))``  a number, its logarithm evenly
``model.width=int(interval(16,256))``          a whole number, both ends included
=============================================  =================================================
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import islice

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from dtrain.data.draws import Stream
from dtrain.errors import UsageError, refuse

#: Most jobs of a sweep, and most values of a key: each job is composed before the first runs.
MOST = 10_000


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several values.

    Attributes:
        key: of the configuration.
        values: as they stand on the command line.
    """

    key: str
    values: tuple[str, ...]

    def draw(self, generator: Stream) -> str:
        """Return one of them, all alike."""
        return self.values[generator.integers(len(self.values))]


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number between two.

    Attributes:
        key: of the configuration.
        low, high: bounds.
        log: evenly in its logarithm.
        whole: a whole number; then both bounds are possible.
    """

    key: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def draw(self, generator: Stream) -> str:
        """Return a number as text."""
        # A whole number stands for all that round to it, so that the bounds are as likely.
        margin = 0.5 if self.whole else 0.0
        low, high = self.low - margin, self.high + margin
        if self.log:
            found = math.exp(generator.uniform(math.log(low), math.log(high)))
        else:
            found = generator.uniform(low, high)
        return self.text(found)

    def text(self, value: float) -> str:
        """Return ``value`` as it stands on the command line, a number with six digits."""
        if self.whole:
            return str(min(max(round(value), int(self.low)), int(self.high)))
        return f"{value:.6g}"


Dimension = Choice | Interval


def read(typed: Sequence[str]) -> tuple[list[str], list[Dimension]]:
    """Sort the overrides of a search into those that hold for every job and those to choose.

    Args:
        typed: overrides in Hydra's grammar; of two with one key the later holds.

    Returns:
        (the fixed overrides, the dimensions), each in order.

    Raises:
        UsageError: nothing is left to choose, or an interval is empty.
    """
    overrides: dict[str, Override] = {}
    for override in OverridesParser.create().parse_overrides(list(typed)):
        overrides[override.get_key_element().lstrip("+")] = override
    fixed, dimensions = [], []
    for override in overrides.values():
        if override.is_sweep_override():
            number(override)
            dimensions.append(_dimension(override))
        else:
            fixed.append(override.input_line or "")
    if not dimensions:
        refuse("hydra/sweeper", "there is nothing to choose", "a search",
               accepted="at least one key with several values or an interval",
               typed="'optimizer.learning_rate=tag(log,interval(0.0001,0.1))'")  # fmt: skip
    return fixed, dimensions


def check_grid(overrides: Sequence[Override]) -> None:
    """Refuse more combinations than a sweep may have, before they are made.

    Raises:
        UsageError: there are more than :data:`MOST`, or none.
    """
    counts = {o.get_key_element(): number(o) for o in overrides if o.is_discrete_sweep()}
    total = math.prod(counts.values())
    if total > MOST:
        typed = " x ".join(f"{count:,} of {key}" for key, count in counts.items())
        raise _too_many(max(counts, key=lambda key: counts[key]), "...", f"{typed} are {total:,}")


def number(override: Override) -> int:
    """Count the values of a key without expanding them; an interval or a pattern counts as one.

    Raises:
        UsageError: there are more than :data:`MOST`, or none.
    """
    key, found = override.get_key_element(), override.value()
    try:
        if isinstance(found, ChoiceSweep):
            count = len(found.list)
        elif isinstance(found, RangeSweep):
            count = sum(1 for _ in islice(found.range(), MOST + 1))
        else:
            return 1
    except (ArithmeticError, ValueError, HydraException):
        count = 0
    given = override.get_value_string()
    if count > MOST:
        raise _too_many(key, given, f"more than {MOST:,} values are")
    if count == 0:
        refuse(key, "has no value in it", given, accepted="at least one value",
               typed=f"'{key}=range(0,3)'")  # fmt: skip
    return count


def _too_many(key: str, value: object, found: str) -> UsageError:
    return UsageError(key, f"{found} more than a sweep can have", value,
                      accepted=f"up to {MOST:,} jobs in all; or hydra/sweeper=random, which draws",
                      typed="hydra/sweeper=random hydra.sweeper.trials=20")  # fmt: skip


def _dimension(override: Override) -> Dimension:
    key = override.get_key_element()
    if override.is_discrete_sweep():
        return Choice(key, tuple(override.sweep_string_iterator()))
    found = override.value()
    assert isinstance(found, IntervalSweep) and found.start is not None and found.end is not None
    log, given = "log" in found.tags, f"interval({found.start:g},{found.end:g})"
    if not all(abs(bound) <= 1e300 for bound in (found.start, found.end)):  # NaN is neither
        refuse(key, "has no end", given, accepted="two finite numbers",
               typed=f"'{key}=interval(0,1)'")  # fmt: skip
    if log and not 0 < found.start < found.end:
        refuse(key, "has no logarithms to choose from", given,
               accepted="a lower and a higher bound, above 0",
               typed=f"'{key}=tag(log,interval(0.001,0.1))'")  # fmt: skip
    if found.start >= found.end:
        refuse(key, "has nothing in it", given, accepted="a lower and a higher bound",
               typed=f"'{key}=interval(0,1)'")  # fmt: skip
    return Interval(key, found.start, found.end, log, isinstance(found.start, int))
