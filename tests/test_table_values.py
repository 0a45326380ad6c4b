"""Parquet and Arrow files against pyarrow, which reads the same rows by itself."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dtrain.data.files import files
from dtrain.data.ragged import Ragged
from dtrain.data.tabular.reader import ArrowTable
from dtrain.data.tabular.table import Table
from tests import columnar

#: How files are written, by what reads them.
WAYS: dict[str, columnar.Write] = {
    "arrow file": columnar.file(),
    "arrow stream": columnar.stream(),
    "compressed arrow file": columnar.file("lz4"),
    "compressed arrow stream": columnar.stream("zstd"),
    "feather": columnar.feather,
    "parquet": columnar.parquet(),
    "parquet without dictionaries": columnar.parquet(
        use_dictionary=False, compression="zstd", write_page_checksum=True, data_page_size=100
    ),
    "parquet of version 1": columnar.parquet(
        version="1.0", data_page_version="2.0", compression="gzip"
    ),
}
LENGTHS = (50, 0, 1, 77)


@pytest.fixture(params=WAYS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Table, pa.Table]:
    """Files of one format with the same columns, and their rows."""
    write = WAYS[request.param]
    parts = [columnar.table(length, seed) for seed, length in enumerate(LENGTHS)]
    for number, part in enumerate(parts):
        write(part, tmp_path / f"{number}.x")
    decoded = [part.cast(plain(part.schema)) for part in parts]
    return ArrowTable(files(str(tmp_path / "*.x"))), pa.concat_tables(decoded)


def plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema without dictionaries, which differ from file to file."""
    return pa.schema([
        pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type)
        for f in schema
    ])  # fmt: skip


def same(found: Any, values: list[Any]) -> bool:
    if isinstance(found, Ragged):
        ends = np.cumsum(found.lengths)
        rows = zip(ends - found.lengths, ends, strict=True)
        return [found.values[a:b].tolist() for a, b in rows] == values
    return found.tolist() == values


def test_all_columns_at_random_rows(written: tuple[Table, pa.Table]) -> None:
    table, rows = written
    assert len(table) == len(rows) == sum(LENGTHS)
    assert not table.refused
    rng = np.random.default_rng(1)
    names = list(table.columns)
    assert {"part.bytes", "part.deep.x", "tensor", "list_of_pairs"} <= set(names)
    for count in (1, 3, 64, 500):
        wanted = rng.integers(0, len(table), count)
        found = table.read(wanted, names)
        assert list(found) == names
        for name in names:
            column = table.columns[name]
            given = found[name].astype(np.float32) if name == "decimal" else found[name]
            assert same(given, columnar.expected(rows, wanted, name)), name
            values = found[name].values if column.is_ragged else found[name]
            assert values.dtype == column.dtype, name
            shape = column.shape[1:] if column.is_ragged else column.shape
            assert values.shape[1:] == shape, name
            assert len(found[name]) == count
    one = table.read(np.array([5, 5, 0]), ["word"])
    assert same(one["word"], columnar.expected(rows, np.array([5, 5, 0]), "word"))


def test_rows_in_order_and_all_at_once(written: tuple[Table, pa.Table]) -> None:
    table, rows = written
    every = np.arange(len(table))
    found = table.read(every, ["row", "text", "list"])
    assert same(found["row"], rows["row"].to_pylist())
    assert same(found["text"], rows["text"].to_pylist())
    assert same(found["list"], columnar.expected(rows, every, "list"))


def test_a_table_is_read_where_it_was_sent(written: tuple[Table, pa.Table]) -> None:
    table, rows = written
    wanted = np.array([60, 2, 120])
    table.read(wanted, ["vector"])
    sent = pickle.loads(pickle.dumps(table))
    for each in (sent, table):
        found = each.read(wanted, ["vector", "bytes"])
        assert same(found["vector"], columnar.expected(rows, wanted, "vector"))
        assert same(found["bytes"], columnar.expected(rows, wanted, "bytes"))


def test_where_a_row_is(written: tuple[Table, pa.Table], tmp_path: Path) -> None:
    table, _ = written
    assert table.where(0) == f"{tmp_path}/0.x, row 0"
    assert table.where(49) == f"{tmp_path}/0.x, row 49"
    assert table.where(50) == f"{tmp_path}/2.x, row 0", "the second file has no row"
    assert table.where(127) == f"{tmp_path}/3.x, row 76"


