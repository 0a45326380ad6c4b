"""A sweep in MLflow: made of run folders, as its jobs leave them; a real SQLite store."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dtrain.cli.commands.sync import sync
from dtrain.config import tree
from dtrain.run import schemas
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, read_json, write_json
from dtrain.run.journal import Journal
from dtrain.tracking import delivery
from dtrain.tracking.base import TrackedRun
from dtrain.tracking.chosen import make_tracker
from dtrain.tracking.delivery import RunDelivery
from dtrain.tracking.facts import job_name
from dtrain.tracking.mlflow.store import import_mlflow
from dtrain.tracking.mlflow.sweep import SweepRun
from dtrain.tracking.mlflow.tracker import MLflow
from tests.integration.test_failures import until
from tests.sampled import sampled
from tests.test_schema import composed
from tests.test_tracking import CLUSTER, START, point

WAIT = 60.0  # of a test that fails


class Sweep:
    """The folder of a sweep of two learning rates and two strategies."""

    def __init__(self, folder: Path, uri: str | None = None):
        self.words = [f"output_dir={folder}/outputs", *([f"tracking.uri={uri}"] if uri else [])]
        self.config = composed(*self.words)
        self.folder = folder / "outputs" / "multirun" / "2026-01-01" / "10-00-00_rates"
        self.folder.mkdir(parents=True)
        self.said: queue.Queue[str] = queue.Queue()
        self.jobs: list[dict[str, Any]] = []
        self.tell("RUNNING")

    def tell(self, status: str, best: int | None = None) -> None:
        overrides = ["strategy=mirrored,one_device", "optimizer.learning_rate=0.1,0.01"]
        write_json(self.folder / "sweep.json", {
            "format": 2, "name": "rates", "started": 1000.0, "status": status, "ended": 3000.0,
            "command": {"overrides": overrides}, "objective": "val_accuracy",
            "objective_mode": "max", "best": best, "jobs": self.jobs,
        })  # fmt: skip

    def job(self, strategy: str, rate: str) -> Job:
        return Job(self, {"strategy": strategy, "optimizer.learning_rate": rate})


class Job:
    """One of its jobs; without the tasks."""

    def __init__(self, sweep: Sweep, differs: dict[str, str]):
        number = len(sweep.jobs)
        self.sweep, self.number = sweep, number
        words = [f"{key}={value}" for key, value in differs.items()]
        self.config = composed(*sweep.words, *words)
        self.rundir = RunDir.create(sweep.folder / str(number))
        self.rundir.config.write_text(tree.to_yaml(self.config))
        write_json(self.rundir.cluster, CLUSTER.to_json())
        job = {"number": number, "differs": differs}
        write_json(self.rundir.command, {"format": 2, "overrides": words, "sweep": job})
        sweep.jobs.append({
            **job, "folder": str(number), "overrides": words, "status": "RUNNING",
            "objective": None, "seconds": None, "failure": None,
        })  # fmt: skip

    def end(self, status: str, accuracy: float) -> None:
        journal = Journal(self.rundir.journal)
        for event in (START, point(1, loss=2.0), point(2, loss=1.0, val_accuracy=accuracy)):
            journal.write(event["event"], **{k: v for k, v in event.items() if k != "event"})
        journal.close()
        write_json(self.rundir.result, {
            "status": status, "started": 1000.0, "seconds": 500.0,
            "metrics": {"val_accuracy": accuracy},
        })  # fmt: skip
        entry = self.sweep.jobs[self.number]
        entry |= {"status": status, "objective": accuracy, "seconds": 500.0}
        if status == "FAILED":
            entry["failure"] = Failure("failed", "chief-0", "a | b\nc").record()

    def delivery(self) -> RunDelivery:
        run = TrackedRun(self.config, self.rundir, CLUSTER)
        return RunDelivery(MLflow(self.config), run, self.sweep.said.put)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "INTERVAL", 0.05)
    monkeypatch.setattr(delivery, "LAST_SECONDS", WAIT)


def recorded(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return a client and all runs by their names."""
    client = import_mlflow().tracking.MlflowClient(f"sqlite:///{folder}/outputs/mlflow.db")
    found = client.search_runs([e.experiment_id for e in client.search_experiments()])
    runs = {run.info.run_name: run for run in found}
    assert len(runs) == len(found)
    return client, runs


def steps(client: Any, run: Any, key: str) -> list[int]:
    return [p.step for p in client.get_metric_history(run.info.run_id, key)]


