"""Pieces of predictions in a folder: division, files, and what stands in the manifest."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.errors import DamagedFile, TrainingError, UsageError
from dtrain.run.predictions import FORMATS, Division, Store, encode, read, size_of


def manifest(**changed: Any) -> Any:
    return {
        "checkpoint": {"step": 3, "digest": "abc", "weights": "raw"},
        "data": {"split": "validation", "structure": "float32 [4]", "digest": "def"},
        "rows": 25, "function": None, "include": [],
        "columns": [{"name": "p", "dtype": "float32", "shape": [3]}],
        "format": "parquet", "batch": 4, "piece_rows": 8, "arithmetic": {"device": "cpu"},
        "join": False,
        **changed,
    }  # fmt: skip


def values(store: Store, piece: int) -> dict[str, np.ndarray]:
    rows = np.array(store.division.rows_of(piece))
    return {"p": np.stack([rows, rows * 2, rows / 3], 1).astype(np.float32)}


def fill(store: Store) -> None:
    for piece in range(store.division.pieces):
        store.write(piece, values(store, piece))


# Division


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 8, 9, 97, 1000])
@pytest.mark.parametrize(("size", "batch"), [(8, 4), (10, 4), (4, 4), (1, 4), (97, 1)])
def test_batches_cover_each_row_once_in_order(rows: int, size: int, batch: int) -> None:
    division = Division(rows, size, batch)
    found: list[int] = []
    numbers: list[int] = []
    for piece in range(division.pieces):
        indices, of_piece = division.batches(piece)
        assert indices.shape == (len(of_piece), batch)
        part = indices.ravel().tolist()
        numbers += of_piece.tolist()
        found += part[: len(division.rows_of(piece))]
        assert set(part[len(division.rows_of(piece)) :]) <= {found[-1]}  # padding
    assert found == list(range(rows))
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_each_worker_looks_at_its_own_pieces_first_and_then_at_all_others(workers: int) -> None:
    division = Division(70, 10, 10)
    orders = [list(division.order(worker, workers)) for worker in range(workers)]
    assert all(sorted(order) == list(range(7)) for order in orders)
    own = [order[: len(range(worker, 7, workers))] for worker, order in enumerate(orders)]
    assert own == [list(range(worker, 7, workers)) for worker in range(workers)]
    assert list(division.order(0, 2))[-3:] == [5, 3, 1]


def test_pieces_are_many_and_small() -> None:
    assert size_of(10, 64, 40) == 64
    assert Division(1_000_000, size_of(1_000_000, 64, 40), 64).pieces == pytest.approx(128, abs=2)
    assert size_of(1_000_000, 64, 1 << 20) == 64  # of large rows: by their bytes


# Formats


COLUMNS = {
    "p": np.array([[0.1, np.nan], [np.inf, 1e-30], [1 / 3, -0.0]], np.float32),
    "m": np.arange(18, dtype=np.int64).reshape(3, 3, 2),
    "d": np.array([1 / 3, -np.inf, 0.0]),
    "b": np.array([True, False, True]),
    "t": np.array(["", 'a "b", c', "zwölf\n"], object),
    "ü": np.array([1, 2, 3]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_has_the_columns_to_the_bit_and_is_the_same_each_time(name: str) -> None:
    data = encode(name, 7, COLUMNS)
    assert data == encode(name, 7, COLUMNS)
    found = decoded(name, data)
    assert found.pop("index").tolist() == [7, 8, 9]
    for column, expected in COLUMNS.items():
        if expected.dtype == object:
            assert found[column].tolist() == expected.tolist()
        else:
            again = np.asarray(found[column].tolist(), expected.dtype)
            assert again.tobytes() == expected.tobytes(), column


def decoded(name: str, data: bytes) -> dict[str, Any]:
    if name == "npy":
        table = np.load(io.BytesIO(data))
        return {each: table[each] for each in table.dtype.names}
    if name == "parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(io.BytesIO(data))
        return {each: np.array(table[each].to_pylist()) for each in table.column_names}
    if name == "jsonl":
        rows = [json.loads(line) for line in data.decode().splitlines()]
        return {each: np.array([row[each] for row in rows]) for each in rows[0]}
    head, *rows = csv.reader(io.StringIO(data.decode(), newline=""))
    flat = {each: [row[at] for row in rows] for at, each in enumerate(head)}
    found = {each: np.array(flat[each]) for each in ("d", "t", "ü")}
    found["index"] = np.array(list(map(int, flat["index"])))
    found["b"] = np.array([each == "True" for each in flat["b"]])
    found["p"] = np.stack([flat["p.0"], flat["p.1"]], 1)
    places = [f"m.{i}.{j}" for i in range(3) for j in range(2)]
    found["m"] = np.stack([flat[each] for each in places], 1).reshape(3, 3, 2).astype(np.int64)
    return found


def test_no_text_is_a_formula_or_acts_on_a_terminal() -> None:
    texts = [
        "=cmd|' /C calc'!A0",
        "@SUM(A1)",
        "+1+cmd",
        "\t=1",
        "-2+3",
        "a\x1b[2J",
        "-1",
        "-",
        "é\nb",
    ]
    columns = {"=x": np.array(texts, object), "n": -np.arange(1.0, 10.0)}
    head, *rows = csv.reader(io.StringIO(encode("csv", 0, columns).decode(), newline=""))
    assert head == ["index", "'=x", "n"]
    assert [row[1] for row in rows] == [
        *(f"'{text}" for text in texts[:5]), r"a\x1b[2J", "-1", "-", "é\nb"
    ]  # fmt: skip
    assert [float(row[2]) for row in rows] == columns["n"].tolist()


# Store and manifest


def test_pieces_are_found_again_and_make_the_whole(tmp_path: Path) -> None:
    store = Store(tmp_path, manifest())
    store.write(2, values(store, 2))
    again = Store(tmp_path, manifest())
    assert [again.has(piece) for piece in range(4)] == [False, False, True, False]
    assert again.count() == 1
    with pytest.raises(TrainingError, match=r"part-000000\.parquet: is not there"):
        again.finish()
    fill(again)
    again.finish()
    assert sorted(os.listdir(tmp_path)) == ["pieces", "predictions.json"]
    assert read(tmp_path) == manifest()
    assert [each.name for each in again.files()] == [f"part-{n:06d}.parquet" for n in range(4)]
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "pieces")
    assert table["index"].to_pylist() == list(range(25))
    # Of a command that was late, nothing is harmed.
    before = tree(tmp_path)
    store.write(1, values(store, 1))
    store.finish()
    assert store.count() == 4 and tree(tmp_path) == before


def test_who_ends_first_may_remove_what_is_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, late = Store(tmp_path, manifest()), Store(tmp_path, manifest())
    fill(first)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: first.finish())
        late.write(3, values(late, 3))
    assert late.count() == 4 and len(os.listdir(tmp_path / "pieces")) == 4


@pytest.mark.parametrize("format", FORMATS)
def test_few_bytes_are_one_file_whoever_comes_late(tmp_path: Path, format: str) -> None:
    given = manifest(format=format, join=True)
    store, late = Store(tmp_path, given), Store(tmp_path, given)
    fill(store)
    store.finish()
    assert set(os.listdir(tmp_path)) == {f"predictions.{format}", "predictions.json"}
    whole = {"p": np.concatenate([values(store, piece)["p"] for piece in range(4)])}
    assert encode(format, 0, whole) == (tmp_path / f"predictions.{format}").read_bytes()
    (tmp_path / "pieces").mkdir()  # which was just being removed
    late.write(3, values(late, 3))
    assert not (tmp_path / "pieces").exists()
    assert late.has(0) and late.count() == 4
    late.finish()
    assert not (tmp_path / "pieces").exists()


def test_results_of_many_bytes_stay_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtrain.run.predictions.SMALL", 1000)
    store = Store(tmp_path, manifest(join=True))
    fill(store)
    store.finish()
    assert len(os.listdir(tmp_path / "pieces")) == 4


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
    for text, kind in (('{"rows"', DamagedFile), ('{"rows": 1}', UsageError)):
        (tmp_path / "predictions.json").write_text(text)
        with pytest.raises(kind, match=re.escape(str(tmp_path))):
            Store(tmp_path, manifest())


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


def work(folder: Path, **changed: Any) -> None:
    """Do what a worker does, without a model."""
    store = Store(folder, manifest(**changed))
    for piece in store.division.order(1, 2):
        if not store.has(piece):
            store.write(piece, values(store, piece))
    store.finish()


def tree(folder: Path) -> dict[str, bytes]:
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    # What a worker was writing when it was killed after all was done has a name of its own.
    return {name: data for name, data in found.items() if not name.endswith(".tmp")}


@pytest.mark.parametrize(("format", "join"), [("parquet", False), ("npy", True), ("csv", True)])
def test_killed_at_any_operation_it_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, join: bool
) -> None:
    (tmp_path / "whole").mkdir()
    work(tmp_path / "whole", format=format, join=join)
    expected = tree(tmp_path / "whole")
    assert len(expected) == {"parquet": 5, "npy": 2, "csv": 2}[format]
    kills = 0
    for at in range(1000):
        folder = tmp_path / str(at)
        folder.mkdir()
        # Killed once at this operation, and the next one at another.
        for again in (at, at * 7 % 31):
            with monkeypatch.context() as patch:
                kernel = Kernel(patch, again)
                try:
                    work(folder, format=format, join=join)
                except Killed:
                    kills += 1
        if kernel.left >= 0 and at > 31 and kills < 2 * at:
            break
        work(folder, format=format, join=join)
        assert tree(folder) == expected, at
    assert kills > 40
