"""Rules over layers: pure functions."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.errors import UsageError
from dtrain.task.backends.tensorflow.layer_assignment import assign

LAYERS = [("embed", 400), ("block_0", 0), ("block_0/dense", 300), ("block_1", 0),
          ("block_1/dense", 300), ("head", 200)]  # fmt: skip


def test_the_first_rule_that_matches_holds() -> None:
    rules = [{"layer": "block_1", "device": 2}, {"layer": "dense$", "device": 1}]
    assert assign(rules, LAYERS, 3) == [0, 0, 1, 2, 2, 0]
    assert assign([], LAYERS, 3) == [0] * 6


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (1, [0, 0, 0, 0, 0, 0]),
        (2, [0, 0, 0, 1, 1, 1]),
        (3, [0, 0, 1, 1, 2, 2]),
        (4, [0, 1, 1, 2, 2, 3]),
    ],
)
def test_auto_makes_runs_of_equal_bytes(devices: int, expected: list[int]) -> None:
    assert assign("auto", LAYERS, devices) == expected


def test_auto_without_weights() -> None:
    assert assign("auto", [("a", 0), ("b", 0)], 2) == [0, 0]
    assert assign("auto", [], 2) == []
    assert assign("auto", [("a", 0), ("b", 4), ("c", 0), ("d", 4), ("e", 0)], 2) == [0, 0, 0, 1, 1]
    assert assign("auto", [("a", 4)], 3) == [1], "its middle is that of all there is"


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        ("all", ["strategy.rules=all", "is no list", "auto, or a list"]),
        ([{"layer": "head"}], ["is no rule", "{layer: PATTERN, device: INDEX}"]),
        ([{"layer": "head", "device": 0, "size": 2}], ["is no rule"]),
        (["head"], ["strategy.rules=head", "is no rule"]),
        ([{"layer": "(head", "device": 0}], ["=(head", "no regular expression", "position 0"]),
        ([{"layer": 3, "device": 0}], ["=3", "no regular expression"]),
        ([{"layer": "heads", "device": 0}], ["=heads", "no layer of this model", "embed, block_0"]),
        ([{"layer": "head", "device": 2}], ["=head", "no device 2: the run has 2", "0 to 1"]),
        ([{"layer": "head", "device": -1}], ["no device -1"]),
        ([{"layer": "head", "device": "GPU:0"}], ["no device GPU:0"]),
        ([{"layer": "head", "device": True}], ["no device True"]),
    ],
)
def test_rules_that_cannot_be(rules: Any, parts: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        assign(rules, LAYERS, 2)
    for part in [*parts, "accepted: ", "type: strategy.rules=auto"]:
        assert part in str(error.value)


def test_many_layers_are_not_all_told() -> None:
    with pytest.raises(UsageError, match=r"accepted: l0, .*l11, \.\.\.$"):
        assign([{"layer": "x", "device": 0}], [(f"l{i}", 4) for i in range(13)], 2)
