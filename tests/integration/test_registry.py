"""Models in a real MLflow server: logged through a proxy, promoted, killed, served by MLflow."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.run.folder import RunDir, read_json
from dtrain.run.samples import Sample
from dtrain.tracking import delivery
from dtrain.tracking.mlflow.store import import_mlflow
from experiments.outage import Proxy, Server
from tests.conftest import QUICK
from tests.test_promote import command_line

pytestmark = pytest.mark.faults

WAIT = 120.0
WORDS = (*QUICK[1:], "trainer.epochs=1", "name=small", "tracking.model=best")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("server"))
    yield found
    found.kill()


def client(server: Server) -> Any:
    return import_mlflow().tracking.MlflowClient(f"http://127.0.0.1:{server.port}")


def only(server: Server, name: str) -> Any:
    """Return the one version of a name, whose one model is whole."""
    found = client(server)
    [version] = found.search_model_versions(f"name = '{name}'")
    experiment = found.get_run(version.run_id).info.experiment_id
    models = [
        each for each in found.search_logged_models([experiment])
        if each.source_run_id == version.run_id
    ]  # fmt: skip
    assert [str(each.status) for each in models] == ["READY"]
    assert json.loads(models[0].tags["mlflow.modelVersions"])[0]["name"] == name
    assert len(found.get_run(version.run_id).outputs.model_outputs) == 1
    files = {each.path for each in found.list_logged_model_artifacts(models[0].model_id)}
    assert {"MLmodel", "model", "code", "export.json", "sample.npz"} <= files
    return version


@pytest.mark.parametrize("ways", [("requests", "answers"), ("answers",)], ids=["black", "deaf"])
def test_a_server_that_falls_silent_as_the_model_is_logged(
    ways: tuple[str, ...], server: Server, dtrain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ``answers`` alone every request is done, and none is known to be."""
    from dtrain.tracking.mlflow import models

    monkeypatch.setattr(delivery, "AWAY_SECONDS", 1.0)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    proxy, name = Proxy(server.port), f"silent-{'-'.join(ways)}"
    ship, calls = models.Models.ship, []

    def silent(self: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            proxy.swallow(*ways)
        ship(self)

    monkeypatch.setattr(models.Models, "ship", silent)
    run = dtrain(
        *WORDS, f"tracking.uri=http://127.0.0.1:{proxy.port}", f"tracking.register={name}",
        f"tracking.experiment={name}", "hydra.run.dir=outputs/a/b",
    )  # fmt: skip
    assert run.code == 0, run.output
    assert "type: python -m dtrain sync" in run.output
    proxy.restore()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    # In a process of its own, as a user does it: here are connections that the proxy has closed.
    sync = [sys.executable, "-m", "dtrain", "sync", "outputs/a/b"]
    for _ in range(2):
        assert subprocess.run(sync, check=False).returncode == 0
        only(server, name)
    proxy.close()


def test_kills(
    server: Server, dtrain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often ``promote`` is killed, in the end there is one model, and one version."""
    run = dtrain(
        *QUICK[1:], "trainer.epochs=1", "name=small", "hydra.run.dir=outputs/a/b",
        f"tracking.uri=http://127.0.0.1:{server.port}", "tracking.experiment=kills",
    )  # fmt: skip
    assert run.code == 0, run.output
    command = [
        sys.executable, "-m", "dtrain", "promote", "outputs/a/b", "name=killed", "alias=champion",
        "if=val_loss<=@champion",
    ]  # fmt: skip
    began = time.monotonic()
    shutil.copytree("outputs/a/b", "outputs/a/copy")
    assert subprocess.run(command, check=False).returncode == 0
    whole = time.monotonic() - began
    found = client(server)
    found.delete_registered_model("killed")
    experiment = found.get_experiment_by_name("kills").experiment_id
    for each in found.search_logged_models([experiment]):
        found.delete_logged_model(each.model_id)
    shutil.rmtree("outputs/a/b")
    shutil.move("outputs/a/copy", "outputs/a/b")
    draws = random.Random(0)
    for _ in range(20):
        with subprocess.Popen(command, start_new_session=True) as process:
            time.sleep(draws.uniform(0.1, 1.1) * whole)
            os.killpg(process.pid, signal.SIGKILL)
    assert subprocess.run(command, check=False).returncode == 0
    [version] = found.search_model_versions("name = 'killed'")
    models = [m for m in found.search_logged_models([experiment])]
    assert [str(each.status) for each in models] == ["READY"]
    assert found.get_model_version_by_alias("killed", "champion").version == version.version
    history = found.get_metric_history(version.run_id, "val_loss")
    assert len(history) == 1


def test_served_by_mlflow(server: Server, dtrain: Any, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{server.port}"
    run = dtrain(
        *WORDS, f"tracking.uri={address}", "tracking.register=served", "hydra.run.dir=outputs/a/b",
        "tracking.experiment=served",
    )  # fmt: skip
    assert run.code == 0, run.output
    assert command_line("promote", "outputs/a/b", "alias=champion") == 0
    only(server, "served")
    registry = read_json(RunDir("outputs/a/b").registry)
    assert registry is not None
    sample = Sample.load(Path("outputs/a/b", registry["models"][0]["path"], "sample.npz"))
    place = str(Path(sys.executable).parent)
    environment = {
        **os.environ, "MLFLOW_TRACKING_URI": address, "CUDA_VISIBLE_DEVICES": "-1",
        "PATH": f"{place}:{os.environ['PATH']}",
    }  # fmt: skip
    port = Proxy(server.port).port + 1
    with subprocess.Popen(
        [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local",
         "-m", "models:/served@champion", "-p", str(port)],
        env=environment, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            x = sample.inputs["inputs"].tolist()
            deadline = time.monotonic() + WAIT
            while not _answers(port):
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.2)
            for body in (
                {"inputs": x},
                {"instances": x},
                {"dataframe_records": [{"x": each} for each in x]},
            ):
                found = _asked(port, body)
                assert np.abs(found - sample.outputs["outputs"]).max() < 1e-6
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5):
            return True
    except OSError:
        return False


def _asked(port: int, body: dict[str, Any]) -> np.ndarray:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=60) as answer:
        return np.asarray(json.load(answer)["predictions"])
