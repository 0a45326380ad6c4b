"""Which device each layer goes on: rules over their paths, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dtrain.task.model.path_rules import choose, pattern, refused


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
    sizes = list(layers)
    if rules == "auto":
        return _shares([size for _, size in sizes], devices)
    paths = [path for path, _ in sizes]
    chosen = choose(rules, paths, "layer", lambda rule: _read(rule, devices))
    return [rule[1] if rule else 0 for rule in chosen]


def _shares(sizes: list[int], devices: int) -> list[int]:
    """Cut a row of layers into runs of about equal bytes: each goes where its middle falls."""
    total, before, shares = sum(sizes) or 1, 0, []
    for size in sizes:
        shares.append(max(0, ((2 * before + size) * devices - 1) // (2 * total)))
        before += size
    return shares


def _read(rule: Any, devices: int) -> tuple[str, int]:
    """Return (pattern, device)."""
    if not isinstance(rule, dict) or set(rule) != {"layer", "device"}:
        raise refused(rule, "is no rule", "{layer: PATTERN, device: INDEX}")
    path, device = pattern(rule["layer"]), rule["device"]
    if not isinstance(device, int) or isinstance(device, bool) or not 0 <= device < devices:
        raise refused(
            path, f"there is no device {device}: the run has {devices}", f"0 to {devices - 1}"
        )
    return path, device
