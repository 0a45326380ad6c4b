"""Folders of Hugging Face's datasets against what the package itself reads."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.api import tables
from dtrain.data.nest import Ragged
from dtrain.errors import DataError, UsageError
from tests.test_table_values import same

hf = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    hf.disable_progress_bars()


def png(value: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (5, 4), (value % 256, 10, 20)).save(file, "PNG")
    return file.getvalue()


def made(n: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    features = hf.Features({
        "row": hf.Value("int32"), "x": hf.Value("float32"), "y": hf.Value("float64"),
        "flag": hf.Value("bool"), "text": hf.Value("string"), "raw": hf.Value("binary"),
        "label": hf.ClassLabel(names=["cat", "dog", "eel"]), "image": hf.Image(),
        "matrix": hf.Array2D((2, 3), "float32"), "cube": hf.Array3D((None, 2, 2), "int16"),
        "list": hf.Sequence(hf.Value("int64")), "pair": hf.Sequence(hf.Value("float32"), length=2),
        "part": {"a": hf.Value("int64")},
    })  # fmt: skip
    return hf.Dataset.from_dict({
        "row": list(range(n)), "x": rng.random(n), "y": rng.random(n), "flag": rng.random(n) < 0.5,
        "text": [f"text {i} ß" for i in range(n)], "raw": [rng.bytes(i % 4) for i in range(n)],
        "label": rng.integers(0, 2, n),  # no eel
        "image": [{"bytes": png(i), "path": None} for i in range(n)],
        "matrix": rng.random((n, 2, 3)).astype("float32"),
        "cube": [rng.integers(-9, 9, (i % 3, 2, 2)).astype("int16") for i in range(n)],
        "list": [list(range(i % 4)) for i in range(n)],
        "pair": rng.random((n, 2)).astype("float32").tolist(), "part": [{"a": i} for i in range(n)],
    }, features=features)  # fmt: skip


NAMES = ["row", "x", "y", "flag", "text", "raw", "label", "image", "matrix", "cube", "list", "pair",
         "part.a"]  # fmt: skip


def refusal(**options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        datasets.huggingface(**{"path": "d", "target": "label", **options})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_all_columns_at_random_rows() -> None:
    whole = made(40).shuffle(seed=1)
    whole.save_to_disk("d", num_shards=3)
    splits = datasets.huggingface("d", "label", {n: n for n in NAMES}, validation_split=0)
    table = splits.train.table
    assert list(table.columns) == NAMES
    sent = pickle.loads(pickle.dumps(table))
    rows = np.random.default_rng(0).integers(0, 40, 100)
    reference = hf.load_from_disk("d").cast_column("image", hf.Image(decode=False))
    theirs = {name: [reference[int(r)][name.split(".")[0]] for r in rows] for name in NAMES}
    theirs["part.a"] = [each["a"] for each in theirs["part.a"]]
    theirs["image"] = [each["bytes"] for each in theirs["image"]]
    for each in (table, sent):
        found = each.read(rows, NAMES)
        for name in NAMES:
            values = found[name].values if isinstance(found[name], Ragged) else found[name]
            assert same(found[name], theirs[name]), name
            assert values.dtype == table.columns[name].dtype, name
    assert table.columns["matrix"].shape == (2, 3)
    assert table.columns["cube"].shape == (None, 2, 2)


def test_splits_and_classes() -> None:
    hf.DatasetDict(train=made(30), test=made(10, 1)).save_to_disk("d")
    splits = datasets.huggingface("d", "label", "x", validation="test")
    assert (len(splits.train), len(splits.validation)) == (30, 10)
    assert splits.count_classes() == 3, "the one that no row has among them"
    assert splits.validation[np.array([4])][0] == np.float32(made(10, 1)[4]["x"])
    apart = datasets.huggingface("d", "label", "x", train="test")
    assert (len(apart.train), len(apart.validation)) == (8, 2)
    assert datasets.huggingface("d", "y", "x").count_classes() is None
    assert datasets.huggingface("d", "flag", "x").count_classes() == 2
    assert datasets.huggingface("d", "label", "x", classes=7).count_classes() == 7
    message = refusal(inputs="x", train="tests")
    assert message == (
        "dataset.train=tests: d has no such split; accepted: train, test; type: dataset.train=test"
    )
    assert refusal(inputs="x", validation="dev").startswith(
        "dataset.validation=dev: d has no such split"
    )
    assert "is the split that is trained on" in refusal(inputs="x", validation="train")
    made(0).save_to_disk("none")  # which the package itself cannot read
    assert refusal(path="none").startswith("dataset.path=none: cannot be read as a dataset")


def test_one_dataset_has_no_splits() -> None:
    made(10).save_to_disk("d")
    assert len(datasets.huggingface("d", "label", "x").train) == 8
    assert refusal(train="test").startswith("dataset.train=test: d has no such split; acc")
    assert refusal(validation="test").startswith("dataset.validation=test: d has no such split")
    assert refusal(validation="train").startswith("dataset.validation=train: is the split that is")


CACHED = """
from pathlib import Path
import datasets as hf, numpy as np, pyarrow as pa, pyarrow.parquet as pq
from datasets.packaged_modules.parquet.parquet import Parquet
from dtrain import datasets
from dtrain.api import tables
from dtrain.errors import UsageError

