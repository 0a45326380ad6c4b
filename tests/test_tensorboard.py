from __future__ import annotations

import json
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.configs import parsed


def scalars(folder: Path, split: str) -> dict[str, dict[int, float]]:
    """Read back what TensorBoard would draw: values by step, by name."""
    import tensorflow as tf

    accumulator = events(folder / split)
    return {
        tag: {e.step: float(tf.make_ndarray(e.tensor_proto)) for e in accumulator.Tensors(tag)}
        for tag in accumulator.Tags()["tensors"]
    }


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    return accumulator


@pytest.mark.task
def test_points_go_to_their_split_under_one_name(tmp_path: Path) -> None:
    from dtrain.task.train.tensorboard import Summaries

    folder = tmp_path / "tensorboard"
    summaries = Summaries(folder, tmp_path / "journal.jsonl", False, None)
    for step in (5, 10):
        summaries.scalars(step, {"loss": 10.0 / step, "learning_rate": 0.5})
    summaries.scalars(10, {"val_loss": 3.0})
    summaries.flush()
    assert scalars(folder, "train")["loss"] == {5: 2.0, 10: 1.0}
    summaries.scalars(15, {"loss": float("nan")})
    summaries.close()
    train = scalars(folder, "train")
    assert train.keys() == {"loss", "learning_rate"}
    assert list(train["loss"]) == [5, 10, 15]
    assert scalars(folder, "validation") == {"loss": {10: 3.0}}


@pytest.mark.task
def test_a_restart_shows_the_points_of_the_journal_and_no_others(tmp_path: Path) -> None:
    from dtrain.run.journal import Journal
    from dtrain.task.train.tensorboard import Summaries

    folder, path = tmp_path / "tensorboard", tmp_path / "journal.jsonl"
    journal = Journal(path)
    killed = Summaries(folder, path, False, None)
    for step in (1, 2, 3):
        killed.scalars(step, {"loss": float(step), "lost": 1.0})
    killed.close()
    journal.write("start", step=0)
    for step in (1, 2):  # what a resume from step 2 leaves of it
        journal.write("metrics", step=step, epoch=1, metrics={"loss": float(step)})
    journal.write("metrics", step=2, epoch=1, metrics={"val_loss": 7.0})
    journal.close()

    summaries = Summaries(folder, path, False, None)
    summaries.scalars(3, {"loss": 30.0})
    summaries.close()
    assert scalars(folder, "train") == {"loss": {1: 1.0, 2: 2.0, 3: 30.0}}
    assert scalars(folder, "validation") == {"loss": {2: 7.0}}


@pytest.mark.task(devices=2)
def test_histograms_on_request(tmp_path: Path) -> None:
    import keras

    from dtrain.task.strategies import Mirrored
    from dtrain.task.train.tensorboard import Summaries

    with Mirrored(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, name="out")])
    for asked in (False, True):
        summaries = Summaries(tmp_path / str(asked), tmp_path / "none", asked, None)
        summaries.scalars(1, {"loss": 1.0})
        summaries.weights(4, model)
        summaries.close()
    assert events(tmp_path / "False" / "train").Tags()["tensors"] == ["loss"]
    found = events(tmp_path / "True" / "train")
    assert {"loss", "out/kernel", "out/bias"} == {
        tag.removeprefix("sequential/") for tag in found.Tags()["tensors"]
    }
    (kernel,) = (tag for tag in found.Tags()["tensors"] if tag.endswith("kernel"))
    (event,) = found.Tensors(kernel)
    import tensorflow as tf

    buckets = tf.make_ndarray(event.tensor_proto)
    assert event.step == 4
    assert buckets[:, 2].sum() == 6  # every weight is counted once


@pytest.mark.task
def test_a_trace_of_some_steps(tmp_path: Path) -> None:
    import tensorflow as tf

    from dtrain.task.train.tensorboard import Summaries

    for name, last in (("stopped", 3), ("closed", 9)):  # 9: the run ends before
        folder = tmp_path / name
        summaries = Summaries(folder, tmp_path / "none", False, (2, last))
        for step in range(6):
            summaries.profile(step)
            tf.reduce_sum(tf.ones([step + 1]))
            traces = list(folder.glob("plugins/profile/*/*.xplane.pb"))
            assert bool(traces) == (step >= last)
        summaries.close()
        assert len(list(folder.glob("plugins/profile/*/*.xplane.pb"))) == 1


