"""ArrayRecord files; the referee is Grain's own source."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.data.files import DataFile
from dtrain.data.formats import array_record
from dtrain.data.formats.array_record import Records
from dtrain.errors import DataError, UsageError
from tests.test_remote import Server, server
from tests.test_tfrecord import FEATURES, at_once, example, numbered, through_a_graph

__all__ = ["server"]  # a fixture
#: Any order, repeated, neighbours.
WANTED = np.array([7, 7, 0, 29, 3, 4, 5, 2, 28])


def write(path: str, records: Iterable[bytes], group: int = 1) -> str:
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(path, f"group_size:{group}")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def several(make: Any, *counts: int, group: int = 1) -> list[str]:
    """Write files of records that ``make`` makes of their numbers."""
    first, names = 0, []
    for number, count in enumerate(counts):
        numbers = range(first, first + count)
        names.append(write(f"part-{number}.array_record", map(make, numbers), group))
        first += count
    return names


def text(number: int) -> bytes:
    return f"record {number} ".encode() * (1 + number % 4)


def saved(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def grains(paths: Sequence[str]) -> list[bytes]:
    """Return all records as Grain reads them."""
    import grain

    source = grain.sources.ArrayRecordDataSource(list(paths))
    return [source[number] for number in range(len(source))]


@pytest.mark.parametrize("group", [1, 4])
def test_records_in_any_order_are_those_of_grain(group: int) -> None:
    paths = several(text, 10, 0, 20, group=group)
    expected = grains(paths)
    train = datasets.array_record(paths, None, "bytes", validation_split=0).train
    assert len(train) == len(expected) == 30
    for source in (train, pickle.loads(pickle.dumps(train))):
        (found,) = source.take(WANTED)
        assert found.dtype == object and found.tolist() == [expected[row] for row in WANTED]
    assert train.where(9) == "part-0.array_record, record 9"
    assert train.where(10) == "part-2.array_record, record 0"
    blocks = train.blocks()
    if group == 1:
        assert blocks is None
    else:
        assert blocks is not None and blocks.tolist() == [4, 4, 2, 4, 4, 4, 4, 4]


def test_many_files_need_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_record, "_OPEN", 3)
    paths = several(text, *[2] * 20)
    records = Records([DataFile(path) for path in paths])
    before = len(os.listdir("/proc/self/fd"))
    rows = np.random.default_rng(0).permutation(40)
    assert records.read(rows).tolist() == [text(row) for row in rows]
    assert len(os.listdir("/proc/self/fd")) <= before + 3


@pytest.mark.parametrize("save", [False, True])
def test_arrays(save: bool) -> None:
    def make(number: int) -> bytes:
        x = np.full((2, 3), number, np.uint8)
        file = io.BytesIO()
        np.save(file, x)
        return file.getvalue() if save else saved(x=x, y=np.int16(number % 5), w=number * 0.5)

    paths = several(make, 10, 20)
    if save:
        train = datasets.array_record(paths, None, "npy", validation_split=0).train
        (x,) = train.take(WANTED)
    else:
        splits = datasets.array_record(
            paths, "y", "npy", inputs="x", weight="w", validation_split=0
        )
        train = splits.train
        x, y, weight = train.take(WANTED)
        assert np.array_equal(y, WANTED % 5) and y.dtype == np.int64
        assert np.array_equal(weight, WANTED * 0.5) and weight.dtype == np.float32
        assert splits.count_classes() == 5 and train.labels().tolist() == [n % 5 for n in range(30)]
    assert x.dtype == np.uint8 and np.array_equal(x[:, 1, 2], WANTED)


def test_a_part_is_held_out_and_another_file_evaluated() -> None:
    paths = several(lambda n: saved(x=np.float64(n), y=n % 3), 10, 20)
    splits = datasets.array_record(paths[1], "y", "npy", validation_split=0.25)
    assert (len(splits.train), len(splits.validation)) == (15, 5)
    both = [splits.train.take(np.arange(15))[0], splits.validation.take(np.arange(5))[0]]
    assert sorted(np.concatenate(both)) == list(range(10, 30))
    beside = datasets.array_record(paths[1], "y", "npy", validation_path=paths[0])
    assert (len(beside.train), len(beside.validation)) == (20, 10)


@pytest.mark.task
def test_examples_are_parsed_in_the_graph() -> None:
    paths = several(numbered, 10, 20)
    splits = datasets.array_record(
        paths, {"y": "label", "w": "word"}, "example", FEATURES, {"v": "vec", "n": ["label"]},
        "weight", validation_split=0,
    )  # fmt: skip
    referee = grains(paths)
    for read in (through_a_graph, at_once):
        x, y, weight = read(splits.train, WANTED)
        assert np.array_equal(x["v"], [[n, n / 2, -1] for n in WANTED])
        assert np.array_equal(y["y"], WANTED % 3) and np.array_equal(y["w"], WANTED % 2)
        assert np.array_equal(weight, WANTED + 0.25)
    (records,) = splits.train.take(WANTED)
    assert records.tolist() == [referee[row] for row in WANTED]
    label = datasets.array_record(paths, "label", "example", FEATURES, "vec", validation_split=0)
    assert label.count_classes() == 3


@pytest.mark.task
def test_an_example_that_is_not_as_it_is_declared_is_named() -> None:
    paths = several(lambda n: numbered(n) if n != 13 else example(vec=[1.0]), 10, 20)
    train = datasets.array_record(
        paths, "label", "example", FEATURES, "vec", validation_split=0
    ).train
    at_once(train, [12, 14])
    with pytest.raises(DataError, match=r"^part-1\.array_record, record 3: feature 'vec' has 1 v"):
        at_once(train, [12, 13])


def test_of_an_address_nothing_is_fetched_to_plan(server: Server, tmp_path: Path) -> None:
    server.files["/a.array_record"] = Path(write("a", map(text, range(30)))).read_bytes()
    splits = datasets.array_record(server.at("a.array_record"), None, "bytes")
    assert splits.train.known_length() is None and splits.validation.known_length() is None
    assert not [one for one in server.asked if one[0] == "GET"]
    train = pickle.loads(pickle.dumps(splits.train))
    assert (len(train), len(splits.validation)) == (24, 6)
    found = [*train.take(np.arange(24))[0], *splits.validation.take(np.arange(6))[0]]
    assert sorted(found) == sorted(map(text, range(30)))


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        datasets.array_record(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize("content", ["text", "empty", "cut", "footer"])
def test_what_is_no_such_file(content: str) -> None:
    whole = Path(write("a", map(text, range(30)))).read_bytes()
    wrong = bytearray(whole)
    wrong[-65536 + 20] ^= 255
    data = {"text": b"hello" * 999, "empty": b"", "cut": whole[:-100], "footer": bytes(wrong)}
    Path("b").write_bytes(data[content])
    assert refusal("b", None, "bytes").startswith("dataset.path=b: is no ArrayRecord file")


def test_a_record_that_is_damaged_is_named() -> None:
    several(text, 10)
    data = bytearray(Path(write("b", (os.urandom(4096) for _ in range(200)))).read_bytes())
    data[200_000] ^= 255
    Path("b").write_bytes(data)
    train = datasets.array_record(
        ["part-0.array_record", "b"], None, "bytes", validation_split=0
    ).train
    sound = []
    for row in range(210):
        try:
            train.take(np.array([row]))
            sound.append(row)
        except DataError as error:
            assert str(error).startswith(f"b, record {row}: cannot be read (Corrupted")
            with pytest.raises(DataError, match=rf"^b, record {row}: "):
                train.take(np.array([205, row, 201]))
    assert 190 < len(sound) < 210


def test_a_file_that_is_gone() -> None:
    several(text, 10)
    train = datasets.array_record("part-0.array_record", None, "bytes", validation_split=0).train
    Path("part-0.array_record").unlink()
    with pytest.raises(DataError, match=r"^part-0\.array_record: is not there any more$"):
        pickle.loads(pickle.dumps(train)).take(np.array([0]))


def test_arrays_that_differ_are_named() -> None:
    rows = [saved(x=np.zeros(2)), saved(x=np.zeros(3)), saved(z=np.zeros(2)), b"no array", b""]
    write("a", rows)
    train = datasets.array_record("a", None, "npy", validation_split=0).train
    for row, problem in enumerate([
        r"column 'x': holds float64 \[3\], and the first record float64 \[2\]",
        "column 'x': holds nothing, and the first record float64", r"is no array of NumPy \(",
        r"is no array of NumPy \(",
    ]):  # fmt: skip
        with pytest.raises(DataError, match=rf"^a, record {row + 1}[:,] {problem}"):
            train.take(np.array([0, row + 1]))


def test_what_is_refused() -> None:
    paths = several(text, 10)
    assert refusal(paths, None, "nyp").endswith("type: dataset.decode=npy")
    assert refusal(paths, "y").startswith("dataset.features=null: what the examples have is not d")
    found = refusal(paths, "y", "bytes")
    assert "dataset.target=y: part-0.array_record has no such column" in found
    write("none", [])
    assert "dataset.path=none: has no row to train on" in refusal(
        "none", None, "bytes", validation_split=0
    )


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = several(text, 10)
    monkeypatch.setitem(sys.modules, "array_record.python", None)
    found = refusal(paths, None, "bytes")
    assert found.startswith("dataset=array_record: needs a package that is not installed (")
    assert found.endswith('type: pip install "dtrain[grain]"')
