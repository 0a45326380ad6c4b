"""Sinks: what a tracker of seven methods is told of a run, and what real ones have of it."""

from __future__ import annotations

import csv
import http.server
import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.config import tree
from dtrain.errors import UsageError
from dtrain.run import evaluations
from dtrain.run.folder import RunDir, read_json, write_json
from dtrain.run.journal import Journal
from dtrain.tracking import delivery
from dtrain.tracking.base import TrackedRun
from dtrain.tracking.chosen import Trackers, make_tracker
from dtrain.tracking.delivery import JournalFeed, RunDelivery, ship_folder
from dtrain.tracking.sink import Sunk
from dtrain.tracking.sinks.csv import CSV
from tests.test_schema import checked, node
from tests.test_tracking import CLUSTER, START, Slow, point

OFFLINE = "tracking.wandb.mode=offline"


def composed(*words: str) -> Any:
    """Return a configuration that was checked, which adds what is left out."""
    checked(whole := node(*words))
    return tree.typed(whole)


def left(tmp_path: Path, *words: str) -> tuple[Any, RunDir]:
    """Return the configuration and the folder of a run that has ended."""
    config = composed(f"output_dir={tmp_path}/outputs", *words)
    rundir = RunDir.create(tmp_path / "outputs" / "run")
    journal = Journal(rundir.journal)
    journal.write("start", step=0, replicas=1)
    for step in (1, 2, 3):
        journal.write("metrics", step=step, metrics={"loss": 4.0 - step, "odd": float("nan")})
    journal.close()
    write_json(rundir.cluster, CLUSTER.to_json())
    write_json(rundir.result, {"status": "FINISHED", "metrics": {"loss": 1.0}, "started": 1000.0})
    return config, rundir


def rows(rundir: RunDir, name: str) -> list[list[str]]:
    with (rundir.path / "csv" / name).open(newline="") as file:
        return list(csv.reader(file))


def test_a_sink_has_each_point_once(tmp_path: Path) -> None:
    """Over a resume from an earlier step, and what is evaluated late, of any step."""
    config, rundir = left(tmp_path, "tracking=csv")
    run, first = TrackedRun(config, rundir, CLUSTER), make_tracker(config)
    assert isinstance(first, Sunk)
    first.open(run, 1000.0)
    first.write([START, point(1, loss=3.0), point(3, loss=1.0)])
    second = make_tracker(config)  # after a resume from step 1
    second.open(run, 1000.0)
    second.write([{**START, "replicas": 2}, point(3, loss=1.0), point(4, loss=0.5)])
    late = {"event": "metrics", "time": 9.0, "prefix": "test", "metrics": {"test/loss": 7.0}}
    second.write([{**late, "step": 3}, {**late, "step": 1}, {**late, "step": 3}])
    second.close("FINISHED", 2000.0)
    assert [(int(r[0]), *r[2:]) for r in rows(rundir, "points.csv")] == [
        (1, "loss", "3.0"), (3, "loss", "1.0"), (4, "loss", "0.5"),
        (3, "test/loss", "7.0"), (1, "test/loss", "7.0"),
    ]  # fmt: skip
    known = dict(rows(rundir, "facts.csv"))
    assert known["replicas"] == "1" and known["resumed.replicas"] == "2"
    assert known["optimizer.learning_rate"] == "0.001" and known["status"] == "FINISHED"
    kept = read_json(rundir.path / "trackers" / "csv.json")
    assert kept is not None and kept["shipped"] == "FINISHED"


