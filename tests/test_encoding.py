"""What columns become, against scikit-learn; and the same by Keras' own layers."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dtrain import datasets
from dtrain.data.encoding import Encoding, Feature, texts
from dtrain.data.tabular.encoded import unseen
from dtrain.errors import UsageError


def customers(rows: int = 240) -> pd.DataFrame:
    """A table as a user has it: an id, gaps, categories, a date, a boolean, a text."""
    rng = np.random.default_rng(0)
    words = ["want to cancel", "all is well", "too expensive", "great service, thanks!"]
    return pd.DataFrame({
        "id": [f"C{i:04}" for i in range(rows)],
        "age": np.where(rng.random(rows) < 0.1, np.nan, rng.integers(18, 80, rows)),
        "one": 5,
        "city": rng.choice(["Bern", "Oslo", "Rome"], rows),
        "shop": rng.choice([f"shop {i}" for i in range(60)], rows),
        "plan": np.where(rng.random(rows) < 0.1, None, rng.choice(["a", "b"], rows)),
        "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), "D"),
        "paid": rng.random(rows) < 0.5,
        "note": [f"{rng.choice(words)} since {rng.integers(999)} days" for _ in range(rows)],
        "churn": rng.choice(["no", "yes"], rows, p=[0.8, 0.2]),
    })  # fmt: skip


def fitted(frame: pd.DataFrame, **options: Any) -> tuple[Any, Encoding]:
    frame.to_csv("t.csv", index=False, date_format="%Y-%m-%d")
    splits = datasets.table("t.csv", "churn", **options)
    assert splits.encoding is not None
    return splits, splits.encoding()


def test_what_is_fitted_is_of_the_training_examples_alone() -> None:
    frame = customers()
    frame.loc[3, "city"] = "Paris"  # alone
    frame.loc[:9, "shop"] = [f"kiosk {i}" for i in range(10)]  # each of one row
    for seed in range(20):
        splits, made = fitted(frame, split_seed=seed)
        if 3 in splits.validation.source._rows:
            break
    train = frame.iloc[splits.train.source._rows]
    assert len(train) == 192
    kinds = {feature.name: feature for feature in made.features}
    assert {name: f.kind for name, f in kinds.items()} == {
        "age": "number", "one": "number", "since": "date", "paid": "boolean", "note": "text",
        "city": "category", "shop": "category", "plan": "category",
    }  # fmt: skip
    assert list(made.left_out) == ["id"]
    assert kinds["age"].mean == pytest.approx(train.age.mean(), rel=1e-6)
    assert kinds["age"].variance == pytest.approx(train.age.var(ddof=0), rel=1e-5)
    assert kinds["age"].missing == pytest.approx(train.age.isna().mean())
    days = (train.since - pd.Timestamp("1970-01-01")).dt.days
    assert kinds["since"].mean == pytest.approx(days.mean())
    assert kinds["city"].values == ("Bern", "Oslo", "Rome")
    shops = train.shop.value_counts()
    assert kinds["shop"].values == tuple(sorted(shops.index[shops > 1])), "of many, not the rare"
    assert kinds["shop"].missing == pytest.approx((shops == 1).sum() / 192) and (shops == 1).any()
    at = made.width - 3 + [f.name for f in made.of("category")].index("city")
    row = int(np.flatnonzero(splits.validation.source._rows == 3)[0])
    assert splits.validation.x[row, at] == 0, "the training had no Paris"
    assert unseen(splits.validation, made)[0] == (
        "the column 'city' has 'Paris' in the validation (1 of 48 rows), which the training has "
        "not: it is read as unknown"
    )
    again = Encoding.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made


#: Forms of dates that are text, as pandas names them, and what pandas has to be told as well.
DATES: dict[str, dict[str, Any]] = {
    form: {} for form in (
        "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%y", "%d.%m.%y %H:%M",
        "%m/%d/%Y %I:%M %p", "%m/%d/%Y, %I:%M:%S %p", "%m-%d-%Y", "%Y.%m.%d", "%d %B %Y",
        "%B %d, %Y", "%d-%b-%y", "%Y-%m-%d %H:%M:%S.%f", "%Y%m%dT%H%M%S",
    )
} | {"%Y-%m-%dT%H:%M:%S%z": {"utc": True}}  # fmt: skip


@pytest.mark.parametrize("form", DATES)
def test_dates_that_are_text_are_the_days_that_pandas_reads(form: str) -> None:
    rng = np.random.default_rng(0)
    moments = [
        datetime(1970 + int(n) % 60, 1 + int(n) % 12, 1 + int(n) % 28, int(n) % 24, int(n) % 60,
                 tzinfo=timezone(timedelta(hours=int(n) % 5)))
        for n in rng.integers(0, 10**6, 60)
    ]  # fmt: skip
    frame = pd.DataFrame({"when": [m.strftime(form) for m in moments], "y": np.arange(60) % 2})
    frame.to_csv("d.csv", index=False)
    frame.to_json("d.jsonl", orient="records", lines=True)
    wanted = pd.to_datetime(frame["when"], format=form, **DATES[form]).dt.tz_localize(None)
    days = (wanted - pd.Timestamp("1970-01-01")) / pd.Timedelta("1D")
    for name in ("d.csv", "d.jsonl"):
        made = datasets.table(name, "y", validation_split=0.0)
        assert made.encoding is not None and made.encoding().features[0].kind == "date"
        assert np.array_equal(made.train.x[:, 0], days.to_numpy(np.float32)), name


def test_days_below_13_are_told_with_the_key_that_decides() -> None:
    rows = [f"0{1 + n % 9}/{1 + n % 12:02}/2024" for n in range(40)]
    frame = pd.DataFrame({"when": rows, "x": np.arange(40.0), "churn": np.arange(40) % 2})
    splits, made = fitted(frame)
    assert "'dataset.columns={when: \"%d/%m/%Y\"}'" in " ".join(made.notices)
    days = pd.to_datetime(frame["when"], format="%d/%m/%Y") - pd.Timestamp("1970-01-01")
    splits, made = fitted(frame, columns={"when": "%d/%m/%Y"}, split={"by": "when"})
    held = splits.validation.source._rows
    assert not made.notices and days[held].min() > days.drop(held).max()
    assert splits.validation.x[:, 0].tolist() == days[held].dt.days.tolist()
    frame.loc[splits.validation.source._rows, "when"] = "28/12/2024"  # the held-out rows tell
    assert (fitted(frame)[1].features[0].format, fitted(frame)[1].notices) == ("%d/%m/%Y", ())
    iso = frame.assign(when="2024-02-01").head(30)  # a run, and a file of another form
    _, made = fitted(iso)
    frame.to_csv("o.csv", index=False)
    with pytest.raises(UsageError, match=r"is no date; .* 'dataset.columns={when: \"%d/%m/%Y\"}'"):
        datasets.table("o.csv", fitted=made, validation_split=0.0).train.x  # noqa: B018
    other = datasets.table("o.csv", fitted=made, validation_split=0.0, columns={"when": "%d/%m/%Y"})
    wanted = pd.to_datetime(frame["when"], format="%d/%m/%Y") - pd.Timestamp("1970-01-01")
    assert other.train.x[:, 0].tolist() == wanted.dt.days.tolist()


def test_a_first_cell_that_is_no_date_is_named() -> None:
    frame = pd.DataFrame({"when": ["tbd", *["28/12/2024"] * 60], "churn": [0, *[0, 1] * 30]})
    with pytest.raises(UsageError, match="'tbd' is no date"):
        fitted(frame, validation_split=0.0)


def test_numbers_are_dates_where_they_are_written_so() -> None:
    days = pd.date_range("2024-01-25", periods=40)
    frame = pd.DataFrame({"when": days.strftime("%Y%m%d"), "churn": np.arange(40) % 2})
    splits, _ = fitted(frame, columns={"when": "date"}, validation_split=0.0)
    assert splits.train.x[:, 0].tolist() == (days - pd.Timestamp("1970-01-01")).days.tolist()
    splits, _ = fitted(frame[::-1], columns={"when": "date"}, split={"by": "when"})
    assert splits.validation.x[:, 0].min() > splits.train.x[:, 0].max()
    with pytest.raises(UsageError, match=r"'17000000\d\d' is no date"):
        fitted(frame.assign(when=1_700_000_000 + np.arange(40)), columns={"when": "date"})


def test_other_tables_are_read_by_name() -> None:
    frame = customers()
    _, made = fitted(frame)
    other = frame.head(5)[["note", "churn", "plan", "shop", "paid", "one", "since", "city", "age"]]
    columns = {name: other[name].to_numpy() for name in other}
    matrix = made.encode(columns)
    as_text = {
        n: np.array([None if v is None else str(v) for v in other[n]], object) for n in other
    }
    as_text["since"] = np.array([str(d.date()) for d in other.since], object)
    assert np.array_equal(made.encode(as_text), matrix, equal_nan=True)
    other.to_csv("o.csv", index=False)
    splits = datasets.table("o.csv", fitted=made, validation_split=0.0)
    assert np.array_equal(splits.train.x, matrix, equal_nan=True)
    other.drop(columns="churn").to_csv("o.csv", index=False)
    bare = datasets.table("o.csv", fitted=made, validation_split=0.0)
    assert bare.train.y is None and np.array_equal(bare.train.x, matrix, equal_nan=True)
    other.rename(columns={"age": "Age"}).to_csv("o.csv", index=False)
    with pytest.raises(UsageError, match=r"dataset\.inputs=age: o\.csv has no such column"):
        datasets.table("o.csv", fitted=made)
    del columns["age"]
    with pytest.raises(UsageError, match="column=age: is missing, and the model was trained"):
        made.encode(columns)
    with pytest.raises(UsageError, match=r"column=age: row 1: 'old' is no number"):
        made.encode(columns | {"age": np.array([1, "old", 3, 4, 5], object)})


def test_the_parts_that_stay_as_they_are() -> None:
    frame = customers()
    frame.to_parquet("t.parquet")
    one = datasets.table("t.parquet", "churn", "note", validation_split=0.0)
    assert one.encoding is None
    assert one.train[np.array([3, 1])][0].tolist() == frame.note[[3, 1]].tolist()
    named = datasets.table("t.parquet", "churn", {"n": "note", "o": "one"}, validation_split=0.0)
    assert list(named.train[np.array([0])][0]) == ["n", "o"]
    listed = datasets.table("t.parquet", "churn", ["city", "age"], validation_split=0.0)
    assert listed.encoding is not None
    assert [feature.name for feature in listed.encoding().features] == ["age", "city"]


@pytest.mark.task
def test_layers_are_scikit_learns_transformers_and_a_model_of_columns_is_the_model() -> None:
    import keras
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    from dtrain import models

    frame = customers()
    splits, made = fitted(frame, validation_split=0.0)
    inputs = keras.Input((made.width,))
    layers = keras.Model(inputs, models.encoded(inputs, made))
    x = splits.train.x
    found = np.asarray(layers(x))
    numbers = frame[["age", "one", "since", "paid"]].assign(
        since=(frame.since - pd.Timestamp("1970-01-01")).dt.days, paid=frame.paid * 1.0
    )
    scaled = StandardScaler().fit_transform(numbers)
    order = [f.name for f in made.of("number", "boolean", "date")]
    scaled = scaled[:, [list(numbers).index(name) for name in order]]
    np.testing.assert_allclose(found[:, :4], np.nan_to_num(scaled), atol=2e-4)
    hot = OneHotEncoder(sparse_output=False).fit_transform(frame[["city"]])
    width = layers.output_shape[-1]
    shops = next(len(feature.values) for feature in made.features if feature.name == "shop")
    embedded = round(1.6 * shops**0.56)
    # Behind numbers, waves of the date, the indicator of age, and words: city, shop, plan.
    begin = width - 3 - embedded - 3
    np.testing.assert_array_equal(found[:, begin : begin + 3], hot)
    assert np.isfinite(found).all()
    gone = x[:1].copy()
    gone[:, :4] = np.nan
    assert np.asarray(layers(gone))[:, :4].tolist() == [[0] * 4]

    for model in (
        models.mlp([made.width], 2, encoding=made),
        models.wide_deep([made.width], outputs=1, encoding=made),
    ):
        whole = models.with_columns(model, made)
        columns: dict[str, Any] = {}
        for at, feature in enumerate(made.features):  # numbers, which are one column each, first
            cells = frame[feature.name].to_numpy()[:, None]
            if feature.kind in ("category", "text"):
                columns[feature.name] = keras.ops.convert_to_tensor(
                    [["" if v is None else str(v)] for v in cells[:, 0]]
                )
            else:
                columns[feature.name] = keras.ops.convert_to_tensor(x[:, at : at + 1])
        np.testing.assert_allclose(whole(columns), model(x), rtol=1e-6, atol=1e-6)
        model.save("m.keras")
        whole.save("w.keras")
        np.testing.assert_array_equal(keras.saving.load_model("m.keras")(x), model(x))
        np.testing.assert_allclose(
            keras.saving.load_model("w.keras")(columns), model(x), rtol=1e-6, atol=1e-6
        )


@pytest.mark.task
def test_numbers_are_predicted_in_their_own_unit() -> None:
    import keras

    from dtrain import models

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(1e6, 1e3, 200), "b": rng.normal(size=200)})
    frame["churn"] = 5e4 + 2e4 * frame.b
    splits, made = fitted(frame, validation_split=0.0)
    assert made.target is not None and made.target.mean == pytest.approx([frame.churn.mean()])
    linear = models.wide_deep([2], outputs=1, encoding=made)
    start = np.asarray(linear(splits.train.x))
    np.testing.assert_allclose(start, frame.churn.mean(), rtol=1e-6, err_msg="the wide start")
    keras.utils.set_random_seed(0)
    model = models.mlp([2], outputs=1, encoding=made)
    model.compile("adam", "mse")
    history = model.fit(splits.train.x, splits.train.y, epochs=60, verbose=0)
    losses = history.history["loss"]
    assert losses[0] < 3 * frame.churn.var() and losses[-1] < 0.02 * frame.churn.var()


def read(values: Any, format: str = "csv", name: str = "x", **options: Any) -> tuple[Any, Encoding]:
    """Return the examples of a column beside one of noise, in files of a format."""
    frame = pd.DataFrame({name: values, "z": np.random.default_rng(1).random(len(values))})
    frame["y"] = np.where(np.arange(len(frame)) % 3, "no", "yes")
    path = f"t.{format}"
    if format == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path) if format == "parquet" else frame.to_json(
            path, orient="records", lines=True
        )
    splits = datasets.table(path, "y", **{"validation_split": 0.0, **options})
    assert splits.encoding is not None
    return splits, splits.encoding()


NUMBERS = [str(1000 + 7 * n) for n in range(57)]


@pytest.mark.parametrize("format", ["csv", "parquet", "json"])
@pytest.mark.parametrize(
    "gap", ["?", "-", "--", ".", "na", "None", r"\N", "missing", "#DIV/0!", " ", "see note"]
)
def test_numbers_with_a_few_other_cells_are_numbers_with_gaps(format: str, gap: str) -> None:
    splits, made = read([*NUMBERS, gap, gap], format)
    [x, _] = made.features
    assert (x.kind, x.missing) == ("number", pytest.approx(2 / 59))
    assert splits.train.x[:57, 0].tolist() == [*map(float, NUMBERS)]
    assert np.isnan(splits.train.x[57:, 0]).all()
    assert any("'x'" in notice and gap in notice for notice in made.notices)
    cells = np.array([gap, "5", None], object)
    again = Encoding.from_json(made.to_json()).encode({"x": cells, "z": np.zeros(3)})
    assert again[1, 0] == 5 and np.isnan(again[[0, 2], 0]).all()
    with pytest.raises(UsageError, match=r"row 0: 'old' is no number.*dataset\.empty=\[old\]"):
        made.encode({"x": np.array(["old"], object), "z": np.zeros(1)})


def test_codes_are_no_numbers_with_gaps() -> None:
    assert read([*NUMBERS, "V26", "E11"])[1].left_out["x"].endswith("numbers but for 'V26'")
    [_, codes] = read([*"01234" * 20, "3+", "3+"])[1].features
    assert codes.values == ("0", "1", "2", "3", "3+", "4")
    [_, digits] = read([*"01234" * 20], "parquet")[1].features
    assert digits.kind == "category", "a few texts of digits, where the format has numbers, too"
    [_, plz] = read([str(1010 + n) for n in range(50)] * 2, "parquet")[1].features
    assert plz.kind == "category"
    assert "{x: number}" in read([str(n) for n in range(1000, 1060)], "parquet")[1].left_out["x"]
    assert read([f"{n}.5" for n in range(60)], "parquet")[1].features[0].kind == "number"
    assert "x" in read([f"0{n}" for n in NUMBERS], "parquet")[1].left_out
    assert (
        read([f"0{n}" for n in NUMBERS] * 2, columns={"x": "category"})[1]
        .features[1]
        .values[0]
        .startswith("01000")
    )


@pytest.mark.parametrize(
    ("written", "number"),
    [("51,494", 51494), ("$7,120.00", 7120), ("63%", 0.63), ("1.234,50 €", 1234.5), ("-3,5", -3.5),
     ("(1,200)", -1200), ("\u22127", -7), ("+1.5e3", 1500), ("CHF 1'200", 1200),
     ("1 234 567", 1234567)],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(written: str, number: float) -> None:
    splits, made = read([written] * 2 + [written.replace("2", "4")] * 30, "parquet")
    assert splits.train.x[0, 0] == np.float32(number) and made.features[0].kind == "number"
    assert written in made.notices[0]
    assert (
        made.encode({"x": np.array([written], object), "z": np.zeros(1)})[0, 0]
        == splits.train.x[0, 0]
    )


def test_a_category_has_one_spelling_in_other_files_where_it_is_of_one_alone() -> None:
    def codes(values: list[str], *others: Any) -> list[int]:
        feature = Feature("x", "category", values=tuple(values))
        return [feature.code(text) for other in others for text in texts(np.array([other]))]

    assert codes(["1", "2", "x"], "1.0", 1.0, 2, "02", "x ", "X", "3") == [1, 1, 2, 0, 3, 0, 0]
    assert codes(["02134", "2134"], "02134", 2134, "2134.0") == [1, 2, 2]
    assert codes(["1", "1.0"], "1", "1.0", "1.00") == [1, 2, 0], "which differ in the training"
    assert codes(["No", "Yes"], "yes", True, "FALSE", "1", "maybe") == [2, 2, 1, 2, 0]
    assert codes(["No", "Yes", "yes"], "YES", True) == [0, 0]
    assert codes(["0.0", "inf"], np.inf, 0) == [2, 1]
    plain = Encoding((Feature("x", "category", values=("1",)),)).plain({"x": np.array([1.0, 2.0])})
    assert plain["x"].tolist() == ["1", "2"]


def test_a_long_cell_takes_no_time() -> None:
    digits = "1" * 1_000_000
    made = Encoding((Feature("c", "category", values=("1" * 5000, "a")), Feature("n", "number")))
    cells = {"c": np.array(["1" * 5000, digits + "x"], object), "n": np.array(["1", digits])}
    encoded = made.encode(cells)
    assert encoded[:, 0].tolist() == [1, 0] and np.isnan(encoded[1, 1])
    with pytest.raises(UsageError, match="is no number"):  # nor what is typed against it
        made.encode({**cells, "n": np.array(["1", digits + "\\" * 100_000 + "x"])})


def test_whole_numbers_where_dates_were_are_days_of_the_calendar() -> None:
    made = Encoding((Feature("when", "date"),))
    days = np.array(["2021-09-20", "1970-01-02"], "M8[D]").astype(np.int64)
    for cells in ([20210920, 19700102], [20210920.0, 19700102.0]):
        assert made.encode({"when": np.array(cells)})[:, 0].tolist() == days.tolist()
    for wrong in (1, 20211320, 1632096000):
        with pytest.raises(UsageError, match=f"row 1: '{wrong}' is no date"):
            made.encode({"when": np.array([20210920, wrong])})


def test_large_numbers_that_differ_little_are_read_less_their_mean() -> None:
    steps = np.random.default_rng(0).permutation(100)
    for values in (
        1_700_000_000_000 + steps * 37, 2**62 + steps, -(2**62) + steps, 1e9 + steps / 8,
        np.uint64(2**63) + steps.astype(np.uint64),
        pd.Timestamp("2024-01-01") + pd.to_timedelta(steps, "s"),
    ):  # fmt: skip
        splits, made = read(values, "parquet")
        x, feature = splits.train.x[:, 0].astype(np.float64), made.features[0]
        assert np.corrcoef(x, steps)[0, 1] > 1 - 1e-9
        assert feature.offset and feature.variance == pytest.approx(x.var())
        cells = {"x": np.array(values), "z": np.zeros(100)}
        assert made.plain(cells)["x"].dtype == np.float64
        assert np.array_equal(Encoding.from_json(made.to_json()).encode(cells)[:, 0], x)
    assert not read(np.arange(1000, 1100))[1].features[0].offset


def test_an_id_is_left_out_in_every_format() -> None:
    for format in ("csv", "parquet"):
        for name in ("id", "PassengerId", "user_id"):
            order = np.random.default_rng(0).permutation(50)
            assert "as an id has" in read(order, format, name)[1].left_out[name]
        for name in ("paid", "day", "x"):
            assert not read(np.arange(50), format, name)[1].left_out
    assert list(read(np.arange(1, 11), "csv", "id")[1].left_out) == ["id"], "of few rows, too"
    assert not read(np.arange(1, 11), "csv", "user_id")[1].left_out
    assert not read(np.arange(50), "csv", "id", columns={"id": "number"})[1].left_out
    [*_, chosen] = read(order, "csv", "user_id", inputs=["z", "user_id"])[1].features
    assert chosen.kind == "number"


def test_cells_that_mean_nothing_are_named() -> None:
    for format in ("csv", "parquet", "json"):
        for cells, empty in (([*"abc"] * 9 + ["x"], ["x"]), ([1, 2, 3] * 9 + [-999], [-999])):
            splits, made = read(cells, format, empty=empty)
            at = [f.name for f in made.features].index("x")
            assert made.features[at].missing == pytest.approx(1 / 28)
            assert splits.train.x[-1, at] == 0 or np.isnan(splits.train.x[-1, at])
    for number, rows in enumerate((["1", "2"], ["3", "?", "4"])):
        pd.DataFrame({"a": rows, "y": range(len(rows))}).to_csv(f"p{number}.csv", index=False)
    both = datasets.table("p*.csv", "y", validation_split=0.0).train
    assert np.array_equal(both.x[:, 0], np.float32([1, 2, 3, np.nan, 4]), equal_nan=True)


def test_gaps_that_the_training_has_not_are_counted() -> None:
    _, made = read(NUMBERS)
    for format in ("csv", "parquet"):
        splits, _ = read([*NUMBERS, "?", "-", "?"], format, fitted=made)
        [told] = unseen(splits.train, made, "this data")
        assert "the column 'x' has '-' and 1 more in this data (3 of 60 rows)" in told
        assert told.endswith("it is read as empty")
    assert not unseen(splits.train, read([*NUMBERS, "?"])[1])


@pytest.mark.task
def test_a_model_of_columns_reads_large_numbers_and_moments_as_the_matrix_does() -> None:
    import keras

    from dtrain import models

    moments = pd.Timestamp("2024-03-01") + pd.to_timedelta(np.arange(60), "s")
    for values in (1_700_000_000_000 + np.arange(60) * 50, moments):
        splits, made = read(values, "parquet")
        inputs = keras.Input((made.width,))
        layers = keras.Model(inputs, models.encoded(inputs, made))
        found = np.asarray(layers(splits.train.x))
        scaled = (np.arange(60) - 29.5) / np.arange(60).std()
        np.testing.assert_allclose(found[:, [f.name for f in made.features].index("x")], scaled,
                                   atol=1e-3)  # fmt: skip
        columns = made.plain({"x": np.array(values), "z": splits.train.x[:, 1]})
        given = {name: keras.ops.convert_to_tensor(v[:, None]) for name, v in columns.items()}
        whole = models.with_columns(layers, made)
        np.testing.assert_allclose(whole(given), found, atol=1e-6)
    days = np.datetime64("2024-03-01").astype("M8[D]").astype(int)
    year = 2 * np.pi * (days + np.arange(60) / 86_400) / 365.2425
    assert np.abs(found[:, 2:].T - np.sin(year)).mean(1).min() < 1e-4
