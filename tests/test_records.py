"""TFRecord and ArrayRecord files: the referees are TensorFlow's reader and parser, and Grain's."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.data import record_files
from dtrain.data.streams import known_length
from dtrain.data.transforms import padded
from dtrain.errors import DataError, UsageError
from tests.test_remote import Server, server

__all__ = ["server"]  # a fixture
FEATURES: dict[str, Any] = {
    "vec": {"dtype": "float32", "shape": [3]},
    "label": {"dtype": "int64"},
    "weight": {"dtype": "float32", "shape": []},
    "word": {"dtype": "string"},
    "tokens": {"dtype": "int64", "shape": [None]},
    "boxes": {"dtype": "float32", "shape": [None, 2]},
}
PAD = {"tokens": {"length": 3, "value": -1}, "boxes": {"length": 2}}
#: Any order, repeated, neighbours.
ORDER = np.array([14, 0, 5, 5, 3, 6, 13, 4, 0])


def checksum(data: bytes) -> int:
    """Return the masked CRC-32C, as TensorFlow's writer has it."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    head = len(data).to_bytes(8, "little")
    sums = [checksum(part).to_bytes(4, "little") for part in (head, data)]
    return head + sums[0] + data + sums[1]


def write_tfrecord(path: str, records: Iterable[bytes]) -> None:
    Path(path).write_bytes(b"".join(map(framed, records)))


def write_array_record(path: str, records: Iterable[bytes], group: int = 1) -> None:
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(path, f"group_size:{group}")
    for record in records:
        writer.write(record)
    writer.close()


WRITE: dict[str, Callable[..., None]] = {
    "tfrecord": write_tfrecord,
    "array_record": write_array_record,
}
both = pytest.mark.parametrize("kind", WRITE)


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
    features = tf.train.Features(feature=made)
    return bytes(tf.train.Example(features=features).SerializeToString())


def numbered(n: int) -> bytes:
    """Return an example that says which it is."""
    return example(
        vec=[float(n), n / 2, -1.0], label=[n % 3], weight=[n + 0.25],
        word=[b"cat" if n % 2 else b"ant"], tokens=list(range(n % 5)) or [7],
        boxes=[float(i) for i in range(2 * (n % 4))] or [9.0, 9.0],
    )  # fmt: skip


def several(kind: str, *counts: int, make: Any = numbered, **options: Any) -> list[str]:
    """Write files of records that ``make`` makes of their numbers."""
    first, names = 0, [f"part-{number:02}.{kind}" for number in range(len(counts))]
    for name, count in zip(names, counts, strict=True):
        WRITE[kind](name, map(make, range(first, first + count)), **options)
        first += count
    return names


def splits(kind: str, path: Any, target: Any = "label", inputs: Any = "vec", **options: Any) -> Any:
    options = {"features": FEATURES, "validation_split": 0, **options}
    return getattr(datasets, kind)(path, target=target, inputs=inputs, **options)


def source(*arguments: Any, pad: Any = None, **options: Any) -> Any:
    train = splits(*arguments, **options).train
    return train if pad is None else padded(datasets.Splits(train), pad).train


def through_a_graph(source: Any, indices: Any) -> tuple[Any, ...]:
    """Read one batch as the input pipeline does: read in Python, parsed in the graph."""
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.reading import take

    elements = tf.data.Dataset.from_tensors(np.asarray(indices))
    plain = tf.autograph.experimental.do_not_convert(lambda rows: take(source, rows))
    [batch] = elements.map(plain)
    return tuple(batch)


def at_once(source: Any, indices: Any) -> tuple[Any, ...]:
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.reading import take

    return take(source, tf.constant(np.asarray(indices)))


# --- what is read


@pytest.mark.task
@both
def test_examples_in_any_order_are_those_of_tensorflow(kind: str) -> None:
    import tensorflow as tf

    names, records = several(kind, 5, 0, 1, 9), list(map(numbered, range(15)))
    if kind == "tfrecord":
        records = [record.numpy() for record in tf.data.TFRecordDataset(names)]
    parsed = {
        "vec": tf.io.FixedLenFeature([3], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64),
        "weight": tf.io.FixedLenFeature([], tf.float32),
        "tokens": tf.io.VarLenFeature(tf.int64),
    }  # fmt: skip
    expected = [tf.io.parse_single_example(record, parsed) for record in records]
    inputs = {"vec": "vec", "tokens": "tokens", "pair": ["weight", "label"], "b": {"o": "boxes"}}
    found = source(kind, names, inputs=inputs, weight="weight", pad=PAD)
    assert len(found) == len(expected) == 15
    again = pickle.loads(pickle.dumps(found))
    for x, y, weight in (through_a_graph(found, ORDER), at_once(again, ORDER)):
        assert x["vec"].shape == (9, 3) and x["vec"].dtype == tf.float32
        for at, row in enumerate(ORDER):
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


