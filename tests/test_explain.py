"""The search for the override that is wrong: which one it is, and how much it composes for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from dtrain.config import command_line, schema
from dtrain.config import explain as module
from dtrain.errors import DtrainError, UsageError


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    schema.register()
    calls: list[int] = []
    compose = module.compose

    def counted(*given: Any, **options: Any) -> Any:
        calls.append(1)
        return compose(*given, **options)

    monkeypatch.setattr(module, "compose", counted)
    return calls


def test_many_overrides_are_composed_together(composed: list[int]) -> None:
    """A hostile command that holds 30 sweeps took 12 s of CPU when each had one of its own."""
    words = [f"+model.a{n}=1,2" for n in range(30)]
    found = module.explain(ValueError("ambiguous"), words)
    assert type(found) is DtrainError and str(found) == "ambiguous"
    assert len(composed) <= 3


@pytest.mark.parametrize("position", [0, 7, 29])
def test_the_wrong_one_is_found_by_halves(position: int, composed: list[int]) -> None:
    words = [f"+model.a{n}=1" for n in range(30)]
    words[position] = "trainer.epochs=many"
    found = module.explain(ValueError(), words)
    assert isinstance(found, UsageError) and found.key == "trainer.epochs"
    assert len(composed) <= 8


PACKAGE = "# @package _global_\n"
FILES = {
    "key": (f"{PACKAGE}trainer: {{learning_rate: 0.1}}", [
        "mine.yaml: has trainer.learning_rate, and there is no such key; hint: "
        "optimizer.learning_rate in its place; accepted: batch_size, "]),
    "misspelt": (f"{PACKAGE}trainer: {{epoch: 3}}", ["hint: trainer.epochs in its place"]),
    "package": ("trainer: {epochs: 3}", ["hint: # @package _global_ as its first line"]),
    "package, below a comment": (f"# First.\n{PACKAGE}defaults: [override /model: mlp]", [
        "hint: # @package _global_ as its first line"]),
    "type": (f"{PACKAGE}trainer: {{epochs: three}}", [
        "its trainer.epochs has the wrong type", "accepted: whole numbers"]),
    "option": (f"{PACKAGE}defaults: [override /model: cn]", [
        "model=cn: there is no option model/cn; accepted: cnn, ", "type: model=cnn"]),
    "no override": (f"{PACKAGE}defaults: [model: mlp]", ["hint: - override /model: mlp in its"]),
    "no slash": (f"{PACKAGE}defaults: [override model: mlp]", ["hint: - override /model: OPTION"]),
    "group": (f"{PACKAGE}defaults: [override /modle: mlp]", [
        "its defaults override modle, which is no group", "hint: - override /model: OPTION"]),
    "no defaults": (f"{PACKAGE}model: mlp", ["hint: - override /model: mlp in its defaults"]),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_what_is_wrong_in_an_experiment(case: str, tmp_path: Path) -> None:
    schema.register()
    text, parts = FILES[case]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    words = ["--config-dir", str(tmp_path), "experiment=mine"]
    with initialize_config_dir(str(schema.folder("conf")), version_base="1.3"):
        search = f"hydra.searchpath=['file://{tmp_path}']"
        with pytest.raises(HydraException) as caught:
            compose("config", [search, words[-1]])
    found = module.explain(caught.value, words)
    assert isinstance(found, UsageError)
    for part in parts:
        assert part in str(found)


def test_a_group_of_a_folder_is_added(tmp_path: Path) -> None:
    schema.register()
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "experiment.yaml").write_text(PACKAGE)
    error = HydraException("Could not override 'vae'. No match in the defaults list.")
    found = module.explain(error, ["--config-dir", str(tmp_path), "vae=experiment", "seed=1"])
    assert str(found).startswith("vae=experiment: is no group that a run has")
    assert str(found).endswith("type: +vae=experiment")


def test_a_preset_of_a_group(tmp_path: Path) -> None:
    error = HydraException("In 'optimizer/fast': Could not find 'optimizer/sdg'\n\nAvailable")
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer" / "fast.yaml").write_text("defaults: [sdg]")
    found = module.explain(error, ["--config-dir", str(tmp_path)])
    assert "fast.yaml: there is no option optimizer/sdg" in str(found)
    assert "; hint: - sgd in its defaults; accepted: " in str(found)


def test_an_option_may_stand_between_overrides() -> None:
    found = command_line.parsed(["model=mlp", "-m", "seed=1,2", "--config-dir=x", "name=y"])
    assert found.overrides == ["model=mlp", "seed=1,2", "name=y"]
    assert found.multirun and found.config_dir == "x"


def test_a_later_value_of_a_sweep(composed: list[int]) -> None:
    found = module.explain(ValueError(), ["seed=1,2,x", "trainer.epochs=1,2,3"])
    assert str(found).startswith("seed=x: is not a whole number")
    assert len(composed) <= 6
