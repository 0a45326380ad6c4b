"""``hydra.run.dir=DIR`` and ``hydra.sweep.dir=DIR`` choose the folder, as Hydra users expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtrain.errors import UsageError
from dtrain.job import folders
from dtrain.run.folder import read_json
from tests.conftest import QUICK, Commands

RUN = (*QUICK, "trainer.epochs=1")


def finished(folder: Path) -> bool:
    return (read_json(folder / "result.json") or {}).get("status") == "FINISHED"


def test_a_run_is_where_it_is_told(dtrain: Commands, tmp_path: Path) -> None:
    chosen = tmp_path / "runs" / "mlp_7"
    words = (*RUN, "seed=7", "hydra.run.dir=runs/${hydra:runtime.choices.model}_${seed}")
    assert dtrain(*words, "dry_run=true").code == 0
    assert not chosen.exists()
    run = dtrain(*words)
    assert run.code == 0, run.output
    assert finished(chosen) and not (tmp_path / "outputs").exists()

    again = dtrain(*words)
    assert again.code == 2
    assert f"hydra.run.dir={chosen}: holds another run; accepted: a folder that is" in again.output
    again = dtrain(*words, "resume=auto")
    assert again.code == 0 and "is finished: its only epoch is trained" in again.output

    more = dtrain(*RUN, f"resume={chosen}", "hydra.run.dir=runs/mlp_7", "trainer.epochs=2")
    assert more.code == 0, more.output
    other = dtrain(f"resume={chosen}", "hydra.run.dir=elsewhere", "trainer.epochs=3")
    assert other.code == 2 and "a run that is resumed stays in its folder" in other.output


def test_resume_auto_looks_into_the_folder(dtrain: Commands, tmp_path: Path) -> None:
    words = (*RUN, "trainer.epochs=2", "hydra.run.dir=here", "resume=auto")
    assert dtrain(*words).code == 0
    (tmp_path / "here" / "result.json").unlink()
    again = dtrain(*words)
    assert again.code == 0, again.output
    assert f"resume=auto: {tmp_path}/here\n" in again.output


def test_a_refused_command_leaves_the_folder_as_it_was(dtrain: Commands, tmp_path: Path) -> None:
    """The model is built by the task, once the folder is in use."""
    words = (*RUN, "model.units=[16]", "trainer.loss=keras.losses.nonsense", "hydra.run.dir=here")
    assert dtrain(*words).code == 2
    assert not (tmp_path / "here").exists()
    (tmp_path / "here").mkdir()
    assert dtrain(*words).code == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "here"] and not list(
        (tmp_path / "here").iterdir()
    )


def test_other_files_are_not_touched(dtrain: Commands, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for chosen in (".", "notes.txt"):
        run = dtrain(*RUN, f"hydra.run.dir={chosen}")
        assert run.code == 2 and "error: hydra.run.dir=" in run.output, run.output
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_two_commands_want_one_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    rundir, _ = folders.claim(tmp_path / "here")
    rundir.command.write_text("{}")
    with pytest.raises(UsageError, match="holds another run"):
        folders.claim(tmp_path / "here")
    rundir.command.unlink()
    with pytest.raises(UsageError, match="is not empty"):
        folders.claim(tmp_path / "here")


def test_a_sweep_has_a_folder_of_its_own(dtrain: Commands, tmp_path: Path) -> None:
    words = ("-m", *RUN, "seed=1,2")
    run = dtrain(*words, "hydra.run.dir=here")
    assert run.code == 2 and "hint: hydra.sweep.dir=FOLDER" in run.output
    assert dtrain(*words, "hydra.sweep.dir=there/${name}").code == 0
    sweep = tmp_path / "there" / "mlp_default"
    assert (sweep / "sweep.json").is_file() and finished(sweep / "0") and finished(sweep / "1")
    again = dtrain(*words, "hydra.sweep.dir=there/${name}")
    assert again.code == 2 and "holds another sweep; accepted: a folder that is" in again.output
    assert dtrain(f"sweep.resume={sweep}").code == 0, "as the hint says"
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mlp_default"]
    assert not (tmp_path / "outputs").exists()
