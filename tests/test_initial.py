"""``init``: which weight is loaded from what, files of Keras', and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.errors import UsageError

MODEL = [
    ("backbone/conv/kernel", "conv/kernel", 0, (3, 2)),
    ("backbone/conv/bias", "conv/bias", 1, (2,)),
    ("head/kernel", "head/kernel", 0, (2, 4)),
]
SAME = {"conv/kernel": (3, 2), "conv/bias": (2,), "head/kernel": (2, 4)}
FILE = {"backbone/conv/0": (3, 2), "backbone/conv/1": (2,), "head/0": (2, 4)}
OTHER = {"net/enc/0": (3, 2), "net/enc/1": (2,), "old/0": (2, 9)}
RULES = [
    {"path": "^backbone/conv", "as": "net/enc"},
    {"path": "^head/", "skip": True},
    {"path": "^old/", "skip": True},
]


def matched(source: dict[str, Any], rules: list[Any], **changed: Any) -> Any:
    from dtrain.task.model.initial import Wanted, match

    wanted = [Wanted(path, (name,), index, shape, path in changed.get("optional", ()))
              for path, name, index, shape in MODEL]  # fmt: skip
    found, left = match(wanted, source, rules, "SOURCE")
    return [each.source or each.why for each in found], left


CASES: list[tuple[dict[str, Any], list[Any], Any]] = [
    (SAME, [], (list(SAME), [])),
    (FILE, [], (list(FILE), [])),
    (OTHER, RULES, (["net/enc/0", "net/enc/1", "left out (init.rules)"], ["old/0"])),
    # The first rule that is found holds: what is not to be skipped stands before.
    (SAME, [{"path": "head", "skip": False}, {"path": "head", "skip": True}], (list(SAME), [])),
    (FILE, [{"path": r"(\w+)/kernel", "as": r"\1/0"}], (list(FILE), [])),
]
REFUSED: list[tuple[dict[str, Any], list[Any], str]] = [
    (OTHER, RULES[1:], "has nothing for backbone/conv/kernel (3 x 2), backbone/conv/bias (2);"),
    (OTHER, RULES[:1], 'has nothing for head/kernel (2 x 4); accepted: net/enc/0, net/enc/1,'),
    (OTHER, RULES[:2], "has old/0, which no weight of the model is loaded from"),
    ({**SAME, "head/kernel": (2, 9)}, [], "its head/kernel is 2 x 9, and head/kernel 2 x 4"),
    (SAME, [{"path": "^tail/", "skip": True}], "init.rules=^tail/: no weight of this model has"),
    (SAME, [{"path": "^tail/", "as": "head/"}], "init.rules=^tail/: no weight of this model has"),
    ({**SAME, "head/lora_kernel_a": (2, 1)}, [], "RUN_DIR/model.keras, where they"),
    ({**SAME, "head/scale": (2,)}, [], 'type: \'init.rules=[{path: "^head/scale$", skip: true}]\''),
]  # fmt: skip


@pytest.mark.task
def test_which_weight_is_loaded_from_what() -> None:
    for source, rules, expected in CASES:
        assert matched(source, rules) == expected
    some = {name: SAME[name] for name in list(SAME)[:2]}
    found, _ = matched(some, [], optional=["head/kernel"])
    assert found[2] == "new (finetune.lora)"
    for source, rules, words in REFUSED:
        with pytest.raises(UsageError) as caught:
            matched(source, rules)
        assert words in str(caught.value), str(caught.value)


def made(folder: Path) -> Any:
    """Save one model in all of Keras' ways; return it."""
    import keras
    from keras import layers

    inside = [keras.Input((4,)), layers.Dense(6, name="a"), layers.BatchNormalization()]
    inputs = keras.Input((4,))
    x = keras.Sequential(inside, name="backbone")(inputs)
    x = layers.Bidirectional(layers.LSTM(2))(layers.Reshape((3, 2))(x))
    model = keras.Model(inputs, layers.Dense(3, name="head")(x))
    model.compile("adam", "mse")
    for index, variable in enumerate(model.weights):
        variable.assign(np.full(variable.shape, index + 0.5))
    with warnings.catch_warnings():  # of NumPy about Keras' variables, of Keras about .h5
        warnings.simplefilter("ignore")
        model.save(folder / "m.keras")
        model.save_weights(folder / "m.weights.h5")
        model.save(folder / "m.h5")
        model.get_layer("backbone").save(folder / "s.h5")
    return model


@pytest.mark.task
def test_files_of_keras(tmp_path: Path) -> None:
    import h5py

    from dtrain.task.model import initial
    from dtrain.task.model.walk import weights
    from dtrain.task.strategies import Default

    model = made(tmp_path)
    expected = [variable.numpy().copy() for variable in model.weights]
    paths = [weight.path for weight in weights(model)]
    assert paths[0] == "backbone/a/kernel"
    assert "bidirectional/backward_lstm/lstm_cell/recurrent_kernel" in paths
    for name in ("m.keras", "m.weights.h5", "m.h5", "s.h5"):
        if name == "s.h5":
            model = model.get_layer("backbone")
            model.compile("adam", "mse")
            expected = expected[:6]
        for variable in model.weights:
            variable.assign(variable * 0)
        past = initial.find(str(tmp_path / name))
        assert (past.step, past.meta) == (0, {})
        table = initial.load(past, model, Default([]), [])
        n = len(expected)
        assert table.startswith(
            f"init.weights: {n} of {n} weights are loaded from {tmp_path}/{name}"
        )
        for value, variable in zip(expected, model.weights, strict=True):
            assert np.array_equal(value, variable), (name, variable.path)

    with h5py.File(tmp_path / "m.weights.h5", "a") as file:
        del file["layers/dense/vars/0"]
        file["layers/dense/vars"].create_dataset(
            "0", (4, 3), "f4", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)]
        )
    header = b'{"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}'
    eight = len(header).to_bytes(8, "little") + header + bytes(4)
    (tmp_path / "eight.safetensors").write_bytes(eight)
    (tmp_path / "bad.keras").write_bytes(b"PK")
    (tmp_path / "bad.h5").write_bytes(b"no")
    for name, words in (
        ("m.weights.h5", "layers/dense/vars/0 lies in another file"),
        ("eight.safetensors", "has a type of numbers that cannot be read"),
        ("bad.keras", "cannot be read"),
        ("bad.h5", "cannot be read"),
        ("m.txt", "is not there"),
    ):
        with pytest.raises(UsageError, match=words):
            initial.find(str(tmp_path / name))
