"""A stranger's project: what ``init`` writes, ``[tool.dtrain]``, ``./conf``, keys of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtrain import errors
from dtrain.__main__ import main
from dtrain.config import project
from dtrain.host import pyproject
from dtrain.job import latest
from dtrain.run.folder import RunDir
from tests.conftest import Commands

ROOT = Path(__file__).parent.parent
FIRST = ("experiment=first", "trainer.epochs=1", "tracking=none")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in a project as ``init`` writes it."""
    folder = tmp_path / "lab"
    assert main_of("init", str(folder)) == errors.OK
    monkeypatch.chdir(folder)
    return folder


def main_of(*words: str) -> int:
    """Run a command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dtrain", *words])
        return main()


def table(text: str) -> None:
    Path("pyproject.toml").write_text(f"[tool.dtrain]\n{text}\n")


def preset(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def recorded(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the command of a run, and its configuration."""
    run = RunDir(folder)
    return json.loads(run.command.read_text()), yaml.safe_load(run.config.read_text())


# -- what is written runs -----------------------------------------------------------------------


def test_the_test_of_a_new_project_passes(lab: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:kmock"]
    done = subprocess.run(words, cwd=lab, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_trains_sweeps_and_is_evaluated(lab: Path, dtrain: Commands) -> None:
    Path("data").rename("elsewhere")
    run = dtrain(*FIRST, "project.data=elsewhere")
    assert run.code == 0 and run.rundir is not None, run.output
    command, config = recorded(run.rundir.path)
    assert command["config_dir"] == str(lab / "conf")
    assert config["project"] == {"data": "elsewhere"}
    assert main_of("evaluate", "latest") == errors.OK
    own = ("project.data=elsewhere", "model.width=${project.w}", "project.w=2,3")
    assert dtrain("-m", *FIRST, *own).code == 0
    [sweep] = Path("outputs/multirun").glob("*/*/sweep.json")
    widths = [recorded(sweep.parent / job)[1]["project"]["w"] for job in ("0", "1")]
    assert widths == [2, 3]
    table('output_dir = "outputs"\ndefaults = ["seed=9"]')  # of no command that was before it
    Path("conf").rename("other")
    again = dtrain(f"resume={run.rundir.path if run.rundir else ''}", "trainer.epochs=2")
    assert again.code == errors.USAGE and "conf" in again.output  # what was recorded is not there


def test_a_run_that_is_resumed_is_composed_of_what_it_began_with(
    lab: Path, dtrain: Commands
) -> None:
    table('defaults = ["tracking=none", "trainer.batch_size=16"]')
    folder = lab / "run"
    assert dtrain(*FIRST, f"hydra.run.dir={folder}").code == 0
    command, config = recorded(folder)
    table('defaults = ["trainer.batch_size=8", "seed=4"]')
    preset("presets/experiment/first.yaml", "# @package _global_\nseed: 7\n")
    again = dtrain(f"resume={folder}", "trainer.epochs=2")
    assert again.code == 0, again.output
    kept = [word for word in command["overrides"] if word != "trainer.epochs=1"]
    assert recorded(folder)[0]["overrides"] == [*kept, "trainer.epochs=2"]
    trainer = {**config["trainer"], "epochs": 2}
    assert recorded(folder)[1] == {**config, "resume": str(folder), "trainer": trainer}


def test_a_folder_with_something_in_it_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text("")
    assert main_of("init", ".") == errors.USAGE
    message = capsys.readouterr().err
    assert os.listdir() == ["mine.py"] and "type: python -m dtrain init project1" in message
    assert main_of("init", message.rpartition(" ")[2].strip()) == errors.OK
    assert main_of("init", "mine.py") == errors.USAGE


# -- [tool.dtrain], and the folder of presets ---------------------------------------------------


def test_what_it_says_stands_in_front_of_what_is_typed(dtrain: Commands) -> None:
    preset("conf/optimizer/fast.yaml", "defaults: [sgd, _self_]\nlearning_rate: 0.5\n")
    table(
        'output_dir = "a folder"\n'
        'defaults = ["optimizer=fast", "optimizer/schedule=cosine", "model.dropout=0.5", "seed=3"]'
    )
    config = yaml.safe_load(dtrain("--cfg", "job").output)
    assert config["output_dir"] == "a folder" and config["seed"] == 3
    assert config["optimizer"]["learning_rate"] == config["model"]["dropout"] == 0.5
    config = yaml.safe_load(dtrain("model=mlp", "seed=4", "optimizer=adam", "--cfg", "job").output)
    assert config["seed"] == 4 and config["model"]["dropout"] == 0  # which was that of the other
    assert config["optimizer"]["schedule"]["_target_"] == "dtrain.schedules.cosine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "error: pyproject.toml") for text in (
            "outputdir = 'x'", "config_dir = 3", "config_dir = 'nowhere'", "output_dir = ['x']",
            "defaults = 'seed=3'", "defaults = ['-m']", "defaults = ['seed']", "defaults = [3]",
            "trust = 'mine'", "trust = ['a-b']", "seed = 'x'",
        )),
        ("trust = [", "cannot be read"), ("[[tool.dtrain]]", "cannot be read"),
        ("defaults = ['model.widht=3']", "model.widht=3 is one of the defaults in pyproject.toml"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_refused_with_its_file(text: str, said: str, dtrain: Commands) -> None:
    table(text)
    refused = dtrain("dry_run=true")
    assert refused.code == errors.USAGE and said in refused.output
    assert text.partition(" ")[0].strip("[]") in refused.output or "cannot be" in said


def test_a_file_without_such_a_table_is_nothing(dtrain: Commands) -> None:
    Path("pyproject.toml").write_text("[project\n")
    assert dtrain("dry_run=true").code == 0


def test_which_folder_has_the_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert project.config_dir([]) is None
    Path("conf").mkdir()
    preset("presets/notes/x.yaml", "")  # of no group
    assert project.config_dir([]) is None
    preset("presets/experiment/x.yaml", "")
    assert project.config_dir([]) == "presets"
    preset("conf/project/lab.yaml", "")
    assert project.config_dir([]) == "conf"
    table('config_dir = "presets"')
    assert project.config_dir(["seed=3"]) == "presets"
    assert project.config_dir(["--config-dir=other"]) == "other"
    assert project.words(["fork=run"]) == ["fork=run"]
    monkeypatch.chdir(ROOT)
    assert project.config_dir([]) is None  # dtrain's own


def test_trust_and_the_newest_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "one")
    table('trust = ["two.three", "one"]\noutput_dir = "runs"')
    pyproject.extend_trust()
    assert os.environ["DTRAIN_TRUST"] == "one,two.three"
    with pytest.raises(errors.UsageError, match="below runs"):
        latest.resolved(["resume=latest"], latest.KEYS)


