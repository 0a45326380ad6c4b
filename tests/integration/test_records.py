"""What a run leaves behind: MLflow, TensorBoard, the journal, the run folder."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtrain.run.times import shown
from dtrain.tracking import delivery
from dtrain.tracking.mlflow.store import import_mlflow
from tests import warm


def runs(folder: Path) -> list[Any]:
    client = import_mlflow().tracking.MlflowClient(f"sqlite:///{folder}/outputs/mlflow.db")
    found = client.search_experiments()
    return [(client, run) for run in client.search_runs([e.experiment_id for e in found])]


def points(client: Any, run: Any, key: str) -> dict[int, float]:
    history = client.get_metric_history(run.info.run_id, key)
    assert len(history) == len({p.step for p in history}), "no point stands twice"
    return {p.step: p.value for p in history}


def event_points(folder: str) -> dict[str, dict[int, float]]:
    """Read TensorBoard's event files back, in a process that has TensorFlow."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorflow import make_ndarray

    read: dict[str, dict[int, float]] = {}
    for split, prefix in (("train", ""), ("validation", "val_")):
        events = EventAccumulator(f"{folder}/{split}", size_guidance={"tensors": 0})
        events.Reload()
        for tag in events.Tags()["tensors"]:
            read[prefix + tag] = {
                e.step: float(make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)
            }
    return read


@pytest.mark.usefixtures("store")
def test_the_default_experiment(dtrain, tmp_path: Path) -> None:
    """The promise of the documents: accuracy, one FINISHED run, the same points everywhere."""
    run = dtrain("strategy=mirrored")
    assert run.code == 0, run.output
    assert run.result["status"] == "FINISHED"
    assert run.result["replicas"] == 2
    assert run.result["objective"] >= 0.97
    assert "compare: python -m dtrain ui\n" in run.output
    assert "tensorboard --logdir outputs/" in run.output

    [(client, recorded)] = runs(tmp_path)
    assert recorded.info.status == "FINISHED"
    names = {name for e in run.events("metrics") for name in e["metrics"]}
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "learning_rate"} <= names
    written = warm.call(event_points, 1, {"folder": str(run.rundir.tensorboard)})
    for name in names:
        expected = run.points(name)
        assert points(client, recorded, shown(name)) == expected
        assert written[shown(name)].keys() == expected.keys()
        for step, value in expected.items():  # event files hold float32
            assert math.isclose(written[shown(name)][step], value, rel_tol=1e-6)
    assert written.keys() == set(map(shown, names))

    parameters = recorded.data.params
    assert parameters["trainer.batch_size"] == "64"
    assert parameters["replicas"] == "2"
    assert parameters["per_replica_batch_size"] == "32"
    assert parameters["steps_per_epoch"] == "22"
    assert int(parameters["parameters"]) > 10_000
    tags = recorded.data.tags
    assert tags["strategy"] == "mirrored"
    assert tags["device_kind"] in ("cpu", "gpu")
    assert {"host", "tensorflow", "keras", "dtrain"} <= tags.keys()
    artifacts = {a.path for a in client.list_artifacts(recorded.info.run_id)}
    assert {"config.yaml", "model.keras", "result.json"} <= artifacts


