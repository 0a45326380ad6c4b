"""Keras' Adam by fewer operations, to the same bits.

TensorFlow's fused kernel of Adam forms ``1 - beta_2`` in float32, and differs from Keras' numbers
by 1e-5. Here other fused kernels do parts of what Keras' ``update_step`` does, in its order of
rounding: ``x -= a * d`` for the two moments, ``w -= a * m / (sqrt(v) + e)`` for the weight. What is
the same for all weights, the step size with the correction of its bias, is computed once an update.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Tensor, Variable

#: Subclasses may do anything.
KINDS = (keras.optimizers.Adam, keras.optimizers.AdamW)
#: Of these Keras' constants round as the kernels' do.
TYPES = (tf.float32, tf.float64)


def shorten(optimizer: keras.optimizers.Optimizer) -> None:
    """Let ``optimizer`` update dense weights so, if it is Keras' Adam; else nothing changes."""
    if type(optimizer) not in KINDS or optimizer.amsgrad:
        return
    original, apply = optimizer.update_step, optimizer.apply
    rates: dict[object, tuple[tf.Tensor, tf.Tensor]] = {}
    updates: list[None] = []  # that are being traced, of each replica one

    def applied(*args: object, **kwargs: object) -> Foreign:
        rates.clear()  # each update has a step size of its own
        updates.append(None)
        try:
            return apply(*args, **kwargs)
        finally:
            updates.pop()

    def update_step(gradient: tf.Tensor, variable: Variable, learning_rate: tf.Tensor) -> None:
        plain = isinstance(gradient, tf.Tensor) and variable.dtype in TYPES
        if not (plain and updates):
            original(gradient, variable, learning_rate)
            return
        slots = keras_internals.adam_slots(optimizer, variable)
        # Weights may have learning rates of their own (finetune.learning_rates).
        graph = tf.compat.v1.get_default_graph()
        place = graph, variable.device, variable.dtype, id(learning_rate)
        if place not in rates:  # kept with its learning rate: else another could get that id
            rates[place] = learning_rate, _rate(optimizer, learning_rate, variable.dtype)
        _update(optimizer, gradient, variable, slots, rates[place][1])

    optimizer.apply, optimizer.update_step = applied, update_step


def _rate(optimizer: Foreign, learning_rate: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the step size, as Keras computes it for each weight."""
    step = tf.cast(optimizer.iterations + 1, dtype)
    powers = [tf.pow(tf.cast(beta, dtype), step) for beta in (optimizer.beta_1, optimizer.beta_2)]
    return tf.cast(learning_rate, dtype) * tf.sqrt(1 - powers[1]) / (1 - powers[0])


def _update(optimizer: Any, gradient: Tensor, variable: Variable, slots: Any, rate: Tensor) -> None:
    dtype = variable.dtype
    gradient = tf.cast(gradient, dtype)
    targets = gradient, tf.square(gradient)
    for slot, target, beta in zip(
        slots, targets, (optimizer.beta_1, optimizer.beta_2), strict=True
    ):
        tf.raw_ops.ResourceApplyGradientDescent(
            var=slot.handle, alpha=tf.constant(1 - beta, dtype), delta=slot - target
        )
    tf.raw_ops.ResourceApplyAdagradV2(
        var=variable.handle, accum=slots[1].handle, lr=rate,
        epsilon=tf.constant(optimizer.epsilon, dtype), grad=tf.convert_to_tensor(slots[0]),
        update_slots=False,
    )  # fmt: skip
