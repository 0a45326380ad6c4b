"""How many threads an operation has where the user does not say: decided before a run."""

from __future__ import annotations

import os

#: Variable by which a user gives TensorFlow the number.
VARIABLE = "TF_NUM_INTRAOP_THREADS"


def chosen(cores: int, replicas: int) -> int | None:
    """Return how many threads an operation has; None for TensorFlow's own choice, one a core.

    Where each core has a replica of its own (or there is one core), it is one thread: an operation
    is then computed where it was begun, and its parts are neither handed out nor waited for. With
    fewer replicas the best number is a matter of the model: ``experiment=speed`` compares some.

    A rule, and no measurement: the same on every start on a machine, so that a resumed run has the
    same bits.

    Args:
        cores: that one task has for itself.
        replicas: in this task.
    """
    return 1 if replicas >= cores else None


def are_given() -> bool:
    """Say whether the environment tells TensorFlow how many threads an operation has."""
    return bool(os.environ.get(VARIABLE))