x = np.arange(8.0)
pq.write_table(pa.table({"x": x, "kind": ["ab"[i % 2] for i in range(8)]}), "a.parquet")
pq.write_table(pa.table({"x": x[:3], "kind": ["b"] * 3}), "b.parquet")
files = {"train": "a.parquet", "test": "b.parquet"}
builder = Parquet(dataset_name="flowers", hash="0" * 40, data_files=files)
builder.download_and_prepare()
made = Path(builder.cache_dir)
# As load_dataset names it of a repository of the Hub, whose files have no hash.
made.parents[2].rename(made.parents[3] / "someone___flowers")
made = made.parents[3] / "someone___flowers"
next(made.iterdir()).rename(made / "default")
found = datasets.huggingface(
    None, "kind", "x", name="someone/flowers", validation="test"
)
inputs, y = found.validation[np.arange(3)]
assert inputs.ravel().tolist() == [0, 1, 2] and y.tolist() == [1, 1, 1] and len(found.train) == 8
try:
    datasets.huggingface(None, "kind", name="someone/trees")
except UsageError as error:
    print(error)
"""


def test_a_name_of_the_hub_is_read_from_the_cache() -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CACHED], capture_output=True, text=True, env=environment
    )
    assert done.stdout.startswith("dataset.name=someone/trees: is not in the package's cache"), (
        done.stderr
    )


def test_images_are_bytes_that_can_be_decoded() -> None:
    made(6).save_to_disk("d")
    splits = datasets.huggingface("d", "label", "image", images={"image": [4, 5, 3]})
    x, y = splits.train[np.array([0, 1])]
    assert x[0].startswith(b"\x89PNG") and y.dtype == np.int64


def test_labels_that_are_missing() -> None:
    features = hf.Features({"x": hf.Value("float32"), "label": hf.ClassLabel(names=["a", "b"])})
    rows = {"x": [1.0, 2.0, 3.0], "label": [0, -1, 1]}
    hf.Dataset.from_dict(rows, features=features).save_to_disk("d")
    splits = datasets.huggingface("d", "label", "x", validation_split=0)
    assert splits.train[np.array([0, 2])][1].tolist() == [0, 1]
    file = "d/data-00000-of-00001.arrow"
    with pytest.raises(DataError) as caught:
        splits.train[np.array([2, 1])]
    assert str(caught.value).endswith(f"{file}, row 1, column 'label': has no label (-1)")
    hf.Dataset.from_dict(rows | {"label": [0, None, 1]}, features=features).save_to_disk("e")
    with pytest.raises(UsageError, match=r"dataset\.target=label: is empty in .*row 1; "):
        datasets.huggingface("e", "label", "x", validation_split=0)


def test_folders_that_are_none() -> None:
    assert refusal(path="none").startswith("dataset.path=none: there is no such folder (looked in ")
    assert refusal(path="hf://datasets/x").startswith("dataset.path=hf://datasets/x: there is no ")
    Path("d").mkdir()
    assert refusal().startswith("dataset.path=d: cannot be read as a dataset of Hugging Face's (")
    made(10).save_to_disk("e")
    for name in ("state.json", "dataset_info.json"):
        before = Path("e", name).read_text()
        for text in ("", "{", "[]", "{}"):
            Path("e", name).write_text(text)
            try:
                assert len(datasets.huggingface("e", "label", "x").train) == 8
            except UsageError as error:
                assert "\n" not in str(error) and "dataset.path=e" in str(error)
        Path("e", name).write_text(before)
    state = json.loads(Path("e/state.json").read_text())
    data = Path("e", state["_data_files"][0]["filename"])
    data.write_bytes(data.read_bytes()[:-400])
    assert refusal(path="e", inputs="x").startswith("dataset.path=")
    os.remove(data)
    assert refusal(path="e", inputs="x").startswith("dataset.path=e: cannot be read as a dataset")


def test_the_package_is_imported_when_it_is_needed_and_asked_for_where_it_is_not_there() -> None:
    made(3).save_to_disk("d")
    code = (
        "import sys; from dtrain import datasets as d, errors\n"
        "assert 'datasets' not in sys.modules\n"
        "sys.modules['datasets'] = None\n"
        "try: d.huggingface('d', 'label')\n"
        "except errors.UsageError as error: print(error)\n"
        "del sys.modules['datasets']\n"
        "d.huggingface('d', 'label', 'x'); assert 'datasets' in sys.modules\n"
        "assert not {'tensorflow', 'torch', 'jax', 'keras'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("dataset=huggingface: ")
    assert done.stdout.endswith('; type: pip install "dtrain[hf]"\n')


def test_tar_files_of_examples() -> None:
    rows = np.random.default_rng(0).random((7, 2, 3)).astype(np.float32)
    for name, part in (("a", range(4)), ("b", range(4, 7))):
        with tarfile.open(f"{name}.tar", "w") as file:
            for i in part:
                array = io.BytesIO()
                np.save(array, rows[i])
                fields = json.dumps({"a": i / 2, "b": {"c": f"w{i}"}}).encode()
                members = {"npy": array.getvalue(), "cls": str(i % 2).encode(), "png": png(i)}
                members["json"] = fields
                for extension, data in members.items():
                    member = tarfile.TarInfo(f"{i:03}.{extension}")
                    member.size = len(data)
                    file.addfile(member, io.BytesIO(data))
    splits = datasets.huggingface(
        "*.tar", "cls", {"x": "npy", "i": "png", "a": "json.a", "c": "json.b.c"},
        validation_split=0.0,
    )  # fmt: skip
    x, y = splits.train[np.array([6, 0, 3])]
    assert np.array_equal(x["x"], rows[[6, 0, 3]]) and y.tolist() == [0, 0, 1]
    assert x["i"].tolist() == [png(i) for i in (6, 0, 3)]
    assert x["a"].tolist() == [3, 0, 1.5] and x["c"].tolist() == ["w6", "w0", "w3"]
    assert [file.name for file in splits.train.info.files()] == ["a.tar", "b.tar"]
    Path("b.tar").write_bytes(Path("b.tar").read_bytes()[:3000])
    with pytest.raises(UsageError, match="cannot be read as tar files of examples"):
        datasets.huggingface("b.tar", "cls")
    Path("b.tar").unlink()
    with pytest.raises(UsageError, match=r"^dataset.validation=b.tar: there is no such file"):
        datasets.huggingface("a.tar", "cls", validation="b.tar")


def test_a_dataset_that_a_caller_gives_is_stored_by_all_of_its_splits(tmp_path: Path) -> None:
    train = made(6)
    given = [hf.DatasetDict(train=train, validation=made(rows)) for rows in (3, 4, 4)]
    first, second, again = (tables.overrides(tmp_path, each) for each in given)
    assert first != second == again
    assert "dataset.validation=validation" in first
