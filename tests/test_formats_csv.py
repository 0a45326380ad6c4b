"""CSV of any size: what is converted to Arrow files against what pandas reads into memory."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dtrain import datasets
from dtrain.data import cache
from dtrain.data.files import DataFile
from dtrain.data.formats import csv_convert
from dtrain.data.formats.csv_form import Form
from dtrain.data.formats.parquet_file import RowGroups
from dtrain.data.sources import Splits
from dtrain.datasets import tables
from dtrain.errors import UsageError


@pytest.fixture(autouse=True)
def _converted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Convert files of any size, a few lines at a time."""
    monkeypatch.setattr(tables, "_SMALL", 0)
    monkeypatch.setattr(tables, "_SMALL_PACKED", 0)
    monkeypatch.setattr(csv_convert, "_BLOCK", 300)
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))


def test_a_table_at_an_address_is_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From whichever folder."""

    class Elsewhere(DataFile):
        def local(self) -> Path:
            return tmp_path / Path(self.name).name

    pq.write_table(pa.table({"a": [1, 2]}), "t.parquet")
    Path("t.csv").write_text("a,y\n1,0\n2,1\n")
    file = Elsewhere("s3://bucket/t.csv")
    groups = RowGroups(Elsewhere("s3://bucket/t.parquet"))

    def made() -> tuple[Path, str]:
        [decoded] = groups.converted(["a"]).files
        return csv_convert.entry(file, Form(","), ["a", "y"]), decoded.name

    here = made()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    assert made() == here
    own = DataFile("../t.csv"), DataFile(str(tmp_path / "t.csv"))
    assert own[0].place() == own[1].place(), "and of a file here"


def in_memory(path: str, **options: Any) -> Splits:
    """Read as pandas does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_SMALL", 1 << 40)
        patch.setattr(tables, "_SMALL_PACKED", 1 << 40)
        return datasets.csv(path, **options)


def rows(splits: Splits) -> list[tuple[list[float], Any]]:
    found = []
    for part in (splits.train, splits.validation):
        if part is not None and hasattr(part, "y"):
            found += list(zip(part.x.tolist(), part.y.tolist(), strict=True))
        elif part is not None:
            x, y = part.take(np.arange(len(part)))
            assert x.dtype == np.float32 and y.dtype in (np.int64, np.float32)
            found += list(zip(x.tolist(), y.tolist(), strict=True))
    return found


def write(lines: list[str], path: str = "a.csv") -> None:
    Path(path).write_text("\n".join(lines) + "\n")


NUMBERS = ["1", "-2.5", "3e2", "007", "+4", " 5", "6 ", "1e-3", "0.1", "inf", "12345678901"]
LABELS = {
    "whole": ["0", "2", "1", "2.0"],
    "whole with signs": ["+1", " 2", "0"],
    "numbers": ["0.5", "-1", "2"],
    "words": ["owl", "ant", "bee"],
    "booleans": ["True", "False", "TRUE"],
    "numbers that are words": ["07", "7", "ant"],
    "booleans and words": ["True", "maybe"],
    "booleans and numbers": ["True", "1"],
    "quoted": ['"a, b"', '"c ""d"""', "e"],
}


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("separator", [",", ";", "\t", " "])
def test_the_same_as_pandas(name: str, separator: str) -> None:
    rng = np.random.default_rng(0)
    numbers = [n for n in NUMBERS if separator != " " or " " not in n]
    labels = [x for x in LABELS[name] if separator != " " or " " not in x] or ["0"]
    lines = [separator.join(("a", "kind", "c d" if separator != " " else "c", "flag"))]
    # The last label comes last: what the labels are is known after the last line.
    for i in range(200):
        label = labels[-1] if i == 199 else rng.choice(labels[:-1] or labels)
        cells = [rng.choice(numbers), label, rng.choice(numbers), rng.choice(["True", "false"])]
        lines.append(separator.join(map(str, cells)))
    write(lines)
    options: dict[str, Any] = {"label": "kind", "separator": separator, "split_seed": 3}
    ours, theirs = datasets.csv("a.csv", **options), in_memory("a.csv", **options)
    assert rows(ours) == rows(theirs)
    assert ours.count_classes() == theirs.count_classes()
    assert len(ours.train) == 160 and ours.validation is not None


