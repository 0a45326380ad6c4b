"""Layers and variables have their own rules: test_assignment, test_layouts."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.errors import UsageError
from dtrain.task.model.path_rules import choose, pattern

PATHS = ["embed", "block_0/dense", "block_1/dense"]


def read(node: Any) -> tuple[str, int]:
    return pattern(node["path"]), node["value"]


def rule(path: str, value: int) -> dict[str, Any]:
    return {"path": path, "value": value}


def test_the_first_that_matches_holds() -> None:
    rules = [rule("block_1", 1), rule("dense$", 2)]
    assert choose(rules, PATHS, "layer", read) == [None, ("dense$", 2), ("block_1", 1)]
    assert choose([], PATHS, "layer", read) == [None, None, None]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("all", "strategy.rules=all: is no list of rules; accepted: auto, or a list;"),
        ([rule("(", 1)], "=(: is no regular expression (missing ), unterminated subpattern"),
        # All are read before one is looked for.
        ([rule("head", 1), rule("(", 1)], "=(: is no regular expression"),
        ([rule("head", 1)], "=head: no layer of this model has such a path; accepted: embed, b"),
    ],
)
def test_rules_that_cannot_be(rules: Any, words: str) -> None:
    with pytest.raises(UsageError) as error:
        choose(rules, PATHS, "layer", read)
    assert words in str(error.value)
    assert str(error.value).endswith("type: strategy.rules=auto")
