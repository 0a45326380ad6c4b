"""What user code logs while it trains: files of the run folder, events, TensorBoard, trackers."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dtrain.errors import UsageError
from dtrain.run.folder import RunDir, read_json
from dtrain.run.journal import read
from dtrain.task.process import own_logs
from dtrain.task.process.own_logs import OwnLogs
from dtrain.tracking.mlflow.store import import_mlflow
from tests.conftest import QUICK

PICTURES = """
import dtrain, keras, matplotlib, numpy as np
matplotlib.use("agg")
from matplotlib.figure import Figure

class Pictures(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        dtrain.log_image("val/picture", np.full((4, 6, 3), epoch / 4))
        figure = Figure()
        figure.subplots().plot([1, 2])
        dtrain.log_figure("curve", figure)
        dtrain.log_table("rows", [{"a": 1, "b": "=x"}, {"a": epoch}])
        dtrain.log_metric("mine", 0.5)
        dtrain.set_tag("note", f"epoch {epoch}")
        with open("own.txt", "w") as file:
            file.write(f"epoch {epoch}")
        dtrain.log_artifact("own.txt")

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            import mlflow
            mlflow.set_tag("theirs", "yes")
            mlflow.log_artifact("mine.py", "code of mine")
"""


@pytest.mark.usefixtures("store")
def test_all_of_it_is_there_once_over_a_resume(dtrain: Any, user_code: Any, tmp_path: Path) -> None:
    user_code(PICTURES)
    words = ["tracking=[mlflow,csv]", "trainer.callbacks=[{_target_:mine.Pictures}]"]
    first = dtrain(*QUICK[1:], *words, "trainer.epochs=1", "checkpoint.every_steps=3")
    assert first.code == 0 and first.rundir is not None, first.output
    rundir = first.rundir
    assert dtrain(f"resume={rundir.path}", "trainer.epochs=2").code == 0
    shutil.rmtree(rundir.checkpoints / "8")  # the end of the second epoch comes once more
    assert dtrain(f"resume={rundir.path}").code == 0
    events = [event for event in read(rundir.journal) if event["event"] in ("file", "tag")]
    known = {(e["step"], e["name"], e.get("kind") or e["value"]) for e in events}
    each = [("val/picture", "image"), ("curve", "image"), ("rows", "table"), ("own.txt", "file")]
    wanted = {(step, *pair) for step in (4, 8) for pair in each}
    wanted |= {(4, "note", "epoch 0"), (8, "note", "epoch 1")}
    wanted |= {(step, "theirs", "yes") for step in (1, 5)}
    assert known == wanted | {(step, "code of mine/mine.py", "file") for step in (1, 5)}
    assert (rundir.logged / "4" / "own.txt").read_text() == "epoch 0"  # as it was then
    assert (rundir.logged / "8" / "rows.csv").read_text() == "a,b\n1,'=x\n1,\n"
    with Image.open(rundir.logged / "8" / "val" / "picture.png") as image:
        assert image.size == (6, 4) and image.getpixel((0, 0)) == (64, 64, 64)
    tracked = read_json(rundir.tracking)
    assert tracked is not None
    client = import_mlflow().tracking.MlflowClient(tracked["uri"])
    run = client.get_run(tracked["run_id"])
    assert run.data.tags["note"] == "epoch 1" and run.data.tags["theirs"] == "yes"
    assert run.data.metrics["mine"] == 0.5
    images = [Path(f.path).name for f in client.list_artifacts(tracked["run_id"], "images")]
    shown = sorted(name.split("+timestamp")[0] for name in images if name.endswith(".png"))
    assert shown == ["curve+step+4", "curve+step+8", "val~picture+step+4", "val~picture+step+8"]
    files = [f.path for f in client.list_artifacts(tracked["run_id"], "logged/8")]
    assert sorted(files) == ["logged/8/own.txt", "logged/8/rows.csv"]
    facts = (rundir.path / "csv" / "facts.csv").read_text()
    assert len(re.findall(r"^image/curve/8,", facts, re.M)) == 1
    assert facts.count("note,epoch 1\n") == 1
    shown_by_tensorboard(rundir)


def shown_by_tensorboard(rundir: RunDir) -> None:
    data = b"".join(path.read_bytes() for path in rundir.tensorboard.rglob("*tfevents*"))
    pictures = [(rundir.logged / step / "val" / "picture.png").read_bytes() for step in "48"]
    assert [data.count(each) for each in pictures] == [1, 1]
    assert data.count(b"| a | b |") == 2 and data.count(b"epoch 1") >= 1


class Kept:
    """A target that keeps what it is told."""

    def __init__(self) -> None:
        self.files: list[Path] = []
        self.tags: list[Any] = []

    def tag(self, *given: Any) -> None:
        self.tags.append(given)

    def file(self, step: int, name: str, kind: str, path: Path) -> None:
        self.files.append(path)


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "", "x\n", "a" * 201])
def test_a_name_that_is_none(name: str, tmp_path: Path) -> None:
    logs, kept = OwnLogs(), Kept()
    logs.begin(kept, RunDir(tmp_path), lambda: 1)
    for call in (logs.tag, logs.image, logs.table):
        with pytest.raises(UsageError, match="is no name"):
            call(name, "value")
    with pytest.raises(UsageError, match="is no name"):
        logs.artifact(__file__, name or "..")
    assert not kept.files and not kept.tags and not any(tmp_path.iterdir())


@pytest.mark.task
def test_images_of_any_kind(tmp_path: Path) -> None:
    import keras

    logs, kept = OwnLogs(), Kept()
    logs.begin(kept, RunDir(tmp_path), lambda: 1)
    whole = np.array([[0, 255], [128, 64]], np.uint8)
    for number, image in enumerate([
        whole, whole / 255, keras.ops.convert_to_tensor(whole[..., None]), Image.fromarray(whole),
    ]):  # fmt: skip
        logs.image(str(number), image)
        with Image.open(io.BytesIO(kept.files[-1].read_bytes())) as found:
            assert np.array_equal(np.asarray(found)[..., 0], whole)
    logs.image("path", kept.files[0])
    assert kept.files[-1].read_bytes() == kept.files[0].read_bytes()
    with pytest.raises(UsageError, match="is none that could be written"):
        logs.image("a", np.zeros((2, 2, 2, 2)))
    logs.table("columns", {"a": [1, 2], "b": [3, 4]})
    assert kept.files[-1].read_text() == "a,b\n1,3\n2,4\n"


def test_outside_of_a_training_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    import dtrain

    with pytest.raises(UsageError, match="none does in this process"):
        dtrain.log_image("a", np.zeros((2, 2)))
    monkeypatch.setenv("API_KEY", "the canary")
    logs, kept = OwnLogs(), Kept()
    logs.begin(kept, RunDir(Path("none")), lambda: 1)
    logs.tag("where", "https://me:pw@host/the canary")
    assert kept.tags == [(1, "where", "https://me:***@host/***")]
    with own_logs.receiving(OwnLogs()):  # in an evaluation: nothing is recorded
        dtrain.log_image("a", np.zeros((2, 2)))
        dtrain.set_tag("a", 1)
