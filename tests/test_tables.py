"""Columns of tables as examples; the referee is the table itself, a dictionary of arrays."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dtrain.data.files import files
from dtrain.data.holdout import Holdout
from dtrain.data.tabular.reader import ArrowTable
from dtrain.data.tabular.source import TableSource, counted
from dtrain.datasets.tables import of_files
from dtrain.errors import DataError, UsageError
from tests import columnar

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
ROWS = np.array([3, 0, 7, 3])


def save(name: str, rows: slice = slice(None), each: int = N, **changed: Any) -> str:
    """Write a file of some rows in groups, and return its name."""
    arrays = {}
    for column, values in (COLUMNS | changed).items():
        is_deep = isinstance(values, np.ndarray) and values.ndim > 1
        arrays[column] = columnar.fixed(values[rows]) if is_deep else pa.array(values[rows])
    pq.write_table(pa.table(arrays), name, row_group_size=each)
    return name


def source(*arguments: Any, each: int = N, **options: Any) -> TableSource:
    changed = {name: options.pop(name) for name in list(options) if name not in ("words", "rows")}
    return TableSource(ArrowTable(files(save("t.x", each=each, **changed))), *arguments, **options)


def test_roles() -> None:
    x, y = source("pixels", "label")[ROWS]
    np.testing.assert_array_equal(x, COLUMNS["pixels"][ROWS])
    assert x.dtype == np.uint8, "numbers keep their type"
    assert y.tolist() == [3, 0, 3, 3] and y.dtype == np.int64
    x, y, weight = source(["age", "count", "flag"], "age", "w")[ROWS]
    expected = np.stack([COLUMNS[name][ROWS] for name in ("age", "count", "flag")], 1)
    np.testing.assert_array_equal(x, expected.astype(np.float32))
    assert (x.dtype, y.dtype, weight.dtype) == (np.float32,) * 3
    np.testing.assert_allclose(weight, COLUMNS["w"][ROWS], rtol=1e-6)
    inputs = {"a": "age", "b": {"c": "city", "d": ["count", "w"]}}
    x, y = source(inputs, {"p": "label", "q": ["age", "w"]})[ROWS]
    assert x["a"].dtype == y["q"].dtype == np.float32 and y["p"].tolist() == [3, 0, 3, 3]
    assert x["b"]["c"].tolist() == ["Oslo" if i % 3 == 1 else "Rome" for i in ROWS]
    assert x["b"]["d"].shape == (4, 2)
    assert len(source("age", None)[ROWS]) == 1 and source("age", None, "w")[ROWS][1] is None
    tokens = source("tokens", "tokens")[ROWS]
    assert tokens[0].padded(3).tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    pq.write_table(pa.table({n: COLUMNS[n] for n in ("age", "count", "label", "w")}), "left.x")
    rest = TableSource(ArrowTable(files("left.x")), None, "label", "w")
    assert rest.inputs.names == ["age", "count"] and rest[ROWS][0].shape == (4, 2)


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
        (("age", "label", "city"), r"dataset\.weight=city: holds text, and weights are numbers"),
        (("age", "label", {"p": "w", "q": "tokens"}), r"tokens: holds int64 \[\?\], and weights"),
        ((None, list(COLUMNS)), "the columns of a list become one array"),
        ((None, {name: name for name in COLUMNS}), "inputs=null.* has no columns but"),
    ],
)  # fmt: skip
def test_what_is_refused(roles: tuple[Any, ...], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        source(*roles)


def test_words_are_classes_by_the_alphabet() -> None:
    found = source("age", "city")
    assert found.words().tolist() == ["Bern", "Oslo", "Rome"]
    _, y = found[np.arange(4)]
    assert y.tolist() == [2, 1, 0, 2] and y.dtype == np.int64
    np.testing.assert_array_equal(found.info.labels(), [[2, 1, 0][i % 3] for i in range(N)])
    assert source("age", "kind")[ROWS][1].tolist() == [1, 0, 1, 1], "bytes are text"
    both = source("age", {"place": "city", "kind": "kind"})
    _, y = both[np.arange(6)]
    assert y["place"].tolist() == [2, 1, 0, 2, 1, 0]
    assert y["kind"].tolist() == [0, 1, 0, 1, 0, 1], "and not behind the places"


def test_columns_of_two_words_are_labels() -> None:
    answers = np.array([["yes", "no"][i % 2] for i in range(N)], object)
    found = source("age", ["flag", "city"], city=answers)
    _, y = found[ROWS]
    assert y.tolist() == [[0, 0], [1, 1], [0, 0], [0, 0]] and y.dtype == np.float32
    assert not len(found.words()), "its classes have no names"
    with pytest.raises(UsageError, match="list become one array, and city holds 3 different texts"):
        source("age", ["flag", "city"])[ROWS]


def test_a_part_has_the_classes_of_all() -> None:
    whole = source("age", "city", each=4)
    part = whole.subset(np.array([0, 3, 9]))  # Rome alone
    assert len(part) == 3 and part[np.array([0])][1].tolist() == [2]
    assert counted(part)() == 3
    np.testing.assert_array_equal(part.info.labels(), [2, 2, 2])
    blocks = [each.info.blocks() for each in (whole, part)]
    assert [sizes.tolist() for sizes in blocks if sizes is not None] == [[4, 4, 4], [2, 1]]
    again = part.subset(np.array([2, 1]))
    assert again.info.place(0) == "t.x, row 9" and again[np.array([0])][0].tolist() == [13.5]
    assert pickle.loads(pickle.dumps(part))[np.array([1])][1].tolist() == [2]


def test_words_of_another_table() -> None:
    whole = source("age", "city")
    assert len(whole.words()) == 3  # before the file is another
    assert source("age", "city", city=["Oslo"] * N, words=whole.words)[ROWS][1].tolist() == [1] * 4
    held = source("age", "city", city=["Oslo"] * 7 + ["Paris"] * 5, words=whole.words)
    with pytest.raises(DataError, match=r"t\.x, row 7, column 'city': 'Paris' is none of the cl"):
        held[ROWS]
    given = source("age", "city", words=lambda _: np.array(["Bern", "Oslo", "Paris", "Rome"]))
    assert given[np.arange(3)][1].tolist() == [3, 1, 0] and counted(given)() == 4


def test_targets_that_are_none() -> None:
    bad = np.where(np.arange(N) == 7, np.nan, 1.0)
    with pytest.raises(DataError, match=r"t\.x, row 7, column 'age': the target is NaN or inf"):
        source("count", "age", age=bad)[ROWS]
    assert np.isnan(source("age", "count", age=bad)[ROWS][0][2]), "inputs may be"
    box = np.full((N, 2), 1.0)
    box[3, 1] = np.inf
    with pytest.raises(DataError, match="row 3, column 'box'"):
        source("age", "box", box=box)[ROWS]
    negative = source("age", "label", label=np.array([0, 1, -3] * 4))
    with pytest.raises(UsageError, match=r"a target is -3 \(t\.x, row 2\): a class, or a number"):
        counted(negative)()
    with pytest.raises(UsageError, match="row 5"):
        counted(negative.subset(np.array([4, 5, 6])))()
    with pytest.raises(DataError, match=r"row 4, column 'kind': b'\\xff\\xfe' is no text in UTF-8"):
        source("age", "kind", kind=[b"ok"] * 4 + [b"\xff\xfe"] + [b"ok"] * 7).words()


@pytest.mark.parametrize(
    ("target", "classes"),
    [("label", 4), ("flag", 2), ("age", None), ("pixels", None), (["label", "count"], None),
     ({"a": "label"}, None), (None, None), ("city", 3), ("tokens", None)],
)  # fmt: skip
def test_classes(target: Any, classes: int | None) -> None:
    found = source("w", target)
    assert counted(found)() == classes
    is_array = isinstance(target, str) and target != "tokens"
    assert (found.info.labels() is not None) == is_array


def test_splits_of_files() -> None:
    save("a.x", slice(0, 7))
    save("b.x", slice(7, 12))
    splits = of_files(ArrowTable, "*.x", "age", "city", "w", holdout=Holdout(0.25))
    assert (len(splits.train), len(splits.validation), splits.count_classes()) == (9, 3, 3)
    assert [file.name for file in splits.train.info.files()] == ["a.x", "b.x"]
    rows = [part[np.arange(len(part))][0] / 1.5 for part in (splits.train, splits.validation)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(N))
    again = of_files(ArrowTable, ["b.x", "a.x"], "age", "city", "w", holdout=Holdout(0.25))
    np.testing.assert_array_equal(*(each.train[np.arange(9)][0] for each in (again, splits)))
    assert of_files(ArrowTable, "*.x", "age", "label", holdout=Holdout(0)).validation is None
    assert of_files(ArrowTable, "*.x", "age", "label", classes=9).count_classes() == 9
    held = of_files(ArrowTable, "a.x", "age", "city", validation="b.x", holdout=Holdout(0.5))
    assert (len(held.train), len(held.validation)) == (7, 5)
    assert held.validation[np.arange(3)][1].tolist() == [1, 0, 2]
    save("b.x", slice(7, 12), label=np.arange(N) + 5)
    assert of_files(ArrowTable, "a.x", "age", "label", validation="b.x").count_classes() == 17
    for name, values, text in (
        ("city", np.arange(N), "the column city holds int64, and text in what is trained"),
        ("pixels", np.zeros((N, 3, 3), np.uint8), r"pixels holds uint8 \[3, 3\], and uint8 \[2, 2"),
    ):
        save("c.x", slice(0, 5), **{name: values})
        with pytest.raises(UsageError, match=rf"dataset\.validation=c\.x: .*{text}"):
            of_files(ArrowTable, "a.x", "pixels", "city", validation="c.x")
    save("f.x", slice(0, 0))
    with pytest.raises(UsageError, match="has no row to train on"):
        of_files(ArrowTable, "f.x", "age", "label")


@pytest.mark.task
def test_images_are_decoded_in_the_graph() -> None:
    import tensorflow as tf

    from dtrain.task.data import reading

    def images(shape: list[int], encode: Any) -> list[bytes]:
        return [encode(tf.fill(shape, tf.constant(20 * i, tf.uint8))).numpy() for i in range(N)]

    save("a.x", big=images([3, 5, 3], tf.io.encode_png), small=images([4, 4, 1], tf.io.encode_jpeg))
    sizes = {"big": [2, 2, 3], "small": [4, 4, 1]}
    inputs = {"p": "big", "q": {"r": "small", "n": ["age", "count"]}}
    holdout = Holdout(0.25)
    splits = of_files(ArrowTable, "a.x", inputs, "label", "w", holdout=holdout, images=sizes)
    x, y, weight = reading.first(splits.train, 9)
    assert x["p"].shape == (9, 2, 2, 3) and x["q"]["r"].shape == (9, 4, 4, 1)
    rows = np.round(x["q"]["n"][:, 1]).astype(int)
    np.testing.assert_allclose(x["p"][:, 0, 0, 0], rows * 20 / 255, atol=1e-6)
    np.testing.assert_allclose(x["q"]["r"][:, 0, 0, 0], rows * 20 / 255, atol=0.01)
    assert (y.shape, weight.shape) == ((9,), (9,))
    single = of_files(ArrowTable, "a.x", "big", "label", images={"big": [2, 3, 1]})
    assert reading.first(single.train, 2)[0].shape == (2, 2, 3, 1)
    for wrong, text in (
        ({"bigg": [2, 2, 3]}, "bigg: is no input of encoded images; accepted: big, small"),
        ({"label": [2, 2, 3]}, "label: is no input"),
        ({"big": [2, 2, 4]}, "is not height, width, channels"),
    ):
        with pytest.raises(UsageError, match=text):
            of_files(ArrowTable, "a.x", inputs, "label", images=wrong)
