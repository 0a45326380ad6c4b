"""Rules over paths: pure functions, and the rules that dtrain ships."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.config.targets import plain
from dtrain.errors import UsageError
from dtrain.task.backends.layouts import Rules, assign_layers, slot
from tests import warm
from tests.test_schema import composed

DENSE = [
    ("dense/kernel", (64, 128)),
    ("dense/bias", (128,)),
    ("dense_1/kernel", (128, 10)),
    ("seed_generator/state", (2,)),
    ("scale", ()),
]


def place(rules: Any, variables: Any, parts: int) -> list[int | None]:
    return Rules(rules, parts).axes(variables)


def test_the_first_rule_that_matches_holds() -> None:
    rules = [{"path": "^dense/", "split": -1}, {"path": "kernel$", "gather": 0}]
    assert place(rules, DENSE, 4) == [1, 0, 0, None, None]
    assert place([], DENSE, 4) == [None] * 5


def test_a_rule_need_not_fit_what_an_earlier_one_has_placed() -> None:
    rules = [{"path": "^dense_1/kernel$", "split": 0}, {"path": "kernel$", "split": 1}]
    assert place(rules, DENSE, 4)[2] == 0


def test_auto_splits_the_largest_axis() -> None:
    variables = [
        ("conv/kernel", (3, 3, 16, 32)),
        ("wide/kernel", (64, 128)),
        ("square/kernel", (64, 64)),
        ("odd/kernel", (128, 63)),
        ("none/kernel", (33, 63)),
        ("small/kernel", (31, 32)),
        ("long/bias", (4096,)),
    ]
    assert place("auto", variables, 4) == [3, 1, 1, 0, None, None, None]
    assert place("auto", variables, 1) == [None] * 7


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        ("all", ["strategy.rules=all", "is no list", "auto, or a list"]),
        ([{"path": "kernel"}], ["is no rule", "split: AXIS"]),
        ([{"path": "kernel", "split": 0, "gather": 0}], ["is no rule"]),
        ([{"path": "kernel", "split": 0, "size": 2}], ["is no rule"]),
        (["kernel"], ["strategy.rules=kernel", "is no rule"]),
        ([{"path": "(kernel", "split": 0}], ["=(kernel", "no regular expression", "position 0"]),
        ([{"path": 3, "split": 0}], ["=3", "no regular expression"]),
        ([{"path": "kernel", "split": "model"}], ["split: model is no axis", "whole number"]),
        ([{"path": "kernal", "split": 0}], ["=kernal", "no variable", "dense/kernel, dense/bias"]),
        ([{"path": "bias", "split": 1}], ["=bias", "dense/bias has shape [128]", "-1 to 0"]),
        ([{"path": "scale", "split": 0}], ["scale has shape []", "no rule for it"]),
        (
            [{"path": "_1/kernel", "split": 1}],
            ["=_1/kernel", "axis 1 of dense_1/kernel, of shape [128, 10]", "in 4", "axis 0"],
        ),
        ([{"path": "state", "gather": 0}], ["cannot be split in 4", "sizes that 4 divides"]),
    ],
)
def test_rules_that_cannot_be(rules: Any, parts: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        place(rules, DENSE, 4)
    for part in [*parts, "accepted: ", "type: strategy.rules=auto"]:
        assert part in str(error.value)


def test_many_paths_are_not_all_told() -> None:
    with pytest.raises(UsageError, match=r"accepted: v0, .*v11, \.\.\.$"):
        place([{"path": "w", "split": 0}], [(f"v{i}", (4,)) for i in range(13)], 2)


def test_slots_lie_as_their_variables_do() -> None:
    variables = [
        ("a/dense/kernel", (4, 4), 0), ("a/dense/kernel_norm", (4, 4), 1), ("dense", (8,), 0)
    ]  # fmt: skip
    assert slot("a_dense_kernel_momentum", (4, 4), variables) == 0
    assert slot("a_dense_kernel_norm_velocity", (4, 4), variables) == 1
    assert slot("dense_average", (8,), variables) == 0
    assert slot("a_dense_kernel_row", (4,), variables) is None, "of another shape"
    assert slot("iteration", (), variables) is None


def shapes(name: str) -> list[tuple[str, tuple[int, ...]]]:
    from dtrain import models

    shape = [12] if name == "transformer" else [8, 8]
    model = getattr(models, name)(shape, 16)
    return [(v.path, tuple(v.shape)) for v in model.variables]


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet", "transformer"])
@pytest.mark.parametrize("strategy", ["model_parallel", "hybrid"])
def test_shipped_rules_fit_our_models(name: str, strategy: str) -> None:
    rules = plain(composed(f"strategy={strategy}", f"model={name}").strategy.rules)
    variables = warm.call(shapes, 1, {"name": name})
    placed = place(rules, variables, 4)
    for (path, shape), axis in zip(variables, placed, strict=True):
        assert len(shape) == 1 or axis is not None, path


def test_other_models_have_the_automatic_rule() -> None:
    custom = ["model=custom", "model._target_=keras.applications.MobileNetV2"]
    assert composed("strategy=hybrid", *custom).strategy.rules == "auto"
    assert composed("strategy=hybrid", "model=mlp", "strategy.rules=auto").strategy.rules == "auto"
    rules = composed("strategy=hybrid", "strategy.rules=[{path: kernel$, split: 0}]").strategy.rules
    assert plain(rules) == [{"path": "kernel$", "split": 0}]


LAYERS = [("embed", 400), ("block_0", 0), ("block_0/dense", 300), ("block_1", 0),
          ("block_1/dense", 300), ("head", 200)]  # fmt: skip


def test_the_first_rule_that_matches_a_layer_holds() -> None:
    rules = [{"layer": "block_1", "device": 2}, {"layer": "dense$", "device": 1}]
    assert assign_layers(rules, LAYERS, 3) == [0, 0, 1, 2, 2, 0]
    assert assign_layers([], LAYERS, 3) == [0] * 6


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
    assert assign_layers("auto", LAYERS, devices) == expected


def test_auto_without_weights() -> None:
    assert assign_layers("auto", [("a", 0), ("b", 0)], 2) == [0, 0]
    assert assign_layers("auto", [], 2) == []
    assert assign_layers("auto", [("a", 0), ("b", 4), ("c", 0), ("d", 4), ("e", 0)], 2) == [
        0,
        0,
        0,
        1,
        1,
    ]
    assert assign_layers("auto", [("a", 4)], 3) == [1], "its middle is that of all there is"


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        ("all", ["strategy.rules=all", "is no list", "auto, or a list"]),
        ([{"layer": "head"}], ["is no rule", "{layer: PATTERN, device: INDEX}"]),
        ([{"layer": "heads", "device": 0}], ["=heads", "no layer of this model", "embed, block_0"]),
        ([{"layer": "head", "device": 2}], ["=head", "no device 2: the run has 2", "0 to 1"]),
        ([{"layer": "head", "device": -1}], ["no device -1"]),
        ([{"layer": "head", "device": True}], ["no device True"]),
    ],
)
def test_rules_of_layers_that_cannot_be(rules: Any, parts: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        assign_layers(rules, LAYERS, 2)
    for part in [*parts, "accepted: ", "type: strategy.rules=auto"]:
        assert part in str(error.value)
