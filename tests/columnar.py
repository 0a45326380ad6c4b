"""Tables of random values in Arrow's types, written as files of each format in odd pieces."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

Write = Callable[[pa.Table, Path], None]


def words(rng: np.random.Generator, n: int) -> list[str]:
    return ["".join(rng.choice(list("aßc😀 "), rng.integers(0, 9))) for _ in range(n)]


def table(n: int, seed: int = 0) -> pa.Table:
    """Return ``n`` rows with a column of each type that can be read."""
    rng = np.random.default_rng(seed)
    made: dict[str, pa.Array] = {"row": pa.array(np.arange(n) + 1000 * seed)}
    for bits in (8, 16, 32, 64):
        for kind in (f"int{bits}", f"uint{bits}"):
            info = np.iinfo(kind)
            made[kind] = pa.array(rng.integers(info.min, info.max, n, kind, endpoint=True))
    for kind in ("float16", "float32", "float64"):
        made[kind] = pa.array(rng.normal(size=n).astype(kind))
    made["bool"] = pa.array(rng.random(n) < 0.5)
    made["text"] = pa.array(words(rng, n), pa.string())
    made["large_text"] = pa.array(words(rng, n), pa.large_string())
    made["bytes"] = pa.array([rng.bytes(rng.integers(0, 20)) for _ in range(n)], pa.binary())
    made["large_bytes"] = pa.array([rng.bytes(3) for _ in range(n)], pa.large_binary())
    made["fixed_bytes"] = pa.array([rng.bytes(5) for _ in range(n)], pa.binary(5))
    made["decimal"] = pa.array(
        [decimal.Decimal(int(v)) / 100 for v in rng.integers(-999, 999, n)], pa.decimal128(8, 2)
    )
    made["word"] = pa.array(rng.choice(["red", "green", "blue"], n)).dictionary_encode()
    made["coded"] = pa.array(rng.choice([3, 30, 300], n)).dictionary_encode()
    made["vector"] = fixed(rng.random((n, 7)).astype(np.float32))
    made["matrix"] = fixed(rng.integers(-9, 9, (n, 2, 3), np.int16))
    made["flags"] = fixed(rng.random((n, 3)) < 0.5)
    lengths = rng.integers(0, 6, n)
    made["list"] = pa.array(
        [rng.random(k).astype(np.float32) for k in lengths], pa.list_(pa.float32())
    )
    made["large_list"] = pa.array(
        [rng.integers(0, 9, k).tolist() for k in lengths], pa.large_list(pa.int32())
    )
    made["list_of_flags"] = pa.array(
        [(rng.random(k) < 0.5).tolist() for k in lengths], pa.list_(pa.bool_())
    )
    made["list_of_pairs"] = pa.array(
        [rng.random((k, 2)).tolist() for k in lengths], pa.list_(pa.list_(pa.float64(), 2))
    )
    made["part"] = pa.array(
        [{"bytes": rng.bytes(4), "deep": {"x": float(v)}} for v in rng.random(n)],
        pa.struct({"bytes": pa.binary(), "deep": pa.struct({"x": pa.float32()})}),
    )
    made["tensor"] = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [2, 2]), fixed(rng.random((n, 4)).astype(np.float32))
    )
    return pa.table(made)


def fixed(values: np.ndarray) -> pa.Array:
    """Return an array ``[n, ...]`` as lists of a fixed size."""
    made = pa.array(values.ravel())
    for size in reversed(values.shape[1:]):
        made = pa.FixedSizeListArray.from_arrays(made, size)
    return made


def pieces(whole: pa.Table, sizes: tuple[int, ...] = (3, 1, 17, 5)) -> list[pa.RecordBatch]:
    """Cut a table into batches of odd sizes."""
    found, begin, turn = [], 0, 0
    while begin < len(whole) or not found:
        size = sizes[turn % len(sizes)]
        found += whole.slice(begin, size).combine_chunks().to_batches() or [
            pa.RecordBatch.from_pylist([], whole.schema)
        ]
        begin, turn = begin + size, turn + 1
    return found


def stream(compression: str | None = None) -> Write:
    def write(whole: pa.Table, path: Path) -> None:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(str(path), whole.schema, options=options) as writer:
            for batch in pieces(whole):
                writer.write_batch(batch)

    return write


def file(compression: str | None = None) -> Write:
    def write(whole: pa.Table, path: Path) -> None:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(str(path), whole.schema, options=options) as writer:
            for batch in pieces(whole):
                writer.write_batch(batch)

    return write


def feather(whole: pa.Table, path: Path) -> None:
    pyarrow.feather.write_feather(whole, str(path), chunksize=11)


def parquet(**options: Any) -> Write:
    def write(whole: pa.Table, path: Path) -> None:
        with pq.ParquetWriter(path, whole.schema, **options) as writer:
            for batch in pieces(whole, (13, 4, 29)):
                writer.write_table(pa.Table.from_batches([batch]), row_group_size=10)

    return write


def expected(whole: pa.Table, rows: np.ndarray, name: str) -> list[Any]:
    """Return values as Python's: those that pyarrow gives, read by itself."""
    top, *inner = name.split(".")
    column = whole.column(top).take(pa.array(rows))
    if name == "tensor":
        return column.combine_chunks().to_numpy_ndarray().tolist()
    found = column.to_pylist()
    for each in inner:
        found = [value[each] for value in found]
    if name == "decimal":  # which pyarrow makes float64 to the last bit but one
        return np.array(found, np.float32).tolist()
    return found
