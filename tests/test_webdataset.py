"""Tar files of examples: ``tarfile`` writes them, and the package ``webdataset`` is the referee."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.data import nest
from dtrain.data.files import DataFile
from dtrain.data.formats import tar_file
from dtrain.data.formats.webdataset import Shards
from dtrain.errors import DataError, UsageError


def npy(array: Any) -> bytes:
    with io.BytesIO() as opened:
        np.save(opened, np.asarray(array))
        return opened.getvalue()


def write(path: str, members: Iterable[tuple[str, bytes]], kind: int = tarfile.PAX_FORMAT) -> None:
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def members(number: int, folder: str = "") -> list[tuple[str, bytes]]:
    """Return the members of an example that says which it is."""
    about = {"label": number % 3, "name": f"n{number}", "box": [number, 0.5], "at": {"x": number}}
    parts = {
        "cls": b"%d\n" % (number % 4), "txt": f"\u00e9 {number}".encode(),
        "json": json.dumps(about).encode(), "npy": npy(np.full((2, 3), number, np.float32)),
        "mask.NPY": npy(np.array([number, -number])), "bin": bytes([number]) * number,
    }  # fmt: skip
    return [(f"{folder}{number:04}.{name}", data) for name, data in parts.items()]


def shard(
    path: str, numbers: Iterable[int], kind: int = tarfile.PAX_FORMAT, **options: Any
) -> None:
    write(path, [each for n in numbers for each in members(n, **options)], kind)


def table(*names: str) -> Shards:
    return Shards([DataFile(name) for name in names])


# --- what is read


def test_columns_are_the_extensions_and_keys_of_the_first_example() -> None:
    shard("a.tar", range(3))
    found = table("a.tar")
    assert {name: (str(c.dtype), c.shape) for name, c in found.columns.items()} == {
        "cls": ("int64", ()), "txt": ("object", ()), "json.label": ("int64", ()),
        "json.name": ("object", ()), "json.box": ("float64", (2,)), "json.at.x": ("int64", ()),
        "npy": ("float32", (2, 3)), "mask.npy": ("int64", (2,)), "bin": ("object", ()),
    }  # fmt: skip


@pytest.mark.parametrize("folder", ["", "x/", "deep/" * 60, "\u00e9/"])
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_rows_in_any_order(kind: int, folder: str) -> None:
    if kind == tarfile.USTAR_FORMAT and len(folder) > 100:
        folder = folder[:90]
    numbers = [5, 1, 9, 2, 0, 7]
    shard("a.tar", numbers[:2], kind, folder=folder)
    shard("b.tar", [], kind)
    shard("c.tar", numbers[2:], kind, folder=folder)
    found = table("a.tar", "b.tar", "c.tar")
    assert found.known_length() is None
    assert len(found) == 6 == found.known_length()
    again = pickle.loads(pickle.dumps(found))
    rows = np.array([4, 0, 0, 5, 2])
    for each in (found, again):
        values = each.read(rows, list(found.columns))
        for at, row in enumerate(rows):
            n = numbers[row]
            assert values["cls"][at] == n % 4 and values["txt"][at] == f"\u00e9 {n}"
            assert values["json.label"][at] == n % 3 and values["json.name"][at] == f"n{n}"
            assert values["json.box"][at].tolist() == [n, 0.5] and values["json.at.x"][at] == n
            assert (values["npy"][at] == n).all() and values["mask.npy"][at].tolist() == [n, -n]
            assert values["bin"][at] == bytes([n]) * n
    assert values["npy"].dtype == np.float32 and values["cls"].dtype == np.int64
    assert again.where(4).startswith(f"c.tar, row 2 ({folder}0000, byte ")


def test_examples_are_those_of_webdataset() -> None:
    code = (
        "import sys, json, webdataset\n"
        "for each in webdataset.WebDataset(sys.argv[1:], shardshuffle=False).decode():\n"
        "    parts = {k: v.tolist() if hasattr(v, 'tolist') else v for k, v in each.items()}\n"
        "    print(json.dumps({k: v for k, v in parts.items() if k[0] != '_' and k != 'bin'}))\n"
    )
    stray = [(".hidden.cls", b"9"), ("no extension", b""), ("dir.d/x", b"")]
    write("a.tar", [*members(3), *stray, *members(4, "d/"), *members(4), ("d/0005.cls", b"9")][:-1])
    with tarfile.open("a.tar", "a") as tar:
        folder = tarfile.TarInfo("0006.cls")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    shard("b.tar", range(2))
    done = subprocess.run(
        [sys.executable, "-c", code, "a.tar", "b.tar"], capture_output=True, text=True
    )
    if "No module named" in done.stderr:
        pytest.skip("webdataset is not installed")
    assert done.returncode == 0, done.stderr
    expected = [json.loads(line) for line in done.stdout.splitlines()]
    found = table("a.tar", "b.tar")
    assert len(found) == len(expected) == 5
    values = found.read(np.arange(5), list(found.columns))
    for at, wanted in enumerate(expected):
        assert values["cls"][at] == wanted["cls"] and values["txt"][at] == wanted["txt"]
        assert values["npy"][at].tolist() == wanted["npy"]
        assert values["mask.npy"][at].tolist() == wanted["mask.npy"]
        assert values["json.at.x"][at] == wanted["json"]["at"]["x"]
        assert values["json.name"][at] == wanted["json"]["name"]


def test_columns_are_inputs_and_targets() -> None:
    shard("a.tar", range(10))
    splits = datasets.webdataset("a.tar", "json.name", {"a": "npy", "b": ["cls", "json.label"]})
    assert splits.train.known_length() is None
    assert [len(splits.train), len(splits.validation)] == [8, 2]
    assert splits.count_classes() == 10
    rows = splits.train._rows
    x, y = splits.train.take(np.array([7, 0]))
    assert x["b"].tolist() == [[n % 4, n % 3] for n in rows[[7, 0]]] and x["b"].dtype == np.float32
    assert x["a"][:, 0, 0].tolist() == rows[[7, 0]].tolist() and y.tolist() == rows[[7, 0]].tolist()
    assert splits.train.labels().tolist() == rows.tolist()
    assert datasets.webdataset("a.tar", "cls", "npy").count_classes() == 4


@pytest.mark.task
def test_images_are_decoded() -> None:
    import tensorflow as tf

    pixels = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    image = tf.io.encode_png(pixels).numpy()
    write("a.tar", [("0.png", image), ("0.cls", b"1"), ("1.png", image), ("1.cls", b"0")])
    train = datasets.webdataset("a.tar", "cls", images={"png": [5, 4, 3]}, validation_split=0).train
    x, y = train.finish(tuple(map(tf.constant, train.take(np.array([1, 0])))))
    np.testing.assert_array_equal(x[1], pixels.astype(np.float32) / np.float32(255))
    assert y.numpy().tolist() == [0, 1]


def test_the_index_is_made_once_and_again_when_a_file_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard("a.tar", range(3))
    assert len(table("a.tar")) == 3
    with monkeypatch.context() as patch:
        patch.setattr(tar_file, "places", lambda *_, **__: pytest.fail("it was made again"))
        assert table("a.tar").known_length() == 3
    before = table("a.tar")
    len(before)
    shard("a.tar", range(5))
    assert table("a.tar").known_length() is None
    assert len(table("a.tar")) == 5
    with pytest.raises(DataError, match=r"^a.tar: has changed since its index was read$"):
        before.read(np.array([2]), ["cls"])


# --- damaged files


def problem(name: str = "a.tar", column: str | None = None, row: int = 0) -> str:
    with pytest.raises(DataError) as caught:
        found = table(name)
        if column is None:
            len(found)
        else:
            found.read(np.array([0, row]), [column])
    return str(caught.value)


#: Bytes of the members of `cut`: a block of header, one or two of data.
CUT = 3 * 4 * 512


def cut(at: int) -> None:
    """Write a tar file of three examples, each of two members, and end it early."""
    parts = [(f"{n}.{name}", b"7" * 512) for n in range(3) for name in ("txt", "bin")]
    write("a.tar", parts, tarfile.USTAR_FORMAT)
    os.truncate("a.tar", at)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (CUT, "a.tar (byte 6,144): the file ends early, without its end mark"),
        (CUT + 300, "a.tar (byte 6,144): the file ends early, without its end mark"),
        (CUT - 1, "a.tar, 2.bin (byte 5,120): the file ends early: it has 512 bytes, and 511 are"),
        (CUT - 512, "a.tar, 2.bin (byte 5,120): the file ends early: it has 512 bytes, and 0 are"),
        (CUT - 600, "a.tar (byte 5,120): the file ends early, without its end mark"),
        (CUT - 1024, "a.tar (byte 5,120): the file ends early, without its end mark"),
        (0, "a.tar: is no tar file (empty file)"),
        (100, "a.tar: is no tar file (truncated header)"),
    ],
)
def test_a_file_that_ends_early_is_named(at: int, expected: str) -> None:
    cut(at)
    assert problem().startswith(expected)


def test_a_file_whose_end_is_there_is_whole() -> None:
    cut(CUT + 512)
    assert len(table("a.tar")) == 3


def test_a_damaged_header_is_named() -> None:
    cut(CUT + 1024)
    data = bytearray(Path("a.tar").read_bytes())
    data[4 * 512] ^= 1
    Path("a.tar").write_bytes(data)
    assert problem() == "a.tar (byte 2,048): the header of a member is damaged (bad checksum)"


@pytest.mark.parametrize("content", [b"hello", b"x" * 2000])
def test_what_is_no_tar_file_is_named(content: bytes) -> None:
    Path("a.tar").write_bytes(content)
    assert problem().startswith("a.tar: is no tar file (")


def test_an_example_without_an_extension_is_named() -> None:
    write("a.tar", [*members(0), *members(1)[1:], *members(2)])
    found = problem(column="cls", row=1)
    assert found.startswith("a.tar, row 1 (0001, byte ")
    assert found.endswith("): has no 'cls', as the first example has")
    assert table("a.tar").read(np.array([2]), ["cls"])["cls"].tolist() == [2]


def test_an_extension_that_is_there_twice_is_named() -> None:
    write("a.tar", [("0.cls", b"1"), ("1.cls", b"1"), ("1.CLS", b"1")])
    assert problem() == "a.tar, 1.CLS (byte 2,048): the example has the extension 'cls' already"


def test_files_without_an_example_are_refused() -> None:
    write("a.tar", [])
    write("b.tar", [("no extension", b"")])
    with pytest.raises(DataError, match=r"^a.tar, b.tar: holds no example$"):
        table("a.tar", "b.tar")
    write("a.tar", members(0)[:1])
    assert len(table("a.tar")) == 1


@pytest.mark.parametrize(
    ("name", "column", "data", "expected"),
    [
        ("cls", "cls", b"1.5", "b'1.5' is no whole number"),
        ("txt", "txt", b"a\xff", "is no UTF-8 (byte 1 of it)"),
        ("json", "json.label", b"{", "is no JSON (Expecting property name"),
        ("json", "json.at.x", b'{"at": {}}', "has no key 'at.x'"),
        ("json", "json.at.x", b"[]", "has no key 'at'"),
        ("json", "json.label", b'{"label": 1.5}', "is 1.5, and was a whole number in the first"),
        ("json", "json.label", b'{"label": "a"}', "is 'a', and was int64 [] in the first example"),
        ("json", "json.label", b'{"label": null}', "is None, and was int64 [] in the first"),
        ("json", "json.label", b'{"label": %d}' % 10**30, "is 1000000"),
        ("json", "json.name", b'{"name": 3}', "is 3, and was a text in the first example"),
        ("json", "json.box", b'{"box": [1]}', "is [1], and was float64 [2] in the first example"),
        ("json", "json.box", b'{"box": [[1], 2]}', "is [[1], 2], and was float64 [2] in the first"),
        ("npy", "npy", b"x", "is no array of NumPy's ("),
        ("npy", "npy", npy(np.zeros((2, 3), np.float32))[:-1], "is no array of NumPy's ("),
        ("npy", "npy", npy(np.zeros(3, np.float32)), "is float32 [3], and was float32 [2, 3] in"),
        ("npy", "npy", npy(np.zeros((2, 3))), "is float64 [2, 3], and was float32 [2, 3] in the"),
    ],
)
def test_data_that_is_not_what_its_extension_says_is_named(
    name: str, column: str, data: bytes, expected: str
) -> None:
    other = [(each, data if each == f"0001.{name}" else old) for each, old in members(1)]
    write("a.tar", [*members(0), *other])
    found = problem(column=column, row=1)
    assert found.startswith(
        "a.tar, row 1 (0001, byte "
    ) and f"), column {column!r}: {expected}" in (found)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("cls", b"x", "b'x' is no whole number"),
        ("txt", b"\xff", "is no UTF-8 (byte 0 of it)"),
        ("json", b"{", "is no JSON (Expecting property name"),
        ("npy", b"", "is no array of NumPy's ("),
        ("npy", npy(np.array(["a"])), "is an array of <U1, and no numbers"),
        ("npy", npy(np.array([{}], object)), "is no array of NumPy's (Object arrays cannot"),
    ],
)
def test_so_it_is_in_the_first_example(name: str, data: bytes, expected: str) -> None:
    write("a.tar", [("0.bin", b""), (f"0.{name}", data)])
    assert problem().startswith(f"a.tar, row 0 (0), column {name!r}: {expected}")


def test_whole_numbers_are_taken_where_the_first_example_has_others() -> None:
    write("a.tar", [("0.json", b'{"x": 1.5}'), ("1.json", b'{"x": 2}')])
    assert table("a.tar").read(np.array([1, 0]), ["json.x"])["json.x"].tolist() == [2, 1.5]
    write("a.tar", [("0.json", b"3"), ("1.json", b"4")])
    assert table("a.tar").read(np.array([1, 0]), ["json"])["json"].tolist() == [4, 3]


def test_arrays_in_the_order_of_fortran() -> None:
    first, second = np.arange(6).reshape(2, 3), np.arange(6, 12).reshape(2, 3)
    arrays = [first, second, np.asfortranarray(first), np.asfortranarray(second)]
    for order in ([0, 1, 2, 3], [2, 3, 0, 1]):
        write("a.tar", [(f"{at}.npy", npy(arrays[n])) for at, n in enumerate(order)])
        found = table("a.tar").read(np.arange(4), ["npy"])["npy"]
        np.testing.assert_array_equal(found, [arrays[n] for n in order])


def test_a_file_that_vanishes_is_named() -> None:
    shard("a.tar", range(2))
    shard("b.tar", range(2, 4))
    found = table("a.tar", "b.tar")
    os.unlink("b.tar")
    with pytest.raises(DataError, match=r"^b.tar: cannot be read \(No such file"):
        len(found)
    shard("b.tar", range(2, 4))
    assert len(found) == 4
    os.unlink("b.tar")
    with pytest.raises(DataError, match=r"^b.tar: cannot be read \(No such file"):
        found.read(np.array([3]), ["cls"])


def test_a_sparse_member_is_refused() -> None:
    with open("x.bin", "wb") as file:
        file.seek(1 << 20)
        file.write(b"x")
    done = subprocess.run(["tar", "--sparse", "-cf", "a.tar", "x.bin"], capture_output=True)
    if done.returncode:
        pytest.skip("there is no GNU tar")
    assert problem() == "a.tar, x.bin (byte 0): is stored with holes (a sparse file)"


COMPRESSED = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("kind", [*COMPRESSED, "zstd"])
def test_compressed_files_are_refused(kind: str) -> None:
    shard("a.tar", range(2))
    data = Path("a.tar").read_bytes()
    packed = COMPRESSED.get(kind, lambda data: b"\x28\xb5\x2f\xfd" + data)(data)
    Path("a.tar").write_bytes(packed)
    with pytest.raises(UsageError) as caught:
        datasets.webdataset("a.tar", "cls")
    assert str(caught.value).startswith(f"dataset.path=a.tar: is compressed ({kind}), and its")


def test_no_column_of_that_name() -> None:
    shard("a.tar", range(2))
    with pytest.raises(UsageError) as caught:
        datasets.webdataset("a.tar", "json.labels")
    assert str(caught.value).startswith(
        "dataset.target=json.labels: a.tar has no such column; type: dataset.target=json.label; "
        "accepted: cls, txt, js"
    )


def test_the_members_of_an_example_are_nests() -> None:
    shard("a.tar", range(4))
    train = datasets.webdataset("a.tar", {"a": "cls", "b": "npy"}, "mask.npy").train
    x, y = train.take(np.arange(2))
    assert [leaf.shape for leaf in nest.leaves((x, y))] == [(2, 2), (2,), (2, 2, 3)]
    with pytest.raises(UsageError, match="the columns of a list become one array, and txt holds"):
        datasets.webdataset("a.tar", "cls", ["txt"])
