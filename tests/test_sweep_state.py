"""``sweep.json``, and the sweep that goes on by it."""

from __future__ import annotations

import copy
import fnmatch
import os
import re
import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import errors
from dtrain.config import tree
from dtrain.errors import DamagedFile, UsageError
from dtrain.files import reading
from dtrain.run import checkpoint, identity
from dtrain.run.devices import Machine
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, read_json, write_json
from dtrain.sweep.state import Record, arguments, read
from tests.conftest import Commands
from tests.quick import WORDS, outcome
from tests.test_sweep_runner import folder, have, lasts, statuses, told


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tests")
    have(monkeypatch, Machine(0, 2))


def record(tmp_path: Path, mode: str = "max", jobs: int = 4) -> Record:
    made = Record(tmp_path, {"objective_mode": mode, "jobs": [], "status": "RUNNING"})
    for number in range(jobs):
        made.add(number, [f"seed={number}"], None)
    return made


# --- the file


def test_the_file_is_whole_after_each_change(tmp_path: Path) -> None:
    made = record(tmp_path)
    made.began(2, tmp_path / "2-3")
    jobs = (read_json(tmp_path / "sweep.json") or {})["jobs"]
    assert [job["status"] for job in jobs] == ["WAITING", "WAITING", "RUNNING", "WAITING"]
    assert jobs[2]["folder"] == "2-3"
    failure = Failure("failed", "chief-0", "bang", log="logs/chief-0.log")
    made.ended(2, outcome(status="FAILED", exit_code=1, failure=failure))
    job = (read_json(tmp_path / "sweep.json") or {})["jobs"][2]
    assert (job["status"], job["failure"]["log"]) == ("FAILED", "logs/chief-0.log")
    assert str(made.problem(2)).endswith("2-3/logs/chief-0.log)")
    assert made.failed == [job]
    made.close("FAILED")
    found = read_json(tmp_path / "sweep.json") or {}
    assert found["status"] == "FAILED"
    assert found["ended"] > 0
    assert list(tmp_path.iterdir()) == [tmp_path / "sweep.json"]


def test_what_an_earlier_command_wrote_holds_until_a_job_trains(tmp_path: Path) -> None:
    write_json(tmp_path / "sweep.json", {"status": "KILLED"})
    made = Record(tmp_path, {"objective_mode": "max", "jobs": []}, resumed=True)
    made.add(0, [], None)
    made.began(0, tmp_path / "0")
    made.ended(0, outcome(status="FAILED", exit_code=1))
    made.undo()
    assert read_json(tmp_path / "sweep.json") == {"status": "KILLED"}
    made.trained = True
    made.began(0, tmp_path / "0-2")
    assert (read_json(tmp_path / "sweep.json") or {})["jobs"][0]["folder"] == "0-2"


@pytest.mark.parametrize(
    ("ends", "refused"),
    [
        ("refused", True),
        ("refused killed", True),  # by sweep.fail_fast, before it could be refused as well
        ("killed refused", False),
        ("refused failed", False),
        ("killed", False),
    ],
)
def test_whether_no_job_could_be_run(ends: str, refused: bool, tmp_path: Path) -> None:
    known = {
        "refused": outcome(
            status="FAILED", exit_code=errors.USAGE, failure=Failure("refused", reason="why")
        ),
        "killed": outcome(status="KILLED", exit_code=errors.INTERRUPTED),
        "failed": outcome(
            status="FAILED", exit_code=errors.FAILED, failure=Failure("failed", reason="bang")
        ),
    }
    made = record(tmp_path)
    for number, word in enumerate(ends.split()):
        made.conclude(number, known[word])
    assert made.is_refused is refused
    if refused:
        made.trained = True
        assert not made.is_refused


@pytest.mark.parametrize(("mode", "best"), [("max", 1), ("min", 0)])
def test_the_best_is_a_finished_one(mode: str, best: int, tmp_path: Path) -> None:
    made = record(tmp_path, mode)
    assert made.data["best"] is None if "best" in made.data else True
    made.ended(0, outcome(objective=0.2))
    made.ended(1, outcome(objective=0.5))
    made.ended(2, outcome(objective=9.0 if mode == "max" else -9.0, status="KILLED"))
    made.ended(3, outcome(objective=float("nan")))
    assert made.data["best"] == best
    again = record(tmp_path)
    again.ended(0, outcome(objective=None))
    assert again.data["best"] is None


