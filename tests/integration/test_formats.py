"""The same rows in every format: the same losses, each example as often as it should be seen."""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
import json
import math
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import warm
from tests.conftest import Commands, Run
from tests.sampled import sampled

EXAMPLES, HELD, FEATURES = 90, 30, 8
USER = '''
import os
import pathlib
import signal

import keras
import numpy as np
import tensorflow as tf

import dtrain.models

EXAMPLES = 90


def plain(input_shape, classes=None, units=(), dropout=0.0, l2=0.0, outputs=None):
    """The model without what normalises columns."""
    return dtrain.models.mlp(input_shape, classes, units, dropout, l2, outputs)


def loss(y_true, y_pred):
    """The label of an example is its number: its class is that modulo 4."""
    return keras.losses.sparse_categorical_crossentropy(y_true % 4, y_pred)


@keras.saving.register_keras_serializable()
class Seen(keras.metrics.Metric):
    """How often each example was there."""

    def __init__(self, name="seen", **kwargs):
        super().__init__(name=name, **kwargs)
        self.count = self.add_variable((EXAMPLES,), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        index = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
        self.count.assign(self.count + tf.reduce_sum(tf.one_hot(index, EXAMPLES), 0))

    def result(self):
        counts = tf.unstack(tf.convert_to_tensor(self.count))
        return {f"seen_{i}": count for i, count in enumerate(counts)}


class DieAt(keras.callbacks.Callback):
    """Kills its task after as many steps of this life as ``die`` names."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        die = pathlib.Path("die")
        if die.exists() and self.steps == int(die.read_text()):
            os.kill(os.getpid(), signal.SIGKILL)


def rows():
    found = np.load("rows.npz")
    return found["x"], found["y"], found["xv"], found["yv"]


class Map:
    """As PyTorch's and Grain's random access datasets are."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Py(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return -(-len(self.x) // 7)

    def __getitem__(self, index):
        part = slice(7 * index, 7 * index + 7)
        return self.x[part], self.y[part]


def arrays():
    x, y, xv, yv = rows()
    return (x, y), (xv, yv)


def map_style():
    x, y, xv, yv = rows()
    return Map(x, y), Map(xv, yv)


def py_dataset():
    x, y, xv, yv = rows()
    return Py(x, y), Py(xv, yv)


def generator():
    x, y, xv, yv = rows()
    return lambda: zip(x, y), lambda: zip(xv, yv)


def tf_data():
    x, y, xv, yv = rows()
    slices = tf.data.Dataset.from_tensor_slices
    return slices((x, y)).batch(11), slices((xv, yv)).batch(4)
'''
BASE = (
    "tracking=none",
    "model=mlp",
    "model.units=[16]",
    "model.classes=4",
    "trainer.batch_size=12",
    "trainer.epochs=3",
    "trainer.steps_per_epoch=8",  # 96 examples: an epoch ends inside of a pass
    "trainer.log_every_steps=1",
    "trainer.loss={_target_:mine.loss}",
    "trainer.metrics=[{_target_:mine.Seen}]",
    "trainer.callbacks=[{_target_:mine.DieAt}]",
    "objective=val_loss",
    "objective_mode=min",
    "checkpoint.every_epochs=null",
    "checkpoint.every_steps=4",
    "launcher.stall_timeout=120",
)
ONE = ("strategy=one_device",)
MIRRORED_4 = ("strategy=mirrored", "hardware.devices=4")
MIRRORED_3 = ("strategy=mirrored", "hardware.devices=3")
HOSTS_2 = ("strategy=multiworker", "hardware.hosts=2")
PLACES = {"1 replica": ONE, "4 replicas": MIRRORED_4, "2 hosts": HOSTS_2}
KILLED = {f"{name}, killed": overrides for name, overrides in PLACES.items()}


def made() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    index = np.arange(EXAMPLES)
    x = generator.standard_normal((EXAMPLES, FEATURES)).astype(np.float32)
    x += (index % 4 - 1.5)[:, None].astype(np.float32) / 4
    return x, index


@pytest.fixture
def rows(user_code: Any) -> tuple[np.ndarray, ...]:
    """Write the rows as ``rows.npz``, whose order every other format has."""
    user_code(USER)
    x, y = made()
    np.savez("rows.npz", x=x, y=y, xv=x[:HELD], yv=y[:HELD])
    return x, y


def npz(x: np.ndarray, y: np.ndarray) -> list[str]:
    return ["dataset=npz", "dataset.path=rows.npz", "dataset.validation_inputs=xv",
            "dataset.validation_target=yv"]  # fmt: skip


