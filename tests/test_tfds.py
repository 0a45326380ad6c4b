"""What TensorFlow Datasets has prepared; the referee is ``tfds.data_source`` itself."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.datasets.records import Prepared
from dtrain.errors import UsageError

BUILDER = '''
import sys

import numpy as np
import tensorflow_datasets as tfds


class TinyThings(tfds.core.GeneratorBasedBuilder):
    """A few things of each kind."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features
        return tfds.core.DatasetInfo(
            builder=self,
            features=features.FeaturesDict({
                "image": features.Image(shape=(6, 5, 3)),
                "label": features.ClassLabel(names=["ant", "bee", "cat"]),
                "text": features.Text(),
                "vec": features.Tensor(shape=(4,), dtype=np.float32),
                "packed": features.Tensor(shape=(2,), dtype=np.int32, encoding="zlib"),
                "tokens": features.Sequence(np.int64),
                "number": np.int32,
                "flag": features.Scalar(np.bool_),
                "nested": {"a": np.int32},
                "free": features.Image(shape=(None, None, 1)),
                "boxes": features.Sequence({"box": features.BBoxFeature()}),
            }),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, manager):
        return {"train": self._some(30, 0), "test": self._some(7, 1)}

    def _generate_examples(self):
        """Replaced by :meth:`_some`."""

    def _some(self, count, seed):
        draw = np.random.default_rng(seed)
        for i in range(count):
            yield i, {
                "image": draw.integers(0, 255, (6, 5, 3), np.uint8), "label": i % 3,
                "text": f"\\u00e9 {i}", "vec": draw.normal(size=4).astype("f4"),
                "packed": np.array([i, 2], np.int32), "tokens": np.arange(i % 4),
                "number": i, "flag": i % 2 == 0, "nested": {"a": i},
                "free": draw.integers(0, 255, (3 + i % 2, 4, 1), np.uint8),
                "boxes": [{"box": tfds.features.BBox(0.0, 0.0, 0.5, 1.0)}] * (i % 3),
            }


config = tfds.download.DownloadConfig(num_shards=3)
for file_format in ("array_record", "tfrecord"):
    made = TinyThings(data_dir=f"{sys.argv[1]}/{file_format}", file_format=file_format)
    made.download_and_prepare(download_config=config)
