"""Columns of tables as examples; the referee is the table itself, a dictionary of arrays."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.data.files import DataFile
from dtrain.data.holdout import Holdout
from dtrain.data.ragged import Ragged
from dtrain.data.tabular.source import TableSource, counted
from dtrain.data.tabular.splits import of_tables
from dtrain.data.tabular.table import Column, Pieces, Table, described
from dtrain.errors import DataError, UsageError

N = 12
COLUMNS: dict[str, Any] = {
    "age": np.arange(N) * 1.5,
    "count": np.arange(N, dtype=np.int32),
    "flag": np.arange(N) % 2 == 0,
    "pixels": np.arange(N * 4, dtype=np.uint8).reshape(N, 2, 2),
    "city": np.array([["Rome", "Oslo", "Bern"][i % 3] for i in range(N)], object),
    "kind": np.array([[b"x", b"y"][i % 2] for i in range(N)], object),
    "label": np.arange(N) % 4,
    "tokens": [list(range(i % 3 + 1)) for i in range(N)],
    "w": np.linspace(0, 1, N),
}


class Memory(Table):
    """A table in memory, of files that hold nothing."""

    def __init__(self, columns: dict[str, Any], files: Sequence[DataFile] = (), each: int = 0):
        self.data = columns
        self.files = list(files) or [DataFile("t.x")]
        self.each = each
        self.columns = {
            name: Column(np.dtype(np.int64), (None,))
            if isinstance(values, list)
            else Column(values.dtype, values.shape[1:])
            for name, values in columns.items()
        }
        self.reads: list[str] = []

    def __len__(self) -> int:
        return len(next(iter(self.data.values())))

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        self.reads += names
        return {
            name: Ragged.of([self.data[name][i] for i in rows])
            if isinstance(self.data[name], list)
            else self.data[name][rows]
            for name in names
        }

    def where(self, row: int) -> str:
        return f"t.x, row {row}"

    def blocks(self) -> np.ndarray | None:
        return np.full(len(self) // self.each, self.each) if self.each else None


def source(*arguments: Any, columns: dict[str, Any] = COLUMNS, **options: Any) -> TableSource:
    return TableSource(Memory(columns), *arguments, **options)


ROWS = np.array([3, 0, 7, 3])


def test_roles() -> None:
    x, y = source("pixels", "label")[ROWS]
    np.testing.assert_array_equal(x, COLUMNS["pixels"][ROWS])
    assert x.dtype == np.uint8, "numbers keep their type"
    assert y.tolist() == [3, 0, 3, 3]
    assert y.dtype == np.int64
    x, y, weight = source(["age", "count", "flag"], "age", "w")[ROWS]
    expected = np.stack([COLUMNS[name][ROWS] for name in ("age", "count", "flag")], 1)
    np.testing.assert_array_equal(x, expected.astype(np.float32))
    assert (x.dtype, y.dtype, weight.dtype) == (np.float32,) * 3
    np.testing.assert_allclose(weight, COLUMNS["w"][ROWS], rtol=1e-6)
    inputs = {"a": "age", "b": {"c": "city", "d": ["count", "w"]}}
    x, y = source(inputs, {"p": "label", "q": ["age", "w"]})[ROWS]
    assert x["a"].dtype == np.float32
    assert x["b"]["c"].tolist() == ["Oslo" if i % 3 == 1 else "Rome" for i in ROWS]
    assert x["b"]["d"].shape == (4, 2)
    assert y["p"].tolist() == [3, 0, 3, 3]
    assert y["q"].dtype == np.float32
    assert len(source("age", None)[ROWS]) == 1
    assert source("age", None, "w")[ROWS][1] is None
    tokens = source("tokens", "tokens")[ROWS]
    assert tokens[0].padded(3).tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_inputs_are_what_is_left() -> None:
    columns = {name: COLUMNS[name] for name in ("age", "count", "label", "w")}
    found = source(None, "label", "w", columns=columns)
    assert found.inputs.names == ["age", "count"]
    assert found[ROWS][0].shape == (4, 2)
    one = source(None, "label", columns={"pixels": COLUMNS["pixels"], "label": COLUMNS["label"]})
    assert one[ROWS][0].shape == (4, 2, 2)


def test_each_column_is_read_once() -> None:
    found = source({"a": "age", "b": ["age", "count"]}, "age", "count")
    found[ROWS]
    assert isinstance(found.table, Memory)
    assert sorted(found.table.reads) == ["age", "count"]


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        (("agee", "label"), r"dataset\.inputs=agee: t\.x has no such .*type: dataset\.inputs=age"),
        ((["age", "cont"], "label"), r"cont: t\.x has no such .*hint: count in place of cont; "),
        (("age", "labl"), r"dataset\.target=labl: .* type: dataset\.target=label"),
        (("age", "label", "weight"), r"dataset\.weight=weight: t\.x has no such column"),
        ((["age", "city"], "label"), "the columns of a list become one array, and city holds text"),
        ((["age", "pixels"], "label"), r"pixels holds uint8 \[2, 2\]"),
        (([], "label"), r"dataset\.inputs=\[\]: names no columns"),
        (({}, "label"), r"dataset\.inputs=\{\}: names no columns"),
        (({"a": []}, "label"), "names no columns"),
        (({"a": 3}, "label"), "names no columns"),
        (("age", "label", "city"), r"dataset\.weight=city: holds text or bytes, and weights "),
        (("age", "label", {"p": "w", "q": "tokens"}), r"tokens: holds int64 \[\?\], and weights"),
        ((None, list(COLUMNS)), "the columns of a list become one array"),
        ((None, {name: name for name in COLUMNS}), "has no other columns than the targets"),
    ],
)  # fmt: skip
def test_what_is_refused(roles: tuple[Any, ...], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        source(*roles)


def test_words_are_classes_by_the_alphabet() -> None:
    found = source("age", "city")
    assert found.words().tolist() == ["Bern", "Oslo", "Rome"]
    assert counted(found)() == 3
    _, y = found[np.arange(4)]
    assert y.tolist() == [2, 1, 0, 2]
    assert y.dtype == np.int64
    assert found.info.labels().tolist() == [[2, 1, 0][i % 3] for i in range(N)]  # type: ignore[union-attr]
    assert source("age", "kind")[ROWS][1].tolist() == [1, 0, 1, 1], "bytes are text"
    assert source("age", "label").words().tolist() == []


def test_each_target_of_text_has_classes_of_its_own() -> None:
    found = source("age", {"place": "city", "kind": "kind"})
    _, y = found[np.arange(6)]
    assert y["place"].tolist() == [2, 1, 0, 2, 1, 0]
    assert y["kind"].tolist() == [0, 1, 0, 1, 0, 1], "and not behind the places"
    assert found.words("kind").tolist() == ["x", "y"]
    assert counted(found)() is None


def test_a_part_has_the_classes_of_all() -> None:
    whole = source("age", "city")
    part = whole.subset(np.array([0, 3, 6]))  # Rome alone
    assert len(part) == 3
    assert part[np.array([0])][1].tolist() == [2]
    assert counted(part)() == 3
    assert part.info.labels().tolist() == [2, 2, 2]  # type: ignore[union-attr]
    again = part.subset(np.array([2, 1]))
    assert again.where(0) == "t.x, row 6"
    assert again[np.array([0])][0].tolist() == [9.0]
    there = pickle.loads(pickle.dumps(part))
    assert there[np.array([1])][1].tolist() == [2]


def test_words_of_another_table() -> None:
    whole = source("age", "city")
    oslo = {**COLUMNS, "city": np.array(["Oslo"] * N, object)}
    held = source("age", "city", columns=oslo, words=whole.words)
    assert held[ROWS][1].tolist() == [1] * 4
    columns = {**COLUMNS, "city": np.array(["Oslo"] * 7 + ["Paris"] * 5, object)}
    held = source("age", "city", columns=columns, words=whole.words)
    with pytest.raises(
        DataError, match=r"t\.x, row 7, column 'city': 'Paris' is none of the class"
    ):
        held[ROWS]
    given = source("age", "city", words=np.array(["Bern", "Oslo", "Paris", "Rome"]))
    assert given[np.arange(3)][1].tolist() == [3, 1, 0]
    assert counted(given)() == 4


def test_targets_that_are_none() -> None:
    bad = {**COLUMNS, "age": np.where(np.arange(N) == 7, np.nan, 1.0)}
    with pytest.raises(
        DataError, match=r"t\.x, row 7, column 'age': the target is NaN or infinite"
    ):
        source("count", "age", columns=bad)[ROWS]
    assert np.isnan(source("age", "count", columns=bad)[ROWS][0][2]), "inputs may be"
    deep = {**COLUMNS, "box": np.full((N, 2), 1.0)}
    deep["box"][3, 1] = np.inf
    with pytest.raises(DataError, match="row 3, column 'box'"):
        source("age", "box", columns=deep)[ROWS]
    negative = {**COLUMNS, "label": np.array([0, 1, -3] * 4)}
    with pytest.raises(UsageError, match=r"a target is -3 \(t\.x, row 2\): a class, or a number"):
        counted(source("age", "label", columns=negative))()
    with pytest.raises(UsageError, match="row 5"):
        counted(source("age", "label", columns=negative).subset(np.array([4, 5, 6])))()
    broken = {**COLUMNS, "kind": np.array([b"ok"] * 4 + [b"\xff\xfe"] + [b"ok"] * 7, object)}
    with pytest.raises(DataError, match=r"row 4, column 'kind': b'\\xff\\xfe' is no text in UTF-8"):
        source("age", "kind", columns=broken).words()


@pytest.mark.parametrize(
    ("target", "classes"),
    [("label", 4), ("flag", 2), ("age", None), ("pixels", None), (["label", "count"], None),
     ({"a": "label"}, None), (None, None), ("city", 3), ("tokens", None)],
)  # fmt: skip
def test_classes(target: Any, classes: int | None) -> None:
    assert counted(source("w", target))() == classes


def test_labels_are_read_without_inputs() -> None:
    found = source(["age", "count"], "label")
    assert found.info.labels().tolist() == COLUMNS["label"].tolist()  # type: ignore[union-attr]
    assert isinstance(found.table, Memory)
    assert set(found.table.reads) == {"label"}
    for target in ("tokens", {"a": "label"}, ["age"], None):
        assert source("w", target).info.labels() is None


def test_blocks_of_parts() -> None:
    whole = TableSource(Memory(COLUMNS, each=4), "age", "label")
    assert whole.info.blocks().tolist() == [4, 4, 4]  # type: ignore[union-attr]
    assert whole.subset(np.array([1, 2, 9])).info.blocks().tolist() == [2, 1]  # type: ignore[union-attr]
    assert source("age", "label").info.blocks() is None


def test_several_files_one_after_the_other() -> None:
    pieces = Pieces([3, 0, 5])
    assert len(pieces) == 8
    rows = np.array([7, 0, 3, 2, 3])
    found = {owner: (at.tolist(), own.tolist()) for owner, at, own in pieces.split(rows)}
    assert found == {0: ([1, 3], [0, 2]), 2: ([0, 2, 4], [4, 0, 0])}
    assert [pieces.place(row) for row in (0, 2, 3, 7)] == [(0, 0), (0, 2), (2, 0), (2, 4)]
    assert len(Pieces([])) == 0


def test_columns_in_words() -> None:
    assert described(Column(np.dtype(np.float32), (28, None))) == "float32 [28, ?]"
    assert described(Column(np.dtype(object))) == "text or bytes"


class Saved(Memory):
    """A table of ``npz`` files."""

    def __init__(self, files: Sequence[DataFile]):
        parts = [dict(np.load(file.local(), allow_pickle=True)) for file in files]
        names = list(parts[0])
        super().__init__({n: np.concatenate([part[n] for part in parts]) for n in names}, files)


def save(name: str, rows: slice | np.ndarray, **changed: Any) -> None:
    columns = {n: v for n, v in COLUMNS.items() if n != "tokens"}
    with Path(name).open("wb") as file:
        np.savez(file, **{n: v[rows] for n, v in {**columns, **changed}.items()})


def test_splits_of_files() -> None:
    save("a.x", slice(0, 7))
    save("b.x", slice(7, 12))
    splits = of_tables(Saved, "*.x", "age", "city", "w", holdout=Holdout(0.25))
    assert (len(splits.train), len(splits.validation)) == (9, 3)
    assert splits.count_classes() == 3
    assert [file.name for file in splits.train.info.files()] == ["a.x", "b.x"]
    rows = [part[np.arange(len(part))][0] / 1.5 for part in (splits.train, splits.validation)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(N))
    again = of_tables(Saved, ["b.x", "a.x"], "age", "city", "w", holdout=Holdout(0.25))
    first, second = (each.train[np.arange(9)][0] for each in (again, splits))
    np.testing.assert_array_equal(first, second)
    assert of_tables(Saved, "*.x", "age", "label", holdout=Holdout(0)).validation is None
    assert of_tables(Saved, "*.x", "age", "label", classes=9).count_classes() == 9
    held = of_tables(Saved, "a.x", "age", "city", validation="b.x", holdout=Holdout(0.5))
    assert (len(held.train), len(held.validation)) == (7, 5)
    assert held.validation[np.arange(3)][1].tolist() == [1, 0, 2]


def test_the_classes_of_a_validation_are_those_of_training() -> None:
    save("a.x", slice(0, 7))
    save("b.x", slice(7, 12), label=np.arange(N) + 5)
    splits = of_tables(Saved, "a.x", "age", "label", validation="b.x")
    assert splits.count_classes() == 17, "of both"
    for name, values, text in (
        ("city", np.arange(N), "the column city holds int64, and text or bytes in what is trained"),
        ("pixels", np.zeros((N, 3, 3), np.uint8), r"pixels holds uint8 \[3, 3\], and uint8 \[2, 2"),
    ):
        save("c.x", slice(0, 5), **{name: values})
        with pytest.raises(UsageError, match=rf"dataset\.validation=c\.x: .*{text}"):
            of_tables(Saved, "a.x", "pixels", "city", validation="c.x")
    save("c.x", slice(0, 5), age=np.arange(N))
    assert len(of_tables(Saved, "a.x", "age", "city", validation="c.x").validation) == 5
    save("d.x", slice(0, 5))
    Path("e.x").write_bytes(Path("d.x").read_bytes())
    with pytest.raises(UsageError, match="has no row to train on"):
        save("f.x", slice(0, 0))
        of_tables(Saved, "f.x", "age", "label")


@pytest.mark.task
def test_images_are_decoded_in_the_graph() -> None:
    import tensorflow as tf

    from dtrain.task import reading

    pictures = [
        tf.io.encode_png(tf.fill([3, 5, 3], tf.constant(20 * i, tf.uint8))).numpy()
        for i in range(N)
    ]
    gray = [
        tf.io.encode_jpeg(tf.fill([4, 4, 1], tf.constant(20 * i, tf.uint8))).numpy()
        for i in range(N)
    ]
    save("a.x", slice(0, N), big=np.array(pictures, object), small=np.array(gray, object))
    images = {"big": [2, 2, 3], "small": [4, 4, 1]}
    inputs = {"p": "big", "q": {"r": "small", "n": ["age", "count"]}}
    splits = of_tables(Saved, "a.x", inputs, "label", "w", holdout=Holdout(0.25), images=images)
    x, y, weight = reading.first(splits.train, 9)
    assert x["p"].shape == (9, 2, 2, 3)
    assert x["q"]["r"].shape == (9, 4, 4, 1)
    rows = np.round(x["q"]["n"].numpy()[:, 1]).astype(int)
    np.testing.assert_allclose(x["p"].numpy()[:, 0, 0, 0], rows * 20 / 255, atol=1e-6)
    np.testing.assert_allclose(x["q"]["r"].numpy()[:, 0, 0, 0], rows * 20 / 255, atol=0.01)
    assert (y.shape, weight.shape) == ((9,), (9,))
    single = of_tables(Saved, "a.x", "big", "label", images={"big": [2, 3, 1]})
    assert reading.first(single.train, 2)[0].shape == (2, 2, 3, 1)
    for wrong, text in (
        ({"bigg": [2, 2, 3]}, "bigg: is no input of encoded images; accepted: big, small"),
        ({"label": [2, 2, 3]}, "label: is no input"),
        ({"big": [2, 2, 4]}, "is not height, width, channels"),
        ({"big": [0, 2, 3]}, "is not height, width, channels"),
    ):
        with pytest.raises(UsageError, match=text):
            of_tables(Saved, "a.x", inputs, "label", images=wrong)
