"""Pieces of predictions in a folder: division, files, leases, and what stands in the manifest."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.errors import CheckpointError, DamagedFile, UsageError
from dtrain.files import writing
from dtrain.run.predictions import FORMATS, Division, Leases, Store, leases, read, size_of


def manifest(**changed: Any) -> Any:
    return {
        "version": 1,
        "checkpoint": {"step": 3, "digest": "abc", "weights": "raw"},
        "data": {"split": "validation", "structure": "float32 [4]", "digest": "def"},
        "rows": 25, "function": None, "include": [],
        "columns": [{"name": "p", "dtype": "float32", "shape": [3]}],
        "format": "parquet", "batch": 4, "piece_rows": 8, "arithmetic": {"device": "cpu"},
        **changed,
    }  # fmt: skip


def values(store: Store, piece: int) -> dict[str, np.ndarray]:
    rows = np.arange(store.division.first(piece), store.division.first(piece) + 8)
    rows = rows[: store.division.count(piece)]
    return {"p": np.stack([rows, rows * 2, rows / 3], 1).astype(np.float32)}


def fill(store: Store) -> None:
    for piece in range(store.division.pieces):
        store.commit(piece, values(store, piece))


# Division


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 8, 9, 97, 1000])
@pytest.mark.parametrize(("size", "batch"), [(8, 4), (10, 4), (4, 4), (1, 4), (97, 1)])
def test_batches_cover_each_row_once_in_order(rows: int, size: int, batch: int) -> None:
    division = Division(rows, size, batch)
    found: list[int] = []
    numbers: list[int] = []
    for piece in range(division.pieces):
        part: list[int] = []
        for number in range(division.batches(piece)):
            indices = division.indices(piece, number)
            assert len(indices) == batch
            part += indices.tolist()
            numbers.append(division.number(piece, number))
        found += part[: division.count(piece)]
        assert set(part[division.count(piece) :]) <= {found[-1]}  # padding
    assert found == list(range(rows))
    assert len(set(numbers)) == len(numbers)


def test_pieces_are_many_and_small_but_not_without_bound() -> None:
    assert size_of(10, 64, 40) == 64
    assert Division(1_000_000, size_of(1_000_000, 64, 40), 64).pieces == pytest.approx(128, abs=2)
    assert size_of(1_000_000, 64, 1 << 20) == 64  # of large rows: by their bytes
    assert Division(10**9, size_of(10**9, 1, 1 << 25), 1).pieces <= 200_000


# Formats


COLUMNS = {
    "p": np.array([[0.1, np.nan], [np.inf, 1e-30], [1 / 3, -0.0]], np.float32),
    "m": np.arange(18, dtype=np.int64).reshape(3, 3, 2),
    "d": np.array([1 / 3, -np.inf, 0.0]),
    "b": np.array([True, False, True]),
    "t": np.array(["", 'a "b", c', "zwölf\n"], object),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_has_the_columns_to_the_bit_and_is_the_same_each_time(name: str) -> None:
    files = dict(FORMATS[name].encode("part-0", 7, COLUMNS))
    assert files == dict(FORMATS[name].encode("part-0", 7, COLUMNS))
    assert list(files) == FORMATS[name].names("part-0", list(COLUMNS))
    found = decoded(name, files)
    assert found.pop("index").tolist() == [7, 8, 9]
    for column, expected in COLUMNS.items():
        if expected.dtype == object:
            assert found[column].tolist() == expected.tolist()
        else:
            again = np.asarray(found[column].tolist(), expected.dtype)
            assert again.tobytes() == expected.tobytes(), column


def decoded(name: str, files: dict[str, bytes]) -> dict[str, Any]:
    data = next(iter(files.values()))
    if name == "npy":
        return {each.split(".")[1]: np.load(io.BytesIO(content)) for each, content in files.items()}
    if name == "parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(io.BytesIO(data))
        return {each: np.array(table[each].to_pylist()) for each in table.column_names}
    if name == "jsonl":
        rows = [json.loads(line) for line in data.decode().splitlines()]
        return {each: np.array([row[each] for row in rows]) for each in rows[0]}
    import csv

    head, *rows = csv.reader(io.StringIO(data.decode(), newline=""))
    flat = {each: [row[at] for row in rows] for at, each in enumerate(head)}
    found = {each: np.array(flat[each]) for each in ("d", "t")}
    found["index"] = np.array(list(map(int, flat["index"])))
    found["b"] = np.array([each == "True" for each in flat["b"]])
    found["p"] = np.stack([flat["p.0"], flat["p.1"]], 1)
    places = [f"m.{i}.{j}" for i in range(3) for j in range(2)]
    found["m"] = np.stack([flat[each] for each in places], 1).reshape(3, 3, 2).astype(np.int64)
    return found


# Store and manifest


def test_pieces_are_found_again_and_make_the_whole(tmp_path: Path) -> None:
    store = Store(tmp_path, manifest())
    store.commit(2, values(store, 2))
    again = Store(tmp_path, manifest())
    assert again.done() == {2} and not again.finished
    with pytest.raises(CheckpointError, match="piece 0"):
        again.finish()
    fill(again)
    pieces = again.finish()
    assert [each["first"] for each in pieces] == [0, 8, 16, 24]
    assert sum(each["rows"] for each in pieces) == 25
    assert sorted(os.listdir(tmp_path)) == ["pieces", "predictions.json"]
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "pieces")
    assert table["index"].to_pylist() == list(range(25))
    assert Store(tmp_path, manifest()).finished
    found = read(tmp_path)
    assert found is not None and found["pieces"] == pieces
    # Of a command that was late, nothing is harmed.
    store.commit(1, values(store, 1))
    assert store.finished and store.finish() == pieces


@pytest.mark.parametrize("spoil", ["cut", "gone", "record", "other"])
def test_a_piece_that_is_not_whole_is_done_again(tmp_path: Path, spoil: str) -> None:
    store = Store(tmp_path, manifest())
    fill(store)
    file, record = tmp_path / "pieces/part-000001.parquet", tmp_path / "done/1.json"
    if spoil == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif spoil == "gone":
        file.unlink()
    elif spoil == "record":
        record.write_text("{")
    else:  # a name outside of the folder is not looked at
        found = json.loads(record.read_text())
        found["files"][0]["name"] = "../predictions.json"
        record.write_text(json.dumps(found))
    assert store.done() == {0, 2, 3}


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({"checkpoint": {"step": 4, "digest": "abc", "weights": "raw"}}, "checkpoint.step is 3"),
        ({"checkpoint": {"step": 3, "digest": "abd", "weights": "raw"}}, "checkpoint.digest is"),
        ({"data": {"split": "train", "structure": "", "digest": ""}}, "data.split is validation"),
        ({"format": "csv"}, "format is parquet"), ({"batch": 5}, "batch is 4"),
        ({"arithmetic": {"device": "gpu"}}, "arithmetic.device is cpu"),
        ({"function": "argmax"}, "function is null"), ({"rows": 26}, "rows is 25"),
    ],
)  # fmt: skip
def test_a_folder_of_other_predictions_is_refused(
    tmp_path: Path, changed: dict[str, Any], shown: str
) -> None:
    Store(tmp_path, manifest())
    before = (tmp_path / "predictions.json").read_bytes()
    with pytest.raises(UsageError, match=shown):
        Store(tmp_path, manifest(**changed))
    assert (tmp_path / "predictions.json").read_bytes() == before


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "predictions.json").write_text('{"version": 1}')
    with pytest.raises(DamagedFile, match=r"predictions\.json"):
        Store(tmp_path, manifest())


def test_the_first_of_several_writes_a_file(tmp_path: Path) -> None:
    assert writing.write_first(tmp_path / "a", b"1")
    assert not writing.write_first(tmp_path / "a", b"2")
    assert os.listdir(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"1"


# Leases


def test_a_piece_has_one_worker_while_that_lives(tmp_path: Path) -> None:
    with Leases(tmp_path) as one, Leases(tmp_path) as other:
        assert one.take(0) and one.take(0) and not other.take(0) and other.take(1)
        one.release(0)
        one.release(1)  # which is not its own
        assert other.take(0) and not one.take(1)
    assert os.listdir(tmp_path / "workers") == []
    with Leases(tmp_path) as third:
        assert third.take(0) and third.take(1)


def hold(folder: Path, ready: Any) -> None:
    with Leases(folder) as mine:
        mine.take(0)
        ready.set()
        signal.pause()


def test_what_a_killed_worker_had_is_free_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold, args=(tmp_path, ready))
    process.start()
    try:
        assert ready.wait(60)
        with Leases(tmp_path) as mine:
            assert not mine.take(0)
            process.kill()
            process.join()
            assert mine.take(0)
    finally:
        process.kill()
        process.join()


def test_of_another_host_the_count_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    with Leases(tmp_path, 30) as mine:
        other = tmp_path / "workers/abc"
        (tmp_path / "leases/0").write_text("abc")
        other.write_text("another-boot 1\n")
        assert not mine.take(0)
        now[0] += 29
        assert not mine.take(0)
        other.write_text("another-boot 2\n")
        now[0] += 2
        assert not mine.take(0)
        now[0] += 29.5
        assert not mine.take(0)
        now[0] += 1
        assert mine.take(0)


@pytest.mark.parametrize("text", ["", "../../x", "\x00", "ä"])
def test_a_lease_that_names_nobody_is_free(tmp_path: Path, text: str) -> None:
    with Leases(tmp_path) as mine:
        (tmp_path / "leases/0").write_text(text)
        assert mine.take(0)


# Kills


class Killed(BaseException):
    """The process is gone: nothing that it would do then has any effect."""


OPERATIONS = ("open", "link", "replace", "unlink", "fsync", "mkdir", "rmdir", "pwrite")


class Kernel:
    """Lets the process die before one operation on files."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int):
        self.left = at
        for name in OPERATIONS:
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, real: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Killed
            return real(*given, **named)

        return call