def test_what_is_left(tmp_path: Path) -> None:
    made = record(tmp_path, jobs=5)
    made.ended(0, outcome())
    made.ended(1, outcome(status="FAILED"))
    made.ended(2, outcome(status="KILLED"))
    made.ended(3, outcome(status="KILLED", pruned=True))
    assert [job["number"] for job in made.left] == [2, 4]


# --- the words


def sweep_of(tmp_path: Path, *words: str, config_dir: str | None = None) -> str:
    write_json(tmp_path / "sweep.json", contents(*words, config_dir=config_dir))
    return f"sweep.resume={tmp_path}"


def contents(*words: str, config_dir: str | None = None) -> dict[str, Any]:
    config = types.SimpleNamespace(objective="a", objective_mode="max")
    command = {"overrides": list(words), "config_dir": config_dir}
    return Record.begin(Path("x"), command, "x", config).data


def test_a_command_of_its_own_stays_as_it_is() -> None:
    given = ["-m", "seed=1,2", "sweep.parallel=2", "sweep.resume=null"]
    assert arguments(given) == given


def test_the_words_of_the_sweep_come_first(tmp_path: Path) -> None:
    word = sweep_of(tmp_path, "seed=1,2", "tracking=mlflow", "tracking.experiment=x",
                    "sweep.parallel=2")  # fmt: skip
    own = ["seed=1,2", "tracking=mlflow", "tracking.experiment=x", "sweep.parallel=2"]
    assert arguments([word]) == ["-m", *own, word]
    assert arguments(["-m", word]) == ["-m", *own, word]
    assert arguments(["--multirun", word, "sweep.parallel=1"])[:-2] == ["--multirun", *own[:3]]
    assert arguments([word, "tracking=none"])[1:3] == ["seed=1,2", "sweep.parallel=2"]
    assert arguments([word, "tracking.experiment=y", "dry_run=true"])[-2:] == [
        "tracking.experiment=y", "dry_run=true",
    ]  # fmt: skip


def test_the_config_dir_of_the_sweep(tmp_path: Path) -> None:
    word = sweep_of(tmp_path, "seed=1,2", config_dir="/conf")
    assert arguments([word]) == ["-m", "--config-dir", "/conf", "seed=1,2", word]


def test_a_baseline_needs_no_quotes() -> None:
    assert arguments(["-m", "sweep.baseline=strategy=ps"]) == ["-m", "sweep.baseline='strategy=ps'"]
    for word in ("sweep.baseline='a=b'", 'sweep.baseline="a=b"', "sweep.baseline="):
        assert arguments([word]) == [word]


@pytest.mark.parametrize("word", ["seed=3", "model=mlp", "trainer.epochs=9", "resume=x", "fork=y"])
def test_words_that_would_change_the_jobs(word: str, tmp_path: Path) -> None:
    key, _, value = word.partition("=")
    parts = f"{key}={value}: would change the jobs.*accepted: sweep.parallel.*hint: sweep.resume="
    with pytest.raises(UsageError, match=parts):
        arguments([sweep_of(tmp_path, "seed=1,2"), word])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not valid JSON (*)"),
        ("[]", "is not a JSON object"),
        ('{"format": 2}', ": name is not there"),
        ("\0", "is not valid JSON (*)"),
    ],
)
def test_a_damaged_folder(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(text)
    damaged(tmp_path, problem)
    with pytest.raises(UsageError, match=r"not the folder of a sweep \(it has no sweep.json\)"):
        arguments([f"sweep.resume={tmp_path}/nowhere"])


def damaged(folder: Path, problem: str) -> None:
    """Assert that a sweep is refused with a sentence: a shell's pattern."""
    with pytest.raises(DamagedFile) as caught:
        read(folder)
    separator = "" if problem.startswith(":") else " "
    text = str(caught.value)
    assert fnmatch.fnmatchcase(text, f"{folder}/sweep.json{separator}{problem}"), text


JOB = {
    "number": 0, "folder": "0", "overrides": [], "differs": {}, "hash": None, "status": "FAILED",
    "objective": None, "seconds": 1.5, "exit_code": 1,
    "failure": Failure("failed", "chief-0", "bang", log="logs/chief-0.log").record(),
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 3),
        ("started", "now"),
        ("started", True),
        ("command", []),
        ("command.overrides", "seed=1"),
        ("command.overrides", [1]),
        ("command.config_dir", 1),
        ("status", "DONE"),
        ("status", []),
        ("objective_mode", "most"),
        ("best", "1"),
        ("jobs", {}),
        ("jobs[0]", 3),
        *((f"jobs[0].{name}", object) for name in JOB),  # missing
        *(("jobs[0].folder", value) for value in ("", ".", "..", "../x", "a/b", "/etc", 3, None)),
        *(("jobs[0].number", value) for value in (-1, 1.0, "0", None, True)),
        *(("jobs[0].overrides", value) for value in ("seed=1", [1], [["a"]], None)),
        *(("jobs[0].differs", value) for value in ([], {"a": 1}, None)),
        *(("jobs[0].status", value) for value in ("done", 1, None, [])),
        *(("jobs[0].seconds", value) for value in ("1", [], True)),
        *(("jobs[0].failure.log", value) for value in ("/etc/passwd", "../x", "0/../../x", 3)),
        ("jobs[0].pruned", "yes"),
        ("jobs[1]", JOB),  # its number is another's, too
    ],
)
def test_a_field_that_no_sweep_has_written(field: str, value: Any, tmp_path: Path) -> None:
    data: Any = contents("seed=1")
    data["jobs"] = [copy.deepcopy(JOB), {**JOB, "number": 1, "folder": "1"}]
    write_json(tmp_path / "sweep.json", data)
    assert len(read(tmp_path).jobs) == 2
    *path, last = re.findall(r"\w+", field)
    node = data
    for name in path:
        node = node[int(name) if name.isdigit() else name]
    if value is object:
        del node[last]
    else:
        node[int(last) if last.isdigit() else last] = value
    write_json(tmp_path / "sweep.json", data)
    shown = field.replace("[", "[[]")
    damaged(tmp_path, f": {shown}*")


