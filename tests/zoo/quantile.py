"""Quantile regression: three quantiles of one target, by the pinball loss."""

from __future__ import annotations

from keras import ops

from tests.zoo.parts import mlp, sgd

DATA = "lines"
QUANTILES = (0.1, 0.5, 0.9)


def pinball(y_true, y_pred):
    error = y_true - y_pred
    levels = ops.convert_to_tensor(QUANTILES)
    return ops.mean(ops.maximum(levels * error, (levels - 1.0) * error), axis=-1)


def model(input_shape, classes=None):
    built = mlp(input_shape, len(QUANTILES), None)
    built.compile(sgd(0.02), pinball, metrics=[pinball])
    return built