def npy(x: np.ndarray, y: np.ndarray) -> list[str]:
    for name, part in (("a", slice(0, 40)), ("b", slice(40, None))):
        np.save(f"x-{name}.npy", x[part])
        np.save(f"y-{name}.npy", y[part])
    np.save("xv.npy", x[:HELD])
    np.save("yv.npy", y[:HELD])
    return ["dataset=npy", "dataset.path=x-*.npy", "dataset.target=y-*.npy",
            "dataset.validation=xv.npy", "dataset.validation_target=yv.npy"]  # fmt: skip


def table(x: np.ndarray, y: np.ndarray, write: Callable[[Any, str], None], ending: str) -> None:
    """Write the rows as files of tables, one column a list of numbers."""
    import pyarrow as pa

    for name, part in (("a", slice(0, 40)), ("b", slice(40, None)), ("held", slice(0, HELD))):
        rows = x[part]
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), FEATURES)
        write(pa.table({"x": column, "y": y[part]}), f"{name}.{ending}")


def parquet(x: np.ndarray, y: np.ndarray) -> list[str]:
    import pyarrow.parquet as pq

    table(x, y, lambda made, path: pq.write_table(made, path, row_group_size=7), "parquet")
    return ["dataset=parquet", "dataset.path=[a.parquet,b.parquet]", "dataset.target=y",
            "dataset.validation=held.parquet"]  # fmt: skip


def arrow(x: np.ndarray, y: np.ndarray) -> list[str]:
    from pyarrow import feather

    table(x, y, lambda made, path: feather.write_feather(made, path, chunksize=7), "arrow")
    return ["dataset=arrow", "dataset.path=[a.arrow,b.arrow]", "dataset.target=y",
            "dataset.validation=held.arrow"]  # fmt: skip


def huggingface(x: np.ndarray, y: np.ndarray) -> list[str]:
    import datasets

    def split(part: slice) -> Any:
        return datasets.Dataset.from_dict({"x": list(x[part]), "y": y[part]})

    made = {"train": split(slice(None)), "validation": split(slice(0, HELD))}
    datasets.DatasetDict(made).save_to_disk("hf")
    return ["dataset=huggingface", "dataset.path=hf", "dataset.target=y",
            "dataset.validation=validation", "dataset.pad={x:{length:8}}"]  # fmt: skip


def write_records(path: str, x: Any, y: Any) -> None:
    import tensorflow as tf
    from array_record.python import array_record_module

    with contextlib.closing(
        tf.io.TFRecordWriter(path)
        if path.endswith(".tfrecord")
        else array_record_module.ArrayRecordWriter(path, "group_size:1")
    ) as writer:
        for row, label in zip(x, y, strict=True):
            made = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=row)),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=made))
            writer.write(example.SerializeToString())


def records(kind: str) -> Callable[..., list[str]]:
    def written(x: np.ndarray, y: np.ndarray) -> list[str]:
        for name, part in (("a", slice(0, 40)), ("b", slice(40, None)), ("held", slice(0, HELD))):
            path = str(Path(f"{name}.{kind}").absolute())
            warm.call(write_records, 1, {"path": path, "x": x[part], "y": y[part]})
        features = "{x:{dtype:float32,shape:[8]},y:{dtype:int64,shape:[]}}"
        return [f"dataset={kind}", f"dataset.path=[a.{kind},b.{kind}]", "dataset.target=y",
                f"dataset.features={features}", f"dataset.validation=held.{kind}"]  # fmt: skip

    return written


