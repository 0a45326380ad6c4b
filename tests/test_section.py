"""The configuration in memory."""

from __future__ import annotations

import copy
import pickle

import pytest

from dtrain.config.node import Node


def test_a_node_does_not_change() -> None:
    node = Node({"examples": 4})
    for name in ("examples", "other"):
        with pytest.raises(AttributeError, match=rf"replaced\({name}=\.\.\.\)"):
            setattr(node, name, 16)
    assert dict(node) == node.written() == {"examples": 4}


def test_another_node_has_the_other_value_wherever_it_is_read() -> None:
    node = Node({"examples": 4, "seed": 0})
    other = node.replaced(examples=16)
    for each in (other, copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert each.examples == each["examples"] == each.written()["examples"] == 16
        assert each.seed == 0
    assert node.examples == 4
