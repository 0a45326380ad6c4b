"""What was in an earlier version is refused before anything is imported, with what to type."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dtrain import __main__, errors
from dtrain.config import preset_files, removed
from dtrain.config.node import Node
from dtrain.errors import UsageError
from dtrain.run import strategy_plan
from tests.test_schema import composed


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    instead = {
        "old": ("what is new", "new"),
        "export --old": ("--new", "--new"),
        "group.old": ("group.new", "group.new=VALUE"),
        "group.kept=old": ("group.kept=new", "group.kept=new"),
    }
    monkeypatch.setattr(removed, "REMOVED", instead)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (["old", "run"], "new"),
        (["export", "run", "--old=3"], "--new"),
        (["-m", "+group.old=3"], "type: group.new=3"),
        (["group.old.below=3"], "type: group.new=3"),
        (["evaluate", "run", "group.kept=old"], "type: group.kept=new"),
        (["-m", "group.kept=new,old"], "type: group.kept=new"),
        (["~group.old"], "group.new=VALUE"),
    ],
)
def test_is_refused(line: list[str], hint: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["dtrain", *line])
    assert __main__.main() == errors.USAGE
    assert hint in capsys.readouterr().err


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("word", ["group.kept=new", "group.older=3", "other.group.old=3", "--old"])
def test_what_is_called_otherwise_is_not_refused(word: str) -> None:
    removed.check([word], "evaluate")


@pytest.mark.parametrize("name", removed.REMOVED)
def test_every_name_is_answered_with_what_is_there_now(name: str) -> None:
    instead, hint = removed.REMOVED[name]
    assert instead
    assert name not in hint.split()


@pytest.mark.parametrize("experiment", [False, True])
def test_a_preset_that_has_one_is_refused_with_its_line(tmp_path: Path, experiment: bool) -> None:
    group, text = "strategy", "sync_every: 4\n"
    if experiment:
        group, text = "experiment", "# @package _global_\nstrategy:\n  sync_every: 4\n"
    (tmp_path / group).mkdir()
    (tmp_path / group / "mine.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"strategy\.sync_every=4: .*\(.*mine.yaml, line \d"):
        preset_files.check(["--config-dir", str(tmp_path), f"{group}=mine"])


def test_a_run_of_a_version_without_plans_is_refused() -> None:
    config = composed("strategy=mirrored")
    node = {key: value for key, value in config.strategy.items() if key != "plan"}
    config = dataclasses.replace(config, strategy=Node(node))
    with pytest.raises(UsageError, match=r"another version of dtrain wrote it, and this is dt"):
        strategy_plan.of(config)