def tar_files(x: np.ndarray, y: np.ndarray) -> list[str]:
    for name, part in (("a", slice(0, 40)), ("b", slice(40, None)), ("held", slice(0, HELD))):
        with tarfile.open(f"{name}.tar", "w") as file:
            for row, label in zip(x[part], y[part], strict=True):
                held = io.BytesIO()
                np.save(held, row)
                for extension, data in (("npy", held.getvalue()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{label:04}.{extension}")
                    member.size = len(data)
                    file.addfile(member, io.BytesIO(data))
    return ["dataset=huggingface", "dataset.path=[a.tar,b.tar]", "dataset.target=cls",
            "dataset.inputs=npy", "dataset.validation=held.tar"]  # fmt: skip


def csv(x: np.ndarray, y: np.ndarray) -> list[str]:
    """Write two tables: of several files, one is made in the cache."""
    head = ",".join(f"f{i}" for i in range(FEATURES)) + ",label"
    for name, part in (("a", slice(0, 40)), ("b", slice(40, None))):
        lines = [
            ",".join([*(repr(float(v)) for v in row), str(label)])
            for row, label in zip(x[part], y[part], strict=True)
        ]
        Path(f"{name}.csv").write_text("\n".join([head, *lines]) + "\n")
    # It has no files of its own to evaluate on.
    return ["dataset=csv", "dataset.path=[a.csv,b.csv]", "dataset.validation_split=0",
            "objective=loss", "model._target_=mine.plain"]  # fmt: skip


BUILDER = '''
import sys

import numpy as np
import tensorflow_datasets as tfds


class Rows(tfds.core.GeneratorBasedBuilder):
    """The rows."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "x": tfds.features.Tensor(shape=(8,), dtype=np.float32),
            "y": tfds.features.Scalar(np.int64),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("x", "y"),
            disable_shuffling=True,
        )

    def _split_generators(self, manager):
        found = np.load(sys.argv[1])
        return {
            "train": self._some(found["x"], found["y"]),
            "test": self._some(found["xv"], found["yv"]),
        }

    def _generate_examples(self):
        """Replaced by :meth:`_some`."""

    def _some(self, xs, ys):
        for index, (x, y) in enumerate(zip(xs, ys)):
            yield index, {"x": x, "y": y}


Rows(data_dir=sys.argv[2], file_format="array_record").download_and_prepare()
'''


def tfds(x: np.ndarray, y: np.ndarray) -> list[str]:
    Path("make.py").write_text(BUILDER)
    Path("work").mkdir()
    command = [sys.executable, "../make.py", "../rows.npz", "../tfds"]
    done = subprocess.run(command, cwd="work", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return ["dataset=tfds", "dataset.builder=rows", "dataset.data_dir=tfds",
            "dataset.validation=test"]  # fmt: skip


def own(function: str) -> Callable[..., list[str]]:
    return lambda x, y: ["dataset=custom", f"dataset._target_=mine.{function}"]


#: Formats with random access: each writes its files, and returns its overrides.
FORMATS: dict[str, Callable[..., list[str]]] = {
    "npz": npz,
    "npy": npy,
    "parquet": parquet,
    "arrow": arrow,
    "huggingface": huggingface,
    "tfrecord": records("tfrecord"),
    "tar files": tar_files,
    "array_record": records("array_record"),
    "tfds": tfds,
    "csv": csv,
    "arrays": own("arrays"),
    "map style": own("map_style"),
    "PyDataset": own("py_dataset"),
}
STREAMS = {"generator": own("generator"), "tf.data": own("tf_data")}


def trained(dtrain: Commands, *overrides: str) -> Run:
    run = dtrain(*BASE, *overrides)
    assert run.code == 0, run.output + run.log
    return run


#: Trainings that others are compared with: the same overrides train the same rows.
_known: dict[tuple[str, ...], Run] = {}


def known(dtrain: Commands, *overrides: str) -> Run:
    if overrides not in _known:
        _known[overrides] = trained(dtrain, *overrides)
    return _known[overrides]


def killed(dtrain: Commands, steps: int, *overrides: str) -> Run:
    """Train until the task is killed, and resume."""
    Path("die").write_text(str(steps))
    run = dtrain(*BASE, *overrides)
    assert run.code == 1, run.output + run.log
    Path("die").unlink()
    assert run.rundir is not None
    resumed = dtrain(f"resume={run.rundir.path}")
    assert resumed.code == 0, resumed.output + resumed.log
    return resumed


def steps_of(run: Run) -> list[list[int]]:
    """Return the examples of each step."""
    found = {
        e["step"]: [i for i in range(EXAMPLES) for _ in range(round(e["metrics"][f"seen_{i}"]))]
        for e in run.events("metrics")
        if "seen_0" in e["metrics"]
    }
    return [found[step] for step in sorted(found)]


def close(run: Run, other: Run, tolerance: float) -> None:
    for name in ("loss", "val_loss"):
        one, two = run.points(name), other.points(name)
        assert one.keys() == two.keys()
        for step, value in one.items():
            assert math.isclose(value, two[step], rel_tol=tolerance), (name, step, one, two)


@pytest.mark.parametrize("place", sampled(["1 replica", *KILLED], "1 replica"))
@pytest.mark.parametrize("name", sampled(FORMATS, "parquet", "map style"))
def test_every_format_trains_as_npz(name: str, place: str, dtrain, rows) -> None:
    x, y = rows
    one_order = "dataset.shuffle=examples"
    where = {**PLACES, **KILLED}[place]
    reference, overrides = npz(x, y), (*FORMATS[name](x, y), *where)
    if "objective=loss" in overrides:  # nothing is evaluated
        reference = [*reference[:2], "dataset.validation_split=0", "objective=loss"]
    expected = known(dtrain, *reference, *where, one_order)
    if place in KILLED:
        run = killed(dtrain, 10, *overrides, one_order)
    else:
        run = trained(dtrain, *overrides, one_order)
    assert steps_of(run) == steps_of(expected)
    close(run, expected, 1e-6)
    assert run.result["examples"] == 3 * 96


@pytest.mark.parametrize(
    ("name", "place"), sampled(itertools.product(STREAMS, PLACES), ("generator", "1 replica"))
)
def test_a_stream_trains_as_the_rows_in_order(name: str, place: str, dtrain, rows) -> None:
    x, y = rows
    expected = known(dtrain, *npz(x, y), *PLACES[place], "dataset.shuffle=none")
    run = killed(dtrain, 10, *STREAMS[name](x, y), *PLACES[place])
    found = steps_of(run)
    assert found == steps_of(expected)
    assert sorted(found[0]) == list(range(12)), "in order"
    close(run, expected, 1e-6)


@pytest.mark.parametrize("place", sampled(PLACES))
def test_images_in_folders_train_as_npz(place: str, dtrain, rows) -> None:
    """A folder for each label; a picture has eight levels of gray."""
    from PIL import Image

    x, y = rows
    levels = np.clip(x * 40 + 128, 0, 255).astype(np.uint8)
    for row, label in zip(levels, y, strict=True):
        folder = Path("pictures") / f"{label:03}"
        folder.mkdir(parents=True)
        Image.fromarray(row.reshape(2, 4)).save(folder / "0.png")
    images = (levels.astype(np.float32) / np.float32(255)).reshape(-1, 2, 4, 1)
    np.savez("images.npz", x=images, y=y)
    common = ("dataset.validation_split=0", "objective=loss", *PLACES[place])
    expected = trained(dtrain, "dataset=npz", "dataset.path=images.npz", *common)
    folder = ("dataset=image_folder", "dataset.path=pictures", "dataset.size=[2,4]",
              "dataset.channels=1")  # fmt: skip
    run = killed(dtrain, 10, *folder, *common)
    assert steps_of(run) == steps_of(expected)
    close(run, expected, 1e-6)


ORDERS = ("blocks", "mixture", "balanced")


@pytest.mark.parametrize("name", sampled([*ORDERS, *FORMATS, *STREAMS]))
def test_each_example_is_seen_as_often_as_it_should(name: str, dtrain, rows) -> None:
    """Over 4 passes, on 1, 3 and 4 replicas, through a kill and a change of the replicas."""
    x, y = rows
    made: dict[str, Callable[..., list[str]]] = {
        **FORMATS,
        **STREAMS,
        "blocks": lambda x, y: [*parquet(x, y), "dataset.shuffle=blocks", "dataset.window=3"],
        "mixture": mixture,
        "balanced": lambda x, y: [*npz(x, y), "dataset.balance=true"],
    }
    overrides = made[name](x, y)
    overrides = [*overrides, "trainer.steps_per_epoch=15", "trainer.batch_size=24",
                 "trainer.epochs=1", "checkpoint.every_steps=3"]  # fmt: skip
    expected = steps_of(trained(dtrain, *overrides, *ONE))
    assert [len(step) for step in expected] == [24] * 15
    counts = collections.Counter(i for step in expected for i in step)
    if name == "mixture":  # of 360 a quarter, 3 passes over 30, and 270 of 4.5 passes over 60
        assert {counts[i] for i in range(30)} == {3}
        assert {counts[i] for i in range(30, EXAMPLES)} == {4, 5}
        assert sum(counts[i] for i in range(30, EXAMPLES)) == 270
    else:  # 360 examples are 4 passes over 90; each label is a class of one example
        assert counts == {i: 4 for i in range(EXAMPLES)}
    for place in (MIRRORED_3, MIRRORED_4):
        assert steps_of(trained(dtrain, *overrides, *place)) == expected
    Path("die").write_text("7")
    run = dtrain(*BASE, *overrides, *MIRRORED_4)
    assert run.code == 1, run.output + run.log
    Path("die").unlink()
    assert run.rundir is not None
    resumed = dtrain(f"resume={run.rundir.path}", *MIRRORED_3)
    assert resumed.code == 0, resumed.output + resumed.log
    assert json.dumps(steps_of(resumed)) == json.dumps(expected)


def mixture(x: np.ndarray, y: np.ndarray) -> list[str]:
    np.savez("a.npz", x=x[:30], y=y[:30])
    np.savez("b.npz", x=x[30:], y=y[30:])
    members = ",".join(
        f"{n}:{{_target_:dtrain.datasets.npz,path:{n}.npz,validation_split:0}}" for n in "ab"
    )
    return ["dataset=mixture", f"dataset.members={{{members}}}", "dataset.weights={a:1,b:3}",
            "objective=loss"]  # fmt: skip