@pytest.mark.usefixtures("store")
@pytest.mark.faults
def test_git_state_is_recorded(dtrain, quick, tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        done = subprocess.run(["git", *identity, *arguments], capture_output=True, check=True)
        return done.stdout.decode().strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    Path("untracked.txt").touch()  # what runs write does not count
    assert dtrain(*quick, "tracking=mlflow").code == 0
    [(_, recorded)] = runs(tmp_path)
    assert recorded.data.tags["git_commit"] == git("rev-parse", "HEAD")
    assert recorded.data.tags["git_dirty"] == "true"


@pytest.mark.faults
@pytest.mark.usefixtures("store")
def test_the_final_model_predicts_what_was_recorded(dtrain, quick) -> None:
    run = dtrain(*quick)
    loaded = warm.call(evaluate_saved, 1, {"path": str(run.rundir.model)})
    assert math.isclose(loaded, run.result["metrics"]["val_accuracy"], rel_tol=1e-5)


def evaluate_saved(path: str) -> float:
    import keras

    from dtrain.datasets import synthetic

    splits = synthetic(128, 50, [8], 4)
    model = keras.models.load_model(path)
    return float(model.evaluate(splits.validation.x, splits.validation.y, verbose=0)[1])


@pytest.mark.faults
@pytest.mark.usefixtures("store")
def test_a_long_history_stays_readable(dtrain, quick, tmp_path: Path) -> None:
    run = dtrain(
        *quick, "tracking=mlflow", "trainer.steps_per_epoch=1000", "trainer.epochs=4",
        "trainer.log_every_steps=null", "checkpoint.every_epochs=4",
    )  # fmt: skip
    assert run.code == 0, run.output
    loss = run.points("loss")
    assert len(loss) == 200
    assert max(loss) == 4000
    [(client, recorded)] = runs(tmp_path)
    assert points(client, recorded, "loss") == loss


@pytest.mark.faults
def test_averages_over_an_interval(dtrain, quick) -> None:
    """A point is the mean over its steps: of single points, that of the same run at each step."""
    each = dtrain(*quick, "seed=3").points("loss")
    wide = dtrain(*quick, "seed=3", "trainer.log_every_steps=3").points("loss")
    assert list(wide) == [3, 6, 8]  # the last one holds what is left
    for last, steps in ((3, (1, 2, 3)), (6, (4, 5, 6)), (8, (7, 8))):
        mean = sum(each[step] for step in steps) / len(steps)
        assert math.isclose(wide[last], mean, rel_tol=1e-6)


@pytest.mark.faults
def test_histograms_and_trace_on_request(dtrain, quick) -> None:
    run = dtrain(*quick, "tracking.histograms=true", "tracking.profile_steps=[2,4]")
    assert run.code == 0, run.output
    assert list(run.rundir.tensorboard.glob("plugins/profile/*/*.xplane.pb"))
    written = warm.call(event_points_all, 1, {"folder": str(run.rundir.tensorboard / "train")})
    assert any("kernel" in tag for tag in written)
    plain = dtrain(*quick)
    assert not list(plain.rundir.tensorboard.glob("plugins"))
    tags = warm.call(event_points_all, 1, {"folder": str(plain.rundir.tensorboard / "train")})
    assert set(tags) == {
        "loss", "accuracy", "learning_rate", "time/examples_per_second", "time/input_seconds",
        "time/host_seconds", "epoch_examples", "examples",
    }  # fmt: skip


def event_points_all(folder: str) -> list[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder)
    events.Reload()
    assert not events.Tags()["graph"]
    return list(events.Tags()["tensors"])


@pytest.mark.usefixtures("store")
def test_the_run_folder(dtrain, quick) -> None:
    run = dtrain(*quick)
    names = {p.name for p in run.rundir.path.iterdir()}
    assert {
        "config.yaml", "command.json", "cluster.json", "journal.jsonl", "result.json", "logs",
        "checkpoints", ".lock",
        "tensorboard", "model.keras", "progress.json", "code",
    } == names  # fmt: skip
    config = yaml.safe_load(run.rundir.config.read_text())
    assert config["trainer"]["batch_size"] == 32
    assert config["name"] == "mlp_default"
    assert "${" not in run.rundir.config.read_text()
    assert [e["event"] for e in run.events("end")] == ["end"]
    assert run.result["examples"] == 2 * 4 * 32
    cluster = json.loads(run.rundir.cluster.read_text())
    assert [task["role"] for task in cluster["tasks"]] == ["chief"]


@pytest.mark.usefixtures("store")
@pytest.mark.faults
def test_examples_are_counted_by_epoch(dtrain, quick, tmp_path: Path) -> None:
    """One worker of two is done without: what it computes is not trained on."""
    half = (
        *quick, "strategy=ps", "strategy.update=sync", "strategy.backup_workers=1",
        "checkpoint.every_steps=3", "checkpoint.every_epochs=null", "tracking=mlflow",
    )  # fmt: skip
    run = dtrain(*half)
    assert run.code == 0, run.output
    assert run.points("epoch_examples") == {4: 64.0, 8: 64.0}
    assert run.points("examples") == {4: 64.0, 8: 128.0}
    assert (run.result["epoch_examples"], run.result["examples"]) == ([64, 64], 128)
    assert run.result["train_examples"] == 128
    [(client, recorded)] = runs(tmp_path)
    for name in ("epoch_examples", "examples"):
        assert points(client, recorded, name) == run.points(name)
    # Gone on with in the middle of an epoch, by all: the epoch is a whole one.
    fork = dtrain(f"fork={run.rundir.checkpoints / '6'}", "strategy.backup_workers=0")
    assert fork.points("epoch_examples") == {8: 32.0 + 64.0}
    assert (fork.result["epoch_examples"], fork.result["examples"]) == ([96], 160)


@pytest.mark.faults
def test_sync_ships_what_was_not_tracked_and_nothing_twice(dtrain, quick, tmp_path: Path) -> None:
    run = dtrain(*quick)
    assert not (tmp_path / "outputs" / "mlflow.db").exists()
    command = [sys.executable, "-m", "dtrain", "sync", str(run.rundir.path)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "shipped to sqlite:///" in done.stdout
        [(client, recorded)] = runs(tmp_path)
        assert recorded.info.status == "FINISHED"
        for name in ("loss", "val_accuracy"):
            assert points(client, recorded, name) == run.points(name)


def test_sync_refuses_what_is_no_run(tmp_path: Path) -> None:
    from dtrain.cli.commands.sync import sync
    from dtrain.errors import UsageError

    with pytest.raises(UsageError, match=r"RUN=.*is not a run folder.*dtrain sync"):
        sync(str(tmp_path))


def test_a_server_that_is_away_does_not_stop_training(
    dtrain, quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens at the URI: the run finishes, says so, and sync ships it elsewhere."""
    monkeypatch.setattr(delivery, "AWAY_SECONDS", 3.0)
    run = dtrain(*quick, "tracking=mlflow", "tracking.uri=http://127.0.0.1:9")
    assert run.code == 0
    assert run.result["status"] == "FINISHED"
    assert "python -m dtrain sync" in run.output
    from dtrain.cli.commands.sync import sync

    sync(str(run.rundir.path), f"sqlite:///{tmp_path}/outputs/mlflow.db")
    [(client, recorded)] = runs(tmp_path)
    assert points(client, recorded, "loss") == run.points("loss")