def test_the_last_column_is_the_label_and_half_a_line_is_no_row() -> None:
    write(["a,b,c", "", "1,2,0", "", "3,4,1", "5,6,1"])
    Path("a.csv").write_text(Path("a.csv").read_text().rstrip("\n"))
    found = rows(datasets.csv("a.csv", validation_split=0))
    assert (
        found
        == [([1, 2], 0), ([3, 4], 1), ([5, 6], 1)]
        == rows(in_memory("a.csv", validation_split=0))
    )


def test_names_of_columns() -> None:
    for header in ("a,a,y,a", '"a","b, c","y","d"', ",b,y,", "a,b,y,y"):
        write([header, "1,2,0,4", "5,6,1,8"])
        names = datasets.csv("a.csv", label="y", validation_split=0)
        assert rows(names) == rows(in_memory("a.csv", label="y", validation_split=0)), header


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_compressed(module: Any) -> None:
    name = {"gzip": "gz", "bz2": "bz2", "lzma": "xz"}[module.__name__]
    text = "a,y\n" + "".join(f"{i},{i % 3}\n" for i in range(5000))
    Path(f"a.csv.{name}").write_bytes(module.compress(text.encode()))
    splits = datasets.csv(f"a.csv.{name}", validation_split=0)
    assert rows(splits) == [([i], i % 3) for i in range(5000)]
    Path(f"b.csv.{name}").write_bytes(module.compress(text.encode())[:-20])
    assert refusal(f"b.csv.{name}").startswith(f"dataset.path=b.csv.{name}: cannot be read as CSV")


def test_a_byte_order_mark_and_other_ends_of_lines() -> None:
    Path("a.csv").write_bytes("\ufeffa,y\r\n1,0\r\n2,1\r\n".encode())
    splits = datasets.csv("a.csv", label="y", validation_split=0)
    assert rows(splits) == [([1], 0), ([2], 1)]


# Several files


def test_several_files_are_one_table() -> None:
    for number, labels in enumerate((["7", "07"], ["ant", "7"], [])):
        write(
            ["a,y", *(f"{number}.{i},{label}" for i, label in enumerate(labels))], f"{number}.csv"
        )
    for path in ("*.csv", ["2.csv", "1.csv", "0.csv"]):
        splits = datasets.csv(path, validation_split=0)
        assert splits.count_classes() == 3, "07, 7 and ant"
        x, y = splits.train.take(np.array([3, 0, 1, 2]))
        assert x.ravel().tolist() == pytest.approx([1.1, 0, 0.1, 1])
        assert y.tolist() == [1, 1, 0, 2]
        assert [splits.train.where(i) for i in (0, 2, 3)] == [
            "0.csv, line 2", "1.csv, line 2", "1.csv, line 3"
        ]  # fmt: skip
        assert [file.name for file in splits.train.files] == ["0.csv", "1.csv", "2.csv"]
    write(["a,y", "5,0.5"], "3.csv")
    write(["a,y", "6,2"], "4.csv")
    found = rows(datasets.csv(["4.csv", "3.csv"], validation_split=0))
    assert found == [([5], 0.5), ([6], 2)]
    write(["a,y", "5,1"], "3.csv")
    assert datasets.csv(["4.csv", "3.csv"], validation_split=0).count_classes() == 3


HEADERS = {
    "a,b": "1.csv has no column 'y', which 0.csv has",
    "a,y": "1.csv has no column 'b', which 0.csv has",
    "a,b,y,z": "1.csv has a column 'z', which 0.csv has not",
    "b,a,y": "column 1 of 1.csv is 'b', and that of 0.csv 'a'",
}


@pytest.mark.parametrize("header", HEADERS)
def test_headers_that_differ(header: str) -> None:
    write(["a,b,y", "1,2,0"], "0.csv")
    write([header, "1,2,0,4"], "1.csv")
    message = refusal("*.csv")
    assert message.startswith(f"dataset.path=1.csv: {HEADERS[header]}; "), message


