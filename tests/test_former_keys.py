"""Keys that are gone are refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dtrain.config import preset_files
from dtrain.config.section import Node
from dtrain.errors import UsageError
from dtrain.run import strategy_plan
from tests.test_schema import composed


@pytest.mark.parametrize("experiment", [False, True])
def test_a_preset_that_has_one_is_refused_with_its_line(tmp_path: Path, experiment: bool) -> None:
    group = "experiment" if experiment else "strategy"
    text = "replicas: one\n"
    if experiment:
        text = "# @package _global_\nstrategy:\n  replicas: one\n"
    (tmp_path / group).mkdir()
    (tmp_path / group / "mine.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"strategy\.replicas=one: is gone \(.*mine.yaml, line \d"):
        preset_files.check(["--config-dir", str(tmp_path), f"{group}=mine"])


def test_a_run_of_a_version_without_plans_is_refused() -> None:
    config = composed("strategy=mirrored")
    node = {key: value for key, value in config.strategy.items() if key != "plan"}
    config = dataclasses.replace(config, strategy=Node(node))
    with pytest.raises(UsageError, match=r"another version of dtrain wrote it, and this is dt"):
        strategy_plan.of(config)
