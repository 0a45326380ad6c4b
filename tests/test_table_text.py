"""Tables of text as users' first files are: what is found out, what is said, what is refused."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dtrain import datasets
from dtrain.data.options import OnError
from dtrain.data.tabular import reader, text
from dtrain.errors import UsageError
from tests import columnar

ROWS = "age,city,size,y\n31,Rome,1.5,no\n,Bern,2.5,yes\n44,Rome,3.5,no\n52,Oslo,4.5,yes\n"
#: Contents of a file; the kinds of its columns; a part of what is said of it.
FOUND: dict[str, tuple[str | bytes, str, str]] = {
    "plain": (ROWS, "age:number city:category size:number", ""),
    "semicolons": (ROWS.replace(",", ";"), "age:number city:category size:number", "by ';'"),
    "tabs": (ROWS.replace(",", "\t"), "age:number city:category size:number", "by tabs"),
    "blanks": (
        "age size y\n31 1.5 0\n44 2.5 1\n52 3.5 0\n", "age:number size:number", "by blanks",
    ),
    "decimal commas": (
        ROWS.replace(",", ";").replace(".5", ",5"), "age:number city:category size:number",
        "numbers have decimal commas",
    ),
    "byte-order mark": ("\ufeff" + ROWS, "age:number city:category size:number", ""),
    "UTF-16": (ROWS.encode("utf-16"), "age:number city:category size:number", ""),
    "Latin-1": (ROWS.replace("Bern", "Zürich").encode("latin-1"),
                "age:number city:category size:number", "is read as Latin-1"),
    "ends of lines": (ROWS.replace("\n", "\r\n"), "age:number city:category size:number", ""),
    "line breaks in quotes": (
        ROWS.replace("Rome", '"Rome,\nItaly"'), "age:number city:category size:number", "",
    ),
    "no header": ("1,2.5,0\n3,4.5,1\n5,6.5,1\n", "0:number 1:number", "the first line has values"),
    "header of pandas": ("0,1,2\n1,2.5,0\n3,4.5,1\n", "0:number 1:number", ""),
    "index": (
        "".join(f"{n},{row}\n" for n, row in enumerate(ROWS.split())).replace("0,", ",", 1),
        "age:number city:category size:number", "the column 'Unnamed: 0' is left out",
    ),
    "names of rows": (
        "age,y\n" + "".join(f"r{n},{n % 7},{n % 2}\n" for n in range(30)), "age:number",
        "the column 'Unnamed: 0' is left out",
    ),
    "names that occur twice": (
        "a,a,y\n1,2,0\n3,4,1\n", "a:number a.1:number", "occur twice; the later ones are 'a.1'",
    ),
    "dates": (
        "when,y\n" + "".join(f"{n + 1:02}.03.2024,{n % 2}\n" for n in range(9)), "when:date", "",
    ),
    "booleans": ("a,b,y\ntrue,1,0\nfalse,2,1\n,3,1\n", "b:number a:boolean", ""),
    "texts": (
        "note,y\n" + "".join(f"the number {n} is here,{n % 2}\n" for n in range(40)),
        "note:text", "",
    ),
    "nothing in a column": ("a,b,y\n1,,0\n2,,1\n", "a:number", "the column 'b' is left out"),
    "sep=": ("sep=;\n" + ROWS.replace(",", ";"), "age:number city:category size:number", ""),
    "empty lines above": ("\n\n" + ROWS, "age:number city:category size:number", ""),
    "some blanks": ("age size y\n1 1.5 0\n2  2.5 1\n3 3.5 0\n", "age:number size:number", "blanks"),
    "several blanks": (
        "age   size y\n 31  1.5   0\n44    2.5  1\n52   3.5 0\n", "age:number size:number",
        "by blanks",
    ),
    "names in Latin-1": ("gr\u00f6\u00dfe,\u017e,y\n1,2,0\n3,4,1\n".encode("cp1252"),
                         "gr\u00f6\u00dfe:number \u017e:number", "is read as Latin-1"),
    "ids": (
        "id,a,y\n" + "".join(f"C{n:03},{n % 5},{n % 2}\n" for n in range(40)), "a:number",
        "the column 'id' is left out: it has another text in each row",
    ),
}  # fmt: skip


def save(content: str | bytes, name: str = "a.csv") -> str:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_out(name: str, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    content, kinds, said = FOUND[name]
    if large:
        if name == "Latin-1":
            content = ROWS  # what a large file has in its middle is refused or found by the reader
            said = ""
        monkeypatch.setattr(reader, "SMALL", 0)
        monkeypatch.setattr(text, "_BLOCK", 64)  # types change from block to block
    splits = datasets.table(save(content), validation_split=0.0)
    assert splits.encoding is not None
    made = splits.encoding()
    found = " ".join(f"{each.name}:{each.kind}" for each in made.features)
    assert sorted(found.split()) == sorted(kinds.split())
    out = [f"the column {column!r} is left out: {why}" for column, why in made.left_out.items()]
    notices = "; ".join([*splits.notices, *out])
    assert said in notices


def test_values_that_are_read() -> None:
    splits = datasets.table(save(ROWS), validation_split=0.0)
    x, y = splits.train.x, splits.train.y
    assert np.array_equal(x[:, 0], np.float32([31, np.nan, 44, 52]), equal_nan=True)
    assert x[:, 1:].T.tolist() == [[1.5, 2.5, 3.5, 4.5], [3, 1, 3, 2]]
    assert (x.dtype, y.tolist()) == (np.float32, [0, 1, 0, 1])
    assert splits.train.info.class_names() == ["no", "yes"] and splits.count_classes() == 2
    numbers = datasets.table(save("a,b,y\n1,2.5,0\n3,4.1,1\n"), validation_split=0.0).train
    assert np.array_equal(numbers.x, np.float32([[1, 2.5], [3, 4.1]])), "as they are, to the bit"
    ends = datasets.table(save(ROWS.replace("no", "no,").replace("yes", "yes,")), "y")
    assert [f.name for f in ends.encoding().features] == ["age", "size", "city"]  # type: ignore
    names = ",".join(f"column_{n}" for n in range(9000))
    wide = datasets.table(save(f"{names},y\n{'1,' * 9000}0\n{'1,' * 9000}1\n")).train
    assert wide.x.shape[1] == 9000, "as long as the header is"
    packed = gzip.compress(ROWS.encode())
    Path("p.csv.gz").write_bytes(packed)
    again = datasets.table("p.csv.gz", validation_split=0.0).train
    assert np.array_equal(again.x, x, equal_nan=True)


def test_several_files_are_one_table() -> None:
    save("a,b,y\n1,x,0\n", "1.csv")
    save("a,b,y\n2.5,z,1\n", "2.csv")
    save("a,b,y\n,z,1\n", "3.csv")
    Path("folder").mkdir()
    for name in ("1.csv", "2.csv", "3.csv"):
        Path(name).rename(f"folder/{name}")
    for path in ("folder", "folder/*.csv", ["folder/3.csv", "folder/1.csv", "folder/2.csv"]):
        train = datasets.table(path, "y", validation_split=0.0).train
        assert np.array_equal(train.x[:, 0], np.float32([1, 2.5, np.nan]), equal_nan=True)
    save("a,b,y\n1,x,0\nold,z,1\n", "folder/4.csv")
    for columns in (None, {"a": "category"}):  # as of one file with such rows
        made = datasets.table("folder", "y", columns=columns, validation_split=0.0)
        assert made.encoding is not None
        assert made.encoding().features[0].values == ("1", "2.5", "old")


TITLES = "x,n,y\n" + "".join(f"{n / 4},{n % 7},{'ab'[n % 2]}\n" for n in range(20))
#: Content of a file, what pandas needs for it, what dtrain needs, and what says so in a refusal.
DECLARED: dict[str, tuple[str | bytes, dict[str, Any], dict[str, Any]]] = {
    "comments": ("# by me\n#\n" + TITLES + "# end\n", {"comment": "#"}, {"comment": "#"}),
    "a title": ("Report,,\n" + TITLES, {"skiprows": 1}, {"skip_rows": 1}),
    "a short title": ("Report\n\n" + TITLES, {"skiprows": 1}, {"skip_rows": 2}),
    "dashes": (TITLES.replace("y\n", "y\n---,---,---\n"), {"skiprows": [1]}, {"skip_rows": [2]}),
    "units": (TITLES.replace("y\n", "y\n[m],s,\n"), {"skiprows": [1]}, {"skip_rows": [2]}),
    "a row that is none": (TITLES + "1\n2,3,a\n", {"skiprows": [21]}, {"skip_rows": [22]}),
    "quotes": (
        TITLES.replace("\n0.5,", "\n|0.5|,").replace("b\n", "|b,\n#|\n"), {"quotechar": "|"},
        {"quote": "|"},
    ),
    "no quotes": (TITLES.replace(",a", ',5" a'), {"quoting": 3}, {"quote": "none"}),
    "another encoding": (
        TITLES.replace("a\n", "\u5e74\n").encode("shift_jis"), {"encoding": "shift_jis"},
        {"encoding": "shift_jis"},
    ),
    "UTF-16 without a mark": (
        TITLES.encode("utf-16-le"), {"encoding": "utf-16-le"}, {"encoding": "utf-16-le"},
    ),
    "comments in UTF-16": (
        ("# by me\n" + TITLES).encode("utf-16"), {"encoding": "utf-16", "comment": "#"},
        {"comment": "#"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", DECLARED)
def test_what_is_declared_is_what_pandas_reads(
    name: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, theirs, keys = DECLARED[name]
    wanted = pd.read_csv(save(content), **theirs)
    if large:
        monkeypatch.setattr(reader, "SMALL", 0)
    train = datasets.table("a.csv", validation_split=0.0, **keys).train
    assert np.array_equal(train.x, wanted[["x", "n"]].to_numpy(np.float32))
    assert train.info.class_names() == sorted(set(wanted.y))
    assert (np.array(train.info.class_names())[train.y] == wanted.y).all()
    if name in ("comments", "a title", "a short title", "a row that is none"):
        with pytest.raises(UsageError) as caught:  # and the hint is what was declared
            datasets.table("a.csv")
        [(key, value)] = keys.items()
        shown = "'dataset.comment=\"#\"'" if key == "comment" else f"dataset.{key}={value}"
        assert shown in str(caught.value)
    assert datasets.table("a.csv", **keys).train.info.reading  # of its identity


def test_packed_files_by_what_is_in_them() -> None:
    wanted = datasets.table(save(ROWS), validation_split=0.0).train.x
    packed: dict[str, bytes] = {
        "a.csv.gz": ROWS.encode(), "b.csv": gzip.compress(ROWS.encode()), "c.zip": ROWS.encode(),
        "d.csv.zst": pa.compress(ROWS.encode(), "zstd", asbytes=True),
    }  # fmt: skip
    with zipfile.ZipFile("e.zip", "w") as whole:
        for name, content in {"t/": "", "__MACOSX/t/._a.csv": "\0", "t/a.csv": ROWS}.items():
            whole.writestr(name, content)
    for name, content in packed.items():
        save(content, name)
    for name in (*packed, "e.zip"):
        made = datasets.table(name, validation_split=0.0)
        assert np.array_equal(made.train.x, wanted, equal_nan=True), name


REFUSED: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "JSON lines": (
        '{"a": 1, "y": 0}\n{"a": null, "y": 1}\n', {},
        "dataset.path=a.csv: cannot be read as CSV (its first line is an object of JSON); ",
    ),
    "nothing": (b"", {}, "dataset.path=a.csv: has no rows; "),
    "a header": ("a,y\n", {}, "dataset.path=a.csv: has no row to train on; "),
    "a header, an index": (",a,y\n", {}, "dataset.path=a.csv: has no row to train on; "),
    "no text": (b"\x80\0\1", {}, "dataset.path=a.csv: cannot be read as CSV (it is no text); "),
    "lines that differ": (
        "a,b\n1,0\n1,2,3,4\n", {}, "dataset.path=a.csv: cannot be read as CSV (",
    ),
    "no encoding of theirs": (
        "\u00fc,y\n1,0\n".encode("latin-1"), {"encoding": "utf-8"},
        "dataset.path=a.csv: cannot be read as CSV (is no text in utf-8); ",
    ),
    "a packed file that is cut off": (
        gzip.compress(ROWS.encode())[:40], {}, "dataset.path=a.csv: cannot be read as CSV (Comp",
    ),
    "a key of text": (
        ROWS, {"format": "json", "comment": "#"},
        "dataset.comment=#: a.csv is read as json, which has no such thing; ",
    ),
    "names of other columns": (
        "a,b,c,y\n1,0\n1,1\n", {}, "dataset.path=a.csv: cannot be read as CSV (line 1 has 4 cells",
    ),
    "no such target": (ROWS, {"target": "z"}, "dataset.target=z: a.csv has no such column; "),
    "no such column": (
        ROWS, {"columns": {"cty": "text"}}, "dataset.columns=cty: a.csv has no such column; ",
    ),
    "words that are numbers": (
        ROWS, {"columns": {"city": "number"}},
        "column=city: a.csv, line 2: 'Rome' is no number; ",
    ),
    "a target that lacks": (
        ROWS.replace("yes", ""), {}, "dataset.target=y: is empty in a.csv, line 3 and 1 more; ",
    ),
    "a target without a value": (
        "a,y\n1,\n2,\n3,\n", {"on_error": OnError.skip},
        "dataset.target=y: is empty in every row; ",
    ),
    "a date that is none": (
        "when,y\n" + "".join(f"2024-01-{n % 28 + 1:02},{n % 2}\n" for n in range(40))
        + "2024-02-31,1\n", {},
        "column=when: a.csv, line 42: '2024-02-31' is no date; ",
    ),
    "a date as the target": (
        "x,when\n1,2024-01-01\n2,2024-01-02\n", {}, "dataset.target=when: holds dates, which ",
    ),
    "nothing but an id": (
        "id,y\n" + "".join(f"C{n},{n % 2}\n" for n in range(40)), {},
        "dataset.inputs=null: no column is left (id: it has another text in each row, as an id ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    content, options, expected = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        splits = datasets.table(save(content), **{"validation_split": 0.0, **options})
        assert splits.encoding is not None
        splits.encoding()
    assert str(caught.value).startswith(expected), str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_without_a_target_are_left_out_and_counted() -> None:
    save(ROWS.replace("yes", "", 1))
    splits = datasets.table("a.csv", on_error=OnError.skip, validation_split=0.0)
    assert len(splits.train) == 3
    assert (
        "dataset.on_error=skip: 1 of 4 rows have no y and are left out, the first: a.csv, line 3"
        in splits.notices
    )


def test_a_large_file_is_converted_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reader, "SMALL", 0)
    monkeypatch.setenv("DTRAIN_CACHE", str(tmp_path / "own"))
    save(ROWS)
    calls = []
    monkeypatch.setattr(text, "read", lambda *a, made=text.read: (calls.append(1), made(*a))[1])
    for _ in range(2):
        train = datasets.table("a.csv", validation_split=0.0).train
        assert np.array_equal(train.x[:, 1], np.float32([1.5, 2.5, 3.5, 4.5]))
    assert len(calls) == 1
    save(ROWS + "60,Rome,9.5,no\n")
    assert len(datasets.table("a.csv", validation_split=0.0).train) == 5 and len(calls) == 2


def test_long_rows_in_memory_and_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(20 * 512, dtype=np.float32).reshape(20, 512)
    pq.write_table(pa.table({"x": columnar.fixed(rows), "y": np.arange(20) % 2}), "a.parquet")
    for _ in range(2):
        train = datasets.table("a.parquet", "y", validation_split=0.0).train
        assert np.array_equal(train[np.array([19, 3, 3])][0], rows[[19, 3, 3]])
        monkeypatch.setattr(reader, "SMALL", 0)


def test_archives_and_workbooks() -> None:
    with zipfile.ZipFile("two.zip", "w") as whole:
        whole.writestr("a.csv", ROWS)
        whole.writestr("b.csv", ROWS)
    save(b"PK\3\4", "book.xlsx")
    said = {"two.zip": "has 2 files in it (a.csv, b.csv)", "book.xlsx": "is a workbook, and no"}
    for name, words in said.items():
        with pytest.raises(UsageError, match=re.escape(f"dataset.path={name}: {words}")):
            datasets.table(name)


def test_json_lines_in_another_encoding() -> None:
    rows = "".join(f'{{"a": "\u5e74{n % 2}", "y": {n % 2}}}\n' for n in range(8))
    save(rows.encode("shift_jis"), "a.jsonl")
    made = datasets.table("a.jsonl", "y", encoding="shift_jis", validation_split=0.0)
    assert made.encoding is not None
    assert made.encoding().features[0].values == ("\u5e740", "\u5e741")


def test_arrays_of_json_are_tables() -> None:
    rows = [{"a": n, "part": {"b": n / 2}, "y": n % 2} for n in range(6)]
    save(json.dumps(rows), "a.json")
    train = datasets.table("a.json", "y", validation_split=0.0).train
    assert train.x.tolist() == [[n, n / 2] for n in range(6)]
