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

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override

from dtrain.config.explain import number
from dtrain.data.draws import Stream
from dtrain.errors import refuse


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
