"""SavedModels, as they are served."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from dtrain.errors import TrainingError
from dtrain.files.fields import Json
from dtrain.run.exports import SIGNATURE

_LONGEST = 300  # characters of TensorFlow's messages


def configure(threads: int) -> None:
    """Set up TensorFlow: the CPU alone, and the threads of a batch; 0: one on each core."""
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)


class Program:
    """A SavedModel, which computes arrays by name.

    Args:
        path: its folder.
        signature: of the export; empty where none is known.

    Attributes:
        inputs, outputs: names, types, shapes and columns.

    Raises:
        TrainingError: it cannot be loaded, or has no signature that is served.
    """

    platform = "tensorflow_savedmodel"
    #: Columns of a table are inputs of the model, which encodes them.
    takes_matrix = False

    def __init__(self, path: str, signature: Json):
        try:
            self._model = tf.saved_model.load(path)  # kept: its variables are in it
        except (OSError, ValueError, RuntimeError, tf.errors.OpError) as error:
            raise TrainingError(f"it cannot be loaded: {_text(error)}") from None
        if SIGNATURE not in self._model.signatures:
            names = ", ".join(self._model.signatures) or "none"
            raise TrainingError(f"it has the signatures {names}, and {SIGNATURE} is served")
        self._function = self._model.signatures[SIGNATURE]
        self._inputs = self._function.structured_input_signature[1]
        self.inputs = _listed(self._inputs, signature.get("inputs", []))
        self.outputs = _listed(self._function.structured_outputs, signature.get("outputs", []))

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a batch.

        Raises:
            ValueError: the model refuses the inputs.
            MemoryError: there is not enough memory.
        """
        try:
            tensors = {n: tf.constant(value, self._inputs[n].dtype) for n, value in arrays.items()}
            return {name: value.numpy() for name, value in self._function(**tensors).items()}
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            raise MemoryError(_text(error)) from None
        except tf.errors.InternalError as error:
            raise RuntimeError(_text(error)) from None
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise ValueError(_text(error)) from None


def _text(error: BaseException) -> str:
    """Return the problem in a message of TensorFlow's, without the trace around it."""
    lines = (getattr(error, "message", None) or str(error)).splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    plain = [line for line in lines if not line.startswith(
        ("Graph execution error", "Detected at", "File ", "[[", "1 root", "2 root", "(0)", "(1)")
    )]  # fmt: skip
    return ((plain or lines or [type(error).__name__])[-1].partition(" [[")[0])[:_LONGEST]


def _listed(specs: Mapping[str, tf.TensorSpec], exported: list[Json]) -> list[Json]:
    """Return names, types, shapes and columns, in the order of the export where that is known."""
    order = {each["name"]: each for each in exported}
    return [
        {"name": name, "dtype": specs[name].dtype.name,
         "columns": order.get(name, {}).get("columns", []),
         "shape": None if specs[name].shape.rank is None else specs[name].shape.as_list()}
        for name in (order if set(order) == set(specs) else sorted(specs))
    ]  # fmt: skip
