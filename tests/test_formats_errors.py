"""Files of columns that are wrong, damaged or gone: each in one sentence that names the place."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dtrain import datasets
from dtrain.data.files import files
from dtrain.data.formats.arrow import Arrow
from dtrain.data.formats.parquet import Parquet
from dtrain.data.sources import Splits
from dtrain.errors import DataError, UsageError
from tests import columnar

Load = Callable[..., Splits]
KINDS: dict[str, tuple[Load, columnar.Write]] = {
    "parquet": (datasets.parquet, columnar.parquet(write_page_checksum=True)),
    "arrow": (datasets.arrow, columnar.file()),
    "compressed": (datasets.arrow, columnar.file("zstd")),
    "stream": (datasets.arrow, columnar.stream()),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def save(kind: str, number: int = 0, **made: Any) -> str:
    """Write a file with columns, and return its name."""
    path = Path(f"{number}.x")
    arrays = {name: v if isinstance(v, pa.Array) else pa.array(v) for name, v in made.items()}
    KINDS[kind][1](pa.table(arrays), path)
    return str(path)


def load(kind: str, path: Any = "*.x", target: Any = "y", **options: Any) -> Splits:
    return KINDS[kind][0](path, target, validation_split=0, **options)


def refusal(kind: str, *arguments: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        load(kind, *arguments, **options)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    return message


def failure(splits: Splits, rows: list[int] | None = None) -> str:
    with pytest.raises(DataError) as caught:
        splits.train.take(np.array(rows or range(len(splits.train))))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def take(splits: Splits, rows: list[int]) -> Any:
    return splits.train.take(np.array(rows))


# What the files have


def test_a_column_that_the_third_file_lacks(kind: str) -> None:
    for number in range(4):
        more = {} if number == 2 else {"b": [1.0, 2.0]}
        save(kind, number, a=[1.0, 2.0], y=[0, 1], **more)
    message = refusal(kind)
    assert message.startswith("dataset.inputs=b: 2.x has no such column, which 0.x has; "), message
    assert refusal(kind, inputs="a", weight="b").startswith("dataset.weight=b: 2.x has no such")
    assert take(load(kind, inputs="a"), [5])[0].tolist() == [2], (
        "those that are not used may differ"
    )


def test_a_column_of_another_type_in_the_third_file(kind: str) -> None:
    for number in range(4):
        save(kind, number, a=columnar.fixed(np.ones((2, 2 + (number == 2)))), y=[0, 1])
    message = refusal(kind)
    assert message.startswith(
        "dataset.inputs=a: 2.x has float64 [3] in it, and 0.x has float64 [2]; "
    ), message


def test_types_of_the_same_values_agree(kind: str) -> None:
    texts = pa.array(["u", "v"])
    save(kind, 0, a=texts, y=[0, 1])
    save(kind, 1, a=texts.cast(pa.large_string()), y=[0, 1])
    save(kind, 2, a=texts.dictionary_encode(), y=[0, 1])
    assert take(load(kind), [3, 4])[0].tolist() == ["v", "u"]
    save(kind, 3, a=[b"u", b"v"], y=[0, 1])
    assert "3.x has bytes in it, and 0.x has text" in refusal(kind)
    save(kind, 3, a=texts, y=pa.array([0, 1], pa.int8()))
    assert refusal(kind).startswith("dataset.target=y: 3.x has int8 in it, and 0.x has int64; ")


def test_a_missing_column(kind: str) -> None:
    save(kind, 0, age=[1.0], label=[0])
    message = refusal(kind, target="labels")
    assert message.startswith("dataset.target=labels: 0.x has no such column; ")
    assert message.endswith("age, label; type: dataset.target=label")


REFUSED = {
    "timestamp[us]": pa.array([datetime.datetime(2020, 1, 1)]),
    "date32[day]": pa.array([datetime.date(2020, 1, 1)]),
    "duration[ns]": pa.array([5], pa.duration("ns")),
    "time64[us]": pa.array([datetime.time(1)]),
    "list<element: string>": pa.array([["a"]], pa.list_(pa.field("element", pa.string()))),
    "list<element: list<element: int64>>": pa.array(
        [[[1]]], pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int64()))))
    ),
    "list<element: struct<a: int64>>": pa.array(
        [[{"a": 1}]], pa.list_(pa.field("element", pa.struct({"a": pa.int64()})))
    ),
    "map<string, int64>": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    "null": pa.array([None]),
    "the extension type arrow.uuid": pa.array([b"1" * 16], pa.uuid()),
    "the extension type arrow.json": pa.array(["{}"], pa.json_()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_cannot_be_examples(kind: str, name: str) -> None:
    save(kind, 0, a=[1.0], when=REFUSED[name], y=[0])
    for arguments in ({}, {"inputs": "when"}, {"inputs": {"in": "when"}}):
        message = refusal(kind, **arguments)
        found = f"dataset.inputs=when: 0.x has {name}"
        assert message.startswith(found[: len(found) - 2 * ("map" in name)]), message
        assert "which cannot be an example; accepted: columns of numbers, " in message
    assert take(load(kind, inputs="a"), [0])[0].tolist() == [1]


def test_two_columns_of_one_name() -> None:
    rows = pa.table([pa.array([1.0]), pa.array([2.0]), pa.array([0])], names=["a", "a", "y"])
    columnar.file()(rows, Path("0.x"))
    assert refusal("arrow").startswith("dataset.inputs=a: 0.x has two columns of that name; ")


# What the rows have


def test_missing_values(kind: str) -> None:
    pairs = pa.list_(pa.float32(), 2)
    missing: dict[str, pa.Array] = {
        "whole": pa.array([1, 2, None, 4]),
        "flag": pa.array([True, True, None, True]),
        "text": pa.array(["a", "b", None, "d"]),
        "word": pa.array(["a", "b", None, "d"]).dictionary_encode(),
        "list": pa.array([[1], [], None, [4]]),
        "item": pa.array([[1], [], [3, None], [4]]),
        "pair": pa.array([[1, 1], [2, 2], None, [4, 4]], pairs),
        "half": pa.array([[1, 1], [2, 2], [None, 3], [4, 4]], pairs),
        "deep": pa.array([[[1, 1]], [], [[1, None]], []], pa.list_(pairs)),
    }
    for name, values in missing.items():
        save(kind, 0, x=[1.0, 2.0], y=[0, 1], **{name: values[:2]})
        save(kind, 1, x=[1.0, 2.0, 3.0, 4.0], y=[0, 1, 0, 1], **{name: values})
        splits = load(kind, inputs={"x": "x", "a": name})
        if kind == "parquet" and name == "pair":  # pyarrow reads no such row group at all
            assert failure(splits).startswith("1.x, rows 0 to 3, column 'pair': cannot be read (")
            continue
        assert len(take(splits, [5, 0, 2, 2])[0]["x"]) == 4, "rows without it can be read"
        assert failure(splits) == f"1.x, row 2, column {name!r}: is empty (null)"
        assert failure(splits, [0, 5, 4, 1]) == f"1.x, row 2, column {name!r}: is empty (null)"


def test_missing_structures(kind: str) -> None:
    values = pa.array([{"a": 1.0}, None, {"a": None}], pa.struct({"a": pa.float32()}))
    save(kind, 0, part=values, y=[0, 1, 0])
    splits = load(kind, inputs="part.a")
    assert take(splits, [0])[0].tolist() == [1]
    assert failure(splits, [0, 1]) == "0.x, row 1, column 'part.a': is empty (null)"
    assert failure(splits, [2]) == "0.x, row 2, column 'part.a': is empty (null)"


def test_text_that_is_none(kind: str) -> None:
    good = pa.array([b"a", b"b"])
    bad = pa.array([b"a", b"ok \xff", b"c"])
    save(kind, 0, t=good.view(pa.string()), y=[0, 1])
    save(kind, 1, t=bad.view(pa.string()), y=[0, 1, 0])
    splits = load(kind)
    message = failure(splits)
    if kind == "compressed":  # a batch is looked at as a whole
        assert message.startswith("1.x, rows 0 to 2, column 't': cannot be read (Invalid UTF8")
    else:
        assert message == "1.x, row 1, column 't': is no UTF-8 (byte 0xff at offset 3)"


def test_targets_that_are_not_finite(kind: str) -> None:
    save(kind, 0, x=[1.0], y=[0.5])
    save(kind, 1, x=[1.0, 2.0, 3.0], y=[1.5, np.nan, np.inf])
    splits = load(kind)
    assert failure(splits, [0, 2]) == "1.x, row 1, column 'y': the target is NaN or infinite"
    assert failure(splits, [3]) == "1.x, row 2, column 'y': the target is NaN or infinite"
    assert splits.count_classes() is None
    save(kind, 0, x=[1.0], y=[3])
    save(kind, 1, x=[1.0, 2.0], y=[2, -1])
    with pytest.raises(UsageError, match=r"a target is -1 \(1\.x, row 1\): a class, or a number"):
        load(kind).count_classes()


def test_no_rows_and_one(kind: str) -> None:
    none = pa.array([], pa.float64())
    save(kind, 0, x=none, y=pa.array([], pa.int64()))
    assert refusal(kind).startswith("dataset.path=*.x: has no row to train on; ")
    with pytest.raises(UsageError, match="has no row to train on"):
        KINDS[kind][0]("*.x", "y")
    save(kind, 1, x=[7.0], y=[2])
    splits = load(kind)
    assert len(splits.train) == 1 and splits.count_classes() == 3
    assert [part.tolist() for part in take(splits, [0, 0])] == [[7, 7], [2, 2]]
    held = load(kind, "1.x", validation_path="0.x")
    assert held.validation is not None and len(held.validation) == 0


# Damage


def test_a_file_to_evaluate_on_is_named_with_its_key(kind: str) -> None:
    save(kind, 0, x=[7.0], y=[2])
    Path("held.x").write_bytes(b"a,b\n1,2\n" * 20)
    with pytest.raises(UsageError) as caught:
        load(kind, "0.x", validation_path="held.x")
    assert str(caught.value).startswith("dataset.validation_path=held.x: ")
    assert "dataset.path" not in str(caught.value)


NOT = {
    "text": b"a,b\n1,2\n" * 20,
    "nothing": b"",
    "zeros": bytes(5000),
    "one byte": b"A",
    "only the magic of Parquet": b"PAR1",
    "twice the magic of Parquet": b"PAR1" * 2,
    "only the magic of Arrow": b"ARROW1",
    "twice the magic of Arrow": b"ARROW1\0\0" * 3,
    "feather of version 1": b"FEA1" + bytes(60) + b"FEA1",
    "ones": b"\xff" * 100,
}


@pytest.mark.parametrize("name", NOT)
@pytest.mark.parametrize("function", ["parquet", "arrow"])
def test_files_of_other_formats(name: str, function: str) -> None:
    save(function, 0, x=[1.0], y=[0])
    Path("1.x").write_bytes(NOT[name])
    word = function.title()
    message = refusal(function)
    assert message.startswith(f"dataset.path=1.x: cannot be read as {word} ("), message


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9, 0.999])
def test_files_that_are_cut_off(kind: str, left: float) -> None:
    rng = np.random.default_rng(0)
    path = Path(save(kind, 0, x=rng.random(100), y=rng.integers(0, 9, 100)))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * left)])
    message = refusal(kind)
    assert message.startswith("dataset.path=0.x: cannot be read as "), message


def test_a_stream_without_the_mark_of_its_end() -> None:
    path = Path(save("stream", 0, x=[1.0, 2.0], y=[0, 1]))
    path.write_bytes(path.read_bytes()[:-8])
    assert take(load("stream"), [1])[0].tolist() == [2]


def test_a_damaged_page_of_parquet() -> None:
    rng = np.random.default_rng(0)
    x = rng.random(40)
    path = Path(save("parquet", 0, a=rng.random(40), x=x, y=rng.integers(0, 9, 40)))
    data = bytearray(path.read_bytes())
    at = data.index(x[20].tobytes())
    data[at] ^= 255
    path.write_bytes(data)
    splits = load("parquet")
    # Row groups of 10, 3, 4, 10, 10 and 3 rows.
    assert failure(splits, [1, 20]).startswith(
        "0.x, rows 17 to 26, column 'x': cannot be read (could not verify page integrity"
    )
    assert len(take(splits, [0, 16, 27])[0]) == 3, "the others are sound"


def test_a_damaged_batch_of_arrow() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, 300)
    path = Path(save("compressed", 0, x=x, y=np.zeros(300, np.int64)))
    table = Arrow(files(str(path)))
    start, size = int(table._indexes[0].starts[2]), int(table._indexes[0].sizes[2])
    data = bytearray(path.read_bytes())
    data[start + size - 60 : start + size] = bytes(60)
    path.write_bytes(data)
    splits = load("compressed")
    message = failure(splits)
    assert message.startswith("0.x, rows 4 to 20, column "), message
    assert "cannot be read (" in message
    assert len(take(splits, [0, 3, 21])[0]) == 3


def test_offsets_that_lead_out_of_the_file() -> None:
    path = Path(save("arrow", 0, t=["ab", "cd", "ef"], y=[0, 1, 2]))
    data = bytearray(path.read_bytes())
    offsets = np.array([0, 2, 4, 6], np.int32).tobytes()
    at = data.index(offsets)
    for wrong in ([0, 2, 4, 2**30], [0, -5, 4, 6], [0, 4, 2, 6]):
        data[at : at + 16] = np.array(wrong, np.int32).tobytes()
        path.write_bytes(data)
        splits = load("arrow")
        message = failure(splits)
        assert message.startswith("0.x, row") and "column 't'" in message


def test_a_file_that_vanishes(kind: str) -> None:
    for number in range(2):
        save(kind, number, x=[1.0, 2.0], y=[0, 1])
    splits = load(kind)
    os.remove("1.x")
    assert len(take(splits, [0])[0]) == 1
    assert failure(splits, [3]) == "1.x: cannot be read (No such file or directory)"


def test_a_file_that_changes(kind: str) -> None:
    save(kind, 0, x=[1.0, 2.0], y=[0, 1])
    splits = load(kind)
    save(kind, 0, x=[1.0, 2.0, 3.0], y=[0, 1, 2])
    assert failure(splits, [0]) == "0.x: has changed since the dataset was opened"


def test_a_file_that_is_cut_off_while_it_is_read() -> None:
    path = save("arrow", 0, x=np.arange(9000.0), y=np.zeros(9000, np.int64))
    splits = load("arrow")
    take(splits, [8999])
    with open(path, "r+b") as file:
        file.truncate(4096)
    assert failure(splits, [8999]) == "0.x: has become shorter since it was opened"


def test_random_damage_is_always_a_sentence(kind: str) -> None:
    """Or rows: of what has no checksum. But no crash, and no other error."""
    rng = np.random.default_rng(0)
    rows = columnar.table(30).drop_columns(["part", "tensor", "fixed_bytes", "decimal"])
    name = Path("0.x")
    KINDS[kind][1](rows, name)
    data = name.read_bytes()
    reader = Parquet if kind == "parquet" else Arrow
    outcomes = {"rows": 0, "sentence": 0}
    for _ in range(150):
        changed = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            changed[at] = rng.integers(0, 256)
        name.write_bytes(changed)
        try:
            table = reader(files("0.x"))
            table.read(np.arange(min(len(table), 1000)), list(table.columns))
            outcomes["rows"] += 1
        except (UsageError, DataError) as error:
            assert "\n" not in str(error) and "0.x" in str(error)
            outcomes["sentence"] += 1
    assert min(outcomes.values()) > 0, outcomes
