"""``python -m dtrain evaluate``: the same numbers as the run's own, on any strategy, once each."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from dtrain.run import evaluations, journal
from dtrain.run.folder import RunDir
from tests import strategies, warm
from tests.conftest import QUICK
from tests.integration.test_records import evaluate_saved

#: The last validation of the run has 50 examples, of four classes, in batches of 32.
WORDS = (*QUICK, "strategy=one_device", "optimizer.use_ema=true", "checkpoint.keep=2")


def here(*words: str) -> int:
    """Run a command in this process, whose tasks are forked from the warm server."""
    from dtrain.__main__ import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dtrain", *words])
        return main()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        assert here(*WORDS, "hydra.run.dir=run") == 0
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> RunDir:
    """A copy of it in the current folder."""
    return RunDir(shutil.copytree(trained, tmp_path / "run"))


def validation(rundir: RunDir) -> dict[int, dict[str, float]]:
    """Return what the run's own validations have found, by step."""
    found: dict[int, dict[str, float]] = {}
    for event in journal.read(rundir.journal):
        for name, value in event["metrics"].items() if event["event"] == "metrics" else ():
            if name.startswith("val_"):
                found.setdefault(event["step"], {})[name.removeprefix("val_")] = value
    return found


def steps_of(folder: str) -> dict[str, list[int]]:
    """Return the steps of each point that TensorBoard shows of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder)
    events.Reload()
    return {tag: [each.step for each in events.Tensors(tag)] for tag in events.Tags()["tensors"]}


def test_the_bits_of_the_run_and_once_only(run: RunDir, capfd: Any) -> None:
    before = {path.name for path in run.path.iterdir()}
    assert here("evaluate", "run", "checkpoint=all") == 0
    printed = capfd.readouterr()
    own = validation(run)
    found = evaluations.read(run)
    assert {event["step"]: event["metrics"] for event in found} == own
    assert {event["examples"] for event in found} == {50}
    lines = printed.out.splitlines()
    assert [line.split()[:3] for line in lines[:3]] == [
        ["step", "weights", "examples"], ["4", "raw", "50"], ["8", "raw", "50"]
    ]  # fmt: skip
    new = {path.name for path in run.path.iterdir()} - before
    assert new == {"evaluations", "evaluations.jsonl"}
    [folder] = (run.path / "evaluations").iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "FINISHED" and result["evaluated_examples"] == 100
    assert result["metrics"] == own[8]
    # Beside train and validation, under the same names.
    written = warm.call(steps_of, 1, {"folder": str(run.tensorboard / "test")})
    assert written == {"loss": [4, 8], "accuracy": [4, 8]}

    assert here("evaluate", "run/checkpoints/8", "prefix=other") == 0
    printed = capfd.readouterr()
    assert "checkpoint 8 was evaluated already on this data" in printed.err
    *same, last = evaluations.read(run)
    assert same == found and (last["prefix"], last["metrics"]) == ("other", own[8])

    words = ("trainer.validation_steps=1", "prefix=part")
    assert here("evaluate", "run", *words) == 0
    assert evaluations.read(run)[-1]["examples"] == 32

    assert here("evaluate", "run", "dataset.validation_examples=60") == 2
    assert "prefix=test: stands for other examples" in capfd.readouterr().err
    assert here("evaluate", "run", "by=lable") == 2
    assert "type: by=label" in capfd.readouterr().err
    assert len(list((run.path / "evaluations").iterdir())) == 3


MANY = [
    ["strategy=mirrored", "hardware.devices=3"],
    *strategies.chosen().values(),
    ["strategy=one_device", "trainer.validation_batch_size=7"],
]


@pytest.mark.parametrize(
    "words",
    [pytest.param(w, id=" ".join(w), marks=pytest.mark.faults if i else ()) for i, w in
     enumerate(MANY)],
)  # fmt: skip
def test_any_strategy_and_slices(run: RunDir, words: list[str]) -> None:
    assert here("evaluate", "run", "checkpoint=latest", "by=label", *words) == 0
    [event] = evaluations.read(run)
    whole, slices = event["metrics"], event["slices"]
    assert whole == pytest.approx(validation(run)[8], rel=1e-6)
    assert [each["value"] for each in slices] == ["0", "1", "2", "3"]
    assert sum(each["examples"] for each in slices) == 50
    for name, value in whole.items():
        parts = math.fsum(each["examples"] * each["metrics"][name] for each in slices)
        assert parts / 50 == pytest.approx(value, rel=1e-6)
    folder = run.path / "evaluations" / event["folder"]
    head, *rows = csv.reader((folder / "confusion_8.csv").read_text().splitlines())
    counts = [[int(cell) for cell in row[1:]] for row in rows]
    assert head == ["", "0", "1", "2", "3"]
    assert [sum(row) for row in counts] == [each["examples"] for each in slices]
    for number, each in enumerate(slices):
        right = counts[number][number] / each["examples"]
        assert right == pytest.approx(each["metrics"]["accuracy"], rel=1e-6)
    assert (folder / "confusion_8.png").read_bytes().startswith(b"\x89PNG")
    assert len((folder / "slices_8.csv").read_text().splitlines()) == 5


def test_averages_are_the_final_model_s(run: RunDir) -> None:
    """Keras leaves the averages in the model that is saved at the end."""
    assert here("evaluate", "run", "checkpoint=latest", "weights=ema") == 0
    [event] = evaluations.read(run)
    assert (event["weights"], event["prefix"]) == ("ema", "test_ema")
    loaded = warm.call(evaluate_saved, 1, {"path": str(run.model)})
    assert event["metrics"]["accuracy"] == pytest.approx(loaded, rel=1e-6)
    assert event["metrics"] != validation(run)[8]


def test_a_damaged_checkpoint(run: RunDir, capfd: Any) -> None:
    path = run.checkpoints / "4" / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert here("evaluate", "run", "checkpoint=all") == 1
    assert "checkpoints/4/state.safetensors does not match its checksum" in capfd.readouterr().err
    assert [event["step"] for event in evaluations.read(run)] == [8]


def test_refusals(run: RunDir, capfd: Any) -> None:
    (run.path / "evaluations" / "one").mkdir(parents=True)
    made = run.path / "evaluations" / "one"
    for name in ("config.yaml", "cluster.json"):
        shutil.copy(run.path / name, made)
    command = json.loads(run.command.read_text())
    (made / "command.json").write_text(json.dumps({**command, "derived": {}}))
    state = run.checkpoints / "8" / "state.safetensors"
    state.write_bytes(state.read_bytes().replace(b"_average", b"_avarage"))
    for words, sentence in {
        "evaluate nothing": "RUN=nothing: is not a folder",
        "evaluate run checkpoint=5": "checkpoint=5: the run has no such checkpoint; accepted: best,"
        " latest, all, or a step of 4, 8",
        "evaluate run checkpoint=worst": "error: checkpoint=worst: is none",
        "evaluate run/checkpoints/4 checkpoint=8": "names a checkpoint, and so does checkpoint=",
        "evaluate run checkpoint=8 weights=ema": "checkpoint 8 has no averages of its weights",
        "evaluate run fork=run": "fork=run: is of a training, not of evaluate",
        "evaluate run prefix=train": "is the name of what training itself records",
        "evaluate run evaluate.buy=label": "type: by=label",
        "evaluate run/evaluations/one": "is not a run: it is what another command made of one",
        "resume=run/evaluations/one": "is not a run: it is what another command made of one",
        "sync run/evaluations/one": "is not a run: it is what another command made of one",
        "compare run/evaluations": "holds no run folder",
        "action=evaluate": "action=evaluate: works on what a run has left",
    }.items():
        assert here(*words.split()) == 2, words
        assert sentence in capfd.readouterr().err, words
    assert [path.name for path in (run.path / "evaluations").iterdir()] == ["one"]
    assert not Path("outputs").exists()


def test_lines_from_elsewhere(run: RunDir) -> None:
    """What names a path outside, or is of another form, is passed over."""
    sound = {
        "event": "evaluation", "time": 1.0, "step": 8, "digest": "d", "weights": "raw",
        "data": "x", "examples": 3, "declared": "y", "prefix": "test", "metrics": {"loss": 1.0},
    }  # fmt: skip
    wrong: list[dict[str, Any]] = [
        {"prefix": "../up"}, {"prefix": "a/b"}, {"folder": "../up"}, {"confusion": "/etc/passwd"},
        {"slices": [{}]}, {"metrics": {"loss": "much"}}, {"step": -1}, {"event": "metrics"},
    ]  # fmt: skip
    nan = {"slices": [{"value": "a", "examples": 1, "metrics": {"loss": "nan"}}]}
    lines = [json.dumps(sound | more) for more in ({}, *wrong, nan)]
    run.evaluated.write_text("\n".join([*lines, "{", ""]))
    event, other = evaluations.read(run)
    assert event == sound and math.isnan(other["slices"][0]["metrics"]["loss"])
    [points] = evaluations.as_points([event, {"event": "start"}])
    assert (points["event"], points["step"], points["metrics"]) == ("metrics", 8, {"test/loss": 1})


def test_dry_run(run: RunDir, capfd: Any) -> None:
    assert here("evaluate", "run", "strategy=mirrored", "hardware.devices=3", "dry_run=true") == 0
    printed = capfd.readouterr().out
    assert "  replicas             3\n  examples             50\n" in printed
    assert not (run.path / "evaluations").exists()


@pytest.mark.task
def test_one_output_is_compared_with_what_its_loss_takes_it_for() -> None:
    import keras
    import numpy as np

    from dtrain.after.evaluate import confusion_of

    outputs, labels = np.array([[0.3], [0.4], [-2.0]], "float32"), np.array([1, 1, 0])
    target = "keras.losses.BinaryCrossentropy"
    for logits, expected in ((True, [[1, 0], [0, 2]]), (False, [[1, 0], [2, 0]])):
        metric = confusion_of({"_target_": target, "from_logits": logits}, outputs)
        assert metric is not None
        metric.update_state(labels, keras.ops.convert_to_tensor(outputs))
        assert np.asarray(metric.matrix).tolist() == expected


@pytest.mark.usefixtures("store")
def test_where_the_run_is_tracked(tmp_path: Path) -> None:
    from dtrain.tracking.mlflow.store import import_mlflow

    words = [word for word in WORDS if word != "tracking=none"]
    assert here(*words, "trainer.epochs=1") == 0
    [path] = (tmp_path / "outputs").glob("*/*/config.yaml")
    rundir = RunDir(path.parent)
    assert here("evaluate", str(rundir.path), "by=label") == 0
    [event] = evaluations.read(rundir)
    other = f"sqlite:///{shutil.copy(tmp_path / 'outputs' / 'mlflow.db', tmp_path / 'other.db')}"
    assert (
        here("sync", str(rundir.path), f"tracking.uri={other}") == 0
    )  # a store that has none of it
    for place in (f"sqlite:///{tmp_path / 'outputs' / 'mlflow.db'}", other):
        client = import_mlflow().tracking.MlflowClient(place)
        recorded = client.search_runs([client.get_experiment_by_name("dtrain").experiment_id])[0]
        assert recorded.info.status == "FINISHED"
        for name, value in event["metrics"].items():
            [point] = client.get_metric_history(recorded.info.run_id, f"test/{name}")
            assert (point.step, point.value) == (event["step"], value)
        held = client.list_artifacts(recorded.info.run_id, f"evaluations/{event['folder']}")
        assert {Path(each.path).suffix for each in held} == {".csv", ".png"}
