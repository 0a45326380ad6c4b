"""The code of a run: what is recorded of it, and that it is run again from a worktree."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dtrain.__main__ import main
from dtrain.cli.commands import replay
from dtrain.compare import bits
from dtrain.config import private
from dtrain.errors import DamagedFile, UsageError
from dtrain.host import git as own_git
from dtrain.host import packages
from dtrain.job import code_recorder
from dtrain.job.code_recorder import Recorder
from dtrain.run import code
from dtrain.run.folder import FORMAT, RunDir
from dtrain.run.journal import Journal
from tests.conftest import QUICK

MODEL = """
import keras
import helper

def build(input_shape, classes):
    layers = keras.layers
    dense = [layers.Dense(helper.width, "relu"), layers.Dropout(0.2), layers.Dense(classes)]
    return keras.Sequential([keras.Input(input_shape), *dense])
"""


def git(folder: Path, *words: str) -> str:
    """Run plain git, as its user does."""
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working tree with one commit, which is the current directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "mine.py").write_text(MODEL)
    (folder / "helper.py").write_text("width = 5\n")
    (folder / "gone.py").write_text("gone = True\n")
    (folder / "data.bin").write_bytes(bytes(range(256)) * 8)
    (folder / ".gitignore").write_text("outputs/\nignored.py\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    monkeypatch.chdir(folder)
    return folder


def dirty(folder: Path) -> None:
    """Change a tree in all the ways that git knows."""
    (folder / "helper.py").write_text("width = 7\r\n\n\n  ")
    (folder / "gone.py").unlink()
    (folder / "data.bin").write_bytes(bytes(range(255, -1, -1)) * 9)
    os.chmod(folder / "mine.py", 0o755)
    (folder / "staged.py").write_text("staged = 1\n")
    git(folder, "add", "staged.py")
    (folder / "staged.py").write_text("staged = 2\n")
    (folder / "later.py").write_text("later = 1\n")
    git(folder, "add", "-N", "later.py")
    git(folder, "rm", "-q", "--cached", ".gitignore")
    (folder / "a b").mkdir()
    (folder / "a b" / "Straße.py").write_text("new = 'ü'\n")
    (folder / "a b" / "run").write_bytes(b"\0\1\2")
    os.chmod(folder / "a b" / "run", 0o755)
    (folder / "link").symlink_to("a b/run")
    (folder / "ignored.py").write_text("ignored = 1\n")


def files(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Return what lies in a folder: contents, and whether it can be run."""
    found = {}
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above, name)
            below = str(path.relative_to(folder))
            if below.split("/")[0] in (".git", "outputs") or name == "ignored.py":
                continue
            if path.is_symlink():
                found[below] = os.fsencode(os.readlink(path)), False
            else:
                found[below] = path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR)
    return found


def run_folder(folder: Path, *overrides: str) -> Path:
    """Make a folder with what a run of this user has, and a record of the code of now."""
    folder.mkdir(parents=True)
    command = private.sign_command(list(overrides), None, None)
    (folder / "command.json").write_text(json.dumps({**command, "format": FORMAT}))
    (folder / "config.yaml").write_text("name: x\n")
    Recorder(folder, Path("outputs")).write(last=True)
    return folder


def objects(folder: Path) -> dict[str, bytes]:
    """Return all files of git's own."""
    return {str(path): path.read_bytes() for path in (folder / ".git").rglob("*") if path.is_file()}


def refused(run: Path) -> str:
    with pytest.raises((UsageError, DamagedFile)) as error:
        replay.read(str(run))
    return str(error.value)


def test_a_working_tree_is_built_again(project: Path) -> None:
    """To the byte, by its files and by plain git; and the user's own repository is as it was."""
    dirty(project)
    before, tree_before = objects(project), files(project)
    run = run_folder(project / "outputs" / "run")
    assert objects(project) == before
    state = replay.read(str(run))
    tree = state.record["tree"]
    assert tree is not None and tree["left_out"] == {}
    with replay.worktree(state, tree) as path:
        assert files(path) == files(project) == tree_before
        assert git(path, "rev-parse", "HEAD") == git(project, "rev-parse", "HEAD")
        assert replay.mapped(f"{project}/a b/x", tree, path) == path / "a b" / "x"
        again, _ = code_recorder.capture(path, [])
        assert again["patch"] == tree["patch"]
    assert not path.parent.exists() and objects(project) == before


