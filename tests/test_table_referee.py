"""A table by dtrain, and by pandas, scikit-learn and plain Keras: the same numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

ROWS, HELD, BATCH, EPOCHS = 480, 120, 48, 2
WORDS = ["slow", "invoice", "happy", "support", "late", "great", "broken", "cheap", "fine"]


def customers(rows: int, seed: int = 0) -> pd.DataFrame:
    """A table as people have it: an id, gaps, categories, a date, a boolean, a text."""
    draw = np.random.default_rng(seed)
    age = draw.normal(45, 14, rows).round()
    table = pd.DataFrame({
        "customer": [f"C{10_000 + 7 * index}" for index in range(rows)],
        "age": np.where(draw.random(rows) < 0.12, np.nan, age),
        "plan": draw.choice(["basic", "plus", "pro"], rows),
        "region": draw.choice(["north", "south", "east", None], rows, p=[0.4, 0.3, 0.25, 0.05]),
        "channel": draw.choice(["web", "shop", "phone"], rows),
        "since": pd.Timestamp("2019-01-01") + pd.to_timedelta(draw.integers(0, 2000, rows), "D"),
        "paper": draw.random(rows) < 0.4,
        "note": [" ".join(draw.choice(WORDS, 5)) for _ in range(rows)],
    })  # fmt: skip
    score = 1.9 * (table.plan == "basic") + 1.7 * table.note.str.contains("broken")
    score += 1.3 * table.paper + 1.1 * (table.channel == "phone") - 5.2 + 0.04 * (45 - age)
    return table.assign(churn=np.where(draw.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no"))


def prepared(train: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """What a network of dtrain's learns from, made by pandas and scikit-learn."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    def numbers(of: pd.DataFrame) -> pd.DataFrame:
        days = (of.since - pd.Timestamp(0)).dt.total_seconds() / 86_400
        return pd.DataFrame({"age": of.age, "since": days, "paper": of.paper.astype(float)})

    raw = numbers(table)
    scaled = StandardScaler().fit(numbers(train).to_numpy()).transform(raw.to_numpy())
    angles = [2 * math.pi * raw.since / cycle for cycle in (365.2425, 7)]
    waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    words = CountVectorizer(binary=True).fit(train.note).transform(table.note).toarray()
    columns = ["plan", "region", "channel"]
    one_hot = OneHotEncoder(sparse_output=False).fit(train[columns].fillna(""))
    parts = [np.nan_to_num(scaled), raw.age.isna(), *waves, words]
    parts.append(one_hot.transform(table[columns].fillna("")))
    return np.column_stack([np.asarray(part, np.float64) for part in parts])


def plain_keras(path: Path) -> tuple[list[float], float]:
    """Return the losses of the steps, and of the validation, of Keras' own ``fit``."""
    import keras

    train, held = (pd.read_csv(path / name, parse_dates=["since"]) for name in ("t.csv", "v.csv"))
    x, x_held = (prepared(train, table).astype(np.float32) for table in (train, held))
    y, y_held = ((table.churn == "yes").to_numpy(np.int64) for table in (train, held))
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.layers.Dense(16, "relu"), keras.layers.Dense(2, "softmax")
    ])  # fmt: skip
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    losses: list[float] = []
    total = [0.0]

    def note(batch: int, logs: dict[str, Any]) -> None:  # `fit` reports means over the epoch
        whole = logs["loss"] * (batch + 1)
        losses.append(whole - (total[0] if batch else 0.0))
        total[0] = whole

    model.fit(
        x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note)],
    )  # fmt: skip
    return losses, model.evaluate(x_held, y_held, verbose=0)


def matrices(path: Path) -> np.ndarray:
    """Return what the first layers of dtrain's model make of its inputs."""
    import keras

    from dtrain import datasets, models

    train = datasets.table(str(path / "t.csv"), "churn", validation=str(path / "v.csv"))
    encoding = train.encoding()
    inputs = keras.Input((encoding.width,))
    first = keras.Model(inputs, models.encoded(inputs, encoding))
    return np.asarray(first(train.validation.x))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("customers")
    customers(ROWS).to_csv(folder / "t.csv", index=False)
    customers(HELD, seed=1).to_csv(folder / "v.csv", index=False)
    return folder


@pytest.mark.task
def test_the_preparation_value_by_value(files: Path) -> None:
    train, held = (pd.read_csv(files / n, parse_dates=["since"]) for n in ("t.csv", "v.csv"))
    expected, found = prepared(train, held), matrices(files)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_the_losses_are_those_of_plain_keras_on_any_strategy(files: Path, dtrain: Any) -> None:
    from tests import warm

    losses, held = warm.call(plain_keras, 1, {"path": files})
    command = [
        "dataset=csv", f"dataset.path={files}/t.csv", f"dataset.validation={files}/v.csv",
        "dataset.target=churn", "model=mlp", "model.units=[16]", f"trainer.batch_size={BATCH}",
        f"trainer.epochs={EPOCHS}", "optimizer.learning_rate=0.01", "dataset.shuffle=none",
        "trainer.log_every_steps=1", "tracking=none",
    ]  # fmt: skip
    for strategy in ([], ["strategy=mirrored", "hardware.devices=2"]):
        run = dtrain(*command, *strategy)
        assert run.code == 0, run.output
        points = run.points("loss")
        found = [points[step] for step in sorted(points)]
        np.testing.assert_allclose(found, losses, rtol=2e-4)
        assert run.result["metrics"]["val_loss"] == pytest.approx(held, rel=2e-4)