def test_a_separator_of_several_characters_is_for_one_file() -> None:
    for number in range(2):
        write(["a::y", "1::0", "2::1"], f"{number}.csv")
    assert len(datasets.csv("0.csv", separator="::", validation_split=0).train) == 2
    assert refusal("*.csv", separator="::").startswith("dataset.separator=::: 2 files are read")


# The cache


def test_a_file_is_converted_once_and_again_when_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    converted: list[str] = []
    convert = csv_convert._convert

    def counted(file: Any, *arguments: Any) -> None:
        converted.append(file.name)
        convert(file, *arguments)

    monkeypatch.setattr(csv_convert, "_convert", counted)
    for number in range(2):
        write(["a,b,y", "1,2,0", "2,3,1"], f"{number}.csv")
    first = datasets.csv("*.csv", validation_split=0)
    assert rows(datasets.csv("*.csv", validation_split=0)) == rows(first)
    assert converted == ["0.csv", "1.csv"]
    write(["a,b,y", "1,2,0", "2,3,1", "3,4,1"], "2.csv")
    datasets.csv("*.csv")
    assert converted == ["0.csv", "1.csv", "2.csv"], "the others are there"
    write(["a,b,y", "7,2,0", "2,3,10"], "0.csv")
    assert datasets.csv("0.csv", validation_split=0).count_classes() == 11
    datasets.csv("0.csv", label="a")
    assert converted == ["0.csv", "1.csv", "2.csv", "0.csv", "0.csv"]
    assert len(rows(first)) == 4, "what was opened before is still what it was"


def test_rows_are_read_where_the_table_was_sent() -> None:
    write(["a,y", *(f"{i},{'xyz'[i % 3]}" for i in range(100))])
    splits = datasets.csv("a.csv", validation_split=0)
    sent = pickle.loads(pickle.dumps(splits.train))
    x, y = sent.take(np.array([99, 4]))
    assert x.tolist() == [[99], [4]] and y.tolist() == [0, 1]


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    write(["a,y", *("1,0" for _ in range(999)), "red,0"])
    for _ in range(2):
        assert "in line 1001" in refusal("a.csv")
    assert not [p for p in (tmp_path / "cache").iterdir() if p.suffix not in (".lock", ".lease")]


def test_a_long_conversion_is_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(["a,y", "1,0"])
    monkeypatch.setattr(csv_convert, "_LONG", 5)
    for _ in range(2):
        datasets.csv("a.csv", validation_split=0)
    notice = f"notice: a.csv is converted once, into {tmp_path}/cache\n"
    assert capsys.readouterr().err == notice


# What cannot be read


