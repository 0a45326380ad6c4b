"""TFRecord files: TensorFlow's own reader and parser are the referees."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import struct
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.data.files import DataFile
from dtrain.data.formats import index, tfrecord_file
from dtrain.data.formats.tfrecord_file import masked_crc32c
from dtrain.data.prepare import padded
from dtrain.data.sources import Splits
from dtrain.errors import DataError, UsageError

FEATURES: dict[str, Any] = {
    "vec": {"dtype": "float32", "shape": [3]},
    "label": {"dtype": "int64"},
    "weight": {"dtype": "float32", "shape": []},
    "word": {"dtype": "string"},
    "tokens": {"dtype": "int64", "shape": [None]},
    "boxes": {"dtype": "float32", "shape": [None, 2]},
}
PAD = {"tokens": {"length": 3, "value": -1}, "boxes": {"length": 2}}


def framed(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    sums = [masked_crc32c(part).to_bytes(4, "little") for part in (head, data)]
    return head + sums[0] + data + sums[1]


def write(path: str, records: Iterable[bytes]) -> int:
    """Write a file, and return its bytes."""
    return Path(path).write_bytes(b"".join(map(framed, records)))


def example(**features: Any) -> bytes:
    """Return an example of lists of bytes, whole and other numbers."""
    import tensorflow as tf

    made = {}
    for name, values in features.items():
        if isinstance(values[0], bytes):
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        elif isinstance(values[0], int):
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    found = tf.train.Example(features=tf.train.Features(feature=made))
    return bytes(found.SerializeToString())


def numbered(n: int) -> bytes:
    """Return an example that says which it is."""
    return example(
        vec=[float(n), n / 2, -1.0], label=[n % 3], weight=[n + 0.25],
        word=[b"cat" if n % 2 else b"ant"], tokens=list(range(n % 5)) or [7],
        boxes=[float(i) for i in range(2 * (n % 4))] or [9.0, 9.0],
    )  # fmt: skip


def several(*counts: int) -> list[str]:
    names = [f"part-{number}.tfrecord" for number in range(len(counts))]
    first = 0
    for name, count in zip(names, counts, strict=True):
        write(name, map(numbered, range(first, first + count)))
        first += count
    return names


def source(
    path: Any, target: Any = "label", inputs: Any = "vec", pad: Any = None, **options: Any
) -> Any:
    options = {"features": FEATURES, "validation_split": 0, **options}
    found = datasets.tfrecord(path, target=target, inputs=inputs, **options).train
    return found if pad is None else padded(Splits(found), pad).train


def through_a_graph(source: Any, indices: Any) -> tuple[Any, ...]:
    """Read one batch as the input pipeline does: ``take`` in Python, ``finish`` in the graph."""
    import tensorflow as tf

    from dtrain.task.reading import take

    elements = tf.data.Dataset.from_tensors(np.asarray(indices))
    plain = tf.autograph.experimental.do_not_convert(lambda rows: take(source, rows))
    [batch] = elements.map(plain)
    return tuple(batch)


def at_once(source: Any, indices: Any) -> tuple[Any, ...]:
    import tensorflow as tf

    parts = source.take(np.asarray(indices))
    return tuple(source.finish(tuple(map(tf.constant, parts))))


# --- what is read


@pytest.mark.task
@pytest.mark.parametrize("place", ["cache", "beside"])
def test_examples_in_any_order_are_those_of_tensorflow(place: str) -> None:
    import tensorflow as tf

    names = several(5, 0, 1, 9)
    parsed = {
        "vec": tf.io.FixedLenFeature([3], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64),
        "weight": tf.io.FixedLenFeature([], tf.float32),
        "tokens": tf.io.VarLenFeature(tf.int64),
    }  # fmt: skip
    expected = [tf.io.parse_single_example(r, parsed) for r in tf.data.TFRecordDataset(names)]
    inputs = {"vec": "vec", "tokens": "tokens", "pair": ["weight", "label"], "b": {"o": "boxes"}}
    found = source(names, inputs=inputs, weight="weight", pad=PAD, index=place)
    assert len(found) == len(expected) == 15
    order = np.array([14, 0, 5, 5, 3, 6, 13, 4, 0])
    for x, y, weight in (through_a_graph(found, order), at_once(found, order)):
        assert x["vec"].shape == (9, 3) and x["vec"].dtype == tf.float32
        assert y.dtype == tf.int64 and weight.dtype == tf.float32
        for at, row in enumerate(order):
            wanted = expected[row]
            np.testing.assert_array_equal(x["vec"][at], wanted["vec"])
            tokens = tf.sparse.to_dense(wanted["tokens"]).numpy().tolist()
            assert x["tokens"][at].numpy().tolist() == [*tokens, -1, -1, -1][:3]
            boxes = [2.0 * (row % 4 > 1), 3.0 * (row % 4 > 1)] if row % 4 else [0.0, 0.0]
            first = [0.0, 1.0] if row % 4 else [9.0, 9.0]
            assert x["b"]["o"][at].numpy().tolist() == [first, boxes]
            pair = [float(wanted["weight"]), float(wanted["label"])]
            assert x["pair"][at].numpy().tolist() == pair
            assert y[at] == wanted["label"] and weight[at] == wanted["weight"]
    assert sorted(p.name for p in Path().glob("*.index")) == (
        [f"{name}.index" for name in names] if place == "beside" else []
    )


@pytest.mark.task
def test_text_is_classes_by_its_alphabet_and_images_are_decoded() -> None:
    import tensorflow as tf

    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    image = tf.io.encode_png(pixels).numpy()
    words = [b"owl", b"ant", "\u00e9l\u00e9phant".encode(), b"ant"]
    write("a.tfrecord", [example(image=[image], word=[word]) for word in words])
    features = {"image": {"dtype": "string"}, "word": {"dtype": "string"}}
    splits = datasets.tfrecord(
        "a.tfrecord", features, "word", images={"image": [4, 6, 3]}, validation_split=0.5
    )
    assert splits.count_classes() == 3
    both = [through_a_graph(part, np.arange(2)) for part in (splits.train, splits.validation)]
    rows = [part._rows for part in (splits.train, splits.validation)]
    for (x, y), order in zip(both, rows, strict=True):
        assert y.numpy().tolist() == [[1, 0, 2, 0][row] for row in order]
        assert x.shape == (2, 4, 6, 3)
        np.testing.assert_array_equal(x[0], pixels.astype(np.float32) / np.float32(255))


@pytest.mark.task
def test_labels_and_classes_are_read_without_the_inputs() -> None:
    several(7)
    found = datasets.tfrecord("part-0.tfrecord", FEATURES, "label", "vec", validation_split=0.3)
    assert found.count_classes() == 3
    assert found.train.labels().tolist() == [row % 3 for row in found.train._rows]
    assert source("part-0.tfrecord", "weight").classes() is None
    assert source("part-0.tfrecord", classes=9).classes() == 3
    splits = datasets.tfrecord("part-0.tfrecord", FEATURES, "label", "vec", classes=9)
    assert splits.count_classes() == 9


@pytest.mark.task
def test_of_a_large_column_a_part_is_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrain.data.formats import examples

    several(40)
    found = source("part-0.tfrecord", inputs={"t": "tokens"}, pad=PAD)
    sizes = []
    read = type(found.table).records

    def counted(table: Any, rows: np.ndarray) -> np.ndarray:
        made = read(table, rows)
        sizes.append(sum(map(len, made)))
        return made

    monkeypatch.setattr(type(found.table), "records", counted)
    whole = found.table.read(np.arange(40), ["vec", "tokens"])
    monkeypatch.setattr(examples, "BYTES", 700)
    parts = found.table.read(np.arange(40), ["vec", "tokens"])
    assert len(sizes) > 5 and max(sizes[1:]) <= 700
    for name in whole:
        np.testing.assert_array_equal(parts[name], whole[name])


# --- the index


passed: list[str] = []
_records = tfrecord_file.records


def counted(file: DataFile) -> np.ndarray:
    passed.append(file.name)
    return _records(file)


@pytest.mark.task
@pytest.mark.parametrize("place", ["cache", "beside"])
def test_files_are_passed_once_and_again_when_they_have_changed(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfrecord_file, "records", counted)
    passed.clear()
    names = several(3, 4)
    before = source(names, index=place)
    assert before.known_length() is None and passed == []
    assert len(before) == 7 and sorted(passed) == names
    assert source(names, index=place).known_length() == 7
    assert len(source(names, index=place)) == 7 and len(passed) == 2
    again = pickle.loads(pickle.dumps(before))
    assert at_once(again, [6])[0].numpy().tolist() == [[6.0, 3.0, -1.0]] and len(passed) == 2
    write(names[1], [numbered(4)])
    assert source(names, index=place).known_length() is None
    assert len(source(names, index=place)) == 4
    assert passed[2:] == (names[1:] if place == "beside" else passed[2:]) and len(passed) > 2
    write(names[1], [numbered(5)])
    with pytest.raises(DataError, match=r"^part-1.tfrecord: has changed since its index was read"):
        before.take(np.array([0, 6]))


@pytest.mark.task
def test_where_a_folder_cannot_be_written_the_index_is_in_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    several(3)
    monkeypatch.setattr(index.os, "access", lambda *_: False)
    assert len(source("part-0.tfrecord", index="beside")) == 3
    assert not list(Path().glob("*.index"))
    assert source("part-0.tfrecord", index="cache").known_length() == 3
    assert source("part-0.tfrecord", index="beside").known_length() == 3


@pytest.mark.task
def test_a_damaged_index_beside_a_file_is_made_again() -> None:
    several(3)
    assert len(source("part-0.tfrecord", index="beside")) == 3
    place = Path("part-0.tfrecord.index")
    for content in (place.read_bytes()[:-3], b"", b"x" * 100):
        place.write_bytes(content)
        assert len(source("part-0.tfrecord", index="beside")) == 3


@pytest.mark.task
def test_files_of_many_bytes_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_LARGE", 100)
    several(3, 3)
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        len(source("part-*.tfrecord"))
    notice = "notice: part-0.tfrecord ...: 0.0 GB are passed once, for an index\n"
    assert printed.getvalue() == notice


@pytest.mark.task
def test_more_files_than_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrain.data.formats import opened

    monkeypatch.setattr(opened, "_OPEN", 3)
    several(*[2] * 20)
    found = source("part-*.tfrecord")
    names = [file.name for file in found.files]
    first = [2 * int(name[5:].split(".")[0]) for name in names]  # part-10 comes before part-2
    order = np.random.default_rng(0).permutation(np.arange(40))
    for _ in range(2):
        x, _ = at_once(found, order)
        assert x[:, 0].numpy().tolist() == [first[row // 2] + row % 2 for row in order]
        assert len(found.table._opened._descriptors) <= 6


def test_before_the_index_nothing_is_read_and_tensorflow_is_not_imported() -> None:
    write("a.tfrecord", [b"no example"] * 10)
    splits = datasets.tfrecord("a.tfrecord", FEATURES, "label", "vec")
    assert splits.train.known_length() is None and splits.validation.known_length() is None
    assert "tensorflow" not in sys.modules
    assert str(splits.train.files[0]) == "a.tfrecord"


@pytest.mark.task
@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_split_is_the_same_with_an_index_and_without(count: int) -> None:
    several(count)

    def rows(splits: Any) -> list[list[int]]:
        parts = [splits.train, splits.validation]
        return [[] if part is None else part._at(np.arange(len(part))).tolist() for part in parts]

    arguments: Any = ("part-0.tfrecord", FEATURES, "label", "vec")
    lazy = datasets.tfrecord(*arguments)
    assert lazy.train.known_length() is None
    again = datasets.Splits(*pickle.loads(pickle.dumps((lazy.train, lazy.validation))))
    found = rows(lazy)
    known = datasets.tfrecord(*arguments)
    assert known.train.known_length() == len(found[0])
    assert rows(known) == found == rows(again)
    assert sorted([*found[0], *found[1]]) == list(range(count))
    # Without an index nobody knows that none is held out.
    assert (known.validation is None) == (count < 3) and lazy.validation is not None
    assert len(lazy.validation) == len(found[1])
    assert lazy.count_classes() == known.count_classes() == min(count, 3)


# --- damaged files


def damaged(how: str) -> None:
    """Write a file of 300 records of 24 bytes with their frame, damaged from record 290 on."""
    size = write("a.tfrecord", [b"%08d" % number for number in range(300)])
    assert size == 300 * 24
    data = bytearray(Path("a.tfrecord").read_bytes())
    at = 290 * 24
    if how in ("length", "its sum", "data", "sum"):
        data[at + {"length": 1, "its sum": 9, "data": 14, "sum": 21}[how]] ^= 4
    elif how == "zeros":
        data += bytes(50)
    else:
        data = data[: at + int(how)]
    Path("a.tfrecord").write_bytes(data)


@pytest.mark.task
@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("length", "record 290 (byte 6,960): the checksum of its length is wrong"),
        ("its sum", "record 290 (byte 6,960): the checksum of its length is wrong"),
        ("data", "record 290 (byte 6,960): the checksum of its data is wrong"),
        ("sum", "record 290 (byte 6,960): the checksum of its data is wrong"),
        ("5", "record 290 (byte 6,960): the file ends early, 5 bytes further on"),
        ("12", "record 290 (byte 6,960): the file ends early: it has 8 bytes, and 0 are there"),
        ("17", "record 290 (byte 6,960): the file ends early: it has 8 bytes, and 5 are there"),
        ("22", "record 290 (byte 6,960): the file ends early: it has 8 bytes, and 10 are there"),
        ("zeros", "record 300 (byte 7,200): the checksum of its length is wrong"),
    ],
)
def test_a_damaged_record_is_named(how: str, problem: str) -> None:
    damaged(how)
    for _ in range(2):  # nothing of it is kept
        with pytest.raises(DataError) as caught:
            len(source("a.tfrecord"))
        assert str(caught.value) == f"a.tfrecord, {problem}"


@pytest.mark.task
@pytest.mark.parametrize("names", [["a.tfrecord"], ["a.tfrecord", "b.tfrecord"]])
def test_files_without_a_record_are_refused(names: list[str]) -> None:
    for name in names:
        write(name, [])
    with pytest.raises(DataError, match=rf"^{', '.join(names)}: holds no record$"):
        len(source(names))


@pytest.mark.task
def test_a_file_that_vanishes_is_named() -> None:
    several(3, 3)
    found = source("part-*.tfrecord")
    with pytest.raises(DataError, match=r"part-1.tfrecord: cannot be read \(No such file"):
        os.rename("part-1.tfrecord", "x")
        len(found)
    os.rename("x", "part-1.tfrecord")
    assert len(found) == 6
    os.unlink("part-1.tfrecord")
    assert at_once(found, [2])[0][0, 0] == 2
    with pytest.raises(DataError, match=r"part-1.tfrecord: cannot be read \(No such file"):
        found.take(np.array([1, 4]))


@pytest.mark.task
def test_a_file_that_is_cut_while_it_is_read_is_named() -> None:
    size = write("a.tfrecord", [numbered(0)] * 3)
    found = source("a.tfrecord")
    found.take(np.arange(3))
    os.truncate("a.tfrecord", size - 30)
    with pytest.raises(DataError, match=r"a.tfrecord: has .* bytes at byte .*, and had"):
        found.take(np.arange(3))


def unlike(how: str) -> bytes:
    """Return a record that is not as declared."""
    rest: dict[str, Any] = {"label": [0], "tokens": [1], "boxes": [1.0, 2.0], "word": [b"ant"]}
    if how == "no example":
        return b"\xff\xff\xffgarbage"
    if how == "missing":
        return example(**rest)
    if how == "type":
        return example(vec=[1, 2, 3], **rest)
    if how == "count":
        return example(vec=[1.0, 2.0], **rest)
    if how == "boxes":
        return example(vec=[1.0, 2.0, 3.0], **(rest | {"boxes": [1.0]}))
    return example(vec=[np.nan, 1.0, 2.0], **(rest | {"word": [b"zebra"]}))


@pytest.mark.task
@pytest.mark.parametrize(
    ("how", "target", "problem"),
    [
        ("no example", "label", "is no tf.train.Example"),
        ("missing", "label", "has no feature 'vec'; it has boxes, label, tokens, word"),
        ("type", "label", "feature 'vec' holds int64, and is declared float32"),
        ("count", "label", "feature 'vec' has 2 values, which are none of shape [3]"),
        ("boxes", "label", "feature 'boxes' has 1 values, which are none of shape [null, 2]"),
        ("target", "vec", "column 'vec': the target is NaN or infinite"),
        ("target", "word", "column 'word': 'zebra' is none of the classes"),
    ],
)
def test_an_example_that_is_not_as_declared_is_named(how: str, target: str, problem: str) -> None:
    import tensorflow as tf

    size = write("good.tfrecord", map(numbered, range(6)))
    write("bad.tfrecord", [*map(numbered, range(6)), unlike(how), numbered(0)])
    inputs = [name for name in ("vec", "tokens", "boxes") if name != target]
    splits = datasets.tfrecord(
        "good.tfrecord", FEATURES, target, {name: name for name in inputs},
        validation_path="bad.tfrecord",
    )  # fmt: skip
    found = padded(Splits(splits.validation), PAD).train
    with pytest.raises(DataError) as caught:
        at_once(found, [3, 6, 0])
    place = f"bad.tfrecord, record 6 (byte {size:,})"
    assert str(caught.value) in (f"{place}: {problem}", f"{place}, {problem}"), caught.value
    with pytest.raises((tf.errors.InvalidArgumentError, UnicodeDecodeError)):
        through_a_graph(found, [3, 6, 0])
    through_a_graph(found, [3, 7, 0])


# --- what is refused before anything is read


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        datasets.tfrecord(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
@pytest.mark.task
def test_compressed_files_are_streams(kind: str) -> None:
    fixed = {name: FEATURES[name] for name in ("vec", "label", "weight")}
    data = b"".join(framed(numbered(n)) for n in range(7))
    for name in ("a", "b"):
        packed = gzip.compress(data) if kind == "GZIP" else zlib.compress(data)
        Path(name).write_bytes(packed if name == "a" else data)
    found = datasets.tfrecord(
        ["a", "b"], fixed, "label", "vec", "weight", validation_split=0, classes=3
    )
    x, y, weight = found.train.first(20)
    assert y.numpy().tolist() == [n % 3 for n in range(7)] * 2
    assert x.numpy()[:, 0].tolist() == [float(n) for n in range(7)] * 2
    assert weight.numpy().tolist() == [n + 0.25 for n in range(7)] * 2
    assert found.train.count() == 14 and found.count_classes() == 3


def test_what_a_compressed_file_cannot_be() -> None:
    Path("a").write_bytes(gzip.compress(framed(b"x" * 100)))
    options = {"validation_split": 0}
    assert "dataset.validation_split=0.2: a is compressed" in refusal("a", FEATURES, "label")
    ragged = refusal("a", FEATURES, "label", "tokens", **options)
    assert "'tokens' has a length that differs" in ragged
    fixed = {name: FEATURES[name] for name in ("vec", "word")}
    assert "the target 'word' is text" in refusal("a", fixed, "word", **options)


@pytest.mark.parametrize("content", [b"hello", b"PK\3\4" + bytes(90), b"\0" * 40])
def test_what_is_no_tfrecord_file_is_refused(content: bytes) -> None:
    Path("a").write_bytes(content)
    assert "is no TFRecord file: the checksum of its first length" in refusal("a", FEATURES, "y")


@pytest.mark.parametrize(
    ("options", "begin", "part"),
    [
        ({"target": "labels"}, "dataset.target=labels: a has no such column", "=label"),
        ({"inputs": ["vec"]}, "dataset.inputs=['vec']: ", "vec holds float32 [3]"),
        ({"index": "here"}, "dataset.index=here: ", "cache or beside"),
        ({"images": {"vec": [8, 8, 3]}}, "dataset.images=vec: is no input of", ""),
        ({"validation_split": 1}, "dataset.validation_split=1: ", ""),
    ],
)
def test_refusals(options: dict[str, Any], begin: str, part: str) -> None:
    write("a", [b""])
    found = refusal("a", FEATURES, **{"target": "label", "inputs": "vec", **options})
    assert found.startswith(begin) and part in found


@pytest.mark.parametrize(
    ("pad", "message"),
    [
        (None, "dataset.pad=null: the feature tokens has rows of different lengths"),
        (
            {"vec": {"length": 3}},
            "dataset.pad=vec: is no feature of different lengths; accepted: t",
        ),
        ({"y": {"length": 3}}, "dataset.pad=y: is no feature of different lengths"),
        ({"tokens": {"buckets": [3]}}, "dataset.pad={tokens: {'buckets': [3]}}: features of TFR"),
    ],
)
def test_lengths_that_are_not_declared(pad: Any, message: str) -> None:
    write("a", [b""])
    with pytest.raises(UsageError) as caught:
        source("a", inputs="tokens", pad=pad).take(np.zeros(1, np.int64))
    assert str(caught.value).startswith(message)


@pytest.mark.task
def test_a_length_is_named_by_its_feature_or_by_its_place() -> None:
    write("a", [example(t=[1, 2, 3], s=[b"a"]), example(t=[4], u=[0.5], s=[b"b", b"c"])])
    kinds = {"t": "int64", "s": "string", "u": "float32"}
    features = {name: {"dtype": kind, "shape": [None]} for name, kind in kinds.items()}
    for name in ("t", "x"):
        found = source("a", None, "t", {name: {"length": 2, "value": 9}}, features=features)
        (x,) = through_a_graph(found, [1, 0])
        assert x.numpy().tolist() == [[4, 9], [1, 2]]
    pad = {"tokens": {"length": 1}, "s": {"length": 2}, "u": {"length": 1, "value": -1.5}}
    inputs = {"tokens": "t", "s": "s", "u": "u"}
    (x,) = through_a_graph(source("a", None, inputs, pad, features=features), [0, 1])
    assert x["s"].numpy().tolist() == [[b"a", b""], [b"b", b"c"]]
    assert x["u"].numpy().tolist() == [[-1.5], [0.5]] and x["tokens"].shape == (2, 1)


def test_the_checksum() -> None:
    # Of "123456789", RFC 3720; masked as TFRecord files have it.
    assert masked_crc32c(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % (
        1 << 32
    )
