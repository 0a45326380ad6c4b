"""A tracking server that hangs, refuses, dies or loses its answers: a real one, behind a proxy."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.cli.commands.sync import sync
from dtrain.config import private, tree, trust
from dtrain.run.folder import FORMAT, RunDir, read_json, write_json
from dtrain.run.journal import Journal
from dtrain.tracking import delivery
from dtrain.tracking.base import TrackedRun
from dtrain.tracking.delivery import RunDelivery
from dtrain.tracking.mlflow.store import import_mlflow
from dtrain.tracking.mlflow.tracker import MLflow
from experiments.outage import Proxy, Server
from tests.sampled import sampled
from tests.test_schema import composed
from tests.test_tracking import CLUSTER

WAIT = 60.0  # of a test that fails


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    # Its first answers take seconds: it imports what they need.
    mlflow = import_mlflow()
    client = mlflow.tracking.MlflowClient(f"http://127.0.0.1:{server.port}")
    run_id = client.create_run(client.create_experiment("first")).info.run_id
    client.log_batch(run_id, metrics=[mlflow.entities.Metric("loss", 1.0, 1, 1)])
    client.get_metric_history(run_id, "loss")
    client.log_text(run_id, "text", "text.txt")
    yield server
    server.kill()


class Scene:
    """A run folder that is being tracked through a proxy, without the tasks."""

    def __init__(self, folder: Path, server: Server):
        self.server = server
        self.proxy = Proxy(server.port)
        self.said: queue.Queue[str] = queue.Queue()
        address = f"http://127.0.0.1:{self.proxy.port}"
        self.config = composed(
            f"output_dir={folder}/outputs", f"tracking.uri={address}",
            f"tracking.experiment={folder.name}",
        )  # fmt: skip
        self.rundir = RunDir.create(folder / "outputs" / "run")
        self.rundir.config.write_text(tree.to_yaml(self.config))
        write_json(self.rundir.cluster, CLUSTER.to_json())
        trust.begin([f"tracking.uri={address}"], None)  # the user's own command has named it
        command = {"format": FORMAT, **private.sign_command([], None, address)}
        write_json(self.rundir.command, command)
        self.journal = Journal(self.rundir.journal)
        self.steps: list[int] = []
        run = TrackedRun(self.config, self.rundir, CLUSTER)
        self.tracker = RunDelivery(MLflow(self.config), run, self.said.put)

    def write(self, number: int) -> None:
        """Write points, as a task does."""
        if not self.steps:
            self.journal.write("start", step=0, replicas=1)
        for _ in range(number):
            self.steps.append(len(self.steps) + 1)
            step = self.steps[-1]
            self.journal.write("metrics", step=step, metrics={"loss": 1.0 / step, "lr": 0.1})

    def heard(self, *words: str) -> None:
        """Wait for a sentence that holds all of ``words``; the next one has to."""
        sentence = self.said.get(timeout=WAIT)
        assert all(word in sentence for word in words), sentence

    def rows(self, query: str) -> list[Any]:
        """Ask the server's database itself, about the runs of this experiment."""
        ours = (
            "SELECT run_uuid FROM runs JOIN experiments USING (experiment_id) "
            f"WHERE experiments.name = '{self.config.tracking.experiment}'"
        )
        with contextlib.closing(sqlite3.connect(self.server.database, timeout=WAIT)) as store:
            return store.execute(query.replace("OURS", f"run_uuid IN ({ours})")).fetchall()

    def runs(self) -> list[Any]:
        """Return the status and the end of every run, in milliseconds since the epoch."""
        return self.rows("SELECT status, end_time FROM runs WHERE OURS")

    def points(self, key: str = "loss") -> list[int]:
        """Return the steps of all points of ``key``, of every run."""
        found = self.rows(f"SELECT step FROM metrics WHERE key = '{key}' AND OURS ORDER BY step")
        return [step for (step,) in found]

    def wait_for_points(self, number: int) -> None:
        deadline = time.monotonic() + WAIT
        while len(self.points()) < number:
            assert time.monotonic() < deadline


@pytest.fixture
def scene(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(delivery, "INTERVAL", 0.05)
    monkeypatch.setattr(delivery, "LONGEST", 0.2)
    monkeypatch.setattr(delivery, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(delivery, "AWAY_SECONDS", WAIT)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    scene = Scene(tmp_path, server)
    yield scene
    monkeypatch.setattr(delivery, "AWAY_SECONDS", 5.0)
    scene.tracker.finish(None, 0.0)
    scene.journal.close()
    scene.proxy.close()


@pytest.mark.parametrize("ways", sampled(["requests answers", "answers"]))
def test_a_server_that_falls_silent_in_mid_run(ways: str, scene: Scene) -> None:
    """Of ``answers`` alone every request is done, and none is known to be."""
    scene.write(5)
    scene.wait_for_points(5)
    scene.proxy.swallow(*ways.split())
    scene.write(5)
    scene.heard("tracking: ", "timed out", "; training continues")
    scene.write(5)
    assert scene.proxy.swallowed.is_set()
    scene.proxy.restore()
    scene.heard("tracking: back again")
    scene.write(5)
    assert scene.tracker.finish("FINISHED", 2000.0) == []
    assert scene.points() == scene.points("lr") == scene.steps
    assert scene.said.empty()  # one warning for one outage
    assert scene.runs() == [("FINISHED", 2_000_000)]


def test_a_server_that_does_not_answer_from_the_beginning(scene: Scene) -> None:
    scene.proxy.swallow("answers")
    scene.write(5)
    scene.heard("tracking: ", "; training continues")
    scene.proxy.restore()
    scene.heard("tracking: back again")
    assert scene.tracker.finish("FAILED", 2000.0) == []
    assert scene.points() == scene.steps
    assert scene.runs() == [("FAILED", 2_000_000)]


def test_the_answer_to_create_run_alone_is_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dtrain.tracking.mlflow.store import Store

    created = Store._create

    def lost(store: Store, *arguments: Any) -> str:
        monkeypatch.setattr(Store, "_create", created)
        scene.proxy.swallow("answers")
        try:
            return created(store, *arguments)
        finally:
            scene.proxy.restore()

    monkeypatch.setattr(Store, "_create", lost)
    scene.write(5)
    scene.heard("tracking: ", "create", "; training continues")
    assert scene.tracker.finish("FINISHED", 2000.0) == []
    assert scene.points() == scene.steps
    assert scene.runs() == [("FINISHED", 2_000_000)]


@pytest.mark.faults
def test_a_server_that_is_away_to_the_end(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "AWAY_SECONDS", 0.5)
    scene.write(5)
    scene.wait_for_points(5)
    scene.proxy.swallow("requests", "answers")
    scene.write(5)
    scene.heard("tracking: ", "; training continues")
    assert scene.tracker.finish("FINISHED", 2000.0) == ["MLflow"]
    write_json(scene.rundir.result, {"status": "FINISHED", "started": 1000.0, "seconds": 1000.0})
    scene.proxy.restore()
    for _ in range(2):
        sync(str(scene.rundir.path))
        assert scene.points() == scene.steps
        assert scene.runs() == [("FINISHED", 2_000_000)]


def test_a_server_that_dies_and_comes_back(scene: Scene) -> None:
    scene.write(5)
    scene.wait_for_points(5)
    scene.server.kill()
    scene.write(5)
    scene.heard("tracking: ", "; training continues")
    scene.server.start()
    scene.heard("tracking: back again")
    assert scene.tracker.finish("KILLED", 2000.0) == []
    assert scene.points() == scene.steps
    assert (read_json(scene.rundir.tracking) or {})["shipped"] == "KILLED"
