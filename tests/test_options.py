"""Keys of every dataset: divided from those of its function, and which of them make another run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dtrain.data import options
from dtrain.data.options import OnError, Options, Shuffle
from dtrain.run import identity
from tests.test_schema import composed

NODE = {"_target_": "dtrain.datasets.digits", "validation_split": 0.2, "split_seed": 0}
DEFAULTS: dict[str, Any] = {
    "augment": None, "shuffle": "auto", "window": 8, "balance": False, "pad": None, "workers": 0,
    "on_error": "fail", "accept_changes": False, "task": "auto",
    "test": None,
}  # fmt: skip


def test_a_node_is_divided() -> None:
    own, found = options.divided({**NODE, **DEFAULTS})
    assert own == NODE
    assert found == Options()
    own, found = options.divided({
        **NODE, "shuffle": "blocks", "window": 3, "on_error": "skip",
        "balance": True, "pad": {"x": {"length": 3}}, "workers": 2, "accept_changes": True,
        "augment": {"_target_": "dtrain.augment.shift_flip"},
    })  # fmt: skip
    assert own == NODE
    assert found == Options(
        {"_target_": "dtrain.augment.shift_flip"}, Shuffle.blocks, 3, True, {"x": {"length": 3}},
        2, OnError.skip, True,
    )  # fmt: skip
    assert options.divided({"_target_": "x", "shuffle": None})[1].shuffle is Shuffle.auto
    assert DEFAULTS.keys() == {field.name for field in dataclasses.fields(Options)}


@pytest.mark.parametrize(
    ("override", "makes_another_run"),
    [
        ("dataset.shuffle=none", True), ("dataset.window=4", True), ("dataset.balance=true", True),
        ("dataset.pad={x:{length:3}}", True), ("dataset.on_error=skip", True),
        ("dataset.workers=2", False), ("dataset.accept_changes=true", False),
        ("dataset.task=regression", True), ("dataset.validation_split=0.3", True),
        ("trainer.loss_weights={a:2}", True),
    ],
)  # fmt: skip
def test_options_on_the_command_line(override: str, makes_another_run: bool) -> None:
    base, other = (identity.fingerprints(composed(*o)) for o in ((), (override,)))
    assert (base != other) == makes_another_run


def test_a_single_metric_is_a_list_of_one() -> None:
    one, other = (
        identity.fingerprints(composed(f"trainer.metrics={value}")) for value in ("mae", "[mae]")
    )
    assert one == other
