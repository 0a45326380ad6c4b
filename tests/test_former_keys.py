"""Keys that are gone: refused by name, and translated in the folders of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dtrain.config import former_keys, load, preset_files
from dtrain.errors import UsageError
from dtrain.run import strategy_plan
from tests.test_schema import CONF, composed

#: What a folder of before has of each strategy.
BEFORE = {
    "central_storage": ("per_device", "single"),
    "default": ("one", "single"),
    "hybrid": ("per_device", "single"),
    "layer_placement": ("across_devices", "single"),
    "mirrored": ("per_device", "single"),
    "model_parallel": ("per_device", "single"),
    "multiworker": ("per_device", "hosts"),
    "one_device": ("one", "single"),
    "ps": ("one", "parameter_servers"),
    "tpu": ("per_device", "single"),
}


def test_every_strategy_has_a_past() -> None:
    assert set(BEFORE) == {path.stem for path in (CONF / "strategy").glob("*.yaml")}


@pytest.mark.parametrize("name", BEFORE)
def test_a_folder_of_before_has_the_plan_of_today(name: str) -> None:
    now: Any = load.written(composed(f"strategy={name}"))
    replicas, topology = BEFORE[name]
    node = {key: value for key, value in now["strategy"].items() if key != "plan"}
    node |= {"replicas": replicas, "compilable": False, "topology": topology}
    found = former_keys.translated(OmegaConf.create({**now, "strategy": node}))
    assert found == OmegaConf.create(now)
    assert type(strategy_plan.of(load.typed(found))) is type(
        strategy_plan.of(composed(f"strategy={name}"))
    )


def test_overrides_of_before_lose_what_is_gone() -> None:
    words = ["strategy=mirrored", "strategy.replicas=one", "+strategy.topology=hosts", "seed=3"]
    assert list(former_keys.overrides(words)) == ["strategy=mirrored", "seed=3"]
    for value, option in (("False", "none"), ("true", "mlflow")):
        word = f"tracking.mlflow={value}"
        assert list(former_keys.overrides([word])) == [f"tracking={option}"]


@pytest.mark.parametrize("name", ["mlflow", "none"])
def test_a_folder_of_before_has_the_tracker_of_today(name: str) -> None:
    now: Any = load.written(composed(f"tracking={name}"))
    node = {key: value for key, value in now["tracking"].items() if key != "_target_"}
    node["mlflow"] = name == "mlflow"
    assert former_keys.translated(OmegaConf.create({**now, "tracking": node})) == now


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