def test_what_is_returned_is_no_part_of_what_is_kept(written: tuple[Table, pa.Table]) -> None:
    table, rows = written
    wanted = np.array([7, 7])
    for name in ("vector", "row", "list", "list_of_pairs", "bool"):
        found = table.read(wanted, [name])[name]
        values = found.values if isinstance(found, Ragged) else found
        if values.flags.writeable:
            values[:] = 1
        again = table.read(wanted, [name])[name]
        assert same(again, columnar.expected(rows, wanted, name)), name


def test_blocks(written: tuple[Table, pa.Table], request: pytest.FixtureRequest) -> None:
    table, rows = written
    found = table.blocks()
    if "parquet" in request.node.name:
        assert found is not None
        # Row groups of at most 10 rows, of pieces of 13, 4 and 29.
        assert found[:7].tolist() == [10, 3, 4, 10, 10, 9, 4]
        assert found.sum() == len(rows) and (found > 0).all()
    elif found is not None:
        assert found.sum() == len(rows) and (found > 0).all()


def test_only_compressed_arrow_has_blocks(tmp_path: Path) -> None:
    for compression in (None, "lz4"):
        columnar.file(compression)(columnar.table(20), tmp_path / "a.arrow")
        found = ArrowTable(files(str(tmp_path / "a.arrow"))).blocks()
        assert found is None if compression is None else found.tolist() == [3, 1, 16]


def test_dictionaries_that_change_from_batch_to_batch(tmp_path: Path) -> None:
    parts = [["a", "b"], ["c"], ["b", "d", "b"], ["a"]]
    batches = [
        pa.record_batch({"w": pa.array(p).dictionary_encode(), "n": pa.array(range(len(p)))})
        for p in parts
    ]
    for name, new, options in (
        ("stream", pa.ipc.new_stream, {}),
        ("file", pa.ipc.new_file, {"emit_dictionary_deltas": True}),
    ):
        path = str(tmp_path / name)
        if name == "file":  # deltas: each dictionary has the one before at its beginning
            words = ["a", "b", "c", "d"]
            batches = [
                pa.record_batch({
                    "w": pa.DictionaryArray.from_arrays(
                        pa.array([words.index(w) for w in p], pa.int32()),
                        pa.array(words[: 2 + number]),
                    ),
                    "n": pa.array(range(len(p))),
                })
                for number, p in enumerate(parts[:3])
            ]  # fmt: skip
        with new(path, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            for batch in batches:
                writer.write_batch(batch)
        table = ArrowTable(files(path))
        expected = [w for p in parts[: len(batches)] for w in p]
        rows = np.random.default_rng(0).permutation(len(expected))
        found = table.read(rows, ["w", "n"])
        assert found["w"].tolist() == [expected[i] for i in rows]


def test_views(tmp_path: Path) -> None:
    """Types of Arrow that Parquet has not."""
    values = ["a", "a text that is longer than twelve bytes", "ß"]
    rows = pa.table({
        "text": pa.array(values, pa.string_view()),
        "bytes": pa.array([v.encode() for v in values], pa.binary_view()),
        "list": pa.array([[1, 2], [], [3]], pa.list_view(pa.int32())),
    })  # fmt: skip
    columnar.file()(rows, tmp_path / "a.arrow")
    table = ArrowTable(files(str(tmp_path / "a.arrow")))
    found = table.read(np.array([2, 1, 1, 0]), ["text", "bytes", "list"])
    assert found["text"].tolist() == [values[i] for i in (2, 1, 1, 0)]
    assert found["bytes"].tolist() == [values[i].encode() for i in (2, 1, 1, 0)]
    assert same(found["list"], [[3], [], [], [1, 2]])


def test_index_columns_of_pandas_are_none(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"a": [1.0, 2.0], "y": [0, 1]}, index=[7, 9])
    frame.to_parquet(tmp_path / "a.parquet")
    frame.reset_index().to_feather(tmp_path / "a.feather")
    assert list(ArrowTable(files(str(tmp_path / "a.parquet"))).columns) == ["a", "y"]
    assert list(ArrowTable(files(str(tmp_path / "a.feather"))).columns) == ["index", "a", "y"]