def test_a_run_is_read_once_for_several_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is far behind reads by itself, and has all in the end."""
    monkeypatch.setattr(delivery, "EVENTS", 10)
    monkeypatch.setattr(delivery, "WINDOW", 20)
    _, rundir = left(tmp_path)
    feed, seen = JournalFeed(rundir, (), 2), [list[int](), list[int]()]
    journal = Journal(rundir.journal)

    def read(reader: int) -> None:
        while some := feed.take(reader, False):
            assert len(some) <= 10
            seen[reader] += [event["step"] for event in some if event["event"] == "metrics"]

    for step in range(4, 100):
        journal.write("metrics", step=step, metrics={"loss": 1.0})
        if step % 7 == 0:
            read(0)
    read(0)
    assert seen[0] == list(range(1, 100)) and not seen[1]
    read(1)
    journal.write("metrics", step=100, metrics={"loss": 1.0})
    for reader in (0, 1):
        read(reader)
        assert sorted(set(seen[reader])) == list(range(1, 101))
    assert not feed._own and not feed._window, "what all have read is not kept"
    journal.close()


def test_one_that_is_away_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "AWAY_SECONDS", 1.0)
    config, rundir = left(tmp_path, "tracking=csv")
    slow: Any = Slow(set(range(1, 99)))
    heard: list[str] = []
    several = Trackers((slow, make_tracker(config)))
    delivered = RunDelivery(several, TrackedRun(config, rundir, CLUSTER), heard.append)
    assert delivered.finish("FINISHED", 2000.0) == ["Slow"]
    assert len(rows(rundir, "points.csv")) == 6 and not slow.closed
    assert heard == ["tracking (Slow): away; training continues"]
    with pytest.raises(ConnectionError):  # and by `sync` as well
        ship_folder(Trackers((slow, make_tracker(config))), config, rundir)


def test_several_are_chosen_by_a_list(tmp_path: Path) -> None:
    several = make_tracker(composed("tracking=[mlflow,csv]", f"output_dir={tmp_path}"))
    assert [part.label for part in several.parts] == ["MLflow", "CSV"]
    assert several.keeps_models and several.address.endswith("/mlflow.db, csv/ of the run folder")
    assert not make_tracker(composed("tracking=[none,csv]")).keeps_models
    alone = composed("tracking=csv", "tracking.histograms=true")
    assert alone.tracking.histograms and make_tracker(alone).label == "CSV"


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_package_that_is_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(UsageError, match=rf"is not installed.*pip install 'dtrain\[{name}\]'"):
        make_tracker(composed(f"tracking={name}"))


def records(rundir: RunDir) -> Iterator[Any]:
    """Yield what W&B has in its files of runs: protocol buffers, in blocks as of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    for path in sorted(rundir.path.glob("wandb/offline-run-*/*.wandb")):
        data, position, whole = path.read_bytes(), 7, b""
        while position < len(data):
            if (rest := -position % 32768) < 7 and rest:
                position += rest
                continue
            _, size, kind = struct.unpack_from("<IHB", data, position)
            whole += data[position + 7 : position + 7 + size]
            position += 7 + size
            if kind in (1, 4):  # whole, or the last part
                yield wandb_internal_pb2.Record.FromString(whole)
                whole = b""


def history(rundir: RunDir) -> list[dict[str, Any]]:
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json)
         for item in each.history.item}
        for each in records(rundir) if each.WhichOneof("record_type") == "history"
    ]  # fmt: skip


def settings(rundir: RunDir) -> dict[str, Any]:
    found = [each.config.update for each in records(rundir)]
    return {item.key: json.loads(item.value_json) for each in found for item in each}


