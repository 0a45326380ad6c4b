"""Which variables are split over devices, and along which axis: rules over their paths.

A mesh has the axes ``batch`` and ``model``; variables are split over ``model``, so every device of
one ``batch`` row holds another part of the model; ``strategy=fsdp`` splits them over ``batch``. No
framework is imported. A split variable is one of two kinds:

* ``split``: each device computes with its part, and the backend adds the communication that the
  next operation needs (Shoeybi et al. 2019, arXiv 1909.08053, split a transformer so);
* ``gather``: it is stored in parts and put together wherever it is read, which spares memory and
  nothing else. DTensor's convolutions need it: they take no part of a kernel. To JAX both are one:
  XLA chooses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from dtrain.task.model.path_rules import choose, pattern, refused

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
        parts: how many there are: the size of the axis that is split over.

    Returns:
        One placement for each variable, in order.

    Raises:
        UsageError: a rule cannot be read, matches nothing, or names an axis that is not there or
            that ``parts`` does not divide.
    """
    shapes = list(variables)
    if rules == "auto":
        return [_largest(shape, parts) for _, shape in shapes]
    chosen = choose(rules, [path for path, _ in shapes], "variable", _read)
    placements = []
    for rule, (path, shape) in zip(chosen, shapes, strict=True):
        if rule is None:
            placements.append(Placement())
        else:
            words, (kind, axis) = rule
            axis = _axis(words, axis, path, shape, parts)
            placements.append(Placement(axis, gathered=kind == "gather"))
    return placements


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


def _read(rule: Any) -> tuple[str, tuple[str, int]]:
    """Return (pattern, (``split`` or ``gather``, axis))."""
    kinds = [key for key in ("split", "gather") if isinstance(rule, dict) and key in rule]
    if len(kinds) != 1 or set(rule) != {"path", kinds[0]}:
        raise refused(rule, "is no rule", "{path: PATTERN, split: AXIS} or {..., gather: AXIS}")
    path, axis = pattern(rule["path"]), rule[kinds[0]]
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise refused(path, f"{kinds[0]}: {axis} is no axis", "a whole number")
    return path, (kinds[0], axis)


def _axis(rule: str, axis: int, path: str, shape: Shape, parts: int) -> int:
    rank, text = len(shape), list(shape)
    if not -rank <= axis < rank:
        raise refused(
            rule, f"{path} has shape {text} and no axis {axis}",
            f"{-rank} to {rank - 1}" if rank else "no rule for it",
        )  # fmt: skip
    if shape[axis] % parts:
        fit = [each for each, size in enumerate(shape) if size % parts == 0]
        raise refused(
            rule, f"axis {axis} of {path}, of shape {text}, cannot be split in {parts}",
            f"axis {' or '.join(map(str, fit))}" if fit else f"sizes that {parts} divides",
        )  # fmt: skip
    return axis % rank