@pytest.mark.task
@both
def test_text_is_classes_by_its_alphabet_and_images_are_decoded(kind: str) -> None:
    import tensorflow as tf

    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    image = tf.io.encode_png(pixels).numpy()
    words = [b"owl", b"ant", "\u00e9l\u00e9phant".encode(), b"ant"]
    WRITE[kind]("a", [example(image=[image], word=[word]) for word in words])
    features = {"image": {"dtype": "string"}, "word": {"dtype": "string"}}
    options = {"features": features, "images": {"image": [4, 6, 3]}, "validation_split": 0.5}
    found = splits(kind, "a", "word", None, **options)
    assert found.count_classes() == 3
    for part in (found.train, found.validation):
        x, y = through_a_graph(part, np.arange(2))
        assert y.numpy().tolist() == [[1, 0, 2, 0][row] for row in part._rows]
        assert part.info.labels().tolist() == y.numpy().tolist()
        np.testing.assert_array_equal(x[0], pixels.astype(np.float32) / np.float32(255))


@pytest.mark.task
@both
def test_labels_classes_and_columns_are_read_without_the_inputs(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtrain.data.record_files.BYTES", 700)  # in several pieces
    several(kind, 7)
    found = splits(kind, f"part-00.{kind}", validation_split=0.3)
    assert found.count_classes() == 3
    assert found.train.info.labels().tolist() == [row % 3 for row in found.train._rows]
    assert found.train.info.column("word").tolist() == [
        ["ant", "cat"][n % 2] for n in found.train._rows
    ]
    assert found.train.info.column("none") is found.train.info.column("tokens") is None
    assert splits(kind, f"part-00.{kind}", "weight").count_classes() is None
    assert splits(kind, f"part-00.{kind}", classes=9).count_classes() == 9


@pytest.mark.task  # Grain imports JAX
@pytest.mark.parametrize("group", [1, 4])
def test_records_are_those_of_grain(group: int) -> None:
    import grain

    paths = several("array_record", 10, 0, 20, group=group)
    referee = grain.sources.ArrayRecordDataSource(paths)
    table = source("array_record", paths).table
    assert len(table) == len(referee) == 30
    assert list(table.records(ORDER)) == [referee[row] for row in ORDER]
    assert table.where(9) == "part-00.array_record, record 9"
    assert table.where(10) == "part-02.array_record, record 0"


@pytest.mark.task
def test_more_files_than_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "_OPEN", 3)
    found = source("tfrecord", several("tfrecord", *[2] * 20))
    order = np.random.default_rng(0).permutation(np.arange(40))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert at_once(found, order)[0][:, 0].numpy().tolist() == order.tolist()
    assert len(os.listdir("/proc/self/fd")) <= before + 4


# --- the index of TFRecord files, and what is read before there is one


@pytest.mark.task
def test_files_are_indexed_once_and_again_when_they_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    indexed: list[str] = []
    write = record_files.TFRecordFiles._write_index

    def counted(files: Any, owner: int, path: Path) -> None:
        indexed.append(files.files[owner].name)
        write(files, owner, path)

    monkeypatch.setattr(record_files.TFRecordFiles, "_write_index", counted)
    monkeypatch.setattr(record_files, "_LARGE", 100)
    names = several("tfrecord", 3, 4)
    before = source("tfrecord", names)
    assert known_length(before) is None and indexed == []
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        assert len(before) == 7 and sorted(indexed) == names
    notice = "notice: part-00.tfrecord ...: 0.0 GB are read once, for an index\n"
    assert printed.getvalue() == notice
    assert known_length(source("tfrecord", names)) == 7 and len(indexed) == 2
    write_tfrecord(names[1], [numbered(4)])
    assert known_length(source("tfrecord", names)) is None
    assert len(source("tfrecord", names)) == 4 and indexed[2:] == names[1:], "of that file alone"
    with pytest.raises(DataError, match=r"^part-01.tfrecord: has changed since its index was read"):
        before[np.array([0, 6])]


def test_before_that_nothing_is_read_and_tensorflow_is_not_imported(server: Server) -> None:
    write_tfrecord("a", [b"no example"] * 10)
    found = splits("tfrecord", "a", validation_split=0.2)
    assert known_length(found.train) is None and known_length(found.validation) is None
    assert "tensorflow" not in sys.modules and str(found.train.info.files()[0]) == "a"
    write_array_record("b", [b"no example"] * 30)
    server.files["/b"] = Path("b").read_bytes()
    found = splits("array_record", server.at("b"), validation_split=0.2)
    assert known_length(found.train) is None and known_length(found.validation) is None
    assert not [one for one in server.asked if one[0] == "GET"]
    train = pickle.loads(pickle.dumps(found.train))
    assert (len(train), len(found.validation)) == (24, 6)