def test_a_link_in_the_folder(tmp_path: Path) -> None:
    word = sweep_of(tmp_path, "seed=1")
    (tmp_path / "0").symlink_to("/tmp")
    with pytest.raises(DamagedFile, match="/0 is a symbolic link, not a regular file"):
        arguments([word])


def test_what_a_command_at_work_removes_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "stays").mkdir()
    lstat, looked = os.lstat, set()

    def removing(path: Path) -> os.stat_result:
        """Before it is looked at, another command removes what does not stay."""
        looked.add(path.name)
        for each in (tmp_path / "file", tmp_path / "folder"):
            if each.exists() and path != tmp_path:
                each.unlink() if each.is_file() else each.rmdir()
        return lstat(path)

    monkeypatch.setattr(os, "lstat", removing)
    reading.check_tree(tmp_path)
    assert looked == {tmp_path.name, "file", "folder", "stays"}
    with pytest.raises(FileNotFoundError):
        reading.check_tree(tmp_path / "folder")


# --- going on, with tasks that are quick


def begin(dtrain: Commands, *words: str) -> Any:
    return dtrain("-m", *WORDS, *words)


def rundir(number: int | str) -> RunDir:
    return RunDir(folder() / str(number))


def again(dtrain: Commands, *words: str) -> Any:
    return dtrain(f"sweep.resume={folder()}", *words)


@pytest.mark.faults
def test_only_what_is_missing_is_run(dtrain: Commands) -> None:
    run = begin(dtrain, "seed=1,2,3,4", lasts(s2="crash", s3="die"))
    assert run.code == errors.FAILED
    assert statuses() == ["FINISHED", "FAILED", "FAILED", "FINISHED"]
    before = [rundir(n).result.read_text() for n in (0, 3)]
    started = told()["started"]
    run = again(dtrain)
    assert run.code == errors.FAILED  # they crash as they did
    assert "2 jobs, 2 at a time" in run.output
    assert [rundir(n).result.read_text() for n in (0, 3)] == before
    assert len(told()["jobs"]) == 4
    assert told()["started"] == started
    assert sorted(p.name for p in folder().glob("[0-9]*")) == ["0", "1", "2", "3"]
    for number in range(4):  # the last table shows all
        assert re.search(rf"\n{number} +{number + 1} +F", run.output), run.output


def test_a_finished_sweep_is_not_run_again(dtrain: Commands) -> None:
    assert begin(dtrain, "seed=1,2").code == errors.OK
    before = {p: p.read_bytes() for p in folder().rglob("result.json")}
    run = again(dtrain, "tracking.experiment=other", "sweep.parallel=1")
    assert run.code == errors.OK, run.output
    assert "starting" not in run.output
    assert "FINISHED: 2 of 2 jobs done" in run.output
    assert {p: p.read_bytes() for p in folder().rglob("result.json")} == before


