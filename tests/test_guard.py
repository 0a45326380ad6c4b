"""Nothing that a configuration says runs, writes or reads before it is checked, or after."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.conf import HydraConf, JobConf

from dtrain.config import guard
from tests.conftest import Commands, Run

RUNS = "{_target_: shutil.copyfile, src: secret.txt, dst: ran}"
#: What Hydra would do for an experiment; more of it stands in ``mistakes.txt``.
HYDRA = (
    f"callbacks: {{x: {RUNS}}}", "job: {env_set: {DTRAIN_TRUST: shutil}}",
    "job_logging: {version: 1, root: {handlers: [a]},"
    " handlers: {a: {class: logging.FileHandler, filename: ran}}}",
    f"sweeper: {{params: {{seed: {RUNS}}}}}",
)  # fmt: skip


def written(text: str, *path: str) -> None:
    file = Path("presets", *path)
    file.parent.mkdir(parents=True)
    file.write_text(text)


@pytest.fixture(autouse=True)
def _canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "secret.txt").write_text("the canary")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "__init__.py").write_text("open('ran', 'w').close()")
    monkeypatch.setenv("CANARY", "the canary")
    monkeypatch.delenv("DTRAIN_TRUST", raising=False)
    root = logging.getLogger()  # `--info` prints by it
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def untouched(tmp_path: Path, run: Run, *made: str) -> str:
    """Check that a command was refused in a sentence and left nothing; return the sentence."""
    left = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert left <= {"secret.txt", "evil", *made}, left
    assert run.code == 2, run.output
    assert "Traceback" not in run.output and "the canary" not in run.output
    [line] = [line for line in run.output.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize("text", HYDRA)
@pytest.mark.parametrize("how", [["--cfg", "all"], ["--info", "config"], ["-m"]])
def test_a_preset_says_nothing_to_hydra_where_nothing_would_run(
    text: str, how: list[str], dtrain: Commands, tmp_path: Path
) -> None:
    written(f"# @package _global_\nhydra: {{{text}}}", "experiment", "small.yaml")
    run = dtrain("--config-dir", "presets", "experiment=small", *how)
    assert "error: hydra" in untouched(tmp_path, run, "presets")


def test_keys_of_hydras_that_are_honoured(dtrain: Commands) -> None:
    for words in (
        ["hydra.verbose=false"], ["hydra.job.chdir=false"], ["hydra.mode=RUN"],
        ["hydra.run.dir=ran"], ["hydra.mode=MULTIRUN", "seed=1,2"],
        ["-m", "hydra.sweep.dir=x", "seed=1,2"],
        ["-m", "hydra.sweeper.params={seed: '1,2'}"], ["hydra.help.header=x"],
        ["-m", "hydra/sweeper=random", "hydra.sweeper.trials=2", "seed=1,2"],
        ["-m", "hydra/sweeper=random", "hydra.sweeper.seed=${seed}", "model.units=1,2"],
    ):  # fmt: skip
        run = dtrain(*words, "dry_run=true")
        assert run.code == 0, run.output


def test_options_that_it_has(dtrain: Commands) -> None:
    assert "batch_size: 64" in dtrain("--cfg", "job", "-p", "trainer").output
    assert "name: cnn_default" in dtrain("--cfg", "job", "--resolve").output
    assert "Primary" not in dtrain("--info", "defaults").output
    assert dtrain("-sc", "install=bash").code == 0


def test_internal_groups_are_not_offered(dtrain: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_LINE", "dtrain s")
    monkeypatch.setenv("COMP_POINT", "8")
    offered = dtrain("-sc", "query=bash").output.split()
    assert "strategy" in offered and "schema/" not in offered


def forged(tmp_path: Path, *overrides: Any, **fields: Any) -> str:
    """Make a run folder that another user sends; return its path."""
    folder = tmp_path / "sent"
    folder.mkdir()
    command = {"format": 2, "overrides": list(overrides), "config_dir": None, **fields}
    (folder / "command.json").write_text(json.dumps(command))
    (folder / "config.yaml").write_text("model: {}\n")
    sweep = {"format": 2, "command": command, "jobs": [], "started": 1.0, "name": "x"}
    (folder / "sweep.json").write_text(json.dumps(sweep))
    return str(folder)


@pytest.mark.parametrize(
    ("key", "word"),
    [
        *(("fork", word) for word in (
            f"+hydra.callbacks.x={RUNS}", "hydra.searchpath=[pkg://evil]", "--cfg=all", "-m",
            "hydra/job_logging=default", "--experimental-rerun=x.pickle", "--shell-completion",
            "--config-path=pkg://evil", "--config-dir=presets", 3, ["seed=1"],
            "+model.x=${oc.env:CANARY}", "+model.x='${${objective}.env:CANARY}'",
            f"trainer.callbacks=[{RUNS}]", "tracking.uri=http://127.0.0.1:9",
            "'+model.x=${oc.decode:\"\\${oc.env:CANARY}\"}'",
        )),
        *((key, word) for key in ("resume", "sweep.resume") for word in (
            "-m", f"+hydra.callbacks.x={RUNS}", "+model.x=${oc.env:CANARY}",
        )),
    ],
)  # fmt: skip
def test_a_run_folder_from_elsewhere_is_refused_and_stays_as_it_is(
    key: str, word: Any, dtrain: Commands, tmp_path: Path
) -> None:
    given = forged(tmp_path, "objective=oc", word)
    before = {path: path.read_bytes() for path in Path(given).iterdir()}
    untouched(tmp_path, dtrain(f"{key}={given}", "dry_run=true"), "sent")
    assert {p: p.read_bytes() for p in Path(given).iterdir() if p.name != ".lock"} == before


@pytest.mark.parametrize("config_dir", [7, ["x"], "--experimental-rerun=x"])
def test_its_presets(config_dir: Any, dtrain: Commands, tmp_path: Path) -> None:
    line = untouched(tmp_path, dtrain(f"fork={forged(tmp_path, config_dir=config_dir)}"), "sent")
    assert "no override" in line or "config_dir" in line


def test_presets_in_a_folder_from_elsewhere(dtrain: Commands, tmp_path: Path) -> None:
    """A variable that a file of theirs names is not named by the user."""
    presets = str(tmp_path / "sent" / "presets")
    given = forged(tmp_path, "dataset=theirs", config_dir=presets)
    text = "_target_: dtrain.datasets.npz\npath: '${oc.env:CANARY}'\naugment: null\n"
    written(text, presets, "dataset", "theirs.yaml")
    line = untouched(tmp_path, dtrain(f"fork={given}"), "sent")
    assert line.startswith("error: dataset.path=${oc.env:CANARY}: asks for the variable CANARY of")
    assert "hint: DTRAIN_ENV=CANARY in front of the command" in line
    ours = ("--config-dir", presets, "dataset=theirs", "dry_run=true")
    assert "dataset.path=the canary: there is no such file" in dtrain(*ours).output


@pytest.mark.parametrize(
    ("variable", "typed"), [("OTHER", ["dataset.path='${oc.env:CANARY}'"]), ("CANARY", [])]
)
def test_what_the_user_consents_to(
    variable: str, typed: list[str], dtrain: Commands, tmp_path: Path, monkeypatch: Any
) -> None:
    given = forged(tmp_path, "dataset=npz", "dataset.path=${oc.env:CANARY}")
    monkeypatch.setenv("DTRAIN_ENV", variable)
    run = dtrain(f"fork={given}", *typed, "dry_run=true")
    assert f"fork={given}: holds no sound checkpoint" in run.output


def test_a_job_of_a_sweep_is_checked_too(dtrain: Commands, tmp_path: Path) -> None:
    written(f"# @package _global_\nhydra: {{{HYDRA[0]}}}", "experiment", "small.yaml")
    run = dtrain("-m", "--config-dir", "presets", "experiment=resume,small", "dry_run=true")
    assert "hydra.callbacks" in untouched(tmp_path, run, "presets")


def test_by_a_process_of_its_own(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "dtrain", "dry_run=true", f"+hydra.callbacks.x={RUNS}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: hydra.callbacks=")
    assert not (tmp_path / "ran").exists()


def test_the_table_is_hydras(dtrain: Commands) -> None:
    """A key that a newer Hydra brings has to be looked at."""
    free = ("override_dirname", "config_name", "config")
    fixed = {*guard._FIXED, *(f"job.{name}" for name in free)}
    known = {key.split(".")[0] for key in fixed} | {*guard._FREE, "defaults"}
    assert {field.name for field in dataclasses.fields(HydraConf)} <= known
    assert {f"job.{field.name}" for field in dataclasses.fields(JobConf)} <= fixed