def test_what_is_left_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets, what is large, what is another repository's, and run folders; each with a reason."""
    monkeypatch.setenv("MY_API_KEY", "canary-8812-secret")
    (project / "helper.py").write_text("key = 'canary-8812-secret'\n")
    (project / "gone.py").write_text("gone = 1\n")
    (project / "url.py").write_text("url = 'https://me:canary-77@host/'\n")
    (project / "packed").write_bytes(b"\0canary-8812-secret\0")
    (project / ".env").write_text("A=canary-99\n")
    (project / "api_key.txt").write_text("canary-98\n")
    (project / "secrets.py").write_text("hidden = 1\n")
    (project / "big.npy").write_bytes(b"\0" * (code.FILE + 1))
    (project / "data.bin").write_bytes(b"\0" * (code.FILE + 1))
    (project / "other").mkdir()
    git(project / "other", "init", "-q")
    (project / "runs").mkdir()
    (project / "runs" / "config.yaml").write_text("x\n")
    os.mkfifo(project / "pipe")
    (project / ".gitmodules").write_text('[submodule "lib"]\n\tpath = their lib\n\turl = x\n')
    tree, patch = code_recorder.capture(project, [project / "runs"])
    secret, large = "holds what looks like a secret", f"is larger than {code.FILE:,} bytes"
    assert tree["left_out"] == {
        "helper.py": secret, "url.py": secret, "packed": secret, ".env": "is named like a secret",
        "api_key.txt": "is named like a secret", "big.npy": large, "data.bin": large,
        "other/": "is a repository of its own", "their lib": "is a submodule",
    }  # fmt: skip
    assert tree["changed"] == 3 and b"gone = 1" in patch and b"hidden = 1" in patch
    assert b"canary" not in patch


def test_bounds(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "FILES", 1)
    for name in ("b.dat", "a.dat", "code.py"):
        (project / name).write_text(name)
    tree, _ = code_recorder.capture(project, [])
    assert tree["left_out"].keys() == {"a.dat", "b.dat"}, "code comes before data"
    monkeypatch.setattr(code, "TOTAL", 10)
    (project / "helper.py").write_text("x = 1\n" * 100)
    made, patch = code_recorder.record([])
    assert made["tree"] is None and "printed more than 20 bytes" in made["notes"][0] and not patch


def test_a_record_for_each_state(project: Path) -> None:
    """A start that finds what the last one found adds nothing; a run that never began has none."""
    run = run_folder(project / "outputs" / "run")
    Recorder(run, Path("outputs")).write(last=True)
    (project / "helper.py").write_text("width = 8\n")
    Recorder(run, Path("outputs")).cancel()
    assert [path.name for path in code.folders(run)] == ["1"]
    Recorder(run, Path("outputs")).write(last=True)
    assert [path.name for path in code.folders(run)] == ["1", "2"]
    state = replay.read(str(run))
    assert state.record["tree"] is not None
    assert any("later start" in each for each in replay.notes(state, state.record["tree"]))


def test_what_cannot_be_made_again(project: Path, tmp_path: Path) -> None:
    assert "is not a folder" in refused(project / "none")
    assert "is not a run folder" in refused(project)
    run = run_folder(project / "outputs" / "run")
    (project / "helper.py").write_text("width = 8\n")
    other = run_folder(project / "outputs" / "other")
    patch = code.folders(other)[0] / code.PATCH
    patch.write_bytes(patch.read_bytes() + b"\n")
    assert main_of("replay", str(other)) == 2, "was changed since it was written"
    git(project, "commit", "-q", "-a", "--amend", "-m", "other")
    git(project, "reflog", "expire", "--expire=now", "--all")
    git(project, "gc", "-q", "--prune=now")
    assert main_of("replay", str(run)) == 2, "its commit is not there"
    (code.folders(run)[0] / code.RECORD).unlink()
    assert "is not there" in refused(run)
    os.rmdir(code.folders(run)[0])
    assert "nothing of its code was recorded" in refused(run)
    os.chdir(tmp_path)
    assert "is in no working tree of git" in refused(run_folder(tmp_path / "elsewhere"))


