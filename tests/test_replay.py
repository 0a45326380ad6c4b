"""The code of a run: what is recorded of it, and that it is built again to the byte."""

from __future__ import annotations

import argparse
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dtrain.__main__ import main
from dtrain.compare import bits
from dtrain.config import consent
from dtrain.controller.code import capture, changes, checkout, recorder, rerun, verdict
from dtrain.controller.code import state as states
from dtrain.controller.code.checkout import Checkout
from dtrain.controller.code.recorder import Recorder
from dtrain.controller.commands import replay
from dtrain.errors import UsageError
from dtrain.host import git as own_git
from dtrain.host import packages
from dtrain.run import code
from dtrain.run.folder import RunDir
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


@pytest.fixture
def alone(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That tree, without the one of dtrain itself, which has a thousand files."""
    roots = recorder.roots

    def here(more: Any) -> Any:
        found, outside = roots(more)
        return {top: below for top, below in found.items() if top == project}, outside

    monkeypatch.setattr(recorder, "roots", here)
    return project


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
    command = consent.signed(list(overrides), None, None)
    (folder / "command.json").write_text(json.dumps(command))
    (folder / "config.yaml").write_text("name: x\n")
    Recorder(folder, Path("outputs")).write(last=True)
    return folder


def test_a_working_tree_is_built_again(alone: Path) -> None:
    """To the byte, by its files and by plain git; and the user's own tree is as it was."""
    dirty(alone)
    before = git(alone, "status", "--porcelain", "-z"), (alone / ".git/index").read_bytes()
    run = run_folder(alone / "outputs" / "run")
    state = states.read(run)
    [tree] = [each for each in state.record["trees"] if each["path"] == str(alone)]
    assert tree["left_out"] == [] and tree["added"] == 4
    made = Checkout(state, alone / "outputs" / ".checkout")
    made.build()
    top = Path(made.moved[str(alone)])
    assert files(top) == files(alone)
    assert git(top, "rev-parse", "HEAD") == git(alone, "rev-parse", "HEAD")
    assert git(top, "diff", "--binary", "HEAD") == git(alone, "diff", "--binary", "HEAD")
    assert (git(alone, "status", "--porcelain", "-z"), (alone / ".git/index").read_bytes()) == (
        before
    )
    number = state.record["trees"].index(tree)
    again, beside = capture.tree(top, tree["roots"], [alone / "outputs"], number)
    assert {**again, "path": tree["path"]} == tree and len(beside) == 2
    assert made.mapped(f"{alone}/a b/x") == top / "a b" / "x"
    made.remove()
    assert not (alone / "outputs" / ".checkout").exists()


def test_what_is_left_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets, what is large, what is another repository's, and run folders; each with a reason."""
    monkeypatch.setenv("MY_API_KEY", "canary-8812-secret")
    (project / "helper.py").write_text("key = 'canary-8812-secret'\n")
    (project / "gone.py").write_text("gone = 1\n")
    (project / "url.py").write_text("url = 'https://me:canary-77@host/'\n")
    (project / ".env").write_text("A=canary-99\n")
    (project / "api_key.txt").write_text("canary-98\n")
    (project / "secrets.py").write_text("hidden = 1\n")
    (project / "big.npy").write_bytes(b"\0" * (code.FILE + 1))
    (project / "out").symlink_to("/etc")
    (project / "other").mkdir()
    git(project / "other", "init", "-q")
    (project / "runs").mkdir()
    (project / "runs" / "config.yaml").write_text("x\n")
    os.mkfifo(project / "pipe")
    tree, beside = capture.tree(project, ["."], [project / "runs"], 0)
    left = {each["path"]: each["why"] for each in tree["left_out"]}
    assert left == {
        "helper.py": "holds what looks like a secret", "url.py": "holds what looks like a secret",
        ".env": "is named like a secret", "api_key.txt": "is named like a secret",
        "big.npy": f"is larger than {code.FILE:,} bytes", "out": "is a link to elsewhere",
        "other/": "is a repository of its own",
    }  # fmt: skip
    assert tree["changed"] == 1 and tree["added"] == 1 and tree["untracked"] is not None
    assert b"gone = 1" in beside["0.patch"]
    assert not any(b"canary" in data for data in beside.values())


def test_bounds(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "FILES", 1)
    monkeypatch.setattr(code, "PATCH", 300)
    (project / "helper.py").write_text("x = 1\n" * 100)
    for name in ("b.dat", "a.dat", "code.py"):
        (project / name).write_text(name)
    tree, _ = capture.tree(project, ["."], [project / "outputs"], 0)
    left = {each["path"]: each["why"] for each in tree["left_out"]}
    assert left.keys() == {"helper.py", "a.dat", "b.dat"}, "code comes before data"
    assert (tree["patch"], tree["added"]) == (None, 1)


def test_a_record_for_each_state(alone: Path) -> None:
    """A start that finds what the last one found adds nothing; a run that never began has none."""
    run = run_folder(alone / "outputs" / "run")
    again = Recorder(run, Path("outputs"))
    again.write(last=True)
    assert [path.name for path in code.folders(run)] == ["1"]
    (alone / "helper.py").write_text("width = 8\n")
    never = Recorder(run, Path("outputs"))
    never.cancel()
    never.write(last=True)
    assert [path.name for path in code.folders(run)] == ["1"]
    other = Recorder(run, Path("outputs"))
    other.write(last=True)
    assert [path.name for path in code.folders(run)] == ["1", "2"]
    state = states.read(run)
    assert state.own and len(state.later) == 1


def test_git_that_does_not_answer(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(alone, "checkout", "-q", "--orphan", "new")
    found, beside = recorder.record([alone / "outputs"])
    assert f"{alone} is not recorded: it has no commit yet" in found["notes"]
    monkeypatch.setenv("PATH", str(alone))
    found, beside = recorder.record([alone / "outputs"])
    assert found["trees"] == [] and beside == {}
    assert any("git cannot be started" in note for note in found["notes"])


def refused(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        given = replay._parser().parse_intermixed_args(list(words))
        made = replay.Replay(states.read(given.run), given)
        made.check()
        made.run()
    return str(caught.value)


def test_what_cannot_be_made_again(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence each, and nothing is left behind."""
    dirty(alone)
    run = run_folder(tmp_path / "run")
    assert "is not a folder" in refused("nowhere")
    (tmp_path / "old").mkdir()
    for name in ("command.json", "config.yaml"):
        (tmp_path / "old" / name).write_bytes((run / name).read_bytes())
    assert "nothing of its code was recorded" in refused(str(tmp_path / "old"))
    assert "is the replay's own to choose" in refused(str(run), "tracking=mlflow")
    assert "OVERRIDE=none: has no value" in refused(str(run), "none")
    git(alone, "commit", "-q", "-a", "-m", "second")
    git(alone, "commit", "-q", "--amend", "-m", "rewritten")
    second = run_folder(tmp_path / "second")
    git(alone, "reset", "-q", "--hard", "HEAD~")
    git(alone, "reflog", "expire", "--expire=now", "--all")
    git(alone, "gc", "-q", "--prune=now")
    assert "the history was rewritten, or is not here" in refused(str(second))
    assert not list(Path("outputs").rglob("*")), "nothing is left of what was begun"

    state = states.read(run)
    patch = state.folder / "0.patch"
    data = patch.read_bytes()
    patch.write_bytes(data + b"\n")
    assert "0.patch was changed since it was written" in refused(str(run))
    patch.write_bytes(data)
    monkeypatch.setattr(capture, "difference", lambda *_: b"")
    assert "came out otherwise" in refused(str(run))


def test_code_of_another_user(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run for who names its digest; a change of the code or an override has another one."""
    run = run_folder(alone / "outputs" / "run", "seed=1")
    monkeypatch.setenv("XDG_STATE_HOME", str(alone / "outputs" / "other"))
    said = refused(str(run))
    assert "are not signed by you" in said
    name = states.read(run).name
    assert f"type: DTRAIN_TRUST={name} python -m dtrain replay {run}" in said
    monkeypatch.setenv("DTRAIN_TRUST", name)
    states.read(run).check_trust()
    command = json.loads((run / "command.json").read_text())
    (run / "command.json").write_text(json.dumps({**command, "overrides": ["seed=2"]}))
    assert "are not signed by you" in refused(str(run))
    record = code.folders(run)[0] / code.RECORD
    record.write_text(record.read_text().replace('"trust": []', '"trust": ["os"]'))
    assert "record.json was changed since it was written" in refused(str(run))


def test_code_that_git_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    monkeypatch.setenv("DTRAIN_TRUST", "mine")
    run = run_folder(tmp_path / "run")
    assert f"{tmp_path} is in no working tree of git" in refused(str(run))
    monkeypatch.setenv("DTRAIN_TRUST", "")
    states.check_complete(states.read(run_folder(tmp_path / "builtin")))


def test_points_are_compared_by_their_bits(tmp_path: Path) -> None:
    one = {"loss": {1: 0.1, 2: float("nan"), 3: 0.0, 4: 1.0}, "val_loss": {4: 2.0}}
    other = {"loss": {1: 0.1, 2: float("nan"), 3: -0.0, 4: 1.0 + 2**-52}, "accuracy": {4: 1.0}}
    loss, accuracy, val_loss = bits.compare(one, other)
    assert (loss.common, loss.differing, loss.first, loss.largest) == (4, 2, 3, 2**-52)
    assert (accuracy.more, val_loss.missing, val_loss.common) == (1, 1, 0)
    assert bits.compare({"a": {1: 1.0}}, {"a": {1: float("nan")}})[0].largest == float("inf")
    assert bits.table([loss])[1].split() == ["loss", "4", "2", "2.22e-16", "3"]


@pytest.mark.parametrize(
    ("then", "now", "tolerance", "whole", "same", "sentence"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, True, True, "same bits: 2 points of 1 metrics"),
        ([1.0, 2.0], [1.0, 2.5], 0.0, True, False, "differs: first loss at step 2, by at most 0.5"),
        ([1.0, 2.0], [1.0, 2.5], 0.5, True, True, "within the tolerance: first loss at step 2"),
        ([1.0, 2.0], [1.0], 0.0, True, False, "1 points of the run are not in the replay"),
        ([1.0, 2.0], [1.0], 0.0, False, True, "1 points of the run are not in the replay"),
        ([1.0], [1.0, 2.0], 0.0, True, True, "same bits: 1 points"),
        ([1.0], [], 0.0, False, False, "nothing to compare"),
    ],
)
def test_verdicts(
    then: list[float], now: list[float], tolerance: float, whole: bool, same: bool, sentence: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    made = []
    for name, values in (("run", then), ("replay", now)):
        rundir = RunDir.create(tmp_path / name)
        rundir.config.write_text(f"seed: 1\nname: {name}\n")
        journal = Journal(rundir.journal)
        for step, value in enumerate(values, 1):
            points = {"loss": value, "examples_per_second": float(step + len(name))}
            journal.write("metrics", step=step, epoch=1, metrics=points)
        journal.close()
        made.append(rundir)
    found = verdict.of(made[0], made[1], tolerance, whole)
    assert found.same is same and sentence in found.sentence, found.sentence
    assert found.notes == []
    json.dumps(found.to_json(), allow_nan=False)


def test_what_is_run(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's overrides but for those replaced, its variables, and paths of its checkout."""
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    monkeypatch.setenv("TF_VAR_db", "canary")
    given = ("model=mlp", "model.units=[3]", "+experiment=x", "tracking.uri=http://x",
             "output_dir=s3://b/x", "fork=outputs/x", "seed=1")  # fmt: skip
    state = states.read(run_folder(alone / "outputs" / "run", *given))
    assert state.record["environment"]["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert "TF_VAR_db" not in state.record["environment"]
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = {each.name: (each.then, each.now) for each in changes.variables(state.record)}
    assert found == {"TF_ENABLE_ONEDNN_OPTS": ("0", "1"), "OMP_NUM_THREADS": ("-", "3")}
    own = rerun.overrides(state, ["model=cnn", "output_dir=y"], "/c/5")
    assert own == ["+experiment=x", "seed=1", "model=cnn", "fork='/c/5'", "tracking=none"]
    made = rerun.environment(state, Checkout(state, alone / "x"))
    assert made["TF_ENABLE_ONEDNN_OPTS"] == "0" and "OMP_NUM_THREADS" not in made


def test_changes_of_packages(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for name in ("Some_Thing-1.0.dist-info", "other-2.0.dist-info"):
        (first / name).mkdir(parents=True)
    (second / "some.thing-9.dist-info").mkdir(parents=True)
    url = {"url": "file:///src/my%20code", "dir_info": {"editable": True}}
    (first / "other-2.0.dist-info" / "direct_url.json").write_text(json.dumps(url))
    versions, editable = packages.installed([str(first), str(second), str(tmp_path / "none")])
    assert versions == {"some-thing": "1.0", "other": "2.0"} and editable == ["/src/my code"]
    record: Any = {"machine": recorder.machine(), "packages": {**packages.installed()[0]}}
    assert changes.since(record) == []
    record["packages"]["numpy"] = "0.1"
    [change] = changes.since(record)
    assert (change.name, change.then) == ("numpy", "0.1")
    assert "numpy" in changes.table([change])[1]


def test_data_that_no_record_holds_is_linked(tmp_path: Path) -> None:
    then, now = tmp_path / "then", tmp_path / "now"
    for path in ("data/a.csv", "data/b.csv", "whole/x.npz", "secret/y"):
        (then / path).parent.mkdir(parents=True, exist_ok=True)
        (then / path).write_text(path)
    (now / "data").mkdir(parents=True)
    (now / "data" / "a.csv").write_text("recorded")
    texts = ["data/*.csv", "whole/x.npz", "../then/secret", "/etc/passwd", "s3://b/data", "none"]
    assert checkout.link_data(texts, then, now) == ["data/b.csv", "whole/x.npz"]
    assert (now / "data" / "a.csv").read_text() == "recorded"
    assert (now / "whole" / "x.npz").read_text() == "whole/x.npz"


def test_git_is_stopped(project: Path) -> None:
    with pytest.raises(own_git.GitError, match="took too long"):
        own_git.run(project, "-c", "alias.wait=!sleep 60", "wait", seconds=0.05)
    with pytest.raises(own_git.GitError, match="git rev-parse"):
        own_git.run(project, "rev-parse", "--verify", "nowhere")
    with pytest.raises(own_git.GitError, match="more than 3 bytes"):
        own_git.run(project, "rev-parse", "HEAD", most=3)


def test_options() -> None:
    parser = replay._parser()
    for bad in ("nan", "-1", "x", "inf"):
        with pytest.raises(SystemExit):
            parser.parse_args(["run", "--tolerance", bad])
    assert parser.parse_args(["run", "--tolerance", "1e-5"]).tolerance == 1e-5
    assert isinstance(parser.parse_intermixed_args(["a", "--keep", "b=1"]), argparse.Namespace)


def test_a_dirty_tree_replays_to_the_same_bits(
    project: Path, dtrain: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """After the tree has moved on; and the code of now does not give them: plain git says so."""
    monkeypatch.setenv("DTRAIN_TRUST", "mine")
    (project / "helper.py").write_text("import extra\nwidth = 5 + extra.more\n")
    (project / "extra.py").write_text("more = 2\n")
    without = [word for word in QUICK if not word.startswith("model")]
    run = dtrain(*without, "trainer.epochs=1", "model=custom", "model._target_=mine.build")
    assert run.code == 0, run.output
    (project / "extra.py").unlink()
    (project / "helper.py").write_text("width = 4\n")
    git(project, "commit", "-q", "-a", "-m", "second")
    before = git(project, "status", "--porcelain", "--ignored=no"), git(project, "stash", "list")
    capfd.readouterr()
    monkeypatch.delenv("DTRAIN_TRUST")
    assert main_of("replay", str(run.rundir.path), monkeypatch) == 0
    out, err = capfd.readouterr()
    assert "same bits: " in out and "checkpoint 4 has the same bits" in out, out + err
    assert before == (
        git(project, "status", "--porcelain", "--ignored=no"), git(project, "stash", "list"),
    )  # fmt: skip
    [made] = Path("outputs").glob("*/*_replay/replay.json")
    about = json.loads(made.read_text())
    assert about["same"] is True and {each["name"] for each in about["metrics"]} >= {"loss"}
    [mine, theirs] = (code.read(code.folders(each)[0])["trees"][0]
                      for each in (run.rundir.path, made.parent))  # fmt: skip
    assert {**mine, "path": ""} == {**theirs, "path": ""}
    assert not list(Path("outputs").rglob(".*.checkout"))


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
        code = main_of("replay", str(each.rundir.path), monkeypatch)
        printed = "".join(capfd.readouterr())
        assert code == 0 and f"checkpoint {step} has the same bits" in printed, printed


def main_of(command: str, run: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["dtrain", command, run])
    return main()
