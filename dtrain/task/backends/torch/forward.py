"""The function that predicts: rows in, columns out, of fixed batches."""

from __future__ import annotations

import functools
import threading
from typing import Any

import keras
import numpy as np
import torch

from dtrain.task.backends.host import HostForward, as_data
from dtrain.task.backends.torch.arrays import put
from dtrain.task.backends.torch.draws import Draws
from dtrain.task.backends.tracing import tracing

#: Held while a batch is predicted: what is drawn comes from one generator.
_predicting = threading.Lock()


class Forward(HostForward):
    """Predicts batches of one model, on the device of this process."""

    @functools.cached_property
    def _device(self) -> str:
        """The device of the model: that of Keras is known to the thread alone that chose it."""
        weights = self._model.variables
        return str(weights[0].value.device) if weights else "cpu"

    def _outputs(self, x: Any, numbers: np.ndarray) -> Any:
        draws = Draws(self._model, 0, 0)
        with _predicting, keras.device(self._device), torch.no_grad(), tracing(rows=None):
            self._model.eval()
            with draws.batch(int(numbers[0])):
                outputs = self._model.predict_step(as_data(put(x)))
        return keras.tree.map_structure(keras.ops.convert_to_numpy, outputs)
