"""Parquet and Arrow files against pyarrow, which reads the same rows by itself."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dtrain.data.files import files
from dtrain.data.nest import Ragged
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


def test_all_columns_at_random_rows(
    written: tuple[Table, pa.Table], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
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
        for name in ("vector", "row", "list", "bool"):  # what is returned is no part of the table
            values = found[name].values if isinstance(found[name], Ragged) else found[name]
            if values.flags.writeable:
                values[:] = 1
    every = np.arange(len(table))
    for each in (table, pickle.loads(pickle.dumps(table))):
        found = each.read(every, ["row", "text", "list", "vector"])
        for name, values in found.items():
            assert same(values, columnar.expected(rows, every, name)), name
    places = [table.where(row) for row in (0, 49, 50, 127)]
    expected = ["0.x, row 0", "0.x, row 49", "2.x, row 0", "3.x, row 76"]
    assert places == [f"{tmp_path}/{place}" for place in expected], "the second has no row"
    blocks = table.blocks()
    assert blocks is None or (blocks.sum() == len(rows) and (blocks > 0).all())
    if "parquet" in request.node.name:
        assert blocks is not None
        # Row groups of at most 10 rows, of pieces of 13, 4 and 29.
        assert blocks[:7].tolist() == [10, 3, 4, 10, 10, 9, 4]


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
