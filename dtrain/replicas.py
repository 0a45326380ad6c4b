"""What a model's own loss, metric or ``train_step`` may ask of the replicas, inside a step."""

from __future__ import annotations

import keras

from dtrain.errors import refuse
from dtrain.task.aliases import Tensor
from dtrain.task.backends.runtime import runtime


def gather(x: Tensor) -> Tensor:
    """Return the rows of all replicas, in the order of the examples of the global batch.

    Each replica's step has its part of the global batch. A loss that looks across the examples
    (contrastive pairs, the hardest of a batch, Dice over a batch) gathers what it looks at, and is
    then that of the global batch, with its gradients: each replica computes the whole loss, and
    the mean of their gradients is the gradient of that loss. Gather everything that the loss
    compares, labels and weights as well; of two views of the examples each by itself, for the two
    together would be in another order.

    What is gathered counts on each replica. So a metric that is a mean or a ratio is right when it
    is made of gathered values; one that counts or adds counts everything once a replica.

    Args:
        x: a dense tensor ``[n, ...]`` of real numbers or booleans, ``n`` rows of this replica.

    Returns:
        ``[N, ...]``, the rows of all replicas. ``x`` itself on one replica, on a mesh (which has
        one batch), in an evaluation (where a batch goes whole to one replica), and outside of
        dtrain's steps.

    Raises:
        UsageError: the replicas cannot meet: they are workers of parameter servers, or this is
            inside a branch, a loop or a ``tf.function`` of the step's own; or ``x`` has no rows
            to be gathered.
    """
    return _exchanged("gather", x)


def sum(x: Tensor) -> Tensor:
    """Return the sum of the replicas' values: of what a replica counts, that of the global batch.

    Each replica's step has its part of the global batch. ``sum(part) / sum(number)`` of two sums
    over a replica's examples is the ratio over those of the global batch, on each replica, with its
    gradients.

    Args:
        x: a dense tensor of numbers, of one shape on all replicas; a scalar, say.

    Returns:
        The sum. ``x`` itself on one replica, on a mesh, in an evaluation and outside of dtrain's
        steps.

    Raises:
        UsageError: as :func:`gather`.
    """
    return _exchanged("sum", x)


def mean(x: Tensor) -> Tensor:
    """Return the mean of the replicas' values: what a loss of a replica divides by.

    The losses of the replicas are averaged. So a loss that is divided by how many of its examples,
    tokens or pixels count, ``sum(losses * mask) / mean(sum(mask))``, is that of the global batch.

    Args:
        x: as of :func:`sum`; whole numbers have a mean of float32.

    Returns:
        The mean; else as :func:`sum`.

    Raises:
        UsageError: as :func:`gather`.
    """
    return _exchanged("mean", x)


def _exchanged(name: str, x: Tensor) -> Tensor:
    if isinstance(x, keras.KerasTensor):
        refuse("model", "is called while a functional model is put together, and never again",
               f"dtrain.replicas.{name}", accepted="a call in a loss, a train_step or a layer's "
               "call", typed="strategy=one_device")  # fmt: skip
    return runtime().exchange(name, x)
