"""Whether targets are classes or numbers: one rule for all formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dtrain import datasets
from dtrain.data.convert import adapted
from dtrain.data.options import OnError, Task
from dtrain.data.sources import Arrays, Splits
from dtrain.data.tabular import encoded, reader
from dtrain.errors import DataError, UsageError

#: Targets by what they are, and the number of their classes; None of a regression.
TARGETS: dict[str, tuple[np.ndarray, int | None]] = {
    "digits": (np.arange(60) % 10, 10),
    "digits with a point": (np.arange(60) % 10 * 1.0, 10),
    "few rows": (np.arange(20), 20),
    "from 1": (np.arange(60) % 3 + 1, 4),
    "a hundred classes": (np.arange(300) % 100, 100),
    "prices": (np.arange(200) * 997 % 9_000 + 500, None),
    "prices with a point": (np.arange(200) * 997.0 % 9_000 + 500, None),
    "years": (np.arange(300) % 40 + 1980, None),
    "one row each": (np.arange(200), None),
    "below and above 0": (np.arange(60) - 30, None),
    "fractions": (np.arange(60) / 4, None),
}


def each_format(y: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> dict[str, Splits]:
    """Return the splits of one table in every format."""
    frame = pd.DataFrame({"a": np.arange(len(y)) / 8, "y": y})
    frame.to_csv("t.csv", index=False)
    frame.to_parquet("t.parquet")
    np.savez("t.npz", x=frame[["a"]].to_numpy(), y=y)
    made: dict[str, Any] = {
        "csv": datasets.table("t.csv"),
        "parquet": datasets.table("t.parquet", "y", validation_split=0.0),
        "npz": datasets.npz("t.npz"),
        "arrays": adapted((frame[["a"]].to_numpy(), y)),
    }
    monkeypatch.setattr(reader, "SMALL", 0)
    monkeypatch.setattr(encoded, "IN_MEMORY", 0)
    monkeypatch.setattr("dtrain.datasets.arrays.is_large", lambda size: True)
    return {**made, "large csv": datasets.table("t.csv"), "large npz": datasets.npz("t.npz")}


@pytest.mark.parametrize("case", TARGETS)
def test_the_rule_is_that_of_every_format(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    y, expected = TARGETS[case]
    for name, splits in each_format(y, monkeypatch).items():
        assert splits.count_classes() == expected, name
        assert splits.classes.is_regression is (expected is None), name  # type: ignore[union-attr]
        assert Splits(0, 0, splits.classes, Task.regression).count_classes() is None
        chosen = Splits(0, 0, splits.classes, Task.classification)
        if y.min() >= 0 and case != "fractions":
            assert chosen.count_classes() == int(y.max()) + 1
        else:
            with pytest.raises(UsageError, match=r"type: dataset\.task=regression"):
                chosen.count_classes()


def test_classes_that_are_not_counted_from_0_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for splits in each_format(np.array([-1, 1] * 30), monkeypatch).values():
        with pytest.raises(UsageError, match=r"a target is -1.*type: dataset\.task=regression"):
            splits.count_classes()
        assert splits.classes.is_regression is False  # type: ignore[union-attr]


def test_texts_of_numbers_are_no_classes_by_the_alphabet(monkeypatch: pytest.MonkeyPatch) -> None:
    def saved(y: list[str]) -> str:
        pd.DataFrame({"a": range(len(y)), "y": y}).to_csv("t.csv", index=False)
        return "t.csv"

    prices = [str(n / 2) for n in range(50)]
    for small in (0, 1 << 20):  # bytes of a file that is looked at before the task
        monkeypatch.setattr(reader, "SMALL", small)
        for cells in (["?"], ["n/a?"] * 2, ["-", "$7.50"]):
            saved([*prices, *cells])
            with pytest.raises(UsageError, match=r"t\.csv, line 52 has .*columns={y: number}"):
                datasets.table("t.csv").count_classes()
        assert datasets.table("t.csv", columns={"y": "category"}).count_classes() == 52
    made = datasets.table(
        saved([*prices, "?", "$7.50"]), columns={"y": "number"}, on_error=OnError.skip,
        validation_split=0.0,
    )  # fmt: skip
    assert made.train.y.tolist() == [*map(float, prices), 7.5] and made.count_classes() is None
    assert "1 of 52 rows have no y" in made.notices[-1]
    named = datasets.table(saved([*prices, "?"]), empty=["?"], on_error=OnError.skip)
    assert named.count_classes() is None
    raw = {"inputs": "y", "columns": {"y": "number"}, "validation_split": 0.0}
    saved([*prices, "?"])
    found = datasets.table("t.csv", None, **raw).train
    assert found[np.arange(50)][0].tolist() == [*map(float, prices)]
    with pytest.raises(DataError, match=r"t\.csv, line 52, column 'y': is empty"):
        found[np.array([50])]
    pd.DataFrame({"a": range(50), "y": prices}).to_parquet("t.parquet")
    told = datasets.table("t.parquet", "y")
    assert told.count_classes() == 50 and "{y: number}" in told.notices[-1]
    assert datasets.table("t.parquet", "y", columns={"y": "number"}).count_classes() is None


def test_a_target_of_one_value_is_refused() -> None:
    for cell in ("yes", 1, 0.5):
        pd.DataFrame({"a": range(9), "y": cell}).to_csv("t.csv", index=False)
        splits = datasets.table("t.csv")
        assert splits.encoding is not None
        with pytest.raises(UsageError, match=r"dataset\.target=y: is .* in every row"):
            splits.encoding()


def test_classes_of_one_word_are_told() -> None:
    y = ["Yes", "yes ", "No", "maybe"] * 9
    pd.DataFrame({"a": range(36), "y": y}).to_csv("t.csv", index=False)
    splits = datasets.table("t.csv")
    assert splits.count_classes() == 4 and "('Yes', 'yes ')" in splits.notices[-1]
    pd.DataFrame({"a": range(36), "y": ["Yes", "No"] * 18}).to_csv("t.csv", index=False)
    assert not any("capitals" in notice for notice in datasets.table("t.csv").notices)


@pytest.mark.task
def test_classes_of_which_there_is_one_are_refused_in_every_format() -> None:
    import keras

    from dtrain.task.model.checks import check_targets
    from tests.test_schema import composed

    class Own(keras.Model):
        def compute_loss(self, **parts: Any) -> Any:
            return 0.0

    x, y = np.zeros((9, 2)), np.full(9, 3)
    np.savez("t.npz", x=x, y=y)
    pd.DataFrame({"a": range(9), "y": "yes"}).to_csv("t.csv", index=False)
    made = [datasets.npz("t.npz"), adapted((x, y)), datasets.table("t.csv", "y", "a")]
    for loss in ("sparse_categorical_crossentropy", "torch.nn.CrossEntropyLoss"):
        config = composed(f"trainer.loss={loss}")
        for splits in [*made, Splits(Arrays(x, y), None, 1)]:
            with pytest.raises(UsageError, match=r"all \d examples have it"):
                check_targets(keras.Model(), config, splits)
            check_targets(Own(), config, splits)
        check_targets(keras.Model(), config, Splits(Arrays(x, y), None, 10))
    check_targets(keras.Model(), composed("trainer.loss=mse"), made[0])


def test_the_same_prices_of_two_formats_train_alike(dtrain: Any) -> None:
    y = np.round(np.random.default_rng(0).normal(size=64) * 30 + 200)
    frame = pd.DataFrame({"a": np.arange(64) / 64, "b": np.arange(64) % 5, "y": y})
    frame.to_csv("t.csv", index=False)
    frame.to_parquet("t.parquet")
    common = ["model=mlp", "trainer.epochs=2", "trainer.batch_size=16", "objective=val_mae",
              "dataset.shuffle=examples"]  # fmt: skip
    runs = [
        dtrain(*common, "dataset=csv", "dataset.path=t.csv", "tracking=none"),
        dtrain(*common, "dataset=parquet", "dataset.path=t.parquet", "dataset.target=y",
               "tracking=none"),
    ]  # fmt: skip
    for run in runs:
        assert run.code == 0, run.output
        assert "taken for numbers to predict, a regression" in run.output
        assert "loss=mse, metrics=mae" in run.output
        assert run.points("val_mae")[6] == pytest.approx(runs[0].points("val_mae")[6], rel=1e-6)
    pair = ["dataset=csv", "dataset.path=pair.csv", "tracking=none", "model=mlp", *common[1:]]
    Path("pair.csv").write_text("a,y\n" + "0.5,-1\n0.25,1\n" * 32)
    refused = dtrain(*pair)
    assert refused.code == 2 and "a target is -1 (pair.csv, line " in refused.output
    assert "type: dataset.task=regression" in refused.output
    assert dtrain(*pair, "dataset.task=regression").code == 0
    unnamed = dtrain(*pair, "dataset.inputs=[a]")
    assert unnamed.code == 2 and "dataset.target=null: no target is named" in unnamed.output
