"""Loads the SavedModel of a logged model for ``mlflow.pyfunc``.

A copy of this file lies in each logged model: whoever loads that needs TensorFlow, NumPy and
MLflow, and not dtrain. Here nothing imports it.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

#: The folder of the SavedModel in that of the model, and the signature that is called.
FOLDER, SIGNATURE = "model", "serving_default"
#: Examples that are computed at once, at most: no more of them have to be in memory.
_ROWS = 1024


class SavedModel:
    """A SavedModel as MLflow calls it.

    Args:
        folder: of the logged model.
    """

    def __init__(self, folder: str):
        import tensorflow as tf

        self._tf = tf
        # ORDER: the signature alone does not keep the variables.
        self._loaded = tf.saved_model.load(os.path.join(folder, FOLDER))
        self._call = self._loaded.signatures[SIGNATURE]
        _, self._inputs = self._call.structured_input_signature

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
        feeds = {name: self._tensor(name, value) for name, value in self._named(data).items()}
        batch = next(iter(self._inputs.values())).shape[0]
        count = int(next(iter(feeds.values())).shape[0])
        cuts = range(0, count, _ROWS) if batch is None and count else (0,)
        size = _ROWS if batch is None else count
        parts = [
            self._call(**{name: value[begin : begin + size] for name, value in feeds.items()})
            for begin in cuts
        ]
        outputs = {
            name: np.concatenate([_array(part[name].numpy()) for part in parts])
            for name in parts[0]
        }
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def _named(self, data: Any) -> dict[str, Any]:
        """Return what each input gets."""
        names = list(self._inputs)
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

    def _tensor(self, name: str, value: Any) -> Any:
        spec = self._inputs[name]
        try:
            array = np.asarray(value)
            if spec.dtype == self._tf.string:
                return self._tf.constant(array.astype(object), spec.dtype)
            return self._tf.constant(array.astype(spec.dtype.as_numpy_dtype), spec.dtype)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the input {name!r} takes {spec.dtype.name} {spec.shape}: {error}"
            ) from error


def _array(value: np.ndarray) -> np.ndarray:
    """Return texts as such: TensorFlow has bytes."""
    if value.dtype.kind != "O":
        return value
    texts = [each.decode(errors="replace") for each in value.reshape(-1).tolist()]
    return np.asarray(texts, object).reshape(value.shape)


def _load_pyfunc(path: str) -> SavedModel:
    """Load a model; MLflow calls this."""
    return SavedModel(path)