@pytest.mark.usefixtures("store")
def test_a_parent_and_its_children(tmp_path: Path, _quick: None) -> None:
    sweep = Sweep(tmp_path)
    parent = SweepRun(sweep.config, sweep.folder, sweep.said.put)
    parent.open()
    for strategy, rate, status, accuracy in (
        ("mirrored", "0.1", "FINISHED", 0.5), ("mirrored", "0.01", "FINISHED", 0.75),
        ("one_device", "0.1", "FAILED", float("nan")), ("one_device", "0.01", "KILLED", 0.25),
    ):  # fmt: skip
        job = sweep.job(strategy, rate)
        lock = job.rundir.lock()
        assert lock is not None
        tracker = job.delivery()
        job.end(status, accuracy)
        assert tracker.finish(status, 1500.0) == []
        os.close(lock)
    sweep.tell("FAILED", best=1)
    (sweep.folder / "comparison.html").write_text("<p>")
    assert parent.close("FAILED", 3000.0)
    assert sweep.said.empty()

    client, runs = recorded(tmp_path)
    assert set(runs) == {
        "rates", "0 strategy=mirrored learning_rate=0.1", "1 strategy=mirrored learning_rate=0.01",
        "2 strategy=one_device learning_rate=0.1", "3 strategy=one_device learning_rate=0.01",
    }  # fmt: skip
    top = runs.pop("rates")
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {top.info.run_id}
    assert [runs[name].info.status for name in sorted(runs)] == [
        "FINISHED", "FINISHED", "FAILED", "KILLED",
    ]  # fmt: skip
    second = runs["1 strategy=mirrored learning_rate=0.01"]
    assert steps(client, second, "loss") == [1, 2]
    # MLflow's tables sort parameters by name.
    assert sorted(second.data.params)[:2] == ["_optimizer.learning_rate", "_strategy"]
    assert second.data.params["_optimizer.learning_rate"] == "0.01"
    assert second.data.params["optimizer.learning_rate"] == "0.01"

    assert (top.info.status, top.info.start_time, top.info.end_time) == (
        "FAILED", 1_000_000, 3_000_000,
    )  # fmt: skip
    assert top.data.params == {
        "strategy": "mirrored,one_device", "optimizer.learning_rate": "0.1,0.01",
    }  # fmt: skip
    assert top.data.metrics == {
        "best.val_accuracy": 0.75, "jobs": 4, "jobs_finished": 2, "jobs_failed": 1,
        "jobs_killed": 1,
    }  # fmt: skip
    assert top.data.tags["best_job"] == "1"
    assert top.data.tags["best_overrides"] == "strategy=mirrored optimizer.learning_rate=0.01"
    note = top.data.tags["mlflow.note.content"].splitlines()
    assert note[0] == (
        "| job | strategy | optimizer.learning_rate | status | objective | seconds | error |"
    )
    assert note[3].startswith("| **1** | **mirrored** | **0.01** | **FINISHED** | **0.75** |")
    assert note[4].endswith("| chief-0: a \\| b c |")
    assert len(note) == 6
    names = {a.path for a in client.list_artifacts(top.info.run_id)}
    assert names == {"sweep.json", "comparison.html"}
    assert (read_json(sweep.folder / "tracking.json") or {})["run_id"] == top.info.run_id


@pytest.mark.usefixtures("store")
def test_jobs_that_ended_while_the_server_was_away(tmp_path: Path, _quick: None) -> None:
    sweep = Sweep(tmp_path)
    jobs = [sweep.job("mirrored", rate) for rate in ("0.1", "0.01", "0.001")]
    jobs[0].end("FINISHED", 0.5)
    jobs[1].end("FINISHED", 0.5)
    jobs[2].end("FINISHED", 0.5)
    sweep.tell("RUNNING")
    held = jobs[1].rundir.lock()  # as by its own command, whose tracker ships it
    assert held is not None
    parent = SweepRun(sweep.config, sweep.folder, sweep.said.put)
    parent.open()
    until(
        lambda: all((read_json(jobs[n].rundir.tracking) or {}).get("shipped") for n in (0, 2)),
        sweep.said.qsize,
    )
    assert "shipped" not in (read_json(jobs[1].rundir.tracking) or {})
    sweep.tell("FINISHED")
    os.close(held)
    assert parent.close("FINISHED", 3000.0)
    client, runs = recorded(tmp_path)
    assert {name[0] for name in runs} == {"r", "0", "1", "2"}
    assert steps(client, runs["0 strategy=mirrored learning_rate=0.1"], "loss") == [1, 2]


