"""Which device each layer goes on: rules over their paths, without TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dtrain.errors import UsageError


def assign(rules: Any, layers: Iterable[tuple[str, int]], devices: int) -> list[int]:
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
    known = list(layers)
    if rules == "auto":
        return _shares([size for _, size in known], devices)
    found: list[int | None] = [None for _ in known]
    for pattern, device in [_read(rule, devices) for rule in _listed(rules)]:
        matches = [i for i, (path, _) in enumerate(known) if re.search(pattern, path)]
        if not matches:
            paths = [path for path, _ in known]
            raise _refused(
                pattern, "no layer of this model has such a path",
                ", ".join(paths[:12]) + (", ..." if len(paths) > 12 else ""),
            )  # fmt: skip
        for i in matches:
            if found[i] is None:
                found[i] = device
    return [device or 0 for device in found]


def _shares(sizes: list[int], devices: int) -> list[int]:
    """Cut a row of layers into runs of about equal bytes: each goes where its middle falls."""
    total, before, found = sum(sizes) or 1, 0, []
    for size in sizes:
        found.append(max(0, ((2 * before + size) * devices - 1) // (2 * total)))
        before += size
    return found


def _listed(rules: Any) -> list[Any]:
    if not isinstance(rules, list):
        raise _refused(rules, "is no list of rules", "auto, or a list")
    return rules


def _read(rule: Any, devices: int) -> tuple[str, int]:
    """Return (pattern, device)."""
    if not isinstance(rule, dict) or set(rule) != {"layer", "device"}:
        raise _refused(rule, "is no rule", "{layer: PATTERN, device: INDEX}")
    pattern, device = rule["layer"], rule["device"]
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise _refused(
            pattern, f"is no regular expression ({error})", "Python's regular expressions"
        ) from None
    if not isinstance(device, int) or isinstance(device, bool) or not 0 <= device < devices:
        raise _refused(
            pattern, f"there is no device {device}: the run has {devices}", f"0 to {devices - 1}"
        )
    return pattern, device


def _refused(value: Any, problem: str, accepted: str) -> UsageError:
    return UsageError("strategy.rules", value, problem, accepted, "strategy.rules=auto")
