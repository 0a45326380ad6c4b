"""Loads a logged model for ``mlflow.pyfunc``: a SavedModel, or a program of ``torch.export``.

A copy of this file lies in each logged model: whoever loads that needs TensorFlow or PyTorch,
NumPy and MLflow, and not dtrain. Here nothing imports it.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

#: The folder of the model itself in that of MLflow, and the signature of a SavedModel.
FOLDER, SIGNATURE = "model", "serving_default"
#: A program, and what dtrain knows of it.
PROGRAM, RECORD = os.path.join(FOLDER, "model.pt2"), "export.json"
#: Examples that are computed at once, at most: no more of them have to be in memory.
_ROWS = 1024
#: As Keras' TextVectorization: ASCII letters become small, and punctuation goes.
_STANDARD: dict[int, str | None] = {ord(c): None for c in "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'"}
_STANDARD |= {ord(c): c.lower() for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


class Model(ABC):
    """A model as MLflow calls it."""

    #: Types and shapes of the inputs, by name; of texts ``object``.
    inputs: dict[str, tuple[Any, Any]]

    @abstractmethod
    def call(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a batch, by name."""

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:
        """Return the outputs for examples.

        Args:
            data: a mapping of names to arrays ``[n, ...]``, or a DataFrame with a column for each
                input; of a single input also its array ``[n, ...]``.
            params: of no meaning here.

        Returns:
            Arrays ``[n, ...]`` by name, or the one array of a single output. Texts are ``str``.

        Raises:
            ValueError: an input is missing, or is no array of its type.
        """
        feeds = {name: self._array(name, value) for name, value in self._named(data).items()}
        batch = next(iter(self.inputs.values()))[1][0]
        count = len(next(iter(feeds.values())))
        cuts = range(0, count, _ROWS) if batch is None and count else (0,)
        size = _ROWS if batch is None else count
        parts = [
            self.call({name: value[begin : begin + size] for name, value in feeds.items()})
            for begin in cuts
        ]
        outputs = {
            name: np.concatenate([_texts(part[name]) for part in parts]) for name in parts[0]
        }
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def _named(self, data: Any) -> dict[str, Any]:
        """Return what each input gets."""
        names = list(self.inputs)
        if hasattr(data, "columns"):  # of a DataFrame
            columns = list(data.columns)
            if len(names) == 1 and names != columns:
                return {names[0]: data.to_numpy()}
            data = {name: data[name].to_list() for name in names if name in columns}
        if not isinstance(data, dict):
            if len(names) > 1:
                raise ValueError(f"the model has the inputs {', '.join(names)}: give them by name")
            return {names[0]: data}
        missing = [name for name in names if name not in data]
        if missing:
            raise ValueError(f"the input {missing[0]!r} is missing, of {', '.join(names)}")
        return {name: data[name] for name in names}

    def _array(self, name: str, value: Any) -> np.ndarray:
        dtype, shape = self.inputs[name]
        try:
            array = np.asarray(value).astype(dtype)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the input {name!r} takes {dtype} {shape}: {error}") from error
        return array[:, None] if array.ndim == 1 and len(shape) == 2 and shape[1] == 1 else array


class SavedModel(Model):
    """A SavedModel.

    Args:
        folder: of the logged model.
    """

    def __init__(self, folder: str):
        import tensorflow as tf

        self._tf = tf
        # ORDER: the signature alone does not keep the variables.
        self._loaded = tf.saved_model.load(os.path.join(folder, FOLDER))
        self._call = self._loaded.signatures[SIGNATURE]
        _, self._specs = self._call.structured_input_signature
        self.inputs = {
            name: (
                object if spec.dtype == tf.string else np.dtype(spec.dtype.as_numpy_dtype),
                spec.shape.as_list(),
            )
            for name, spec in self._specs.items()
        }

    def call(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a batch, by name."""
        tensors = {n: self._tf.constant(v, self._specs[n].dtype) for n, v in arrays.items()}
        return {name: value.numpy() for name, value in self._call(**tensors).items()}


class Program(Model):
    """A program of ``torch.export``, of which the columns of a table are encoded here.

    Args:
        folder: of the logged model.
    """

    def __init__(self, folder: str):
        import torch

        self._torch = torch
        with open(os.path.join(folder, RECORD)) as file:
            record = json.load(file)
        program = torch.export.load(os.path.join(folder, PROGRAM))
        self._named_arguments = bool((program.example_inputs or ((), {}))[1])
        self._module = program.module(check_guards=False)
        inputs, self._encoding = record["signature"]["inputs"], record.get("encoding")
        self._outputs = [each["name"] for each in record["signature"]["outputs"]]
        self._columns = {each["columns"][0]: each["name"] for each in inputs if "columns" in each}
        self.inputs = {
            each["name"]: (
                object if each["dtype"] == "string" else np.dtype(each["dtype"]), each["shape"]
            )
            for each in inputs
        }  # fmt: skip

    def call(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a batch, by name."""
        torch = self._torch
        if self._encoding:
            arrays = {"inputs": self._matrix(arrays)}
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        with torch.no_grad():
            if self._named_arguments:
                returned = self._module(**tensors)
            else:
                returned = self._module(*tensors.values())
        leaves = [each.numpy() for each in _leaves(returned)]
        return dict(zip(self._outputs, leaves, strict=True))

    def _matrix(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """Return the matrix of a table, as the training made it."""
        parts = []
        for feature in self._encoding["features"]:
            cells = arrays[self._columns[feature["name"]]][:, 0]
            if feature["kind"] not in ("category", "text"):
                parts.append((cells - np.asarray(feature["offset"], cells.dtype))[:, None])
                continue
            cells, values = _texts(cells), feature["values"]
            places = {value: at for at, value in enumerate(values)}
            if feature["kind"] == "category":
                parts.append(np.array([[1 + places.get(text, -1)] for text in cells], float))
                continue
            has = np.zeros((len(cells), len(values)))
            for row, text in enumerate(cells):
                for word in str(text).translate(_STANDARD).split():
                    if word in places:
                        has[row, places[word]] = 1.0
            parts.append(has)
        return np.concatenate(parts, axis=1).astype(np.float32)


def _leaves(value: Any) -> list[Any]:
    """Return the tensors of what a module returns, in the order of their names."""
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in _leaves(each)]
    return [] if value is None else [value]


def _texts(value: np.ndarray) -> np.ndarray:
    """Return texts as such: TensorFlow has bytes."""
    if value.dtype.kind != "O":
        return value
    texts = [
        each.decode(errors="replace") if isinstance(each, bytes) else each
        for each in value.reshape(-1).tolist()
    ]
    return np.asarray(texts, object).reshape(value.shape)


def _load_pyfunc(path: str) -> Model:
    """Load a model; MLflow calls this."""
    is_program = os.path.isfile(os.path.join(path, PROGRAM))
    return Program(path) if is_program else SavedModel(path)