@pytest.mark.faults
def test_what_never_began_is_begun(dtrain: Commands) -> None:
    words = (lasts(s1="wait:never", s2="interrupt:began-1"),)
    run = begin(dtrain, "seed=1,2,3", *words)
    assert run.code == errors.INTERRUPTED
    (Path("never")).touch()
    run = again(dtrain, "dry_run=true")
    assert run.code == errors.OK
    lines = [" ".join(line.split()[:3]) for line in run.output.splitlines()]
    assert lines[2:5] == ["0 1 goes", "1 2 goes", "2 3 new"]
    assert statuses() == ["KILLED", "KILLED", "WAITING"]  # nothing has happened


@pytest.mark.faults
def test_a_sweep_that_was_killed(dtrain: Commands) -> None:
    """What it wrote last is of a moment when jobs ran, of which one has ended since."""
    assert begin(dtrain, "seed=1,2,3").code == errors.OK
    data = told()
    data.update(status="RUNNING", ended=None)
    for job in data["jobs"]:
        job.update(status="RUNNING", objective=None)
    write_json(folder() / "sweep.json", data)
    rundir(1).result.unlink()
    rundir(2).result.write_text("{")
    run = again(dtrain)
    assert run.code == errors.OK
    assert "2 jobs, 2 at a time" in run.output
    assert statuses() == ["FINISHED"] * 3
    assert told()["jobs"][0]["objective"] == 0.013


def test_a_search_that_was_killed_draws_the_same_again(dtrain: Commands) -> None:
    """With a key that is new, and jobs that cannot be: once no search with one could be resumed."""
    search = ["sweep.parallel=1", "hydra/sweeper=optuna"]
    search += [f"hydra.sweeper.{word}" for word in ("trials=8", "seed=10", "startup=4")]
    space = ["seed=int(interval(1,99))", "+launcher.x=choice(1,2)", "trainer.batch_size=32,100000"]
    run = begin(dtrain, *search, *space)
    assert run.code == errors.FAILED, run.output
    undisturbed, data = told(), told()
    number = [number for event, number, *_ in data["course"] if event == "ended"][3]
    assert "FAILED" in statuses()[:number]
    data["course"] = data["course"][: data["course"].index(["ended", number])]
    data["jobs"] = data["jobs"][: number + 1]
    data["jobs"][-1].update(status="RUNNING", objective=None)
    write_json(folder() / "sweep.json", data)
    rundir(number).result.unlink()
    for later in range(number + 1, 8):
        shutil.rmtree(rundir(later).path, ignore_errors=True)
    for _ in range(2):
        again(dtrain)
    for name in ("differs", "objective"):
        assert [j[name] for j in told()["jobs"]] == [j[name] for j in undisturbed["jobs"]]
    assert told()["course"] == undisturbed["course"]


def test_a_job_with_a_checkpoint_goes_on_in_place(dtrain: Commands) -> None:
    assert begin(dtrain, "seed=1,2").code == errors.OK
    found = rundir(1)
    found.result.unlink()
    config = (read_json(found.command) or {})["sweep"]
    prints = identity.fingerprints(tree.read(found.config))
    versions = identity.versions("tensorflow")
    meta = {"config": prints, "versions": versions, "pending_validation": False}
    checkpoint.save(found.checkpoints, 1, {"a": np.zeros(1)}, meta)
    assert again(dtrain).code == errors.OK
    assert f"resume: {found.path}" in found.config.read_text()
    assert (read_json(found.command) or {})["sweep"] == config
    steps = [int(s) for s in re.findall(r'"step": (\d+), "metrics"', found.journal.read_text())]
    assert steps[:1] == [1]  # what came after the checkpoint was taken back


@pytest.mark.faults
def test_a_job_that_is_another_one_by_now_is_run_anew(dtrain: Commands, tmp_path: Path) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    file = tmp_path / "mine" / "experiment" / "small.yaml"
    text = "# @package _global_\ntrainer: {epochs: 2}\n"
    file.write_text(text)
    words = [word for word in WORDS if "epochs" not in word]
    run = dtrain("-m", "--config-dir", "mine", *words, "experiment=small", "seed=1,2")
    assert run.code == errors.OK, run.output
    file.write_text(text.replace("2", "3"))
    run = again(dtrain)
    assert run.code == errors.OK, run.output
    assert [job["folder"] for job in told()["jobs"]] == ["0-2", "1-2"]
    assert (read_json(rundir("0-2").result) or {})["step"] == 3
    assert (read_json(rundir("0").result) or {})["step"] == 2  # is left as it was
    assert again(dtrain).code == errors.OK
    assert not (folder() / "0-3").exists()
    assert [job["folder"] for job in told()["jobs"]] == ["0-2", "1-2"]


