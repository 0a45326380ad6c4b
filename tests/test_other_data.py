"""Commands on a run with other files than its own: all of them, by the names of its columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dtrain import datasets
from dtrain.config.node import Node
from dtrain.run import evaluations, identity
from dtrain.run.folder import RunDir
from dtrain.run.other_data import settle_data
from tests.test_evaluate import here

NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def frame() -> pd.DataFrame:
    """A table of three classes, the second half of which lacks the first one."""
    x = np.random.default_rng(0).normal(size=(96, 4)).astype(np.float32)
    words = np.where(x[:, 0] > 0, "dog", np.where(x[:, 1] > 0, "eel", "cat"))
    made = pd.DataFrame(x, columns=NAMES).assign(y=words)
    return pd.concat([made, made[made.y != "cat"].head(30)], ignore_index=True)


def test_a_csv_by_name_and_as_a_whole(frame: pd.DataFrame, capfd: Any) -> None:
    other = frame[96:]
    files = {
        "train": frame[:96], "turned": other[["y", "d", "c", "b", "a"]], "same": other,
        "bare": other[["d", "c", "b", "a"]], "lacks": other.rename(columns={"a": "zz"}),
    }  # fmt: skip
    for name, each in files.items():
        Path(f"{name}.csv").write_text(
            "# how files are read is that of the run\n" + each.to_csv(index=False)
        )
    assert here(
        "dataset=csv", "dataset.path=train.csv", "model=mlp", "trainer.epochs=2",
        "trainer.batch_size=16", "tracking=none", "hydra.run.dir=run",
        "trainer.class_weight={0:1,1:3}", "dataset.comment='#'",
    ) == 0  # fmt: skip

    assert here("evaluate", "run", "dataset.test=turned.csv") == 0
    assert here("predict", "run", "dataset.path=same.csv", "to=same", "format=jsonl") == 0
    assert here("predict", "run", "dataset.path=bare.csv", "to=bare", "format=jsonl") == 0
    texts = [Path(name, "predictions.jsonl").read_text() for name in ("same", "bare")]
    assert texts[0] == texts[1]
    lines = [json.loads(line) for line in texts[0].splitlines()]
    classes = ["cat", "dog", "eel"]
    rows = [[line[f"prediction.{name}"] for name in classes] for line in lines]
    assert [line["class_name"] for line in lines] == [classes[k] for k in np.argmax(rows, 1)]
    assert here("predict", "run", "to=best", "function=argmax", "format=csv") == 0
    best = pd.read_csv("best/predictions.csv")
    assert best.class_name.tolist() == [classes[k] for k in best.prediction]
    [found] = evaluations.read(RunDir("run"))
    assert found["examples"] == len(rows) == 30
    true = [classes.index(word) for word in other.y]
    assert found["metrics"]["accuracy"] == pytest.approx(np.mean(np.argmax(rows, 1) == true))
    assert found["metrics"]["loss"] == pytest.approx(
        -np.mean(np.log(np.array(rows)[np.arange(30), true])), rel=1e-5
    )

    capfd.readouterr()
    for name in ("evaluate", "predict"):
        assert here(name, "run", "dataset.path=lacks.csv") == 2
        assert "dataset.inputs=a: lacks.csv has no such column" in capfd.readouterr().err


def test_the_columns_of_a_run_are_kept_of_any_table(frame: pd.DataFrame) -> None:
    frame = frame.assign(y=range(len(frame)))
    frame.to_csv("a.csv", index=False)
    frame.to_parquet("a.parquet", index=False)
    for made in (datasets.table("a.csv", "y"), datasets.table("a.parquet", "y")):
        assert (list(made.columns["inputs"]), made.columns["target"]) == (NAMES, "y")


COLUMNS = {"inputs": NAMES, "target": "y"}
TABLE = {"path": "a", "inputs": None, "target": "y", "validation": "v", "validation_split": 0.2}


NPY = {"_target_": "dtrain.datasets.npy", "path": "x"}


@pytest.mark.parametrize(
    ("own", "typed", "labels", "expected"),
    [
        ({"path": "a", "validation_split": 0.2}, {"path": "b"}, True, {"validation_split": 0.0}),
        ({"path": "a", "validation_split": 0.2}, {"path": "b", "validation_split": 0.5}, True, {}),
        ({"path": "a", "validation_split": 0.2}, {"path": "a"}, True, {}),
        ({"path": "a", "validation_split": 0.2}, {"split_seed": 1}, True, {}),
        ({"path": "a", "test": None, "folds": 5, "fold": 1, "validation": "v"}, {"test": "t"},
         False, {"path": "t", "folds": None, "fold": 0, "validation": None}),
        ({"path": "a", "test": "t"}, {}, True, {"path": "t"}),
        ({"path": "a", "test": "t"}, {}, False, {}),
        (TABLE, {"path": "b"}, True,
         {"validation_split": 0.0, "validation": None, "inputs": NAMES}),
        (TABLE, {"path": "b", "validation": "c"}, True, {"inputs": NAMES}),
        (TABLE, {"path": "b", "inputs": ["b"]}, False,
         {"validation_split": 0.0, "validation": None, "target": None}),
        ({"path": "x", "target": "y", "validation_split": 0.2},
         {"path": "z", "target": "w"}, True, {"validation_split": 0.0}),
        ({**NPY, "target": "y", "validation_split": 0.2}, {"path": "z"}, True,
         {"validation_split": 0.0, "target": None}),
        ({"path": "x", "target": None, "inputs": None}, {"path": "z"}, True,
         {"target": "y", "inputs": NAMES}),
    ],
)  # fmt: skip
def test_what_another_path_means(
    own: dict[str, Any], typed: dict[str, Any], labels: bool, expected: dict[str, Any],
) -> None:  # fmt: skip
    own = {"_target_": "dtrain.datasets.table", **own}
    node = {**own, **typed}
    names = {f"dataset.{name}" for name in typed}
    found = settle_data(Node(node), Node(own), COLUMNS, names, labels)
    assert dict(found) == {**node, **expected}
    assert identity.deciding(found) is not None
