"""An evaluation step on some examples, before training, that changes nothing."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.task import keras_internals
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.unsummed import Trial


def trial(model: keras.Model) -> Trial:
    """Return what evaluates a batch, on the CPU and on one replica."""

    def evaluated(batch: Any, start: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        with tf.device("CPU:0"):
            metrics = [v for metric in model.metrics for v in metric.variables]
            mapping = []
            for variable in (*model.variables, *keras_internals.states(model), *metrics):
                value = start.get(id(variable), variable.numpy())
                mapping.append((variable, tf.cast(tf.constant(value), variable.dtype)))
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                model.test_step(unwrapped(nest.mapped(tf.convert_to_tensor, batch)))
            return {id(v): np.asarray(scope.get_current_value(v), np.float64) for v in metrics}

    return evaluated
