"""Second commands that fail, on runs and sweeps of all kinds: nothing that was there is lost."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtrain import errors
from dtrain.run.folder import RunDir
from tests.hostile import project
from tests.hostile.project import RUNS, SWEEPS, WORDS, Home, hashes

server, home = project.server, project.home


@dataclasses.dataclass(frozen=True)
class Case:
    """A second command.

    Attributes:
        arguments: ``{run}`` stands for the folder.
        code: of the command.
        how: the tasks fail (:mod:`tests.hostile.second`).
        here: it is typed in the project; otherwise in an empty folder.
        change: done to the project before, and taken back.
        absent: modules that are not installed.
        says: part of the output.
    """

    arguments: str
    code: int | tuple[int, ...] = errors.USAGE
    how: str = ""
    here: bool = True
    change: Callable[[Path], None] | None = None
    absent: tuple[str, ...] = ()
    says: str = "error: "


def without_data(project: Path) -> None:
    (project / "data.csv").unlink()


def with_less_data(project: Path) -> None:
    (project / "data.csv").write_text("a,b\n")


RESUMES = {
    # What only the task finds: the user's module is not there, a function lost an argument, ...
    "elsewhere": Case("resume={run}", how="refuse", here=False, says="mine.small: lost"),
    "refused": Case("resume={run}", how="refuse", says="mine.small: lost"),
    "refused, more epochs": Case("resume={run} trainer.epochs=9", how="refuse"),
    "crash": Case("resume={run}", 1, "crash", says="mine.small: lost"),
    "torn journal": Case("resume={run}", 1, "torn"),
    "killed": Case("resume={run}", 1, "die", says="SIGKILL"),
    "SIGINT": Case("resume={run}", 75, "SIGINT", says="KILLED"),
    "SIGTERM": Case("resume={run}", 75, "SIGTERM", says="KILLED"),
    "launcher fails": Case("resume={run}", 1, "start-training", says="no 2 free ports"),
    "no processes": Case("resume={run}", 1, "start-os", says="temporarily unavailable"),
    # What the command finds.
    "no data": Case("resume={run}", change=without_data),
    "less data": Case("resume={run}", change=with_less_data),
    "dry run": Case("resume={run} dry_run=true", 0, says="nothing was started"),
    "a fork that is refused": Case("fork={run} output_dir={run}", how="refuse", here=False),
    "a sweep inside": Case(
        "-m fork={run} output_dir={run} trainer.epochs=9,10", how="refuse", says="mine.small: lost"
    ),
    "relative": Case("resume=../{name}", how="refuse", says="mine.small: lost", here=True),
}  # fmt: skip

SWEEP_RESUMES = {
    "elsewhere": Case("sweep.resume={run}", how="refuse", here=False, says="mine.small: lost"),
    "refused": Case("sweep.resume={run}", how="refuse", says="mine.small: lost"),
    "refused, at the first": Case("sweep.resume={run} sweep.fail_fast=true", how="refuse"),
    "crash": Case("sweep.resume={run}", 1, "crash", says="mine.small: lost"),
    "killed": Case("sweep.resume={run}", 1, "die", says="SIGKILL"),
    "SIGINT": Case("sweep.resume={run}", (1, 75), "SIGINT", says="sweep folder"),
    "no processes": Case("sweep.resume={run}", 1, "start-os", says="temporarily unavailable"),
    "no data": Case("sweep.resume={run}", change=without_data),
    "dry run": Case("sweep.resume={run} dry_run=true", 0, says="nothing was started"),
    "a job of it": Case("resume={run}/0", how="refuse", says="mine.small: lost"),
    "a sweep inside": Case(
        "-m fork={run}/0 output_dir={run} trainer.epochs=9,10", how="refuse"
    ),
}  # fmt: skip


def sample(folders: tuple[str, ...], cases: dict[str, Case]) -> list[Any]:
    """Give a third of what tasks find, and an eighth of the rest, with one folder each."""
    found = []
    for index, name in enumerate(cases):
        for number, folder in enumerate(folders):
            stride = 3 if cases[name].how else 8
            chosen = number == index % len(folders) and index % stride == 0
            marks = () if chosen else (pytest.mark.faults,)
            found.append(pytest.param(folder, name, marks=marks, id=f"{folder}-{name}"))
    return found


def check(home: Home, folder: str, case: Case) -> None:
    run = home.project / folder
    kept = home.path / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(home.project, kept, symlinks=True)
    cwd = home.project if case.here else home.elsewhere
    if "../{name}" in case.arguments:
        cwd = home.project / "cd"
        cwd.mkdir(exist_ok=True)
    before = hashes(run)
    if case.change is not None:
        case.change(home.project)
    arguments = [part.format(run=run, name=folder) for part in case.arguments.split()]
    try:
        code, output = home(
            *arguments, cwd=cwd, environment={"QUICK": case.how}, absent=case.absent
        )
        now = hashes(run)
        nothing_to_do = folder == "sweep" and code == errors.OK  # all its jobs are done
        if not nothing_to_do:
            codes = case.code if isinstance(case.code, tuple) else (case.code,)
            assert code in codes, output
            assert case.says in output
            if code == errors.USAGE:
                assert now == before, output
            else:  # of a job that had none there is a result now, or a folder
                assert before.items() <= now.items(), output
        else:
            jobs = {k: v for k, v in before.items() if k.split("/")[0].isdigit()}
            assert jobs.items() <= now.items(), output
        assert not list(home.elsewhere.iterdir()), "left over"
        if code == errors.USAGE:
            assert not list(home.project.glob("outputs/**/config.yaml"))
    finally:
        for leftover in home.elsewhere.iterdir():
            shutil.rmtree(leftover)
        shutil.rmtree(home.project)
        shutil.copytree(kept, home.project, symlinks=True)


@pytest.mark.parametrize(("folder", "name"), sample(RUNS, RESUMES))
def test_a_second_command_on_a_run(home: Home, folder: str, name: str) -> None:
    check(home, folder, RESUMES[name])


@pytest.mark.parametrize(("folder", "name"), sample(SWEEPS[1:], SWEEP_RESUMES))
def test_a_second_command_on_a_sweep(home: Home, folder: str, name: str) -> None:
    check(home, folder, SWEEP_RESUMES[name])


@pytest.mark.parametrize(
    "words",
    ["resume={run}", "resume={run} dry_run=true", "sweep.resume={sweep}",
     "sweep.resume={sweep} dry_run=true", "resume={sweep}/0"],
)  # fmt: skip
def test_two_commands_at_once(home: Home, words: str) -> None:
    """The second one is refused, or only looks; the first one has the folder and is not hurt."""
    run, sweep = home.project / "interrupted", home.project / "sweep-failed"
    locks = [RunDir(path).lock() for path in (run, sweep, sweep / "0")]
    assert None not in locks
    before = hashes(run), hashes(sweep)
    code, output = home(*words.format(run=run, sweep=sweep).split())
    for lock in locks:
        os.close(lock)  # type: ignore[arg-type]
    if words == "resume={run} dry_run=true":
        assert code == errors.OK, output
    else:
        assert code == errors.USAGE and f"process {os.getpid()} is at work" in output, output
    assert (hashes(run), hashes(sweep)) == before


def test_auto_passes_over_what_others_have_spoilt(home: Home) -> None:
    """Of runs beside, of which one is damaged: the one of this command is resumed."""
    outputs = home.elsewhere / "outputs"
    words = (*WORDS, f"dataset.path={home.project}/data.csv", "resume=auto")
    try:
        code, output = home(*words, cwd=home.elsewhere, environment={"QUICK_LAST": "crash"})
        assert code == errors.FAILED, output
        [command] = outputs.glob("*/*/command.json")
        spoilt = command.parent.with_name("99-99-99_zz")
        for number, data in enumerate(
            (b"{", b"[]", b"[" * 100_000, b"\xff", b'{"format": 2, "overrides": 1}')
        ):
            other = spoilt.with_name(f"{spoilt.name}{number}")
            other.mkdir()
            (other / "command.json").write_bytes(data)
        hostile = spoilt.with_name(f"{spoilt.name}-link")
        shutil.copytree(command.parent, hostile)
        (hostile / "config.yaml").unlink()
        (hostile / "config.yaml").symlink_to(home.project / "data.csv")
        code, output = home(*words, cwd=home.elsewhere)
        assert code == errors.OK, output
        assert output.count("resume=auto: passed over ") == 6
        assert f"resume=auto: {command.parent}" in output
        assert hostile.joinpath("config.yaml").is_symlink()
        assert (home.project / "data.csv").read_text().startswith("a,b,label")
    finally:
        shutil.rmtree(outputs)


def test_a_name_that_is_a_file_s(home: Home) -> None:
    """The folder is made beside it, and the file is not touched."""
    words = (*WORDS, f"dataset.path={home.project}/data.csv", "name=taken", "output_dir=out")
    (home.elsewhere / "out").write_text("mine")
    code, output = home(*words, cwd=home.elsewhere)
    assert code == errors.USAGE and "output_dir=" in output, output
    assert (home.elsewhere / "out").read_text() == "mine"
    (home.elsewhere / "out").unlink()


def test_a_refused_new_run_or_sweep_leaves_nothing(home: Home) -> None:
    words = (*WORDS, f"dataset.path={home.project}/data.csv")
    for more in ((), ("-m", "seed=1,2"), ("-m", "seed=1,2", "sweep.fail_fast=true")):
        given = (*more[:1], *words, *more[1:])
        code, output = home(*given, cwd=home.elsewhere, environment={"QUICK": "refuse"})
        assert code == errors.USAGE or "sweep.fail_fast=true" in more, output
        left = list(home.elsewhere.iterdir())
        if code == errors.USAGE:
            assert not left, output
        for path in left:
            shutil.rmtree(path)


def test_a_folder_of_the_user_s_stays(home: Home) -> None:
    """What was made before the command is not removed with the run that is in it."""
    (home.elsewhere / "mine" / "sub").mkdir(parents=True)
    words = (*WORDS, f"dataset.path={home.project}/data.csv", "output_dir=mine/sub")
    code, output = home(*words, cwd=home.elsewhere, environment={"QUICK": "refuse"})
    assert code == errors.USAGE, output
    assert (home.elsewhere / "mine" / "sub").is_dir()
    assert not list((home.elsewhere / "mine" / "sub").iterdir())
    shutil.rmtree(home.elsewhere / "mine")