def refusal(path: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        datasets.csv(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


MANY = ["1,2,0"] * 500
#: Lines of a file, and the message that both ways of reading have.
SAME = {
    "text": (["a,b,y", *MANY, "1,red,0"], "column 'b' is 'red', a text, in line 502"),
    "empty": (["a,b,y", *MANY, ",2,0"], "column 'a' is empty, in line 502"),
    "NaN": (["a,b,y", *MANY, "1,NaN,0"], "column 'b' is empty, in line 502"),
    "no label": (["a,b,y", *MANY, "1,2,"], "column 'y' is empty, in line 502"),
    "label None": (["a,y", "1,ant", "1,None"], "column 'y' is empty, in line 3"),
    "boolean among numbers": (["a,y", "1,0", "True,0"], "column 'a' is 'True', a text, in line 3"),
    "number among booleans": (
        ["a,y", *["True,0"] * 500, *["1,0"] * 500], "column 'a' is 'True', a text, in line 2",
    ),
    "boolean far below numbers": (
        ["a,y", *["1,0"] * 500, "True,0"], "column 'a' is 'True', a text, in line 502",
    ),
    "infinite": (["a,y", "1,3", "2,inf"], "dataset.label=y: holds NaN or infinity"),
    "one column": (["a;y", "1;2"], "dataset.separator=,: leaves a.csv with one column, 'a;y'"),
    "header alone": (["a,y"], "dataset.path=a.csv: has no rows"),
    "nothing": ([], "dataset.path=a.csv: cannot be read as CSV (No columns to parse from file)"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_messages_are_those_of_small_files(name: str) -> None:
    lines, problem = SAME[name]
    Path("a.csv").write_text("\n".join(lines))
    message = refusal("a.csv")
    assert problem in message, message
    with pytest.raises(UsageError) as caught:
        in_memory("a.csv")
    assert message == str(caught.value)
    assert "label=zzz: a.csv has no such column" in refusal("a.csv", label="zzz") or name in (
        "nothing", "one column"
    )  # fmt: skip


def test_lines_that_do_not_fit_the_header() -> None:
    for line in ("1,2,3,4", "1,2"):
        write(["a,b,y", *MANY, line])
        message = refusal("a.csv")
        assert message.startswith("dataset.path=a.csv: cannot be read as CSV (CSV parse error: ")
        assert "Expected 3 columns, got" in message
    write(["a,y", "1,2,3"])  # which pandas takes for a column of numbers of rows
    assert "Expected 2 columns, got 3" in refusal("a.csv")


def test_text_of_another_encoding() -> None:
    Path("a.csv").write_bytes(b"a,y\n" + b"1,x\n" * 500 + b"1,\xff\n")
    assert refusal("a.csv").startswith("dataset.path=a.csv: cannot be read as CSV (")


def test_a_line_without_an_end() -> None:
    with open("a.csv", "wb") as file:
        file.truncate(1 << 40)
    assert "(a line has more than 64 MB)" in refusal("a.csv")
    with open("b.csv", "wb") as file:
        file.write(b"a,y\n1,0\n")
        file.truncate(1 << 40)
    message = refusal("b.csv")
    assert message.startswith("dataset.path=b.csv: cannot be read as CSV (")


def test_too_many_different_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_convert, "WORDS", 100)
    write(["a,y", *(f"1,{i}" for i in range(101))])
    assert datasets.csv("a.csv", validation_split=0).classes.highest() == 101, "they are numbers"
    write(["a,y", *(f"1,{i}" for i in range(101)), "1,ant"])
    assert "has more than 200,000 different labels, and words among them" in refusal("a.csv")


def test_what_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cache.FOLDER, "/proc/none")
    write(["a,y", "1,0"])
    assert refusal("a.csv").startswith("DTRAIN_CACHE=/proc/none: cannot be written")


def test_random_tables_are_those_of_pandas() -> None:
    rng = np.random.default_rng(5)
    for turn in range(20):
        width, length = int(rng.integers(1, 8)), int(rng.integers(2, 400))
        values = rng.normal(size=(length, width)) * 10.0 ** rng.integers(-12, 12, width)
        digits = int(rng.integers(1, 18))
        lines = [",".join([*(f"c{i}" for i in range(width)), "y"])]
        for row, label in zip(values, itertools.cycle(range(3)), strict=False):
            lines.append(",".join([*(f"{v:.{digits}g}" for v in row), str(label)]))
        write(lines)
        ours = datasets.csv("a.csv", split_seed=turn)
        assert rows(ours) == rows(in_memory("a.csv", split_seed=turn))


def test_the_command_converts_nothing(tmp_path: Path) -> None:
    """How many rows there are is then known to the task alone, unless it was converted before."""
    from dtrain.controller.plan import sizes
    from tests.test_plan import composed

    write(["a,b,c", *(f"{i},{i / 2},{i % 3}" for i in range(20))])
    config = composed("dataset=csv", "dataset.path=a.csv", "trainer.batch_size=4")
    assert sizes(config) is None and not (tmp_path / "cache").exists()
    datasets.csv("a.csv")
    found = sizes(config)
    assert found is not None and (len(found.train), len(found.validation)) == (16, 4)
    with pytest.raises(UsageError, match=r"dataset\.label=d: a\.csv has no such column"):
        sizes(composed("dataset=csv", "dataset.path=a.csv", "dataset.label=d"))