@pytest.mark.task
@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_split_is_the_same_with_an_index_and_without(count: int) -> None:
    several("tfrecord", count)

    def rows(found: Any) -> list[list[int]]:
        parts = [found.train, found.validation]
        return [[] if part is None else part._at(np.arange(len(part))).tolist() for part in parts]

    lazy = splits("tfrecord", "part-00.tfrecord", validation_split=0.2)
    again = datasets.Splits(*pickle.loads(pickle.dumps((lazy.train, lazy.validation))))
    known = [rows(lazy), rows(again)]
    eager = splits("tfrecord", "part-00.tfrecord", validation_split=0.2)
    assert known_length(eager.train) == len(known[0][0]) and [rows(eager)] * 2 == known
    assert sorted([*known[0][0], *known[0][1]]) == list(range(count))
    # Without an index the number of rows, and so of those held out, is not known.
    assert (eager.validation is None) == (count < 3) and lazy.validation is not None
    assert lazy.count_classes() == eager.count_classes() == min(count, 3)


@pytest.mark.task
def test_files_of_gzip_are_unpacked_once() -> None:
    data = b"".join(framed(numbered(n)) for n in range(15))
    Path("a").write_bytes(gzip.compress(data[:999]) + gzip.compress(data[999:]))
    found = splits("tfrecord", ["a"], "word", "tokens", validation_split=0.2).train
    both = source("tfrecord", "a", inputs="tokens", pad={"tokens": PAD["tokens"]})
    assert at_once(both, ORDER)[1].numpy().tolist() == [n % 3 for n in ORDER]
    assert len(found) == 12 and found.words().tolist() == ["ant", "cat"]
    Path("a").write_bytes(gzip.compress(data)[:-30])
    with pytest.raises(DataError, match=r"^a: cannot be unpacked \(Compressed file ended"):
        len(source("tfrecord", "a"))


# --- damaged files


@pytest.mark.task
@pytest.mark.parametrize(
    ("change", "at", "problem"),
    [
        (1, 290, "a checksum is wrong"),  # the length
        (9, 290, "a checksum is wrong"),  # its checksum
        (14, 290, "a checksum is wrong"),  # the data
        (21, 290, "a checksum is wrong"),  # its checksum
        (slice(5, None), 290, "the file ends early"),
        (slice(12, None), 290, "the file ends early"),
        (slice(17, None), 290, "the file ends early"),
        (None, 300, "a checksum is wrong"),  # zeros after the last
    ],
)
def test_a_damaged_tfrecord_is_named(change: Any, at: int, problem: str) -> None:
    data = bytearray(b"".join(framed(b"%08d" % number) for number in range(300)))
    if change is None:
        data += bytes(50)
    elif isinstance(change, int):
        data[290 * 24 + change] ^= 4
    else:
        del data[290 * 24 + change.start :]
    Path("a").write_bytes(data)
    for _ in range(2):  # nothing of it is kept
        with pytest.raises(DataError) as caught:
            len(source("tfrecord", "a"))
        assert str(caught.value) == f"a, record {at} (byte {at * 24:,}): {problem}"


def test_a_damaged_array_record_is_named() -> None:
    several("array_record", 10, make=lambda number: b"")
    write_array_record("b", (os.urandom(4096) for _ in range(200)))
    data = bytearray(Path("b").read_bytes())
    data[200_000] ^= 255
    Path("b").write_bytes(data)
    table = source("array_record", ["part-00.array_record", "b"]).table  # b comes first
    wrong = []
    for row in range(210):
        try:
            table.records(np.array([row]))
        except DataError as error:
            wrong.append(row)
            assert str(error).startswith(f"b, record {row}: cannot be read (Corrupted")
            with pytest.raises(DataError, match=rf"^b, record {row}: "):
                table.records(np.array([195, row, 201]))
    assert 0 < len(wrong) < 20


@pytest.mark.task
@both
def test_a_file_that_vanishes_is_named(kind: str) -> None:
    names = several(kind, 3, 3)
    found = source(kind, names)
    assert len(found) == 6 and at_once(found, [2])[0][0, 0] == 2
    os.unlink(names[1])
    with pytest.raises(DataError, match=r"^part-01\.\w+: (cannot be read|is not there any more)"):
        pickle.loads(pickle.dumps(found))[np.array([1, 4])]


@pytest.mark.task
def test_a_file_that_is_cut_while_it_is_read_is_named() -> None:
    [name] = several("tfrecord", 3)
    found = source("tfrecord", name)
    found[np.arange(3)]
    os.truncate(name, os.path.getsize(name) - 30)
    with pytest.raises(DataError, match=rf"^{name}: was cut off: it has [\d,]+ bytes, not [\d,]+$"):
        found[np.arange(3)]