def test_files_of_a_job_are_looked_at_once_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thousands of jobs most are waiting, or shipped, each time that is looked for others."""
    sweep, looked = Sweep(tmp_path), list[str]()
    for status in ("FINISHED", "RUNNING", "WAITING", "FAILED"):
        job = sweep.job("mirrored", status)
        job.end(status, 0.5)
        write_json(job.rundir.tracking, {"shipped": status})
    sweep.tell("RUNNING")

    def glance(path: Path, kind: Any, glance: Any = schemas.glance) -> Any:
        looked.append(f"{path.parent.name}/{path.name}")
        return glance(path, kind)

    monkeypatch.setattr(schemas, "glance", glance)
    parent = SweepRun(sweep.config, sweep.folder, sweep.said.put)
    assert not any(parent._deliver(None) for _ in range(3))
    assert looked == ["0/result.json", "0/tracking.json", "3/result.json", "3/tracking.json"]


@pytest.mark.usefixtures("store")
def test_a_sweep_that_was_never_tracked_is_shipped_whole(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    for rate in ("0.1", "0.01"):
        sweep.job("mirrored", rate).end("FINISHED", 0.5)
    sweep.job("mirrored", "1")  # killed with its controller
    sweep.tell("RUNNING", best=0)
    for _ in range(2):
        assert sync(str(sweep.folder)) == f"sqlite:///{tmp_path}/outputs/mlflow.db"
        client, runs = recorded(tmp_path)
        assert len(runs) == 4
        killed = {name for name, run in runs.items() if run.info.status == "KILLED"}
        assert killed == {"rates", "2 strategy=mirrored learning_rate=1"}
        assert steps(client, runs["0 strategy=mirrored learning_rate=0.1"], "loss") == [1, 2]
        [history] = [client.get_metric_history(runs["rates"].info.run_id, "jobs")]
        assert [p.value for p in history] == [3.0]


def test_where_nothing_was_trained_nothing_is_recorded(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    parent = SweepRun(sweep.config, sweep.folder, sweep.said.put)
    parent.open()
    assert not parent.close(None, 3000.0)
    assert not (tmp_path / "outputs" / "mlflow.db").exists()


def test_without_tracking_there_is_no_record_of_a_sweep(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    assert make_tracker(composed("tracking=none")).sweep(sweep.config, sweep.folder, print) is None
    assert isinstance(
        make_tracker(sweep.config).sweep(sweep.config, sweep.folder, sweep.said.put), SweepRun
    )


@pytest.mark.parametrize(
    ("differs", "name"),
    [
        ({"strategy": "ps", "optimizer.learning_rate": "0.1"}, "3 strategy=ps learning_rate=0.1"),
        ({"a.rate": "1", "b.rate": "2", "c": "x"}, "3 a.rate=1 b.rate=2 c=x"),
        ({}, "3 cnn_default"),
        ({"a": "x" * 300}, f"3 a={'x' * 196}"),
    ],
)
def test_names(differs: dict[str, str], name: str) -> None:
    assert job_name({"number": 3, "differs": differs}, "cnn_default") == name


def many(folder: str, name: str, number: int, points: int) -> list[str]:
    """Track ``number`` jobs of a sweep at once, as its slots do; return what the user reads."""
    delivery.INTERVAL, delivery.LAST_SECONDS = 0.01, 4 * WAIT
    sweep = Sweep(Path(folder) / name, f"sqlite:///{folder}/store.db")
    parent = SweepRun(sweep.config, sweep.folder, sweep.said.put)
    parent.open()
    jobs = [sweep.job("mirrored", f"{n + 1}") for n in range(number)]

    def track(job: Job) -> None:
        tracker = job.delivery()
        journal = Journal(job.rundir.journal)
        journal.write("start", step=0, replicas=1)
        for step in range(points):
            journal.write("metrics", step=step, metrics={"loss": 1.0, "accuracy": 0.5})
        journal.close()
        if tracker.finish("FINISHED", 2000.0):
            sweep.said.put(f"job {job.number} is not there")

    threads = [threading.Thread(target=track, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not parent.close("FINISHED", 3000.0):
        sweep.said.put("the parent is not there")
    return list(sweep.said.queue)


@pytest.mark.parametrize("number", sampled([3, 20]))
def test_two_sweeps_on_one_sqlite_file(number: int, tmp_path: Path) -> None:
    """The first moments are the hardest: both commands make the tables, all jobs their parent."""
    code = (
        "import sys, json; from tests.test_mlflow_sweep import many; "
        "print(json.dumps(many(sys.argv[1], 'b', int(sys.argv[2]), 200)))"
    )
    root = Path(__file__).parents[1]
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(number)],
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    said = many(str(tmp_path), "a", number, 200)
    output, errors = other.communicate(timeout=300)
    assert (said, json.loads(output), errors) == ([], [], "")
    client = import_mlflow().tracking.MlflowClient(f"sqlite:///{tmp_path}/store.db")
    [experiment] = [e for e in client.search_experiments() if e.name == "dtrain"]
    runs = client.search_runs([experiment.experiment_id])
    tops = [run.info.run_id for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert (len(tops), len(children)) == (2, 2 * number)
    assert {run.info.status for run in runs} == {"FINISHED"}
    for top in tops:
        assert sum(run.data.tags["mlflow.parentRunId"] == top for run in children) == number
    for run in children:
        for key in ("loss", "accuracy"):
            assert steps(client, run, key) == list(range(200))
