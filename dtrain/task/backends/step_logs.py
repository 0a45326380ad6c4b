"""What a step of Keras' takes and returns: batches, logs, the results of metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator

import keras

from dtrain.task.aliases import Nest, Tensor

#: What a step may return beside its ``loss``: of how much the loss is the mean, as of how many
#: tokens. Without it a loss of an evaluation counts for each example of its batch.
LOSS_WEIGHT = "loss_weight"


def has_own(model: keras.Model, *methods: str) -> bool:
    """Whether a class of the user's has any of these methods of its own, and not Keras'.

    With a ``train_step`` or ``test_step`` it says itself what a step is, and what its results are.
    """
    return any(getattr(type(model), name) is not getattr(keras.Model, name) for name in methods)


def evaluates(model: keras.Model) -> bool:
    """Whether there is anything to evaluate by: a ``test_step`` of its own, or a loss."""
    own = has_own(model, "test_step", "compute_loss")
    return own or model.loss is not None or bool(model.losses)


def unwrapped(data: Nest) -> Nest:
    """Return a batch as Keras gives it to a step: inputs alone are no tuple.

    As ``keras.utils.pack_x_y_sample_weight`` does.
    """
    return data[0] if isinstance(data, tuple) and len(data) == 1 else data


def flattened(logs: Nest) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and values that a step returned; a dict in it gives its own names."""
    for name, value in (logs or {}).items():
        if isinstance(value, dict):
            yield from flattened(value)
        else:
            yield name, value


def named(name: str, result: Nest) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and values of a metric's result: of a dict its own, at any depth.

    Of several numbers, such as an F1 score for each class, each has its index in its name.
    """
    if isinstance(result, dict):
        for key, value in result.items():
            yield from named(key, value)
    elif len(getattr(result, "shape", ())) > 0:
        numbers = keras.ops.reshape(result, [-1])
        [count] = numbers.shape
        for index in range(count):
            yield f"{name}_{index}" if count > 1 else name, numbers[index]
    else:
        yield name, result


def tensor(value: Tensor) -> Tensor:
    """Return a number of a step as a tensor, also where it is a variable of Keras'."""
    return value.value if isinstance(value, keras.Variable) else keras.ops.convert_to_tensor(value)


def is_loss(name: str) -> bool:
    """Whether a number of this name is summed over the replicas where losses are.

    A word of it is ``loss``, as in ``d_loss`` and ``TotalLoss``; ``lossless`` is another.
    """
    words = re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return any(word.lower() in ("loss", "losses") for word in words)


def is_mean(metric: keras.metrics.Metric) -> bool:
    """Whether it is the mean of numbers that it is given, and not of a function of predictions."""
    wrapper = keras.metrics.MeanMetricWrapper
    return isinstance(metric, keras.metrics.Mean) and not isinstance(metric, wrapper)


def leaves(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the metrics of a model; of those of ``compile`` each."""
    metrics: list[keras.metrics.Metric] = []
    for metric in model.metrics:
        metrics += getattr(metric, "metrics", None) or [metric]
    return metrics


def adds_up(metric: keras.metrics.Metric) -> bool:
    """Whether the state after two batches is the sum of the states after each.

    ``adds_up`` of a class is its author's word;
    :mod:`dtrain.task.backends.unsummed` tries the others, and sets it.
    Metrics of Keras' own do, and have no such attribute.
    """
    return bool(getattr(metric, "adds_up", True))
