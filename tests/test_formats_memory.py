"""What formats of columns read, and what they keep of it."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dtrain import datasets
from dtrain.data.files import DataFile, files
from dtrain.data.formats import arrow, mapped, parquet, parquet_file
from dtrain.data.formats.arrow import Arrow
from dtrain.data.formats.kept import Kept
from dtrain.data.formats.parquet import Parquet
from dtrain.data.formats.parquet_file import RowGroups
from dtrain.data.tables import Table
from dtrain.errors import DataError
from dtrain.host import memory
from tests import columnar


class Counted(io.FileIO):
    """A file that counts the bytes that are read of it."""

    def __init__(self, path: str, counts: list[int]):
        super().__init__(path)
        self._counts = counts

    def readinto(self, buffer: Any) -> int:
        found = super().readinto(buffer)
        self._counts.append(found or 0)
        return found or 0

    def readall(self) -> bytes:
        raise AssertionError("all of it is read")


class CountedFile(DataFile):
    def __init__(self, name: str):
        super().__init__(name)
        self.counts: list[int] = []

    def open(self) -> IO[bytes]:
        return io.BufferedReader(Counted(self.name, self.counts), 512)


def rows(n: int, width: int = 200) -> pa.Table:
    rng = np.random.default_rng(0)
    x = rng.random((n, width)).astype(np.float32)
    return pa.table({"x": columnar.fixed(x), "y": np.arange(n), "z": rng.random(n)})


@pytest.mark.parametrize("name", ["parquet", "file", "stream", "compressed"])
def test_a_constructor_reads_headers(name: str) -> None:
    write = {
        "parquet": columnar.parquet(), "file": columnar.file(), "stream": columnar.stream(),
        "compressed": columnar.file("zstd"),
    }[name]  # fmt: skip
    write(rows(5000, 2000), Path("a"))
    file = CountedFile("a")
    table: Table = Parquet([file]) if name == "parquet" else Arrow([file])
    assert len(table) == 5000
    assert sum(file.counts) < file.size() / 20


# Parquet


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """Row groups that are decoded, with their columns."""
    found: list[tuple[int, list[str]]] = []
    whole = RowGroups.decode

    def counted(each: RowGroups, group: int, names: Any) -> Any:
        found.append((group, list(names)))
        return whole(each, group, names)

    monkeypatch.setattr(RowGroups, "decode", counted)
    return found


def test_a_row_group_is_decoded_once_for_all_rows_of_a_batch(
    decoded: list[tuple[int, list[str]]],
) -> None:
    pq.write_table(rows(1000), "a.parquet", row_group_size=100)
    table = Parquet(files("a.parquet"))
    assert table.blocks().tolist() == [100] * 10
    wanted = np.array([5, 950, 7, 955, 5, 120])
    assert table.read(wanted, ["y"])["y"].tolist() == wanted.tolist()
    assert sorted(decoded) == [(0, ["y"]), (1, ["y"]), (9, ["y"])]
    table.read(np.array([0, 999]), ["y"])
    assert len(decoded) == 3, "they are kept"
    table.read(np.array([0]), ["y", "z"])
    assert decoded[3:] == [(0, ["z"])], "only what is not here yet"


def test_what_is_kept_is_bounded(
    decoded: list[tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "share", lambda files: 3000)
    pq.write_table(rows(1000), "a.parquet", row_group_size=100)  # 800 bytes of y a group
    table = Parquet(files("a.parquet"))
    for group in (0, 1, 2, 0, 3, 0):
        table.read(np.array([group * 100]), ["y"])
    assert [group for group, _ in decoded] == [0, 1, 2, 3]
    table.read(np.array([100]), ["y"])
    assert [group for group, _ in decoded] == [0, 1, 2, 3, 1], "it was used longest ago"
    # What is kept comes first: in the order of the file 0 and 3 would go before they are read.
    table.read(np.arange(0, 1000, 100), ["y"])
    assert sorted(group for group, _ in decoded[5:]) == [2, 4, 5, 6, 7, 8, 9]
    table.read(np.array([0, 1]), ["x"])
    assert len(table._kept._held) == 1, "one that is larger than all is kept alone"


def test_rows_in_runs_decode_each_group_once(decoded: list[tuple[int, list[str]]]) -> None:
    pq.write_table(rows(3000), "a.parquet", row_group_size=70)
    table = Parquet(files("a.parquet"))
    order = np.random.default_rng(0).permutation(43)
    runs = np.concatenate([np.arange(g * 70, min(g * 70 + 70, 3000)) for g in order])
    for begin in range(0, 3000, 64):
        wanted = runs[begin : begin + 64]
        assert table.read(wanted, ["x", "y"])["y"].tolist() == wanted.tolist()
    assert sorted(group for group, _ in decoded) == list(range(43))


def test_a_row_group_too_large_for_memory_is_decoded_into_the_cache(
    decoded: list[tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [columnar.table(60, seed) for seed in range(2)]
    for number, part in enumerate(whole):
        pq.write_table(part, f"{number}.parquet", row_group_size=25)
    both = pa.concat_tables(part.drop_columns(["word", "coded"]) for part in whole)
    usual = Parquet(files("*.parquet"))
    monkeypatch.setattr(parquet, "LARGE", 0)
    monkeypatch.setattr(parquet_file, "_DECODED", 1000)
    table = Parquet(files("*.parquet"))
    wanted = np.random.default_rng(0).integers(0, 120, 300)
    names = list(table.columns)
    found, reference = table.read(wanted, names), usual.read(wanted, names)
    for name in names:
        if table.columns[name].is_ragged:
            assert np.array_equal(found[name].lengths, reference[name].lengths)
            assert np.array_equal(found[name].values, reference[name].values)
        else:
            assert found[name].dtype == reference[name].dtype, name
            assert np.array_equal(found[name], reference[name]), name
    assert found["row"].tolist() == both["row"].take(pa.array(wanted)).to_pylist()
    before = len(decoded)
    again = Parquet(files("*.parquet"))
    assert again.read(wanted, names)["row"].tolist() == found["row"].tolist()
    assert len(decoded) == before, "another run finds them"


def test_a_file_whose_rows_are_read_in_no_order_is_decoded_into_the_cache(
    decoded: list[tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "share", lambda files: 3000)
    for number in range(2):
        pq.write_table(rows(1000), f"{number}.parquet", row_group_size=100)
    rng = np.random.default_rng(0)

    def read(table: Parquet, times: int) -> None:
        for _ in range(times):
            wanted = rng.integers(0, 2000, 16)
            found = table.read(wanted, ["y", "z"])
            assert found["y"].tolist() == (wanted % 1000).tolist()

    table = Parquet(files("*.parquet"))
    read(table, 20)
    assert sorted(table._moved) == [0, 1] and len(decoded) < 20 + 20 + 20 + 10
    before = len(decoded)
    read(table, 50)
    assert len(decoded) == before
    assert table.read(np.array([5, 1999]), ["x", "y"])["x"].shape == (2, 200)
    assert table._moved[0] == ["x", "y", "z"]
    before = len(decoded)
    read(pickle.loads(pickle.dumps(table)), 5)
    read(table, 5)
    assert len(decoded) == before


def test_rows_in_order_are_never_decoded_into_the_cache(
    decoded: list[tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "share", lambda files: 3000)
    pq.write_table(rows(1000), "a.parquet", row_group_size=100)
    table = Parquet(files("a.parquet"))
    table.read(np.arange(0, 1000, 100), ["y"])  # some examples, at first
    for _ in range(5):
        for begin in range(0, 1000, 64):
            table.read(np.arange(begin, min(begin + 64, 1000)), ["y", "z"])
    assert not table._moved


def test_errors_in_a_large_row_group_name_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LARGE", 0)
    texts = pa.array([b"a"] * 7 + [b"\xff"] + [b"b"] * 2).view(pa.string())
    made = pa.table({"x": pa.array([*range(8), None, 9]), "t": texts, "y": [0] * 10})
    pq.write_table(made, "a.parquet", row_group_size=5)
    source = datasets.parquet("a.parquet", "y", ["x"], validation_split=0).train
    with pytest.raises(DataError) as caught:
        source.take(np.array([9, 8]))
    assert str(caught.value) == "a.parquet, row 8, column 'x': is empty (null)"
    source = datasets.parquet("a.parquet", "y", "t", validation_split=0).train
    with pytest.raises(DataError, match=r"^a\.parquet, row 7, column 't': is no UTF-8"):
        source.take(np.array([7]))


# Arrow


def test_many_files_are_not_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "OPEN", 3)
    for number in range(9):
        part = columnar.table(10, number).select(["row", "bool", "text", "vector"])
        columnar.file("lz4" if number % 2 else None)(part, Path(f"{number}.arrow"))
    table = Arrow(files("*.arrow"))
    rng = np.random.default_rng(0)
    for _ in range(20):
        wanted = rng.integers(0, 90, 30)
        found = table.read(wanted, ["row", "bool", "text", "vector"])
        assert found["row"].tolist() == (wanted // 10 * 1000 + wanted % 10).tolist()
        assert len(table._opened) <= 3
        names = {table.files[number].name for number in table._opened}
        assert {key[0] for key in table._kept._held} <= names  # type: ignore[index]


def test_mapped_memory_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[int] = []
    release = mapped.Mapped.release

    def counted(each: mapped.Mapped) -> None:
        released.append(1)
        release(each)

    monkeypatch.setattr(mapped.Mapped, "release", counted)
    monkeypatch.setattr(arrow, "RELEASE", 1 << 20)
    columnar.file()(rows(3000), Path("a.arrow"))  # 2.4 MB
    table = Arrow(files("a.arrow"))
    for begin in range(0, 3000, 100):
        table.read(np.arange(begin, begin + 100), ["x"])
    assert 1 < len(released) < 30


def test_what_is_kept_goes_in_turn() -> None:
    kept = Kept(10)
    for key in "abc":
        kept.put(key, key, 4)
    assert [kept.get(key) for key in "abc"] == [None, "b", "c"]
    kept.get("b")
    kept.put("d", "d", 3)
    assert [kept.get(key) for key in "bcd"] == ["b", None, "d"]
    kept.put("b", "B", 6)
    assert [kept.get(key) for key in "bd"] == ["B", "d"]
    kept.put("e", "e", 99)
    assert [kept.get(key) for key in "bde"] == [None, None, "e"]
    kept.put(("f", 1), 1, 2)
    kept.put(("g", 1), 2, 2)
    kept.forget("f")
    assert kept.get(("f", 1)) is None and kept.get(("g", 1)) == 2 and kept.get("e") is None


def test_the_memory_of_mapped_files_is_known() -> None:
    columnar.file()(rows(5000, 400), Path("a"))  # 8 MB
    each = mapped.Mapped(files("a")[0])
    before = memory.mapped()
    assert sum(each.buffer.to_pybytes()) > 0
    there = memory.mapped()
    assert there - before > 7 << 20
    each.release()
    assert there - memory.mapped() > 7 << 20


def test_pieces_of_a_file() -> None:
    """One here and one there, near each other, one after the other, twice, up to the end."""
    data = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    Path("a").write_bytes(data.tobytes())
    each = mapped.Mapped(files("a")[0])
    rng = np.random.default_rng(1)
    for width in (1, 3, 8, 600, 5000):
        for count, span in ((1, 100_000), (7, 100_000), (50, 9000), (900, 100_000)):
            offsets = rng.integers(0, span - width + 1, count)
            offsets[-1] = span - width
            for wanted in (offsets, np.sort(offsets), np.repeat(offsets, 2), np.arange(count)):
                found = each.gather(wanted, width)
                assert np.array_equal(found, [data[o : o + width] for o in wanted])
    starts = rng.integers(0, 90_000, 60)
    sizes = rng.integers(0, 10_000, 60)
    expected = [data[a : a + n] for a, n in zip(starts, sizes, strict=True)]
    assert np.array_equal(each.read(starts, sizes), np.concatenate(expected))
    with pytest.raises(DataError, match=r"^a: has become shorter"):
        each.read(np.array([99_990]), np.array([20]))


def test_what_is_not_in_memory_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk, or on a file system that cannot say what is in memory."""
    data = np.arange(1000, dtype=np.uint8)
    Path("a").write_bytes(data.tobytes())
    each = mapped.Mapped(files("a")[0])
    whole, asked = os.preadv, []

    def late(descriptor: int, pieces: Any, start: int, flags: int = 0) -> int:
        if flags:
            asked.append(start)
            if start % 3 == 0:
                raise BlockingIOError(11, "not in memory")
            return whole(descriptor, [pieces[0][: start % 3]], start)
        return whole(descriptor, [pieces[0][:7]], start)  # a part, as of very large pieces

    monkeypatch.setattr(os, "preadv", late)
    starts = np.arange(0, 900, 100)
    found = each.read(starts, np.full(9, 20)).reshape(9, 20)
    assert np.array_equal(found, [data[s : s + 20] for s in starts]) and len(asked) == 9


