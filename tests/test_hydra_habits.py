"""What users of Hydra type: ``--config-name``, ``hydra.searchpath``, and what has another name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dtrain import errors
from tests.conftest import Commands
from tests.test_project import preset, recorded

MINE = "defaults:\n  - config\n  - override model: mlp\n  - _self_\nseed: 5\n"


def test_a_primary_configuration_and_a_search_path_are_recorded(
    dtrain: Commands, quick: Any, tmp_path: Path
) -> None:
    preset("conf/mine.yaml", MINE)
    preset("conf/project/lab.yaml", "rate: 0.25\n")
    preset("shared/optimizer/slow.yaml", "defaults: [sgd, _self_]\nlearning_rate: 0.125\n")
    where = f"hydra.searchpath=[file://{tmp_path}/shared]"
    words = [word for word in quick if not word.startswith("model")]
    run = dtrain("--config-name", "mine", where, "optimizer=slow", *words)
    assert run.code == 0 and run.rundir is not None, run.output
    again = dtrain(f"resume={run.rundir.path}", "trainer.epochs=3")
    assert again.code == 0, again.output
    config = recorded(run.rundir.path)[1]
    assert (config["seed"], config["optimizer"]["learning_rate"]) == (5, 0.125)
    swept = dtrain("-m", "-cn", "mine", where, "optimizer=slow,sgd", *words)
    assert swept.code == 0, swept.output
    for job in Path("outputs/multirun").glob("*/*/?"):
        assert recorded(job)[0]["overrides"][:2] == [where, "hydra.job.config_name=mine"]


def test_a_configuration_of_the_same_name_as_dtrains_is_told_to_be_unread(dtrain: Commands) -> None:
    preset("conf/config.yaml", MINE)
    preset("conf/optimizer/fast.yaml", "defaults: [sgd, _self_]\n")
    assert "note: conf/config.yaml is not read" in dtrain("dry_run=true").output


def test_a_folder_from_elsewhere_says_neither(dtrain: Commands, quick: Any) -> None:
    preset("conf/mine.yaml", MINE)
    run = dtrain(*quick)
    assert run.rundir is not None, run.output
    command = json.loads(run.rundir.command.read_text())
    for word in ("hydra.job.config_name=mine", "hydra.searchpath=[file://conf]"):
        changed = {**command, "config_dir": "conf", "overrides": [*command["overrides"], word]}
        run.rundir.command.write_text(json.dumps(changed))
        refused = dtrain(f"resume={run.rundir.path}", "trainer.epochs=3")
        assert refused.code == errors.USAGE and "another user" in refused.output