# -- keys of one's own --------------------------------------------------------------------------


def test_keys_below_project_are_refused_nowhere(dtrain: Commands) -> None:
    preset("conf/project/lab.yaml", "rate: 0.25\npaths: {data: /data, 3: [1]}\n")
    own = ("project=lab", "project.team=a", "optimizer.learning_rate=${project.rate}")
    config = yaml.safe_load(dtrain(*own, "--cfg", "job", "--resolve").output)
    assert config["project"] == {"rate": 0.25, "paths": {"data": "/data", 3: [1]}, "team": "a"}
    assert config["optimizer"]["learning_rate"] == 0.25
    assert dtrain(*own, "dry_run=true").code == 0


def test_another_key_of_the_project_is_no_other_run(dtrain: Commands, quick: Any) -> None:
    first = dtrain(*quick, "project.note=a", "optimizer.learning_rate=${project.rate}",
                   "project.rate=0.1")  # fmt: skip
    assert first.rundir is not None, first.output
    again = dtrain(f"resume={first.rundir.path}", "project.note=b", "trainer.epochs=3")
    assert again.code == 0, again.output
    changed = dtrain(f"resume={first.rundir.path}", "project.rate=0.2", "trainer.epochs=4")
    assert changed.code == errors.USAGE and "optimizer" in changed.output
