"""The configuration in memory."""

from __future__ import annotations

from omegaconf import OmegaConf

from dtrain.config.node import seconds, to_plain
from dtrain.config.tree import typed
from tests.test_schema import node


def test_a_reference_is_written_as_one_and_read_as_its_value() -> None:
    tree = node()
    OmegaConf.update(tree, "seed", "${trainer.epochs}")
    config = typed(tree)
    assert config.seed == 25 and config.written()["seed"] == "${trainer.epochs}"
    assert to_plain(config)["seed"] == 25


def test_lengths_of_time() -> None:
    assert [seconds(each) for each in ("2h", "90m", "1h30m", 3, "x", "", True)] == [
        7200, 5400, 5400, 3, None, None, None
    ]  # fmt: skip
