"""Each format as a function of arrays, run by its own runtime."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.config.schema import Config
from dtrain.host import python_path
from dtrain.run.exports import FORMATS
from dtrain.task.export.model import built, called
from dtrain.task.export.sample import Run

#: The signature that TensorFlow Serving calls.
SIGNATURE = "serving_default"


def savedmodel(folder: Path) -> Run:
    """Load a SavedModel: TensorFlow alone, none of the code that made the model."""
    loaded = tf.saved_model.load(folder)

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        found = loaded.signatures[SIGNATURE](**tensors)
        return {name: value.numpy() for name, value in found.items()}

    return run


def onnx(folder: Path) -> Run:
    """Load an ONNX file into onnxruntime."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # errors alone
    [name] = FORMATS["onnx"].files
    session = onnxruntime.InferenceSession(folder / name, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        texts = {name: _each(value, bytes.decode) for name, value in batch.items()}
        found = zip(names, session.run(names, texts), strict=True)
        return {name: _each(np.asarray(value), str.encode) for name, value in found}

    return run


def _each(value: np.ndarray, change: Callable[..., Any]) -> np.ndarray:
    """Return texts, changed one by one; they are bytes in TensorFlow, and not in onnxruntime."""
    return np.vectorize(change, otypes=[object])(value) if value.dtype.kind == "O" else value


def litert(folder: Path, name: str) -> Run:
    """Load a LiteRT file into its interpreter, which takes batches of any size.

    Args:
        folder: that the file is in.
        name: of the format.
    """
    from ai_edge_litert.interpreter import Interpreter

    [file] = FORMATS[name].files
    interpreter = Interpreter(model_path=str(folder / file))
    runner = interpreter.get_signature_runner(SIGNATURE)

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(runner(**batch))

    return run


def of_file(name: str) -> Callable[[Path], Run]:
    """Return what loads a format that needs nothing beside its files."""
    plain = {"savedmodel": savedmodel, "onnx": onnx}
    return plain.get(name) or functools.partial(litert, name=name)


def of_keras(
    classes: Mapping[str, str], structure: Any, outputs: Sequence[str]
) -> Callable[[Path], Run]:
    """Return what loads a ``.keras`` file, with the user's own classes as custom objects.

    Args:
        classes: of the model's layers, with their modules: those that are not Keras' own.
        structure: of the inputs, with their names.
        outputs: their names, in the order of the leaves.
    """

    def load(folder: Path) -> Run:
        python_path.offer()  # the classes may be of the current directory, or given from Python
        own = {name: getattr(importlib.import_module(module), name, None)
               for name, module in classes.items()}  # fmt: skip
        custom = {name: each for name, each in own.items() if each is not None}
        [name] = FORMATS["keras"].files
        # It has just been written here: the code in a Lambda layer is the user's.
        model = keras.saving.load_model(folder / name, custom, compile=False, safe_mode=False)
        return _run(model, structure, outputs)

    return load


def weights(config: Config, structure: Any, outputs: Sequence[str]) -> Callable[[Path], Run]:
    """Return what loads weights into a model that is built anew.

    Args:
        config: of the run.
        structure, outputs: as of :func:`of_keras`.
    """

    def load(folder: Path) -> Run:
        model, _ = built(config)
        [name] = FORMATS["weights"].files
        model.load_weights(folder / name)
        return _run(model, structure, outputs)

    return load


def _run(model: keras.Model, structure: Any, outputs: Sequence[str]) -> Run:
    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        leaves = [tf.constant(value) for value in batch.values()]
        found = called(model, structure, leaves, outputs)
        return {name: np.asarray(value.numpy()) for name, value in found.items()}

    return run