'''
WANTED = np.array([7, 7, 0, 29, 3, 4, 5, 2, 28])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of datasets for each format of files."""
    folder = tmp_path_factory.mktemp("tfds")
    (folder / "make.py").write_text(BUILDER)
    work = folder / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, str(folder / "make.py"), str(folder / "data")], capture_output=True,
        text=True, cwd=work,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "data"


@pytest.fixture
def data(prepared: Path) -> str:
    return str(prepared / "array_record")


def referee(data: str, split: str = "train") -> list[dict[str, Any]]:
    """Return the examples as the package itself gives them."""
    import tensorflow_datasets as tfds

    logging.getLogger("absl").setLevel(logging.ERROR)  # that there is no OpenCV
    source = tfds.data_source("tiny_things", split=split, data_dir=data, download=False)
    return [source[index] for index in range(len(source))]


def read(source: Any, indices: Any) -> tuple[Any, ...]:
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.reading import take

    return take(source, tf.constant(np.asarray(indices, np.int64)))


@pytest.mark.task
def test_examples_are_those_of_the_package(data: str) -> None:
    expected = referee(data)
    splits = datasets.tfds("tiny_things", data_dir=data, validation="test")
    assert (len(splits.train), len(splits.validation)) == (30, 7) and splits.count_classes() == 3
    images, labels = read(splits.train, WANTED)
    for image, label, row in zip(images, labels, WANTED, strict=True):
        np.testing.assert_array_equal(image, expected[row]["image"] / np.float32(255))
        assert label == expected[row]["label"]
    assert images.dtype.name == "float32" and labels.dtype.name == "int64"
    for index, example in enumerate(referee(data, "test")):
        image, label = read(splits.validation, [index])
        np.testing.assert_array_equal(image[0], example["image"] / np.float32(255))
        assert label[0] == example["label"]


@pytest.mark.task
def test_features_of_each_kind(data: str) -> None:
    expected = referee(data)
    splits = datasets.tfds(
        "tiny_things:1.0.0", data_dir=data, validation_split=0, target="flag",
        inputs={"v": "vec", "t": "text", "i": "free", "p": "packed", "tokens": "tokens"},
        weight="flag", images={"free": [2, 2, 1]},
    )  # fmt: skip
    train = splits.train.padded({"tokens": {"length": 3, "value": -1}})
    x, y, weight = read(train, WANTED)
    for at, row in enumerate(WANTED):
        example = expected[row]
        assert np.array_equal(x["v"][at], example["vec"])
        assert np.array_equal(x["p"][at], example["packed"])
        assert int(y[at]) == float(weight[at]) == example["flag"]
        assert x["t"][at].numpy() == example["text"]
        assert x["tokens"][at].numpy().tolist() == [*example["tokens"], -1, -1, -1][:3]
    assert x["i"].shape == (9, 2, 2, 1)
    words = datasets.tfds("tiny_things", data_dir=data, target="text", inputs="vec")
    assert words.count_classes() == 30


def test_what_the_folder_says(data: str) -> None:
    found = Prepared("tiny_things", data, "train")
    assert list(found.columns) == sorted(found.columns)
    assert found.refused == dict.fromkeys(("boxes", "nested"), "holds features, or lists of lists")
    assert found.supervised == ("image", "label") and found.classes == {"label": 3}
    assert found.images == {"image": [6, 5, 3], "free": None}
    train = datasets.tfds("tiny_things", data_dir=data).train
    files = [Path(file.name).name for file in train.info.files()]
    assert files == [f"tiny_things-train.array_record-0000{n}-of-00003" for n in range(3)]
    assert "tensorflow" not in sys.modules


@pytest.mark.task
def test_parts_of_splits(data: str) -> None:
    labels = [example["number"] for example in referee(data)]
    halves = datasets.tfds(
        "tiny_things", "train[:40%]", "train[40%:]", data, "number", "vec", validation_split=0
    )
    for part, rows in ((halves.train, slice(12)), (halves.validation, slice(12, None))):
        assert read(part, np.arange(len(part)))[1].numpy().tolist() == labels[rows]
    part = datasets.tfds("tiny_things", "train[10:]", None, data, "number", "vec")
    assert (len(part.train), len(part.validation)) == (16, 4)
    found = [*part.train.info.labels(), *part.validation.info.labels()]
    assert sorted(found) == sorted(labels[10:])


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        datasets.tfds(*arguments, **options)
    return str(caught.value)


def test_what_is_refused(data: str, tmp_path: Path) -> None:
    for arguments, options, expected in (
        (("nothing",), {}, f"dataset.builder=nothing: cannot be read from {data} (train: Could no"),
        (("tiny_things:2.0.0",), {}, "dataset.builder=tiny_things:2.0.0: cannot be read from"),
        (("huggingface:x/y",), {}, "dataset.builder=huggingface:x/y: cannot be read from"),
        (("tiny_things", "trian"), {}, "dataset.builder=tiny_things: cannot be read from"),
        (("tiny_things",), {"validation": "tset"}, "dataset.builder=tiny_things: cannot be read"),
        (("tiny_things",), {"inputs": "free"}, "dataset.images=null: the images free have diff"),
        (("tiny_things",), {"inputs": "boxes"}, "dataset.inputs=boxes: holds features, or lists"),
        (("tiny_things",), {"data_dir": str(tmp_path)}, "dataset.builder=tiny_things: cannot be"),
    ):  # fmt: skip
        found = refusal(*arguments, **{"data_dir": data, **options})
        assert found.startswith(expected), found
        assert "\n" not in found
    assert "Unknown split 'trian'" in refusal("tiny_things", "trian", data_dir=data)


def test_a_folder_that_is_damaged(prepared: Path, data: str, tmp_path: Path) -> None:
    packed = refusal("tiny_things", data_dir=str(prepared / "tfrecord"))
    assert "Random access data source for file format FileFormat.TFRECORD is not" in packed
    copied = tmp_path / "data"
    shutil.copytree(data, copied)
    folder = copied / "tiny_things" / "1.0.0"
    [last] = folder.glob("*train*-00002-*")
    last.unlink()
    assert "there is no such file" in refusal("tiny_things", data_dir=str(copied))
    (folder / "features.json").write_text("{")
    assert "cannot be read from" in refusal("tiny_things", data_dir=str(copied))


def test_a_run(data: str, dtrain: Any) -> None:
    run = dtrain(
        "model=cnn", "model.filters=[4]", "dataset=tfds", "dataset.builder=tiny_things",
        f"dataset.data_dir={data}", "dataset.validation=test", "trainer.batch_size=10",
        "trainer.epochs=1", "tracking=none",
    )  # fmt: skip
    assert run.code == 0, run.output + run.log
    assert run.result["step"] == 3 and run.result["examples"] == 30


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_datasets.core", None)
    assert refusal("tiny_things").endswith('type: pip install "dtrain[tfds]"')
