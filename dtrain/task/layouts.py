"""Which variables a mesh splits, and along which axis: rules over their paths, without TensorFlow.

A mesh has the axes ``batch`` and ``model``; variables are split over ``model`` alone, so every
device of one ``batch`` row holds another part of the model. A split variable is one of two kinds:

* ``split``: each device computes with its part, and DTensor adds the communication that the next
  operation needs (Shoeybi et al. 2019, arXiv 1909.08053, split a transformer so);
* ``gather``: it is stored in parts and put together wherever it is read, which spares memory and
  nothing else. DTensor's convolutions need it: they take no part of a kernel.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from dtrain.errors import UsageError

#: ``strategy.rules=auto`` leaves variables of fewer elements whole: there is little to spare.
AUTO_ELEMENTS = 1024

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Placement:
    """How one variable lies on the mesh.

    Attributes:
        axis: the one that is split over ``model``; None: every device has all of it.
        gathered: it is put together wherever it is read.
    """

    axis: int | None = None
    gathered: bool = False

    def specs(self, rank: int) -> list[str | None]:
        """Return for each axis the mesh axis it is split over, or None."""
        return ["model" if axis == self.axis else None for axis in range(rank)]

    def part(self, shape: Sequence[int], parts: int) -> Shape:
        """Return the shape of what one device holds."""
        return tuple(n // parts if axis == self.axis else n for axis, n in enumerate(shape))

    def __str__(self) -> str:
        if self.axis is None:
            return "whole"
        return f"{'gather' if self.gathered else 'split'} {self.axis}"


def place(rules: Any, variables: Iterable[tuple[str, Shape]], parts: int) -> list[Placement]:
    """Place every variable of a model.

    Args:
        rules: ``auto``, or nodes ``{path: PATTERN, split: AXIS}`` or ``{path: PATTERN, gather:
            AXIS}``; the first whose regular expression is found in a path holds for it, a negative
            axis counts from the last, and what no rule names stays whole.
        variables: (path, shape) of each.
        parts: size of the mesh's ``model`` axis.

    Returns:
        One placement for each variable, in order.

    Raises:
        UsageError: a rule cannot be read, matches nothing, or names an axis that is not there or
            that ``parts`` does not divide.
    """
    known = list(variables)
    if rules == "auto":
        return [_largest(shape, parts) for _, shape in known]
    found: list[Placement | None] = [None for _ in known]
    for pattern, kind, axis in [_read(rule) for rule in _listed(rules)]:
        matches = [i for i, (path, _) in enumerate(known) if re.search(pattern, path)]
        if not matches:
            paths = [path for path, _ in known]
            raise _refused(
                pattern, "no variable of this model has such a path",
                ", ".join(paths[:12]) + (", ..." if len(paths) > 12 else ""),
            )  # fmt: skip
        for i in matches:
            if found[i] is None:
                found[i] = Placement(_axis(pattern, axis, *known[i], parts), kind == "gather")
    return [placement or Placement() for placement in found]


def slot(name: str, shape: Shape, placed: Iterable[tuple[str, Shape, Placement]]) -> Placement:
    """Place a variable of the optimizer: as the model's variable that it belongs to, if any.

    Args:
        name: as Keras makes it: the path with ``_`` for ``/``, ``_``, and what it is.
        shape: of the slot; one of another shape than its variable's stays whole.
        placed: (path, shape, placement) of the model's variables.
    """
    owners = [
        (len(path), placement)
        for path, owned, placement in placed
        if owned == shape and name.startswith(f"{path.replace('/', '_')}_")
    ]
    return max(owners, key=lambda owner: owner[0])[1] if owners else Placement()


def _largest(shape: Shape, parts: int) -> Placement:
    """Split the largest axis that can be; of equal ones the last."""
    axes = [axis for axis, size in enumerate(shape) if size % parts == 0]
    if len(shape) < 2 or math.prod(shape) < AUTO_ELEMENTS or not axes or parts == 1:
        return Placement()
    return Placement(max(axes, key=lambda axis: (shape[axis], axis)), gathered=True)


def _listed(rules: Any) -> list[Any]:
    if not isinstance(rules, list):
        raise _refused(rules, "is no list of rules", "auto, or a list")
    return rules


def _read(rule: Any) -> tuple[str, str, int]:
    """Return (pattern, ``split`` or ``gather``, axis)."""
    kinds = [key for key in ("split", "gather") if isinstance(rule, dict) and key in rule]
    if len(kinds) != 1 or set(rule) != {"path", kinds[0]}:
        raise _refused(rule, "is no rule", "{path: PATTERN, split: AXIS} or {..., gather: AXIS}")
    pattern, axis = rule["path"], rule[kinds[0]]
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise _refused(
            pattern, f"is no regular expression ({error})", "Python's regular expressions"
        ) from None
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise _refused(pattern, f"{kinds[0]}: {axis} is no axis", "a whole number")
    return pattern, kinds[0], axis


def _axis(pattern: str, axis: int, path: str, shape: Shape, parts: int) -> int:
    rank, text = len(shape), list(shape)
    if not -rank <= axis < rank:
        raise _refused(
            pattern, f"{path} has shape {text} and no axis {axis}",
            f"{-rank} to {rank - 1}" if rank else "no rule for it",
        )  # fmt: skip
    if shape[axis] % parts:
        fit = [each for each, size in enumerate(shape) if size % parts == 0]
        raise _refused(
            pattern, f"axis {axis} of {path}, of shape {text}, cannot be split in {parts}",
            f"axis {' or '.join(map(str, fit))}" if fit else f"sizes that {parts} divides",
        )  # fmt: skip
    return axis % rank


def _refused(value: Any, problem: str, accepted: str) -> UsageError:
    return UsageError("strategy.rules", value, problem, accepted, "strategy.rules=auto")
