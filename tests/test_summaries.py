from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


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
    from dtrain.task.summaries import Summaries

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
    from dtrain.journal import Journal
    from dtrain.task.summaries import Summaries

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
    from dtrain.task.summaries import Summaries

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

    from dtrain.task.summaries import Summaries

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
