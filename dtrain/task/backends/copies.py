"""What several replicas would not have alike: copies of weights, and what only one may do."""

from __future__ import annotations

import keras
import numpy as np

from dtrain.errors import UsageError

#: Copies of a weight are alike where they differ by so much of its largest element: devices of
#: several kinds may round otherwise.
COPIES = 1e-6


def check_alike(
    model: keras.Model, variable: keras.Variable, own: np.ndarray, other: np.ndarray
) -> None:
    """Refuse a model of which two replicas have other values of a weight.

    Raises:
        UsageError: naming the weight.
    """
    with np.errstate(invalid="ignore"):  # of what is not finite other checks tell
        differ = np.any(np.abs(other - own) > COPIES * np.max(np.abs(own), initial=0.0))
    if differ:
        why = (
            f"its step changes {variable.path} otherwise on each replica, as noise for weights does"
        )
        same = "changes by what tapes give and is the same on all replicas"
        raise one_replica(why, type(model).__name__, same)


def one_replica(why: str, value: str, accepted: str = "a model without it") -> UsageError:
    """Return the error of what several replicas would compute otherwise than one.

    Args:
        why, value: what it is, and of what, as of :class:`UsageError`.
        accepted: by several replicas.
    """
    return UsageError("model", why, value, accepted=f"{accepted}, or one replica",
                      typed="strategy=one_device")  # fmt: skip


def not_exchanged(name: str, kind: str, accepted: str) -> UsageError:
    """Return the error of a call of :mod:`dtrain.replicas` with what replicas do not exchange."""
    return one_replica(f"is given {kind}", f"dtrain.replicas.{name}", accepted)