def test_wandb_offline(tmp_path: Path) -> None:
    """Its files are read back, and are files of the run folder: no links, which sync refuses."""
    config, rundir = left(tmp_path, "tracking=wandb", OFFLINE, "tracking.wandb.project=p")
    ship_folder(make_tracker(config), config, rundir)
    for _ in range(2):  # what is evaluated later: once, at an earlier step
        known = dict.fromkeys(("digest", "weights", "data", "declared"), "a")
        fields: dict[str, Any] = {**known, "step": 1, "examples": 3, "prefix": "test"}
        evaluations.append(rundir, **fields, metrics={"loss": 7.0})
        ship_folder(make_tracker(config), config, rundir)
    assert len(list(rundir.path.glob("wandb/offline-run-*"))) == 2  # the last had nothing new
    points = [(each["step"], each.get("loss"), each.get("test/loss")) for each in history(rundir)]
    assert points == [(1, 3.0, None), (2, 2.0, None), (3, 1.0, None), (1, None, 7.0)]
    began = [each.run for each in records(rundir) if each.WhichOneof("record_type") == "run"]
    assert {(run.project, run.run_id, run.display_name) for run in began} == {
        ("p", began[0].run_id, "cnn_default")
    }
    known = settings(rundir)
    assert known["optimizer.learning_rate"] == "0.001" and known["status"] == "FINISHED"
    assert not [path for path in rundir.path.rglob("*") if path.is_symlink()]
    copies = list(rundir.path.glob("wandb/offline-run-*/files/result.json"))
    assert len(copies) == 1 and rundir.journal.stat().st_nlink == 1


def test_wandb_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would ask for one at the terminal, in the midst of a training."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"no key.*hint: tracking.wandb.mode=offline"):
        make_tracker(composed("tracking=wandb"))


class Refuses(http.server.BaseHTTPRequestHandler):
    """A server that knows no key."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(401)
        self.end_headers()
        self.wfile.write(b'{"errors": [{"message": "invalid API key"}]}')

    do_GET = do_POST

    def log_message(self, *given: Any) -> None: ...


@pytest.mark.parametrize("answers", [False, True])
def test_wandb_whose_server_is_away_or_refuses(
    answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "0123456789abcdef" * 3
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    if answers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    else:
        server.server_close()
    monkeypatch.setenv("WANDB_API_KEY", secret)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("dtrain.tracking.sinks.wandb._BEGIN", 1.0)
    monkeypatch.setattr(delivery, "_reported", set())
    config, rundir = left(tmp_path, "tracking=wandb")
    heard: list[str] = []
    delivered = RunDelivery(make_tracker(config), TrackedRun(config, rundir, CLUSTER), heard.append)
    assert delivered.finish("FINISHED", 2000.0) == ["W&B"]
    assert len(heard) == 1 and heard[0].startswith("tracking: ")
    for thread in threading.enumerate():
        if thread.name == "tracking":
            thread.join(60)
    assert not list(rundir.path.glob("wandb/run-*"))  # nor a folder of each try
    texts = [path.read_bytes() for path in rundir.path.rglob("*") if path.is_file()]
    assert secret not in heard[0] and not any(secret.encode() in text for text in texts)
    server.shutdown() if answers else None
    server.server_close()


@pytest.mark.trackio
def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trackio.sqlite_storage as storage

    config, rundir = left(tmp_path, "tracking=trackio", "tracking.trackio.project=p")
    for _ in range(2):
        ship_folder(make_tracker(config), config, rundir)
        (rundir.path / "trackers" / "trackio.json").write_text(
            json.dumps({"place": "Trackio p", "id": "0" * 32})
        )  # as if the command had been killed before it wrote what Trackio has
    [one] = [r for r in storage.SQLiteStorage.get_run_records("p") if r["id"] == "0" * 32]
    logs = storage.SQLiteStorage.get_logs("p", run_id=one["id"])
    assert [(each["step"], each.get("loss")) for each in logs][:3] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert logs[-1]["final/loss"] == 1.0 and len(logs) == 4
    known = storage.SQLiteStorage.get_run_config("p", run_id=one["id"])
    assert known["optimizer.learning_rate"] == "0.001"


def test_the_folder_of_csv_files(tmp_path: Path) -> None:
    sink = CSV(str(tmp_path / "all"))
    made = sink.open("a", None, {}, None, tmp_path / "run")
    sink.log({"loss": 1.0}, 1, 2.0)
    assert (tmp_path / "all" / made / "points.csv").read_text() == "1,2.000,loss,1.0\n"