REST: dict[str, Any] = {"label": [0], "tokens": [1], "boxes": [1.0, 2.0], "word": [b"ant"]}
VEC = [1.0, 2.0, 3.0]


@pytest.mark.task
@both
@pytest.mark.parametrize(
    ("record", "target", "problem"),
    [
        (None, "label", ": is no tf.train.Example"),
        (REST, "label", ": has no feature 'vec'; it has boxes, label, tokens, word"),
        (REST | {"vec": [1, 2, 3]}, "label", ": feature 'vec' holds int64, and is declared float3"),
        (REST | {"vec": [1.0]}, "label", ": feature 'vec' has 1 values, which are none of shape"),
        (REST | {"vec": VEC, "boxes": [1.0]}, "label", ": feature 'boxes' has 1 values, which are"),
        (REST | {"vec": [np.nan, 1.0, 2.0]}, "vec", ", column 'vec': the target is NaN or inf"),
        (REST | {"vec": VEC, "word": [b"zebra"]}, "word",
         ", column 'word': 'zebra' is none of the classes"),
    ],
)  # fmt: skip
def test_an_example_that_is_not_as_declared_is_named(
    kind: str, record: Any, target: str, problem: str
) -> None:
    WRITE[kind]("good", map(numbered, range(6)))
    wrong = b"\xff\xff\xffgarbage" if record is None else example(**record)
    WRITE[kind]("bad", [*map(numbered, range(6)), wrong, numbered(0)])
    inputs = {name: name for name in ("vec", "tokens", "boxes") if name != target}
    found = padded(
        datasets.Splits(splits(kind, "good", target, inputs, validation="bad").validation), PAD
    ).train
    with pytest.raises(DataError) as caught:
        at_once(found, [3, 6, 0])
    byte = sum(len(framed(numbered(n))) for n in range(6))
    place = "bad, record 6" + (f" (byte {byte:,})" if kind == "tfrecord" else "")
    assert str(caught.value).startswith(f"{place}{problem}"), caught.value
    at_once(found, [3, 7, 0])


# --- what is refused before training


@both
@pytest.mark.parametrize("content", [b"hello", b"PK\3\4" + bytes(90), b"\xff" * 40])
def test_what_is_no_such_file(kind: str, content: bytes) -> None:
    Path("a").write_bytes(content)
    with pytest.raises(UsageError, match=r"^dataset.path=a: is no (TF|Array)Record file"):
        splits(kind, "a")
    WRITE[kind]("b", [b""])
    with pytest.raises(UsageError, match=r"^dataset.validation=a: is no (TF|Array)Record "):
        splits(kind, "b", validation="a")


@pytest.mark.task
@pytest.mark.parametrize(
    ("pad", "message"),
    [
        (None, "dataset.pad=null: the input has rows of different lengths"),
        ({"vec": {"length": 3}}, "dataset.pad=vec: has no rows of different lengths; accepted: x"),
        ({"y": {"length": 3}}, "dataset.pad=y: has no rows of different lengths"),
    ],
)
def test_lengths_that_are_not_declared(pad: Any, message: str) -> None:
    write_tfrecord("a", [numbered(0)])
    with pytest.raises(UsageError) as caught:
        at_once(source("tfrecord", "a", inputs="tokens", pad=pad), [0])
    assert str(caught.value).startswith(message)


@pytest.mark.task
def test_a_length_is_named_by_its_feature_or_by_its_place() -> None:
    write_tfrecord("a", [example(t=[1, 2, 3], s=[b"a"]), example(t=[4], u=[0.5], s=[b"b", b"c"])])
    kinds = {"t": "int64", "s": "string", "u": "float32"}
    features = {name: {"dtype": kind, "shape": [None]} for name, kind in kinds.items()}
    for name in ("t", "x"):
        pad = {name: {"length": 2, "value": 9}}
        (x,) = through_a_graph(source("tfrecord", "a", None, "t", pad=pad, features=features), [1])
        assert x.numpy().tolist() == [[4, 9]]
    pad = {"tokens": {"length": 1}, "s": {"length": 2}, "u": {"length": 1, "value": -1.5}}
    inputs = {"tokens": "t", "s": "s", "u": "u"}
    found = source("tfrecord", "a", None, inputs, pad=pad, features=features)
    (x,) = through_a_graph(found, [0, 1])
    assert x["s"].numpy().tolist() == [[b"a", b""], [b"b", b"c"]]
    assert x["u"].numpy().tolist() == [[-1.5], [0.5]] and x["tokens"].shape == (2, 1)


def test_array_records_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    write_array_record("a", [b""])
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_data_source", None)
    with pytest.raises(UsageError, match=r"^dataset=array_record: needs a package .*\[grain\]"):
        source("array_record", "a")
