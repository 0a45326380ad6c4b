"""Rules over paths: which variables are split over devices, along which axis; where layers go.

A mesh has the axes ``batch`` and ``model``. Variables are split over ``model``: each device of a
row has another part of the model. ``strategy=fsdp`` splits them over ``batch``. No framework is
imported: XLA adds the communication that the layouts ask for, so that ``split`` and ``gather`` of
a rule are one (Shoeybi et al. 2019, arXiv 1909.08053, split a transformer by hand).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dtrain.task.model import path_rules
from dtrain.task.model.path_rules import pattern, refused

#: ``strategy.rules=auto`` leaves variables of fewer elements whole: there is little to spare.
AUTO_ELEMENTS = 1024

Shape = tuple[int, ...]


class Rules:
    """Says along which axis a variable is split, if it is.

    Args:
        rules: ``auto``, or nodes ``{path: PATTERN, split: AXIS}``; the first whose regular
            expression is found in a path holds for it, a negative axis counts from the last, and
            what no rule names stays whole.
        parts: how many there are: the size of the axis of the mesh that is split over.

    Raises:
        UsageError: a rule cannot be read.
    """

    def __init__(self, rules: object, parts: int):
        self._rules = None if rules == "auto" else path_rules.read_all(rules, _read)
        self._parts = parts

    def axes(self, variables: Iterable[tuple[str, Shape]]) -> list[int | None]:
        """Return the axis of each variable of a model.

        Args:
            variables: (path, shape) of each.

        Raises:
            UsageError: a rule matches nothing, or names an axis that is not there or that
                ``parts`` does not divide.
        """
        shapes = list(variables)
        if self._rules is not None:
            path_rules.check(self._rules, [path for path, _ in shapes], "variable")
        return [self.axis(path, shape) for path, shape in shapes]

    def axis(self, path: str, shape: Shape) -> int | None:
        """Return the axis of one variable; None: it stays whole.

        Raises:
            UsageError: there is no such axis, or ``parts`` does not divide it.
        """
        if self._rules is None:
            return _largest(shape, self._parts)
        rule = path_rules.first(self._rules, path)
        return None if rule is None else _axis(*rule, path, shape, self._parts)


def slot(name: str, shape: Shape, variables: Iterable[tuple[str, Shape, int | None]]) -> int | None:
    """Return the axis of a variable of the optimizer: that of the variable it belongs to, if any.

    Args:
        name: as Keras makes it: the path with ``_`` for ``/``, ``_``, and what it is.
        shape: of the slot; one of another shape than its variable's stays whole.
        variables: (path, shape, axis) of the model's variables.
    """
    owners = [
        (len(path), axis)
        for path, owned, axis in variables
        if owned == shape and name.startswith(f"{path.replace('/', '_')}_")
    ]
    return max(owners, key=lambda owner: owner[0])[1] if owners else None


def _largest(shape: Shape, parts: int) -> int | None:
    """Return the largest axis that can be split; of equal ones the last."""
    axes = [axis for axis, size in enumerate(shape) if size % parts == 0]
    if len(shape) < 2 or math.prod(shape) < AUTO_ELEMENTS or not axes or parts == 1:
        return None
    return max(axes, key=lambda axis: (shape[axis], axis))


def _read(rule: Any) -> tuple[str, int]:
    """Return the regular expression of a rule, and its axis."""
    kinds = [key for key in ("split", "gather") if isinstance(rule, dict) and key in rule]
    if len(kinds) != 1 or set(rule) != {"path", kinds[0]}:
        raise refused(rule, "is no rule", "{path: PATTERN, split: AXIS}")
    path, axis = pattern(rule["path"]), rule[kinds[0]]
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise refused(path, f"{kinds[0]}: {axis} is no axis", "a whole number")
    return path, axis


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


def assign_layers(rules: object, layers: Iterable[tuple[str, int]], devices: int) -> list[int]:
    """Choose a device for every layer of a model.

    Args:
        rules: ``auto``, or nodes ``{layer: PATTERN, device: INDEX}``; the first whose regular
            expression is found in a layer's path holds for it, and what no rule names goes on
            device 0.
        layers: (path, bytes of its own variables) of each, in the model's order.
        devices: how many there are.

    Returns:
        The index of a device for each layer, in order.

    Raises:
        UsageError: a rule cannot be read, matches nothing, or names a device that is not there.
    """
    sizes = list(layers)
    if rules == "auto":
        return _shares([size for _, size in sizes], devices)
    paths = [path for path, _ in sizes]
    chosen = path_rules.choose(rules, paths, "layer", lambda rule: _read_layer(rule, devices))
    return [rule[1] if rule else 0 for rule in chosen]


def _shares(sizes: list[int], devices: int) -> list[int]:
    """Cut a row of layers into runs of about equal bytes: each goes where its middle falls."""
    total, before, shares = sum(sizes) or 1, 0, []
    for size in sizes:
        shares.append(max(0, ((2 * before + size) * devices - 1) // (2 * total)))
        before += size
    return shares


def _read_layer(rule: Any, devices: int) -> tuple[str, int]:
    """Return (pattern, device)."""
    if not isinstance(rule, dict) or set(rule) != {"layer", "device"}:
        raise refused(rule, "is no rule", "{layer: PATTERN, device: INDEX}")
    path, device = pattern(rule["layer"]), rule["device"]
    if not isinstance(device, int) or isinstance(device, bool) or not 0 <= device < devices:
        raise refused(
            path, f"there is no device {device}: the run has {devices}", f"0 to {devices - 1}"
        )
    return path, device
