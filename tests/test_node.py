"""The configuration in memory."""

from __future__ import annotations

import copy
import pickle

from omegaconf import OmegaConf

from dtrain.config.node import Node, seconds, to_plain
from dtrain.config.tree import typed
from tests.test_schema import node


def test_a_value_is_the_same_wherever_it_is_read() -> None:
    first = Node({"examples": 4, "seed": 0})
    other = first.replaced(examples=16)
    for each in (other, copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert each.examples == each["examples"] == each.written()["examples"] == 16
        assert each.seed == 0
    assert first.examples == 4
    first.examples = 5
    assert dict(first) == first.written() == {"examples": 5, "seed": 0}


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
