"""A trained table in use: other files by the names of columns, an export, and a server of it."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.serving_models import served
from tests.test_table_referee import customers

#: What is asked of a server: an empty number and date, a category that training had not, a text.
ROWS = [
    {"age": None, "plan": "basic", "region": None, "channel": "fax", "since": "2021-03-05",
     "paper": True, "note": "slow and Broken!"},
    {"age": 61, "plan": "pro", "region": "east", "channel": "web", "since": None, "paper": False,
     "note": ""},
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the table of customers, exported, with files beside it."""
    from dtrain.__main__ import main

    folder = tmp_path_factory.mktemp("table")
    customers(240).to_csv(folder / "customers.csv", index=False)
    other = customers(40, seed=1)
    other.to_csv(folder / "test.csv", index=False)
    other[["note", "since", "plan", "age", "paper", "channel", "region"]].to_csv(
        folder / "turned.csv", index=False
    )
    other.rename(columns={"plan": "tariff"}).to_csv(folder / "renamed.csv", index=False)
    pd.DataFrame(ROWS).to_csv(folder / "asked.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        for words in (
            ["dataset=csv", "dataset.path=customers.csv", "model=mlp", "trainer.epochs=2",
             "trainer.batch_size=16", "tracking=none", "name=churn", "hydra.run.dir=run"],
            ["predict", "run", "dataset.path=test.csv", "to=straight", "format=csv"],
            ["predict", "run", "dataset.path=turned.csv", "to=turned", "format=csv"],
            ["predict", "run", "dataset.path=asked.csv", "to=asked", "format=csv"],
            ["export", "run", "format=savedmodel,keras"],
        ):  # fmt: skip
            patch.setattr(sys, "argv", ["dtrain", *words])
            assert main() == 0, words
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with (path / "predictions.csv").open() as file:
        return list(csv.DictReader(file))


def test_other_files_are_read_by_the_names_of_their_columns(folder, monkeypatch, capfd) -> None:
    from dtrain.__main__ import main

    journals = folder.glob("run/predictions/jobs/*/journal.jsonl")
    assert any("'fax' in this data (1 of 2 rows)" in path.read_text() for path in journals)
    straight, turned = rows(folder / "straight"), rows(folder / "turned")
    assert straight == turned and len(straight) == 40
    assert {row["class_name"] for row in straight} <= {"yes", "no"}
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["dtrain", "evaluate", "run", "dataset.test=test.csv"])
    assert main() == 0
    [record] = [json.loads(line) for line in Path("run/evaluations.jsonl").read_text().splitlines()]
    right = [row["class_name"] for row in straight] == pd.read_csv("test.csv").churn
    assert record["metrics"]["accuracy"] == pytest.approx(right.mean())
    for command in ("evaluate", "predict"):
        monkeypatch.setattr(sys, "argv", ["dtrain", command, "run", "dataset.path=renamed.csv"])
        assert main() == 2
        error = capfd.readouterr().err
        assert "plan" in error and "tariff" in error, error


def test_a_server_of_it_takes_columns_as_people_write_them(folder, tmp_path) -> None:
    predicted = rows(folder / "asked")
    numbers = [
        [float(text) for name, text in row.items() if name.startswith("prediction.")]
        for row in predicted
    ]
    with served(folder / "run/exports/churn", tmp_path, name="churn") as client:
        status, answer, headers = client("/invocations", {"dataframe_records": ROWS})
        assert status == 200, answer
        assert json.loads(headers["x-unknown-categories"]) == {"channel": 1}
        assert (
            "x-unknown-categories" not in client("/invocations", {"dataframe_records": ROWS[1:]})[2]
        )
        np.testing.assert_allclose(answer["predictions"], numbers, atol=1e-6)
        assert answer["labels"] == [row["class_name"] for row in predicted]
        columns = list(ROWS[0])[::-1]
        split = {"columns": columns, "data": [[row[name] for name in columns] for row in ROWS]}
        assert client("/invocations", {"dataframe_split": split})[1] == answer
        for change, text in (
            ({"age": "old"}, "'old' is no number"), ({"since": "soon"}, "'soon' is no date"),
            ({"tariff": 1}, "unknown column 'tariff'"),
        ):  # fmt: skip
            status, answer, _ = client("/invocations", {"dataframe_records": [ROWS[1] | change]})
            assert status == 400 and text in answer["error"], answer
        lacking = {name: value for name, value in ROWS[1].items() if name != "plan"}
        status, answer, _ = client("/invocations", {"dataframe_records": [lacking]})
        assert status == 400 and "plan" in answer["error"], answer
