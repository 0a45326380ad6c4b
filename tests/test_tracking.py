"""Shipping a journal to MLflow: a real SQLite store."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import queue
import random
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from dtrain.config import tree
from dtrain.job.code_recorder import record
from dtrain.run import code
from dtrain.run.cluster import Cluster, Task
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, read_json, write_json
from dtrain.run.journal import Journal
from dtrain.tracking import delivery
from dtrain.tracking.base import TrackedRun, Tracker
from dtrain.tracking.delivery import Delivery, RunDelivery, ship_folder
from dtrain.tracking.facts import tags
from dtrain.tracking.mlflow.store import import_mlflow, prepare, uri
from dtrain.tracking.mlflow.tracker import MLflow, StepSet
from tests.test_schema import composed

CLUSTER = Cluster((Task("chief", 0, 1),), "cpu", 1, {})


def live(config: Any) -> TrackedRun:
    return TrackedRun(config, RunDir(Path("none")), CLUSTER, live=True)


def point(step: int, **metrics: float) -> dict[str, Any]:
    return {"event": "metrics", "time": 1000.0 + step, "step": step, "metrics": metrics}


START = {"event": "start", "time": 1000.0, "step": 0, "replicas": 1, "parameters": 42}


@pytest.fixture
def shipper(tmp_path: Path) -> Any:
    config = composed(f"output_dir={tmp_path}/outputs")
    rundir = RunDir.create(tmp_path / "outputs" / "run")

    def make() -> MLflow:
        return MLflow(config)

    make.rundir = rundir  # type: ignore[attr-defined]
    make.run = TrackedRun(config, rundir, CLUSTER)  # type: ignore[attr-defined]
    return make


def recorded(rundir: RunDir) -> tuple[Any, Any]:
    past = read_json(rundir.tracking)
    assert past is not None
    client = import_mlflow().tracking.MlflowClient(past["uri"])
    return client, client.get_run(past["run_id"])


def test_a_second_shipper_goes_on_and_repeats_nothing(shipper: Any) -> None:
    first = shipper()
    first.open(shipper.run, 1000.0)
    first.write([START, point(1, loss=3.0), point(2, loss=2.0)])
    second = shipper()  # as after a resume: it is told old points again, and new ones
    second.open(shipper.run, 1000.0)
    second.write([START, point(2, loss=2.0), point(3, loss=1.0)])
    second.close("FINISHED", 2000.0)
    client, run = recorded(shipper.rundir)
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(p.step, p.value) for p in history] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert run.info.status == "FINISHED"
    assert (run.info.start_time, run.info.end_time) == (1_000_000, 2_000_000)
    assert run.data.params["parameters"] == "42"
    assert run.data.params["optimizer.learning_rate"] == "0.001"


def test_a_run_has_what_a_person_chose(tmp_path: Path) -> None:
    typed = ("model=mlp", "model.units=[16]", "optimizer.learning_rate=0.01", "seed=2",
             f"output_dir={tmp_path}/outputs", "tracking.tags={team: vision}",
             "tracking.note=a first try", "name=churn")  # fmt: skip
    rundir = RunDir.create(tmp_path / "outputs" / "run")
    write_json(rundir.command, {"overrides": list(typed)})
    tracker = MLflow(config := composed(*typed))
    tracker.open(TrackedRun(config, rundir, CLUSTER), 1000.0)
    tracker.write([START, point(2, loss=1.0, examples_per_second=5.0)])
    tracker.close("FINISHED", 2000.0)
    _, run = recorded(rundir)
    params = run.data.params
    assert run.info.run_name == "churn model=mlp units=[16] learning_rate=0.01 seed=2"
    assert params["model.units"] == "[16]" and params["parameters"] == "42"
    assert len(params) <= 40 and not any(k.startswith(("launcher.", "tracking.")) for k in params)
    assert run.data.metrics == {"loss": 1.0, "time/examples_per_second": 5.0}
    assert (run.data.tags["team"], run.data.tags["mlflow.note.content"]) == (
        "vision",
        "a first try",
    )


@pytest.mark.parametrize("restarts", [2, 0, None])
def test_how_often_it_was_started_again(restarts: int | None, shipper: Any) -> None:
    """Nothing is said of a run whose controller was killed, and which has no result."""
    one = shipper()
    one.open(shipper.run, 1000.0)
    if restarts is not None:
        write_json(shipper.rundir.result, {"status": "KILLED", "restarts": restarts})
    one.close("KILLED", 2000.0)
    client, run = recorded(shipper.rundir)
    assert run.info.status == "KILLED"
    assert run.data.tags.get("restarts") == (None if restarts is None else str(restarts))
    files = [a.path for a in client.list_artifacts(run.info.run_id)]
    assert files == ([] if restarts is None else ["result.json"])


def test_points_of_a_restart_are_not_written_twice(shipper: Any) -> None:
    """The journal is cut, and read again from its beginning."""
    one = shipper()
    one.open(shipper.run, 1000.0)
    one.write([START, point(1, loss=3.0), point(2, loss=2.0)])
    restart = {"event": "restart", "time": 1003.0, "step": 1, "message": "restart 1 of 1"}
    one.write([START, point(1, loss=3.0), restart, START, point(2, loss=2.0), point(3, loss=1.0)])
    client, run = recorded(shipper.rundir)
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(p.step, p.value) for p in history] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert run.data.params["parameters"] == "42"


def test_more_points_than_one_call_takes(shipper: Any) -> None:
    one = shipper()
    one.open(shipper.run, 1000.0)
    one.write([point(step, loss=float(step)) for step in range(2500)])
    client, run = recorded(shipper.rundir)
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 2500


@pytest.mark.usefixtures("store")  # a new one takes longer than is waited, on a busy machine
def test_the_tracker_follows_a_journal(shipper: Any) -> None:
    journal = Journal(shipper.rundir.journal)
    warnings: list[str] = []
    tracker = RunDelivery(shipper(), shipper.run, warnings.append)
    journal.write("start", step=0, replicas=1)
    journal.write("metrics", step=1, metrics={"loss": float("nan")})
    journal.write("metrics", step=2, metrics={"loss": 1.0})
    journal.close()
    assert tracker.finish("FAILED", 2000.0) == []
    client, run = recorded(shipper.rundir)
    assert run.info.status == "FAILED"
    assert [p.step for p in client.get_metric_history(run.info.run_id, "loss")] == [1, 2]
    assert not warnings


def followed(folder: Path) -> TrackedRun:
    """Return a run whose journal is followed."""
    return TrackedRun(composed(), RunDir(folder), CLUSTER)


class Slow(Tracker):
    """A shipper whose server is away now and then; counts what it is given at once."""

    address = "somewhere"

    def __init__(self, fails: set[int]):
        self.fails, self.calls = fails, 0
        self.got: list[int] = []
        self.most = 0
        self.closed: tuple[str, float] | None = None

    def prepare(self) -> None:
        raise ImportError("it is broken")  # the first delivery says so, where it is

    def open(self, run: Any, started: float) -> None:
        pass

    def resynchronize(self) -> None:
        pass

    def write(self, events: list[dict[str, Any]]) -> None:
        self.most = max(self.most, len(events))
        self.calls += 1
        if self.calls in self.fails:
            raise ConnectionError("away")
        self.got += [event["step"] for event in events if event["event"] == "metrics"]

    def close(self, status: str, ended: float) -> None:
        self.closed = (status, ended)


def test_what_is_not_delivered_waits_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in memory, however long the server is away."""
    monkeypatch.setattr(delivery, "EVENTS", 10)
    monkeypatch.setattr(delivery, "RETRY_SECONDS", 0.0)
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("start", step=0)
    for step in range(95):
        journal.write("metrics", step=step, metrics={"loss": 1.0})
    journal.close()
    slow: Any = Slow({1, 2, 5})
    tracker = RunDelivery(slow, followed(tmp_path), lambda text: None)
    assert tracker.finish("FINISHED", 5.0) == []
    assert slow.got == list(range(95)) and slow.closed == ("FINISHED", 5.0)
    assert slow.most == 10