@pytest.mark.task
def test_tensorboard_draws_the_hyperparameters_of_a_sweep(tmp_path: Path) -> None:
    """Asked as its page asks: the axes with their types, and each job with its last values."""
    from dtrain.task.train.tensorboard import Summaries

    for number, (rate, strategy, status) in enumerate(
        [("0.001", "mirrored", "FINISHED"), ("0.1", "one_device", "FAILED"), ("1e-5", "ps", None)]
    ):
        folder = tmp_path / str(number) / "tensorboard"
        differs = {"optimizer.learning_rate": rate, "strategy": strategy, "model.bias": "true"}
        summaries = Summaries(
            folder, tmp_path / "none", False, None, {"number": number, "differs": differs}
        )
        summaries.scalars(10, {"loss": 2.0 - number, "val_loss": 3.0})
        summaries.flush()
        if status is not None:  # the last one is killed
            summaries.close(status)

    experiment, sessions = asked(tmp_path)
    axes = {axis["name"]: axis["type"] for axis in experiment["hparamInfos"]}
    assert axes == {
        "optimizer.learning_rate": "DATA_TYPE_FLOAT64",
        "strategy": "DATA_TYPE_STRING",
        "model.bias": "DATA_TYPE_BOOL",
    }
    columns = {(m["name"]["group"], m["name"]["tag"]) for m in experiment["metricInfos"]}
    assert columns == {("train", "loss"), ("validation", "loss")}
    found = {group["hparams"]["strategy"]: group for group in sessions}
    assert {s: g["hparams"]["optimizer.learning_rate"] for s, g in found.items()} == {
        "mirrored": 0.001, "one_device": 0.1, "ps": 1e-5,
    }  # fmt: skip
    states = {strategy: group["sessions"][0].get("status") for strategy, group in found.items()}
    assert states == {
        "mirrored": "STATUS_SUCCESS", "one_device": "STATUS_FAILURE", "ps": "STATUS_UNKNOWN",
    }  # fmt: skip
    values = {m["name"]["group"]: m["value"] for m in found["one_device"]["metricValues"]}
    assert values == {"train": 1.0, "validation": 3.0}


def asked(logdir: Path) -> tuple[Any, Any]:
    """Start TensorBoard's server on ``logdir`` and ask for what its hparams page is drawn from."""
    from tensorboard import program

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TensorBoard's own imports
        board = program.TensorBoard()
        board.configure(logdir=str(logdir), host="127.0.0.1", port=0, load_fast="false")
        page = f"{board.launch()}data/plugin/hparams"

    def ask(name: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{page}/{name}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    states = [f"STATUS_{name}" for name in ("UNKNOWN", "SUCCESS", "FAILURE", "RUNNING")]
    wanted = {"startIndex": 0, "sliceSize": 100, "allowedStatuses": states}
    while True:  # it reads the files from a thread of its own
        groups = ask("session_groups", wanted).get("sessionGroups", [])
        if len(groups) == 3 and all(len(group["metricValues"]) == 2 for group in groups):
            return ask("experiment", {}), groups


@pytest.mark.task
def test_a_task_takes_it_from_the_command_of_its_run(tmp_path: Path) -> None:
    from dtrain.run.folder import RunDir, write_json
    from dtrain.run.journal import Journal
    from dtrain.task.train.train import make_records

    config = parsed({"tracking": {"histograms": False, "profile_steps": None}})
    for name, command, sessions in (
        ("single", {"format": 2, "overrides": []}, 0),
        ("job", {"sweep": {"number": 3, "differs": {"seed": "1"}}}, 1),
    ):
        rundir = RunDir.create(tmp_path / name)
        write_json(rundir.command, command)
        records = make_records(rundir, config, Journal(rundir.journal))
        records.point(1, 1, "interval", {"loss": 1.0})
        records.end(status="FINISHED")
        assert len(list(rundir.tensorboard.glob("events.*"))) == sessions
        assert len(list(rundir.tensorboard.glob("train/events.*"))) == 1
