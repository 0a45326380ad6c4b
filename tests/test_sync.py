"""Runs that are shipped later, from where they are now."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtrain.cli.commands import sync
from dtrain.config import private, tree, trust
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir, write_json
from dtrain.run.journal import Journal
from dtrain.tracking.mlflow.store import import_mlflow
from tests.test_schema import composed
from tests.test_tracking import CLUSTER

PLACE = Path("2026-01-01") / "10-00-00_run"


def leave(output_dir: Path, *words: str) -> RunDir:
    """Write a run folder, which was not tracked."""
    rundir = RunDir.create(output_dir / PLACE)
    rundir.config.write_text(tree.to_yaml(composed(f"output_dir={output_dir}", *words)))
    write_json(rundir.cluster, CLUSTER.to_json())
    uri = next((word.partition("=")[2] for word in words), None)
    write_json(rundir.command, {"format": 2, **private.sign_command([], None, uri)})
    journal = Journal(rundir.journal)
    journal.write("start", step=0)
    journal.write("metrics", step=1, metrics={"loss": 0.5})
    journal.close()
    write_json(rundir.result, {"status": "FINISHED", "started": 1000.0, "seconds": 5.0})
    return rundir


@pytest.mark.usefixtures("store")
def test_a_run_whose_project_was_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It goes to the store beside it, and nothing is made where the project was."""
    old = leave(tmp_path / "old" / "outputs")
    new = tmp_path / "new"
    (tmp_path / "old").rename(new)
    shutil.copy(tmp_path / "outputs" / "mlflow.db", new / "outputs" / "mlflow.db")
    with (new / "outputs" / PLACE / "journal.jsonl").open("ab") as file:
        file.write(b"\0\n")
    assert sync.main([str(new / "outputs" / PLACE)]) == 0
    out, err = capsys.readouterr()
    address = f"sqlite:///{new}/outputs/mlflow.db"
    assert out == f"shipped to {address}\n"
    assert err.splitlines() == [
        f"shipping to {address}",
        f"{new}/outputs/{PLACE}: journal.jsonl: passed over 1 damaged line, the first is line 3",
    ]
    assert (new / "outputs" / "mlartifacts").is_dir()
    assert not old.path.parents[2].exists()
    client = import_mlflow().tracking.MlflowClient(address)
    [experiment] = [e for e in client.search_experiments() if e.name != "Default"]
    [run] = client.search_runs([experiment.experiment_id])
    assert run.data.metrics == {"loss": 0.5}
    # Copied and moved once more, store and all: its artifacts would be put where they were.
    shutil.copytree(new, tmp_path / "copy")
    new.rename(tmp_path / "newer")
    for name in ("copy", "newer"):
        assert sync.main([str(tmp_path / name / "outputs" / PLACE)]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"keeps its files in {new.as_uri()}/outputs/mlartifacts" in error
        assert "was moved, copied" in error and "tracking.uri" in error
    assert not new.exists()


@pytest.mark.parametrize(
    ("words", "move", "message"),
    [
        ((), "elsewhere", "is not where its store is known"),
        (("tracking.uri=sqlite:////nowhere/mlflow.db",), None, "/nowhere/mlflow.db is not there"),
    ],
)
def test_a_store_that_is_not_known(
    tmp_path: Path, words: tuple[str, ...], move: str | None,
    message: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = leave(tmp_path / "outputs", *words).path
    if move is not None:
        folder = folder.rename(tmp_path / move)
    found = sorted(tmp_path.rglob("*"))
    assert sync.main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert message in error and "tracking.uri" in error and len(error.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == found


DAMAGES: dict[str, Callable[[RunDir], object]] = {
    "model.keras is a symbolic link": lambda run: run.model.symlink_to("/etc/passwd"),
    "pipe is a named pipe": lambda run: os.mkfifo(run.path / "pipe"),
    "result.json: status 1 is none of": lambda run: run.result.write_text('{"status": 1}'),
    "command.json: sweep.number": lambda run: write_json(
        run.command, {"format": 2, "overrides": [], "sweep": {"number": "1", "differs": {}}}
    ),
    "config.yaml: tracking is not there": lambda run: run.config.write_text(
        "name: a\noutput_dir: b\nstrategy: {name: c}\n"
    ),
    "journal.jsonl has more than": lambda run: run.journal.write_bytes(b"\n" * 100_001),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_file_is_named(
    tmp_path: Path, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rundir = leave(tmp_path / "outputs")
    DAMAGES[message](rundir)
    assert sync.main([str(rundir.path)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and message in error
    assert not (tmp_path / "outputs" / "mlflow.db").exists()


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a run folder, sync it, and return the exit code and what was printed."""
    monkeypatch.setenv("CANARY", "the canary")
    monkeypatch.delenv("DTRAIN_ENV", raising=False)
    trust.begin([], None)
    (tmp_path / "run").mkdir()
    cluster = Cluster((Task("chief", 0, 1),), "cpu", 1, {})
    write_json(tmp_path / "run" / "cluster.json", cluster.to_json())
    (tmp_path / "run" / "journal.jsonl").touch()

    def shipped(config: str, command: Any, capsys: Any, *more: str) -> tuple[int, str]:
        (tmp_path / "run" / "config.yaml").write_text(config)
        write_json(tmp_path / "run" / "command.json", command)
        code = sync.main([str(tmp_path / "run"), *more])
        return code, capsys.readouterr().err

    return shipped


MLFLOW = "dtrain.tracking.mlflow.tracker.MLflow"
REST = "output_dir: {}\nname: {}\nstrategy: {{name: b}}\n"
FORGED = {
    "a server": "http://127.0.0.1:9/x",
    "a secret in it": "http://127.0.0.1:9/${oc.env:CANARY}",
    "a file of the user's": "sqlite:////tmp/mine.db",
    "put together": "http://127.0.0.1:9/${oc.decode:'${oc.env:CANARY}'}",
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_address(case: str, sent: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = f"tracking: {{_target_: {MLFLOW}, experiment: a, uri: {json.dumps(FORGED[case])}}}\n"
    config += REST.format("x", "a")
    for command in (
        {"format": 2, "overrides": []},
        {"format": 2, **private.sign_command(["seed=1"], None, "http://127.0.0.1:9")},
    ):
        code, printed = sent(config, command, capsys)
        assert code == 2
        assert printed.startswith("error: tracking.uri=") and "tracking.uri=ADDRESS" in printed
        assert "another user or machine" in printed
        assert "the canary" not in printed and "shipping to" not in printed


def test_a_forged_name(
    sent: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, store: Path
) -> None:
    config = f"tracking: {{_target_: {MLFLOW}, uri: null, experiment: '${{oc.env:CANARY}}'}}\n"
    config += REST.format(tmp_path / "outputs", "'${oc.env:CANARY}'")
    code, printed = sent(
        config, {"format": 2, "overrides": []}, capsys, f"tracking.uri=sqlite:///{store}"
    )
    assert code == 2, printed
    assert f"shipping to sqlite:///{store}" in printed
    assert "asks for the variable CANARY of your environment" in printed
    assert "the canary" not in printed
    assert b"the canary" not in store.read_bytes()


def test_trackers_that_the_user_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of the run's own; nothing goes to MLflow."""
    rundir = leave(tmp_path / "outputs", "tracking.experiment=mine")
    assert sync.main([str(rundir.path), "tracking=csv"]) == 0
    assert capsys.readouterr().out == "shipped to csv/ of the run folder\n"
    assert (rundir.path / "csv" / "points.csv").read_text().endswith(",loss,0.5\n")
    assert "optimizer.learning_rate,0.001\n" in (rundir.path / "csv" / "facts.csv").read_text()
    assert not (tmp_path / "outputs" / "mlflow.db").exists()
    assert sync.main([str(rundir.path), "trainer.epochs=3"]) == 2
    assert "trainer.epochs=3: is no word of sync" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        sync.main([str(rundir.path), "tracking=nope"])


def test_forged_trackers(sent: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A folder from elsewhere writes no files of its choice, and sends nothing with my key."""
    own = {"_target_": "dtrain.tracking.sinks.csv.CSV", "folder": f"{tmp_path}/mine"}
    tracking = {"_target_": "dtrain.tracking.none.NoTracker", "experiment": "a", "csv": own}
    config = f"tracking: {json.dumps(tracking)}\n" + REST.format("x", "a")
    code, printed = sent(config, {"format": 2, "overrides": []}, capsys)
    assert code == 2 and "another user or machine made" in printed and "tracking=NAME" in printed
    assert not (tmp_path / "mine").exists()
    signed = private.sign_command([], None, [None, {"csv": own}])
    assert "another user" not in sent(config, {"format": 2, **signed}, capsys)[1]