# Both

_READ = """
import json, sys
import numpy as np
from dtrain.data.files import files
from dtrain.data.formats.{module} import {name}

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(l.split()[1]) for l in lines if l.startswith("VmHWM")) << 10

table = {name}(files("a"))
table.read(np.arange(3), ["y"])
before = peak()
order = np.random.default_rng(0).permutation(-(-len(table) // 500))
for block in order:
    rows = np.arange(block * 500, min(block * 500 + 500, len(table)))
    if "{name}" == "Arrow":
        rows = np.random.default_rng(block).integers(0, len(table), 500)
    for begin in range(0, len(rows), 64):
        found = table.read(rows[begin : begin + 64], ["x", "y"])
        assert (found["y"] == rows[begin : begin + 64]).all()
print(json.dumps(peak() - before))
"""


@pytest.mark.parametrize(("module", "name"), [("arrow", "Arrow"), ("parquet", "Parquet")])
def test_all_rows_take_a_part_of_their_memory(module: str, name: str) -> None:
    """200 MB of rows, read at random; those of Parquet in blocks."""
    n = 50_000
    schema = pa.schema({"x": pa.list_(pa.float32(), 1000), "y": pa.int64()})
    new: Any = pa.ipc.new_file if module == "arrow" else pq.ParquetWriter
    with new("a", schema) as writer:
        for begin in range(0, n, 500):
            x = np.random.default_rng(begin).random((500, 1000), np.float32)
            batch = pa.record_batch(
                [columnar.fixed(x), pa.array(np.arange(begin, begin + 500))], schema=schema
            )
            writer.write_batch(batch)
    done = subprocess.run(
        [sys.executable, "-c", _READ.format(module=module, name=name)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) < 100 << 20, "of 200 MB"