def work(folder: Path, format: str) -> None:
    """Do what a worker does, without a model."""
    store = Store(folder, manifest(format=format))
    if not store.finished:
        with Leases(folder, 1000) as mine:
            for piece in sorted(set(range(store.division.pieces)) - store.done()):
                if mine.take(piece) and store.record(piece) is None:
                    store.commit(piece, values(store, piece))
        store.finish()
    else:
        store.tidy()


def close(folder: Path) -> None:
    """Close what a process that is gone has open: its locks are free."""
    for name in os.listdir("/proc/self/fd"):
        link = Path("/proc/self/fd") / name
        if os.path.lexists(link) and os.readlink(link).startswith(str(folder)):
            os.close(int(name))


def tree(folder: Path) -> dict[str, bytes]:
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    # What a worker was writing when it was killed after all was done has a name of its own.
    return {name: data for name, data in found.items() if not name.endswith(".tmp")}


@pytest.mark.parametrize("format", ["parquet", "npy"])
def test_killed_at_any_operation_it_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    (tmp_path / "whole").mkdir()
    work(tmp_path / "whole", format)
    expected = tree(tmp_path / "whole")
    assert len(expected) == (5 if format == "parquet" else 9)
    kills = 0
    for at in range(1000):
        folder = tmp_path / str(at)
        folder.mkdir()
        # Killed once at this operation, and the next one at another.
        for again in (at, at * 7 % 31):
            with monkeypatch.context() as patch:
                kernel = Kernel(patch, again)
                try:
                    work(folder, format)
                except Killed:
                    kills += 1
            close(folder)
        if kernel.left >= 0 and at > 31 and kills < 2 * at:
            break
        work(folder, format)
        assert tree(folder) == expected, at
    assert kills > 60