def test_nothing_is_shipped_before_training_begins(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("notice", message="a")
    slow: Any = Slow(set())
    tracker = RunDelivery(slow, followed(tmp_path), print)
    [part] = tracker._parts
    assert not part.deliver(None) and slow.calls == 0
    journal.write("start", step=0)
    journal.close()
    assert part.deliver(None) and slow.calls == 1
    assert tracker.finish(None, 5.0) == ["Slow"]


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+pysqlite"])
def test_files_lie_beside_a_database_of_the_users(
    driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing in the current directory, where MLflow would have put them."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    config = composed(
        f"output_dir={tmp_path}/outputs", f"tracking.uri={driver}:///{tmp_path}/store/mlflow.db"
    )
    rundir = RunDir.create(tmp_path / "outputs" / "run")
    write_json(rundir.result, {"status": "FINISHED"})
    shipper = MLflow(config)
    shipper.open(TrackedRun(config, rundir, CLUSTER), 1000.0)
    shipper.write([START, point(1, loss=3.0)])
    shipper.close("FINISHED", 2000.0)
    assert list(here.iterdir()) == []
    assert len(list((tmp_path / "store" / "mlartifacts").rglob("result.json"))) == 1
    client, run = recorded(rundir)
    assert [a.path for a in client.list_artifacts(run.info.run_id)] == ["result.json"]
    # An experiment that is there keeps the place that it was given.
    other = tmp_path / "other"
    client.create_experiment("theirs", artifact_location=other.as_uri())
    config.tracking = config.tracking.replaced(experiment="theirs")
    second = RunDir.create(tmp_path / "outputs" / "second")
    write_json(second.result, {"status": "FINISHED"})
    shipper = MLflow(config)
    shipper.open(TrackedRun(config, second, CLUSTER), 1000.0)
    shipper.close("FINISHED", 2000.0)
    assert len(list(other.rglob("result.json"))) == 1 and list(here.iterdir()) == []


def test_nothing_is_recorded_where_nothing_was_trained(shipper: Any, tmp_path: Path) -> None:
    tracker = RunDelivery(shipper(), shipper.run, print)
    assert tracker.finish(None, 2000.0) == ["MLflow"]
    assert not (tmp_path / "outputs" / "mlflow.db").exists()


def test_a_long_value_is_cut_for_mlflow_alone(shipper: Any) -> None:
    flat = tree.flatten({"a": {"b": 1, "c": [1, 2]}, "d": None, "e": "x" * 9000})
    assert {k: flat[k] for k in ("a.b", "a.c", "d")} == {"a.b": "1", "a.c": "[1, 2]", "d": "None"}
    assert len(flat["e"]) == 9000
    for _ in range(2):  # a later start has not changed it
        one = shipper()
        one.open(shipper.run, 1000.0)
        one.write([{**START, "long": "x" * 9000}])
    data = recorded(shipper.rundir)[1].data
    assert len(data.params["long"]) == 6000 and "resumed.long" not in data.tags


def test_where_to(tmp_path: Path) -> None:
    assert uri(composed("output_dir=out")) == f"sqlite:///{tmp_path}/out/mlflow.db"
    assert uri(composed("tracking.uri=http://127.0.0.1:5")) == "http://127.0.0.1:5"


def test_tags_outside_of_git(tmp_path: Path) -> None:
    found = tags(live(composed("strategy=mirrored")))
    assert found["strategy"] == "mirrored"
    assert found["device_kind"] == "cpu"
    assert found["tensorflow"].startswith("2.")
    assert "git_commit" not in found


def test_tags_name_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str | None:
        return None if name in ("tensorflow", "keras") else "1.2"

    monkeypatch.setattr("dtrain.tracking.facts.version", version)
    found = tags(live(composed()))
    assert found["mlflow"] == found["hydra-core"] == "1.2"
    assert "tensorflow" not in found and "keras" not in found


def test_tags_of_a_fork(tmp_path: Path) -> None:
    parent = RunDir.create(tmp_path / "a")
    words = f"fork={parent.checkpoints}/8"
    assert "forked_from_run_id" not in tags(live(composed(words)))  # it was not tracked
    write_json(parent.tracking, {"run_id": "abc"})
    found = tags(live(composed(words)))
    assert found["forked_from"] == str(parent.checkpoints / "8")
    assert found["forked_from_run_id"] == "abc"


def test_names_that_mlflow_does_not_take(shipper: Any) -> None:
    one = shipper()
    one.open(shipper.run, 1000.0)
    for _ in range(2):
        one.write([point(1, **{"top-5 (all) [%]": 3.0})])
        one.resynchronize()
    client, run = recorded(shipper.rundir)
    assert run.data.metrics == {"top-5 _all_ ___": 3.0}
    assert len(client.get_metric_history(run.info.run_id, "top-5 _all_ ___")) == 1


class Line:
    """A delivery that fails with what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: str = "here"):
        monkeypatch.setattr(delivery, "INTERVAL", 0.001)
        monkeypatch.setattr(delivery, "LONGEST", 0.001)
        monkeypatch.setattr(delivery, "RETRY_SECONDS", 0.001)
        if place == "here":
            monkeypatch.setattr(delivery, "_reported", set())
        self.errors: queue.Queue[Exception | None] = queue.Queue()
        self.said: queue.Queue[str] = queue.Queue()
        self.doubts = 0
        self.hangs = 0.0  # seconds in the last delivery
        self.courier = Delivery(place, self.deliver, self.resynchronize, self.said.put)

    def deliver(self, last: Any) -> bool:
        try:  # the last delivery comes when it will: it succeeds once no error is left
            error = self.errors.get(timeout=60 if last is None else self.hangs)
        except queue.Empty:
            return True
        if error is not None:
            raise error
        return True

    def resynchronize(self) -> None:
        self.doubts += 1


def test_one_warning_for_one_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(monkeypatch)
    away = ConnectionError("http://me:pw@host is away\nand more")
    for error in (None, away, away, None, None, away, None):
        line.errors.put(error)
    told = "tracking: http://me:***@host is away; training continues"
    heard = [line.said.get(timeout=60) for _ in range(4)]
    assert heard == [told, "tracking: back again"] * 2
    line.errors.put(None)
    assert line.courier.finish(("FINISHED", 1.0))
    assert line.said.empty()
    assert line.doubts == 3


def test_one_job_of_a_sweep_speaks_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    first, elsewhere = Line(monkeypatch), Line(monkeypatch, "elsewhere")
    second = Line(monkeypatch, "here too")
    second.courier._place = "here"
    first.errors.put(ConnectionError("away"))
    assert first.said.get(timeout=60) == "tracking: away; training continues"
    for line in (second, elsewhere):
        line.errors.put(ConnectionError("away"))
        line.errors.put(None)
        assert line.courier.finish(("FINISHED", 1.0))
    assert list(second.said.queue) == ["tracking: back again"]  # whoever finds out first
    assert len(elsewhere.said.queue) == 2
    first.errors.put(None)
    assert first.courier.finish(("FINISHED", 1.0))
    assert first.said.empty()


def test_a_store_that_others_write_to_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(monkeypatch)
    busy = RuntimeError("(sqlite3.OperationalError) database is locked")
    for error in (busy, busy, busy, None):
        line.errors.put(error)
    assert line.courier.finish(("FINISHED", 1.0))
    assert line.said.empty()
    monkeypatch.setattr(delivery, "BUSY_SECONDS", 0.0)  # but for too long
    line = Line(monkeypatch)
    for error in (busy, None):
        line.errors.put(error)
    assert line.courier.finish(("FINISHED", 1.0))
    assert "database is locked" in line.said.get()


def test_nobody_waits_long_for_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "AWAY_SECONDS", 0.01)
    line = Line(monkeypatch)
    line.hangs = 60.0
    line.errors.put(ConnectionError("away"))
    assert line.said.get(timeout=60) == "tracking: away; training continues"
    assert not line.courier.finish(("FINISHED", 1.0))
    line.errors.put(ConnectionError("away"))  # and its thread ends with the call
    line.courier._thread.join(60)
    assert not line.courier._thread.is_alive()


def test_a_store_that_takes_too_long_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(monkeypatch)
    line.hangs = 60.0
    assert not line.courier.finish(("FINISHED", 1.0), longest=0.0)
    said = line.said.get_nowait()
    assert "here is not ready after 0 s: the first delivery to a new store" in said
    line.errors.put(ConnectionError("away"))  # and its thread ends with the call
    line.courier._thread.join(60)


def test_a_later_start_with_other_values(shipper: Any, tmp_path: Path) -> None:
    """MLflow keeps the first value of a parameter: the later one is a tag, and nothing fails."""
    for epochs in (1, 3):
        run = dataclasses.replace(shipper.run, config=composed(f"trainer.epochs={epochs}"))
        one = shipper()
        one.open(run, 1000.0)
        one.write([{**START, "replicas": epochs}])
        one.close("FINISHED", 2000.0)
    _, recorded_run = recorded(shipper.rundir)
    assert recorded_run.data.params["trainer.epochs"] == "1"
    later = {k: v for k, v in recorded_run.data.tags.items() if k.startswith("resumed.")}
    assert later == {"resumed.trainer.epochs": "3", "resumed.replicas": "3"}
    journal = Journal(shipper.rundir.journal)  # shipped for the first time after a resume
    for replicas in (1, 3, 1):
        journal.write("start", step=0, replicas=replicas)
    journal.close()
    shipper.rundir.tracking.unlink()
    write_json(shipper.rundir.cluster, CLUSTER.to_json())
    for _ in range(2):
        ship_folder(shipper(), shipper.run.config, shipper.rundir)
        _, recorded_run = recorded(shipper.rundir)
        assert recorded_run.data.params["replicas"] == "1"
        assert not [tag for tag in recorded_run.data.tags if tag.startswith("resumed.")]


@pytest.mark.usefixtures("store")  # a new one takes longer than is waited, on a busy machine
def test_a_run_that_failed_before_training(shipper: Any) -> None:
    rundir = shipper.rundir
    rundir.logs.mkdir()
    rundir.log("chief-0").write_text("Traceback ...")
    write_json(
        rundir.result,
        {"status": "FAILED", "failure": Failure("failed", "chief-0", "no layer").record()},
    )
    delivered = RunDelivery(shipper(), shipper.run, print)
    assert delivered.finish("FAILED", 2000.0) == []
    client, run = recorded(rundir)
    assert run.data.params["optimizer.learning_rate"] == "0.001"
    assert run.data.tags["error"] == "chief-0: no layer"
    assert [f.path for f in client.list_artifacts(run.info.run_id, "logs")] == ["logs/chief-0.log"]


def test_a_new_store_is_there_as_a_whole(tmp_path: Path) -> None:
    store = tmp_path / "mlflow.db"

    def stopped(address: str) -> Any:
        with contextlib.closing(sqlite3.connect(address.removeprefix("sqlite:///"))) as connection:
            connection.execute("CREATE TABLE experiments (a)")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(store, stopped)
    assert not store.exists(), "what a process that is stopped has begun is no store"


def test_provenance_is_that_of_the_run(shipper: Any) -> None:
    """``sync`` ships what the run recorded of its host, packages and commit, not those of now."""
    assert "host" not in tags(shipper.run)  # shipped later, and nothing was recorded
    assert tags(dataclasses.replace(shipper.run, live=True))["host"] == platform.node()
    made, _ = record([])
    tree = {
        "path": "/a", "commit": "c" * 40, "roots": [], "patch": None, "changed": 1, "left_out": {},
    }  # fmt: skip
    made |= {"host": "node7", "folder": "/a/b", "tree": tree}
    made["packages"] = {"tensorflow-cpu": "2.1", "keras": "3.0"}
    made["digest"] = code.digest_of(made)
    folder = shipper.rundir.path / code.FOLDER / "1"
    folder.mkdir(parents=True)
    write_json(folder / code.RECORD, made)
    values = tags(shipper.run)
    assert (values["host"], values["tensorflow"], values["keras"]) == ("node7", "2.1", "3.0")
    assert values["git_commit"] == "c" * 40
    assert values["git_dirty"] == "true" and "mlflow" not in values
    # A resume with other code: its commit beside the first, and the changes of both as artifacts.
    (folder / "changes.patch").write_text("diff one")
    later = folder.with_name("2")
    later.mkdir()
    made["tree"] = {**tree, "commit": "d" * 40}
    made["digest"] = code.digest_of(made)
    write_json(later / code.RECORD, made)
    (later / "changes.patch").write_text("diff two")
    one = shipper()
    one.open(shipper.run, 1000.0)
    one.write([START])
    one.close("FINISHED", 2000.0)
    client, run = recorded(shipper.rundir)
    assert run.data.tags["mlflow.source.git.commit"] == "c" * 40
    assert run.data.tags["resumed.git_commit"] == "d" * 40
    for name in ("1", "2"):
        files = [each.path for each in client.list_artifacts(run.info.run_id, f"code/{name}")]
        assert f"code/{name}/changes.patch" in files


def test_steps_in_any_order() -> None:
    steps, every = StepSet(), random.Random(0).sample(range(20_000), 300)
    for step in every:
        steps.add(step)
    assert [step for step in range(-5, 20_005) if step in steps] == sorted(every)


def test_the_steps_of_a_long_run_take_little_memory() -> None:
    steps = StepSet()
    for step in range(10, 2_000_001, 10):
        steps.add(step)
    assert 1_999_990 in steps and 1_999_991 not in steps
    assert sum(map(sys.getsizeof, steps._pages.values())) < 500_000


@pytest.mark.usefixtures("store")
def test_an_experiment_that_was_deleted(shipper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, while training goes on; restored, `sync` ships the run."""
    monkeypatch.setattr(delivery, "AWAY_SECONDS", 1.0)
    client = import_mlflow().tracking.MlflowClient(uri(shipper.run.config))
    experiment = client.create_experiment(
        "dtrain", f"file://{shipper.rundir.path.parent}/mlartifacts"
    )
    client.delete_experiment(experiment)
    write_json(shipper.rundir.cluster, CLUSTER.to_json())
    journal, heard = Journal(shipper.rundir.journal), list[str]()
    journal.write("start", step=0, replicas=1)
    journal.close()
    assert RunDelivery(shipper(), shipper.run, heard.append).finish("FINISHED", 5.0) == ["MLflow"]
    assert len(heard) == 1 and "must be in the 'active' state" in heard[0]
    client.restore_experiment(experiment)
    ship_folder(shipper(), shipper.run.config, shipper.rundir)
    assert recorded(shipper.rundir)[1].data.params["replicas"] == "1"