def test_code_of_another_user(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run for who names its digest; a change of the code or an override has another one."""
    run = run_folder(project / "outputs" / "run", "seed=1")
    name = replay.read(str(run)).name
    monkeypatch.setenv("XDG_STATE_HOME", str(project / "outputs" / "other"))
    text = refused(run)
    assert "are not signed by you" in text
    assert f"type: DTRAIN_TRUST={name} python -m dtrain replay {run}" in text
    monkeypatch.setenv("DTRAIN_TRUST", name)
    replay.read(str(run))
    command = json.loads((run / "command.json").read_text())
    (run / "command.json").write_text(json.dumps({**command, "overrides": ["seed=2"]}))
    assert "are not signed by you" in refused(run)
    record = code.folders(run)[0] / code.RECORD
    record.write_text(record.read_text().replace('"trust": []', '"trust": ["os"]'))
    assert "record.json was changed since it was written" in refused(run)


@pytest.mark.parametrize(
    ("then", "now", "same", "sentence"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], True, "same bits: 2 of 2 points of 1 metrics"),
        ([0.0, 1.0], [-0.0, 1.0 + 2**-52], False, "other bits: 0 of 2 points"),
        ([1.0, 2.0], [1.0], False, "1 points of "),
        ([1.0], [1.0, 2.0], True, "same bits: 1 of 1 points"),
        ([1.0], [], False, "nothing to compare"),
    ],
)
def test_points_are_compared_by_their_bits(
    then: list[float], now: list[float], same: bool, sentence: str, tmp_path: Path
) -> None:
    made = []
    for name, values in (("run", then), ("replay", now)):
        made.append(RunDir.create(tmp_path / name))
        journal = Journal(made[-1].journal)
        for step, value in enumerate(values, 1):
            points = {"loss": value, "examples_per_second": float(step + len(name))}
            journal.write("metrics", step=step, epoch=1, metrics=points)
        journal.close()
    lines, equal = bits.report(*made)
    assert equal is same and any(sentence in line for line in lines), lines
    made[1].command.write_text("{}")
    with pytest.raises(UsageError, match=r"RUN=.* is of dtrain 0\.1\.0"):
        bits.report(*made)


def test_data_that_no_record_holds_is_linked(tmp_path: Path) -> None:
    then, now = tmp_path / "then", tmp_path / "now"
    for path in ("data/a.csv", "data/b.csv", "whole/x.npz", "secret/y"):
        (then / path).parent.mkdir(parents=True, exist_ok=True)
        (then / path).write_text(path)
    (now / "data").mkdir(parents=True)
    (now / "data" / "a.csv").write_text("recorded")
    texts = ["data/*.csv", "whole/x.npz", "../then/secret", "/etc/passwd", "s3://b/data", "none"]
    assert replay.link_data(texts, then, now) == ["data/b.csv", "whole"]
    assert (now / "data" / "a.csv").read_text() == "recorded"
    assert (now / "whole" / "x.npz").read_text() == "whole/x.npz"
    (then / "data" / "c").touch()
    assert replay.link_data(["data"], then, now) == ["data/c"]


def test_changes_of_packages(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for name in ("Some_Thing-1.0.dist-info", "other-2.0.dist-info"):
        (first / name).mkdir(parents=True)
    (second / "some.thing-9.dist-info").mkdir(parents=True)
    url = {"url": "file:///src/my%20code", "dir_info": {"editable": True}}
    (first / "other-2.0.dist-info" / "direct_url.json").write_text(json.dumps(url))
    versions, editable = packages.installed([str(first), str(second), str(tmp_path / "none")])
    assert versions == {"some-thing": "1.0", "other": "2.0"} and editable == ["/src/my code"]


def test_git_is_stopped(project: Path) -> None:
    with pytest.raises(own_git.GitError, match="took too long"):
        own_git.run(project, "-c", "alias.wait=!sleep 60", "wait", seconds=0.05)
    with pytest.raises(own_git.GitError, match="git rev-parse"):
        own_git.run(project, "rev-parse", "--verify", "nowhere")
    with pytest.raises(own_git.GitError, match="more than 3 bytes"):
        own_git.run(project, "rev-parse", "HEAD", most=3)


def test_a_dirty_tree_replays_to_the_same_bits(
    project: Path, dtrain: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """After the tree has moved on; with the variables of the run, and overrides in their places."""
    monkeypatch.setenv("DTRAIN_TRUST", "mine")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    (project / "helper.py").write_text("import extra\nwidth = 5 + extra.more\n")
    (project / "extra.py").write_text("more = 2\n")
    without = [word for word in QUICK if not word.startswith("model")]
    run = dtrain(*without, "trainer.epochs=1", "model=custom", "model._target_=mine.build")
    assert run.code == 0, run.output
    (project / "extra.py").unlink()
    (project / "helper.py").write_text("width = 4\n")
    git(project, "commit", "-q", "-a", "-m", "second")
    before = objects(project)
    monkeypatch.delenv("DTRAIN_TRUST")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    assert main_of("replay", str(run.rundir.path)) == 0
    out, err = capfd.readouterr()
    [to] = project.glob("outputs/*/*_replay")
    assert "same bits: " in out and "checkpoint 4 has the same bits" in out, out + err
    assert objects(project) == before
    mine, theirs = (code.read(code.folders(each)[0]) for each in (run.rundir.path, to))
    assert mine["tree"] is not None and theirs["tree"] is not None
    assert mine["tree"]["patch"] == theirs["tree"]["patch"]
    assert theirs["environment"]["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert main_of("compare", "bits=true", str(run.rundir.path), str(to)) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_replay_leaves_no_worktree(
    project: Path, dtrain: Any, number: signal.Signals
) -> None:
    run = dtrain(*QUICK, "trainer.epochs=1")
    assert run.code == 0, run.output
    before, path = objects(project), run.rundir.command
    longer = private.sign_command([*QUICK, "trainer.epochs=9000"], None, None)
    path.write_text(json.dumps({**json.loads(path.read_text()), **longer}))
    words = [sys.executable, "-m", "dtrain", "replay", str(run.rundir.path)]
    with subprocess.Popen(words) as process:
        while not list(project.glob("outputs/*/*_replay/progress.json")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait() == 75
    assert objects(project) == before
    assert len(git(project, "worktree", "list").splitlines()) == 1


@pytest.mark.faults
def test_a_job_of_several_tasks_and_its_fork_replay_to_the_same_bits(
    project: Path, dtrain: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "mine")
    (project / "helper.py").write_text("width = 7\n")
    without = [word for word in QUICK if not word.startswith("model")]
    mine = ["model=custom", "model._target_=mine.build"]
    run = dtrain(*without, *mine, "trainer.epochs=1", "strategy=multiworker")
    assert run.code == 0, run.output
    fork = dtrain(f"fork={run.rundir.path}", "trainer.epochs=2", "strategy=mirrored")
    assert fork.code == 0, fork.output
    (project / "helper.py").write_text("width = 5\n")
    monkeypatch.delenv("DTRAIN_TRUST")
    for each, step in ((run, 4), (fork, 8)):
        capfd.readouterr()
        code = main_of("replay", str(each.rundir.path))
        printed = "".join(capfd.readouterr())
        assert code == 0 and f"checkpoint {step} has the same bits" in printed, printed


def main_of(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["dtrain", *words])
        return main()
