"""Files of tables that are wrong, damaged or gone: each in one sentence that names the place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dtrain import datasets
from dtrain.data.files import files
from dtrain.data.sources import Splits
from dtrain.data.tabular.reader import ArrowTable
from dtrain.errors import DataError, UsageError
from tests import columnar

KINDS: dict[str, columnar.Write] = {
    "parquet": columnar.parquet(write_page_checksum=True),
    "arrow": columnar.file(),
    "compressed": columnar.file("zstd"),
    "stream": columnar.stream(),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def save(kind: str, number: int = 0, **made: Any) -> str:
    """Write a file with columns, and return its name."""
    path = Path(f"{number}.x")
    arrays = {name: v if isinstance(v, pa.Array) else pa.array(v) for name, v in made.items()}
    KINDS[kind](pa.table(arrays), path)
    return str(path)


def load(path: Any = "*.x", target: Any = "y", inputs: Any = "x", **options: Any) -> Splits:
    return datasets.table(path, target, inputs, **{"validation_split": 0.0, **options})


def refusal(**options: Any) -> str:
    with pytest.raises((UsageError, DataError)) as caught:
        load(**options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    return str(caught.value)


def failure(splits: Splits, rows: list[int] | None = None) -> str:
    with pytest.raises(DataError) as caught:
        splits.train[np.array(rows or range(len(splits.train)))]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def take(splits: Splits, rows: list[int]) -> Any:
    return splits.train[np.array(rows)]


def test_columns_that_differ_by_file(kind: str) -> None:
    for number in range(4):
        more = {} if number == 2 else {"b": [1.0, 2.0]}
        pairs = columnar.fixed(np.ones((2, 2 + (number == 2))))
        save(kind, number, x=[1.0, 2.0], pair=pairs, y=[0, 1], **more)
    assert refusal(inputs="b").startswith(
        "dataset.inputs=b: 2.x has no such column, which 0.x has; "
    )
    assert refusal(weight="b").startswith("dataset.weight=b: 2.x has no such")
    assert refusal(inputs="pair").startswith(
        "dataset.inputs=pair: 2.x has float64 [3] in it, and 0.x has float64 [2]; "
    )
    assert take(load(), [5])[0].tolist() == [2], "those that are not used may differ"
    message = refusal(target="labels")
    assert message.startswith("dataset.target=labels: 0.x has no such column; ")
    texts = pa.array(["u", "v"])
    for number, part in enumerate(
        (texts, texts.cast(pa.large_string()), texts.dictionary_encode())
    ):
        save(kind, number, x=part, y=[0, 1])
    assert take(load("[0-2].x"), [3, 4])[0].tolist() == ["v", "u"]


REFUSED = {
    "list<element: string>": pa.array([["a"]], pa.list_(pa.field("element", pa.string()))),
    "list<element: list<element: int64>>": pa.array(
        [[[1]]], pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int64()))))
    ),
    "map<string, int64>": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    "the extension type arrow.uuid": pa.array([b"1" * 16], pa.uuid()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_cannot_be_examples(kind: str, name: str) -> None:
    save(kind, 0, x=[1.0], odd=REFUSED[name], y=[0])
    for inputs in (None, "odd", {"in": "odd"}):
        message = refusal(inputs=inputs)
        expected = f"dataset.inputs=odd: 0.x has {name}"
        assert message.startswith(expected[: len(expected) - 2 * ("map" in name)]), message
    assert take(load(), [0])[0].tolist() == [1]


def test_missing_values_where_a_column_is_read_as_it_is(kind: str) -> None:
    pairs = pa.list_(pa.float32(), 2)
    missing: dict[str, pa.Array] = {
        "whole": pa.array([1, 2, None, 4]),
        "flag": pa.array([True, True, None, True]),
        "text": pa.array(["a", "b", None, "d"]),
        "word": pa.array(["a", "b", None, "d"]).dictionary_encode(),
        "list": pa.array([[1], [], None, [4]]),
        "item": pa.array([[1], [], [3, None], [4]]),
        "half": pa.array([[1, 1], [2, 2], [None, 3], [4, 4]], pairs),
        "deep": pa.array([[[1, 1]], [], [[1, None]], []], pa.list_(pairs)),
        "part": pa.array([{"a": 1.0}, {"a": 2.0}, None, {"a": 0.5}]),
    }
    for name, values in missing.items():
        save(kind, 0, x=[1.0, 2.0], y=[0, 1], **{name: values[:2]})
        save(kind, 1, x=[1.0, 2.0, 3.0, 4.0], y=[0, 1, 0, 1], **{name: values})
        column = "part.a" if name == "part" else name
        splits = load(inputs={"x": "x", "a": column})
        assert len(take(splits, [5, 0, 2, 2])[0]["x"]) == 4, "rows without it can be read"
        assert failure(splits, [0, 5, 4, 1]) == f"1.x, row 2, column {column!r}: is empty (null)"


def test_targets_that_are_missing_or_not_finite(kind: str) -> None:
    save(kind, 0, x=[1.0], y=[0.5])
    save(kind, 1, x=[1.0, 2.0, 3.0], y=[1.5, None, 1.0])
    message = refusal()
    assert message.startswith("dataset.target=y: is empty in 1.x, row 1; ")
    assert message.endswith("type: dataset.on_error=skip")
    from dtrain.data.options import OnError

    left = load(on_error=OnError.skip)
    assert len(left.train) == 3 and "1 of 4 rows have no y and are left out" in left.notices[0]
    save(kind, 1, x=[1.0, 2.0, 3.0], y=[1.5, 2.0, np.inf])
    assert failure(load(), [3]) == "1.x, row 2, column 'y': the target is NaN or infinite"
    save(kind, 0, x=[1.0], y=[3])
    save(kind, 1, x=[1.0, 2.0], y=[2, -1])
    with pytest.raises(UsageError, match=r"a target is -1 \(1\.x, row 1\): a class, or a number"):
        load().count_classes()


def test_text_that_is_none(kind: str) -> None:
    save(kind, 0, x=pa.array([b"a", b"ok \xff", b"c"]).view(pa.string()), y=[0, 1, 0])
    assert failure(load()).startswith("0.x, rows 0 to 2, column 'x': cannot be read (Invalid UTF8")


def test_no_rows_and_one(kind: str) -> None:
    none = pa.array([], pa.float64())
    save(kind, 0, x=none, y=pa.array([], pa.int64()))
    assert refusal().startswith("dataset.path=*.x: has no row to train on; ")
    save(kind, 1, x=[7.0], y=[2])
    splits = load()
    assert len(splits.train) == 1 and splits.count_classes() == 3
    assert [part.tolist() for part in take(splits, [0, 0])] == [[7, 7], [2, 2]]
    held = load("1.x", validation="0.x")
    assert held.validation is not None and len(held.validation) == 0


NOT = {
    "text": b"a,b\n1,2\n" * 20,
    "nothing": b"",
    "zeros": bytes(5000),
    "twice the magic of Parquet": b"PAR1" * 2,
    "twice the magic of Arrow": b"ARROW1\0\0" * 3,
    "ones": b"\xff" * 100,
}


@pytest.mark.parametrize("name", NOT)
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_files_of_other_formats(name: str, format: str) -> None:
    save(format, 0, x=[1.0], y=[0])
    Path("1.x").write_bytes(NOT[name])
    message = refusal(format=format)
    assert message.startswith(f"dataset.path=1.x: cannot be read as {format.title()} ("), message
    message = refusal(path="0.x", validation="1.x", format=format)
    assert message.startswith("dataset.validation=1.x: ") and "dataset.path" not in message


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9, 0.999])
def test_files_that_are_cut_off(kind: str, left: float) -> None:
    rng = np.random.default_rng(0)
    path = Path(save(kind, 0, x=rng.random(100), y=rng.integers(0, 9, 100)))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * left)])
    assert "0.x: cannot be read as " in refusal()


def test_a_damaged_page_of_parquet() -> None:
    rng = np.random.default_rng(0)
    x = rng.random(40)
    path = Path(save("parquet", 0, a=rng.random(40), x=x, y=rng.integers(0, 9, 40)))
    data = bytearray(path.read_bytes())
    data[data.index(x[20].tobytes())] ^= 255
    path.write_bytes(data)
    # Row groups of 10, 3, 4, 10, 10 and 3 rows.
    assert refusal().startswith(
        "0.x, rows 17 to 26, column 'x': cannot be read (could not verify page integrity"
    )


def test_offsets_that_lead_out_of_the_file() -> None:
    path = Path(save("arrow", 0, x=["ab", "cd", "ef"], y=[0, 1, 2]))
    data = bytearray(path.read_bytes())
    at = data.index(np.array([0, 2, 4, 6], np.int32).tobytes())
    for wrong in ([0, 2, 4, 2**30], [0, -5, 4, 6], [0, 4, 2, 6]):
        data[at : at + 16] = np.array(wrong, np.int32).tobytes()
        path.write_bytes(data)
        with pytest.raises((UsageError, DataError), match=r"0\.x"):
            take(load(), [0, 1, 2])


def test_files_that_vanish_or_change(kind: str) -> None:
    for number in range(2):
        save(kind, number, x=[1.0, 2.0], y=pa.array([[0], [1]], pa.list_(pa.int64(), 1)))
    splits = load()
    os.remove("1.x")
    assert len(take(splits, [0])[0]) == 1
    assert failure(splits, [3]) == "1.x: cannot be read (No such file or directory)"
    save(kind, 1, x=[1.0, 2.0, 3.0], y=[0, 1, 2])
    assert failure(splits, [3]) == "1.x: has changed since it was opened"


def test_a_file_that_is_cut_off_while_it_is_read() -> None:
    path = save("arrow", 0, x=np.arange(9000.0), y=np.zeros(9000, np.int64))
    splits = load()
    take(splits, [8999])
    with open(path, "r+b") as file:
        file.truncate(4096)
    assert failure(splits, [8999]) == "0.x: was cut off while it was read"


def test_random_damage_is_always_a_sentence(kind: str) -> None:
    """Or rows: of what has no checksum. But no crash, and no other error."""
    rng = np.random.default_rng(0)
    rows = columnar.table(30).drop_columns(["part", "tensor", "fixed_bytes", "decimal"])
    name = Path("0.x")
    KINDS[kind](rows, name)
    data = name.read_bytes()
    outcomes = {"rows": 0, "sentence": 0}
    for _ in range(100):
        changed = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            changed[at] = rng.integers(0, 256)
        name.write_bytes(changed)
        try:
            table = ArrowTable(files("0.x"))
            table.read(np.arange(min(len(table), 1000)), list(table.columns))
            outcomes["rows"] += 1
        except (UsageError, DataError) as error:
            assert "\n" not in str(error) and "0.x" in str(error)
            outcomes["sentence"] += 1
    assert min(outcomes.values()) > 0, outcomes
