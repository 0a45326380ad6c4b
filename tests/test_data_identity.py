"""What the data of a run was: seen where it changes, and where it is not the same on all hosts."""

from __future__ import annotations

import functools
import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.data import nest
from dtrain.data.files import DataFile, files
from dtrain.data.mixture import Concatenated, Mixture, Subset
from dtrain.data.nest import Ragged
from dtrain.data.sources import Arrays, Info, Source, Splits
from dtrain.errors import DataError, UsageError
from dtrain.run.cluster import Cluster, Task

pytestmark = pytest.mark.task  # it imports the framework
BYTES, PLACES = 1 << 16, 16


def digest(path: Any) -> str:
    from dtrain.task.data import data_identity

    return str(data_identity.of_files(files(path)).hexdigest())


def flip(path: str, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 1
    Path(path).write_bytes(data)


@pytest.mark.parametrize("size", [1, BYTES - 1, BYTES, PLACES * BYTES, 4 * PLACES * BYTES])
def test_a_byte_of_a_small_file_is_seen_and_of_a_large_one_some(size: int) -> None:
    Path("a").write_bytes(os.urandom(size))
    before = digest("a")
    for at in {0, size // 2, 2 * BYTES, size - 1} & {*range(size)}:
        flip("a", at)
        is_seen = size <= PLACES * BYTES or at in (0, size - 1)
        assert (digest("a") != before) == is_seen
        flip("a", at)
    assert digest("a") == before
    with Path("a").open("ab") as file:
        file.write(b"x")
    assert digest("a") != before


def test_what_does_not_matter_and_what_does() -> None:
    from dtrain.task.data import data_identity

    Path("one").mkdir()
    for name in ("a", "b"):
        Path("one", name).write_bytes(name.encode() * 100)
    before = digest("one/*")
    shutil.copytree("one", "two")
    os.utime("two/a", (1, 1))
    assert digest("two/*") == before, "another folder, another time"
    assert digest(["two/b", "two/a"]) == before, "files are in the order of their names"
    swapped = [DataFile("one/b"), DataFile("one/a")]
    assert data_identity.of_files(swapped).hexdigest() != before, "another order"
    Path("two/a").rename("two/c")
    assert digest("two/*") != before, "another name"
    Path("two/c").rename("two/a")
    Path("two/b").write_bytes(b"a" * 100)
    Path("two/a").write_bytes(b"b" * 100)
    assert digest("two/*") != before, "contents that have changed places"
    Path("two/a").unlink()
    with pytest.raises(DataError, match="two/a: cannot be read"):
        data_identity.of_files([DataFile("two/a")])


def test_of_very_many_files_some_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrain.task.data import data_identity

    monkeypatch.setattr(data_identity, "MOST", 3)
    for i in range(9):
        Path(f"{i}").write_bytes(bytes([i]) * 10)
    before = digest("?")
    seen = []
    for i in range(9):
        flip(f"{i}", 5)
        seen += [i] if digest("?") != before else []
        flip(f"{i}", 5)
    assert seen == [0, 4, 8]


def test_arrays() -> None:
    def of(*parts: Any) -> str:
        return str(nest.digest(parts).hexdigest())

    x = np.arange(12).reshape(3, 4)
    same = [x, x.copy(), np.asfortranarray(x)]
    assert len({of(each) for each in same}) == 1
    others = [
        x, x.astype(np.int32), x.reshape(4, 3), x + (x == 5), {"a": x}, {"b": x}, (x, x),
        np.array(["a", "bc"], object), np.array(["ab", "c"], object), np.array([b"a", b"c"]),
        Ragged.of([[1, 2], [3]]), Ragged.of([[1], [2, 3]]),
    ]  # fmt: skip
    assert len({of(each) for each in others}) == len(others)
    assert of(np.array(["é"], object)) == of(np.array(["é".encode()], object))
    assert of(x, x) != of(x)


class Python(Source):
    def __init__(self, x: Any):
        self.x = np.asarray(x)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, indices: np.ndarray) -> Any:
        return self.x[indices], indices


class Filed(Python):
    """Of a file, whatever its examples are."""

    def __init__(self, name: str, n: int = 4):
        super().__init__(np.zeros(n))
        self.files = [DataFile(name)]

    @property
    def info(self) -> Info:
        return Info(files=lambda: self.files)


def record(source: Any) -> dict[str, Any]:
    from dtrain.task.data import data_identity

    return data_identity.records(Splits(source))["train"]


def test_records_of_sources() -> None:
    import tensorflow as tf

    from dtrain.data.streams import Stream
    from dtrain.task.data import data_identity

    x = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    found = record(Arrays({"a": x, "b": np.array(["t"] * 1000)}, np.arange(1000)))
    assert found["examples"] == 1000
    assert found["structure"] == "({a: float32 [3], b: text}, int64)"
    assert len(found["digest"]) == 32
    changed = x.copy()
    left_out = np.setdiff1d(np.arange(1000), data_identity.sampled(1000, 256))
    changed[left_out[100], 1] += 1
    last = x.copy()
    last[999] += 1
    for kind in (Arrays, Python):
        assert record(kind(x)) == record(kind(x.copy()))
        assert record(kind(x))["digest"] == record(kind(changed))["digest"], "256 of 1000"
        assert record(kind(x))["digest"] != record(kind(last))["digest"]
    shuffled = record(Python(x[::-1]))
    assert shuffled["digest"] != record(Python(x))["digest"]
    assert record(Subset(Python(x), np.arange(999)))["digest"] != record(Python(x))["digest"]

    def stream(values: Any) -> Any:
        return Stream(lambda: tf.data.Dataset.from_tensor_slices((values, values[:, 0])))

    one = record(stream(x))
    assert one["structure"] == "(float32 [3], float32)"
    assert one["digest"] == record(stream(x.copy()))["digest"]
    assert one["digest"] != record(stream(x[::-1]))["digest"]
    assert one["digest"] != record(stream(x[:999]))["digest"], "and its length, where it is known"


def test_rows_of_different_lengths_have_a_record() -> None:
    """Training refuses them in a sentence, where nothing says to what they are padded."""

    class Rows(Python):
        def __getitem__(self, indices: np.ndarray) -> Any:
            return Ragged.of([np.full(n, n) for n in self.x[indices]]), indices

    found = record(Rows([1, 3, 2]))
    assert found["structure"] == "(int64 [None], int64)"
    assert found["digest"] != record(Rows([1, 2, 3]))["digest"]


def test_a_sample_of_many_files_is_bounded() -> None:
    """Each start of each task reads it."""
    from dtrain.task.data import data_identity

    count = 0

    class Large(DataFile):
        def size(self) -> int:
            return 1 << 30

        def open(self) -> Any:
            class Opened(io.BytesIO):
                def read(self, size: int | None = -1) -> bytes:
                    nonlocal count
                    count += size or 0
                    return b""

            return Opened()

    for number, most in ((1, 16), (64, 1024), (3000, 1024)):
        count = 0
        data_identity.of_files([Large(f"{n}") for n in range(number)])
        assert count == most * BYTES


def test_records_of_files_and_mixtures() -> None:
    for name in ("a", "b"):
        Path(name).write_bytes(os.urandom(100))
    from dtrain.task.data import data_identity

    found = data_identity.records(Splits(Filed("a"), Filed("a", 2)))
    assert found["train"]["digest"] != found["validation"]["digest"]

    def mixed(x: Any, weights: Any = (1, 1)) -> str:
        return str(record(Mixture([Filed("a"), Python(x)], weights))["digest"])

    zeros = np.zeros(4)
    assert mixed(zeros) == mixed(zeros)
    assert mixed(zeros) != mixed(np.array([0.0, 0, 0, 1])), "the member that is of no file, too"
    before = mixed(zeros)
    flip("a", 7)
    assert mixed(zeros) != before
    flipped = record(Concatenated([Python(zeros), Filed("a")]))["digest"]
    assert flipped != record(Concatenated([Filed("a"), Python(zeros)]))["digest"], "another order"


def test_another_encoding_is_other_data() -> None:
    Path("a.csv").write_bytes("x,y\n\u00fc,0\n\u00f6,1\n".encode("latin-1"))
    digests = [
        record(datasets.table("a.csv", encoding=encoding).train)["digest"]
        for encoding in (None, "latin-1", "cp1250")
    ]
    assert len(set(digests)) == 3


def test_an_image_in_another_class_is_other_data() -> None:
    from PIL import Image

    for number, name in enumerate("aabb"):
        Path("pets", name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(f"pets/{name}/{number}.png")
    before = record(datasets.image_folder("pets", [4, 4], validation_split=0).train)
    Path("pets/a/1.png").rename("pets/b/1.png")  # where it is in the same place of all
    after = record(datasets.image_folder("pets", [4, 4], validation_split=0).train)
    assert before["digest"] != after["digest"]


class Checkpoint:
    def __init__(self, meta: dict[str, Any]):
        self.meta = meta


def test_data_of_before() -> None:
    from dtrain.task.data import data_identity

    records = {
        split: {"examples": 9, "structure": "s", "digest": "a"} for split in ("train", "validation")
    }

    def check(past: Any, **options: bool) -> str | None:
        options = {"accepted": False, "forked": False, **options}
        return data_identity.check_past(records, past, **options)

    quiet: list[Any] = [
        None, Checkpoint({}), Checkpoint({"data": records}),
        Checkpoint({"data": {"train": records["train"]}}),
        Checkpoint({"data": {"test": records["train"]}}),
    ]  # fmt: skip
    assert [check(past) for past in quiet] == [None] * len(quiet)
    other = Checkpoint({"data": {**records, "validation": {**records["train"], "digest": "b"}}})
    with pytest.raises(UsageError, match="dataset=validation: the data has other content when the"):
        check(other)
    fewer = Checkpoint({"data": {"train": {**records["train"], "digest": "b", "examples": 8}}})
    with pytest.raises(UsageError, match="has 9 examples, where it was 8 examples when the check"):
        check(fewer)
    both = Checkpoint(
        {"data": {**fewer.meta["data"], "validation": {**records["train"], "digest": "b"}}}
    )
    with pytest.raises(
        UsageError, match="dataset=train, validation: the train data has 9 examples"
    ):
        check(both)
    for options in ({"accepted": True}, {"forked": True}):
        ends = "where it was 8 examples; the validation data has other content"
        assert str(check(both, **options)).endswith(ends)
        assert check(fewer, **options) == "the train data has 9 examples, where it was 8 examples"


def hosts(*records: dict[str, Any]) -> list[str | None]:
    """Let each task compare its records with those of the others; return what each refuses."""
    from dtrain.task.data import data_identity
    from tests.thread_tasks import thread_tasks, together

    chief = Task("chief", 0, 1)
    workers = [Task("worker", i, 1) for i in range(len(records) - 1)]
    cluster = Cluster((chief, *workers, Task("ps", 0, 0, serves=True)), "cpu", len(records), {})

    def refused(tasks: Any) -> str | None:
        try:
            data_identity.check_hosts(records[tasks.rank], tasks, cluster)
        except UsageError as error:
            return str(error)
        return None

    calls = [functools.partial(refused, tasks) for tasks in thread_tasks(len(records))]
    return together(*calls)


def split(digit: str, examples: int | None = 9) -> dict[str, Any]:
    return {"examples": examples, "structure": "s", "digest": digit * 32}


@pytest.mark.parametrize("tasks", [2, 3])
def test_hosts_with_other_data(tasks: int) -> None:
    """Every task ends, and names the same one."""
    base = {"train": split("f"), "validation": split("0")}
    assert hosts(base) == [None]
    assert hosts(*[base] * tasks) == [None] * tasks
    assert hosts(*[{"train": split("a", None)}] * tasks) == [None] * tasks
    cases = [
        ({"train": split("e")}, "training data is not the chief's: this task has other content"),
        ({"train": split("a", 1200)}, "has 1,200 examples, where the chief has 9 examples"),
        ({"train": split("f", None) | {"digest": "x"}}, "has an unknown number of examples, where"),
        ({"train": split("a") | {"structure": "t"}}, "has examples of t, where the chief has exam"),
        ({"validation": split("1")}, "validation data is not the chief's: this task has other"),
        ({"test": split("1")}, "test data is not the chief's: this task has 9 examples, where"),
        ({"validation": None}, "this task has 0 examples, where the chief has 9 examples"),
    ]  # fmt: skip
    for changed, text in cases:
        other = {name: each for name, each in {**base, **changed}.items() if each is not None}
        found = hosts(*[base] * (tasks - 1), other)
        assert len(set(found)) == 1
        assert found[0] is not None
        assert f"dataset=worker-{tasks - 2}: " in found[0]
        assert text in found[0]
        first = hosts(other, *[base] * (tasks - 1))[0]
        assert first is not None
        assert "dataset=worker-0: " in first