@pytest.mark.faults
def test_a_job_that_was_killed_while_its_folder_was_made(dtrain: Commands) -> None:
    assert begin(dtrain, "seed=1,2").code == errors.OK
    found = rundir(1)
    found.result.unlink()
    found.config.unlink()
    assert again(dtrain).code == errors.OK
    assert told()["jobs"][1]["folder"] == "1-2"
    assert found.journal.exists(), "nothing is removed, whatever it is"
    assert (read_json(rundir("1-2").result) or {})["status"] == "FINISHED"


@pytest.mark.faults
def test_a_pruned_job_is_done(dtrain: Commands) -> None:
    assert begin(dtrain, "seed=1,2").code == errors.OK
    result = read_json(rundir(0).result) or {}
    write_json(rundir(0).result, {**result, "status": "KILLED", "exit_code": 75, "pruned": True})
    run = again(dtrain)
    assert run.code == errors.OK
    assert "starting" not in run.output
    assert told()["jobs"][0]["pruned"] is True
    assert told()["best"] == 1


def test_a_folder_in_which_a_command_is_at_work(dtrain: Commands) -> None:
    assert begin(dtrain, "seed=1,2").code == errors.OK
    descriptor = RunDir(folder()).lock()
    assert descriptor is not None
    run = again(dtrain)
    os.close(descriptor)
    assert run.code == errors.USAGE
    assert f"the command of process {os.getpid()} is at work in it" in run.output
    assert "sweep.resume=" in run.output


def test_the_whole_tree_may_be_moved(dtrain: Commands, tmp_path: Path) -> None:
    assert begin(dtrain, "seed=1,2", lasts(s2="crash")).code == errors.FAILED
    moved = tmp_path / "elsewhere"
    os.rename(folder(), moved)
    run = dtrain(f"sweep.resume={moved}")
    assert run.code == errors.FAILED
    assert "1 job, 1 at a time" in run.output
    assert not list(tmp_path.glob("outputs/multirun/*/*"))
    jobs = (read_json(moved / "sweep.json") or {})["jobs"]
    assert [job["status"] for job in jobs] == ["FINISHED", "FAILED"]


def test_one_job_alone_goes_on_and_stays_of_its_sweep(dtrain: Commands) -> None:
    assert begin(dtrain, "seed=1,2", lasts(s2="die")).code == errors.FAILED
    run = dtrain(f"resume={rundir(1).path}")
    assert run.code == errors.FAILED  # it dies as it did
    command = read_json(rundir(1).command) or {}
    assert command["sweep"] == {"number": 1, "differs": {"seed": "2"}}


def test_a_study_in_a_file(dtrain: Commands, tmp_path: Path) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "study.yaml").write_text(
        "# @package _global_\nname: study\nhydra: {sweeper: {params: {seed: '1,2'}}}\n"
    )
    words = ("--config-dir", "mine", *WORDS, "experiment=study")
    run = dtrain("-m", *words, "optimizer.learning_rate=0.1,0.2")
    assert run.code == errors.OK, run.output
    assert folder().name.endswith("_study")
    assert [job["differs"] for job in told()["jobs"]] == [
        {"seed": seed, "optimizer.learning_rate": rate}
        for seed in ("1", "2")
        for rate in ("0.1", "0.2")
    ]
    assert again(dtrain).code == errors.OK
    assert len(told()["jobs"]) == 4


def test_a_sweep_of_one_job_without_words(dtrain: Commands) -> None:
    run = dtrain("-m", "dry_run=true")
    assert run.code == errors.OK
    assert "sweep: 1 job, 1 to be run, 1 at a time" in run.output


def test_another_launcher_of_hydra_s(dtrain: Commands, tmp_path: Path) -> None:
    run = begin(dtrain, "seed=1,2", "hydra/launcher=basic", "hydra/sweeper=grid")
    assert run.code == errors.USAGE
    assert "hydra/launcher=basic: there is no such option" in run.output
    assert "type: hydra/launcher=dtrain" in run.output
