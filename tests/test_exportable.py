"""Models of all kinds as functions with names, and each format of them against Keras."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.errors import UsageError
from dtrain.run import exports
from dtrain.run.exports import Version
from tests.configs import section
from tests.sampled import sampled

SHIPPED = {"mlp": (8, 8), "cnn": (8, 8), "resnet": (8, 8), "transformer": (12,)}
CONVERTED = ("savedmodel", "onnx", "litert")


def prepared(model: Any, x: Any, rows: int = 70) -> tuple[Any, Any]:
    """Return a model as it is exported, and a sample of random examples.

    Args:
        model: built.
        x: a nest of arrays.
        rows: how many examples there are, those of ``x`` again and again.
    """
    from dtrain.config.node import Node
    from dtrain.data import nest
    from dtrain.data.sources import Arrays, Splits
    from dtrain.export import formats, sample

    x = nest.mapped(lambda leaf: np.resize(leaf, (rows, *leaf.shape[1:])), x)
    splits = Splits(Arrays(x, np.zeros(rows)), None, 2)
    config: Any = Node(trainer=section("trainer"))
    named = formats.named(model, splits, config)
    return named, sample.sample_of(named, splits)


def made(named: Any, folder: Path, names: tuple[str, ...] = CONVERTED) -> dict[str, Any]:
    """Write formats of a model, and return each as a function."""
    from dtrain.export import formats, main
    from dtrain.run.exports import FORMATS

    folder.mkdir(exist_ok=True)
    paths = {n: folder / FORMATS[n].files[-1] for n in ("savedmodel", *names)}
    for name, path in paths.items():
        formats.write(named, name, path, folder)
    return {
        name: main.onnx_run(paths[name]) if name == "onnx"
        else formats.load(name, paths[name], lambda: named)
        for name in names
    }  # fmt: skip


def quiet() -> None:
    import warnings

    # Of the converters' own use of TensorFlow and NumPy.
    warnings.simplefilter("ignore")


@pytest.mark.task
@pytest.mark.parametrize("name", sampled(["resnet", "transformer"], "resnet"))
def test_shipped(tmp_path: Path, name: str) -> None:
    import keras

    from dtrain import models
    from dtrain.export import sample

    quiet()
    keras.utils.set_random_seed(1)
    shape = SHIPPED[name]
    draw = np.random.default_rng(0)
    x = draw.integers(0, 9, (70, *shape)) if name == "transformer" else draw.random((70, *shape))
    named, examples = prepared(getattr(models, name)(shape, 9), x)
    for run in made(named, tmp_path).values():
        assert sample.compared(run, examples) < 1e-6
    assert list(named.specs) == ["inputs"]
    assert named.names()[2] == ["outputs"]


@pytest.mark.task
def test_weights_of_fewer_bits(tmp_path: Path) -> None:
    import keras

    from dtrain import models
    from dtrain.errors import TrainingError
    from dtrain.export import sample
    from dtrain.run.exports import FORMATS

    quiet()
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).random((70, *SHIPPED["mlp"]))
    named, examples = prepared(models.mlp(SHIPPED["mlp"], 9, units=[256, 256]), x)
    names = ("litert", "litert_float16", "litert_int8")
    runs = made(named, tmp_path, names)
    found = [sample.compared(runs[name], examples, FORMATS[name].limit) for name in names]
    assert found[0] < 1e-6 < found[1] < found[2], "rounded, the one more than the other"
    whole, half, quarter = ((tmp_path / FORMATS[n].files[0]).stat().st_size for n in names)
    assert half < 0.55 * whole and quarter < 0.3 * whole
    with pytest.raises(TrainingError, match=r"trained model by .*; at most 1e-05 may be"):
        sample.compared(runs["litert_int8"], examples)


@pytest.mark.task
def test_names(tmp_path: Path) -> None:
    import keras
    from keras import layers

    from dtrain.export import sample

    quiet()
    image, age = keras.Input((4, 4, 1), name="image"), keras.Input((1,), name="age", dtype="int32")
    both = layers.Concatenate()([layers.Flatten()(image), layers.Rescaling(0.1)(age)])
    kind = layers.Dense(3, activation="softmax", name="kind")(both)
    model = keras.Model([image, age], [kind, layers.Dense(1)(both)])
    draw = np.random.default_rng(0)
    x = {"image": draw.random((9, 4, 4, 1)), "age": draw.integers(0, 99, (9, 1))}
    named, examples = prepared(model, x)
    assert [(s.name, s.dtype.name, s.shape.as_list()) for s in named.specs.values()] == [
        ("age", "int32", [None, 1]),
        ("image", "float32", [None, 4, 4, 1]),
    ]
    assert named.names()[2] == ["kind", "output_1"]
    for run in made(named, tmp_path).values():
        found = run(examples.batch(5))
        assert found["kind"].shape == (5, 3) and found["output_1"].shape == (5, 1)
        assert sample.compared(run, examples) < 1e-6
    signature = named.signature(None)
    assert [each["name"] for each in signature["outputs"]] == ["kind", "output_1"]


@pytest.mark.task
def test_texts_and_preprocessing(tmp_path: Path) -> None:
    import keras
    from keras import layers

    from dtrain.errors import TrainingError
    from dtrain.export import formats, sample

    quiet()
    words, sizes = keras.Input((1,), name="words", dtype="string"), keras.Input((2,), name="sizes")
    split = layers.TextVectorization(output_sequence_length=4, vocabulary=["ein", "zwei", "drei"])
    normal = layers.Normalization(mean=[1.0, 2.0], variance=[4.0, 9.0])
    embedded = layers.Flatten()(layers.Embedding(6, 3)(split(words)))
    joined = layers.Concatenate()([embedded, normal(sizes)])
    model = keras.Model({"words": words, "sizes": sizes}, {"score": layers.Dense(2)(joined)})
    texts = np.array([["ein drei"], ["zwei\0"], [""], ["f\u00fcnf ein ein"]], object)
    named, examples = prepared(model, {"words": texts, "sizes": np.ones((4, 2))})
    examples.save(tmp_path / "sample.npz")
    loaded = sample.Sample.load(tmp_path / "sample.npz")
    assert loaded.inputs["words"].tolist() == examples.inputs["words"].tolist()
    run = made(named, tmp_path, ("savedmodel",))["savedmodel"]
    assert sample.compared(run, loaded) < 1e-6
    assert named.names()[2] == ["score"]
    for name, file in (("onnx", "model.onnx"), ("litert", "model.tflite")):
        with pytest.raises(TrainingError, match=r" has no operation for .*StaticRegex"):
            formats.write(named, name, tmp_path / file, tmp_path)
    known = layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    model = keras.Sequential([keras.Input((1,), name="word", dtype="string"), known])
    named, examples = prepared(model, np.array([["a"], ["b"], ["\u00fc"]], object))
    for run in made(named, tmp_path / "lookup").values():
        assert sample.compared(run, examples) == 0


@pytest.mark.task
def test_subclasses_and_what_cannot_be_compared(tmp_path: Path) -> None:
    import keras
    from keras import layers

    from dtrain.errors import TrainingError, UsageError
    from dtrain.export import sample

    quiet()

    class Pair(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, inputs: Any, training: bool = False) -> Any:
            first, second = inputs
            return {"sum": self.dense(first) + second, "sign": keras.ops.cast(second > 0, "int32")}

    draw = np.random.default_rng(0)
    x = (draw.normal(size=(8, 3)).astype("f4"), draw.normal(size=(8, 2)).astype("f4"))
    named, examples = prepared(Pair(), x)
    assert list(named.specs) == ["input_0", "input_1"]
    runs = made(named, tmp_path)
    for run in runs.values():
        assert sample.compared(run, examples) < 1e-6

    def changed(name: str, by: float) -> Any:
        def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            found = runs["savedmodel"](batch)
            return {**found, name: found[name] + np.asarray(by, found[name].dtype)}

        return run

    for name, by in (("sum", 1e-3), ("sign", 1), ("sum", np.nan)):
        with pytest.raises(TrainingError, match=f"output '{name}' differs from that"):
            sample.compared(changed(name, by), examples)
    with pytest.raises(TrainingError, match="its outputs are other, not"):
        sample.compared(lambda batch: {"other": batch["input_0"]}, examples)

    noise = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    plain = noise.call
    noise.call = lambda x, **mode: plain(x) + keras.random.normal(())
    with pytest.raises(UsageError, match="differs each time"):
        prepared(noise, x[0])


@pytest.mark.task
def test_a_class_of_the_users_own(tmp_path: Path) -> None:
    """Keras finds it in the model that is built anew."""
    import keras

    from dtrain.export import sample

    quiet()

    class Doubled(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return 2 * x

    model = keras.Sequential([keras.Input((3,)), Doubled(), keras.layers.Dense(2)])
    named, examples = prepared(model, np.ones((4, 3), "f4"))
    for run in made(named, tmp_path, ("keras", "weights")).values():
        assert sample.compared(run, examples) == 0


# A version appears whole, is added to, and is no other's; without TensorFlow


def record(folder: Path, *names: str) -> Any:
    """Write files of formats, and return their record."""
    formats = {}
    for name in names:
        last = exports.FORMATS[name].files[-1]
        if name == "savedmodel":
            (folder / "variables").mkdir(parents=True)
            (folder / "variables" / "data").write_text("numbers")
        (folder / last).write_text(name)
        files = exports.files(folder, name)
        size = sum(file["bytes"] for file in files.values())
        formats[name] = {
            "bytes": size, "files": files, "deviation": 0.0, "limit": 1e-5, "versions": {},
        }  # fmt: skip
    return {
        "step": 7, "digest": "d", "weights": "raw", "run": "r", "examples": 9, "formats": formats,
        "signature": {"inputs": [], "outputs": []},
    }  # fmt: skip


def published(path: Path, *names: str) -> Version:
    version = Version(path)
    version.aside.mkdir(parents=True)
    version.publish(record(version.aside, *names))
    return Version(path)


def test_a_version_appears_by_one_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[tuple[set[str], bool]] = []
    rename = os.rename

    def watched(source: Path, target: Path) -> None:
        renamed.append((set(os.listdir(source)), target.exists()))
        rename(source, target)

    monkeypatch.setattr(os, "rename", watched)
    found = published(tmp_path / "7", "savedmodel", "onnx")
    assert renamed == [({"variables", "saved_model.pb", "model.onnx", "export.json"}, False)]
    assert os.listdir(tmp_path) == ["7"]
    (tmp_path / "8").mkdir()
    with pytest.raises(UsageError, match="and no export of dtrain"):
        Version(tmp_path / "8")
    assert found.record is not None and sorted(found.record["formats"]) == ["onnx", "savedmodel"]
    assert found.record["formats"]["savedmodel"]["files"]["variables/data"]["bytes"] == 7


def test_a_format_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(tmp_path / "7", "onnx")
    before = (tmp_path / "7" / "export.json").read_bytes()
    order: list[str] = []
    rename = os.rename

    def watched(source: Path, target: Path) -> None:
        order.append(target.name)
        assert (tmp_path / "7" / "export.json").read_bytes() == before, "it is named last"
        rename(source, target)

    monkeypatch.setattr(os, "rename", watched)
    (tmp_path / "7" / "variables").mkdir()  # of an export that was killed
    found = published(tmp_path / "7", "savedmodel")
    assert order == ["variables", "saved_model.pb"], "what makes it complete comes last"
    assert found.record is not None and list(found.record["formats"]) == ["onnx", "savedmodel"]
    assert {"model.onnx", "saved_model.pb"} < set(os.listdir(tmp_path / "7"))
    assert os.listdir(tmp_path) == ["7"]
