"""The functions through which all of Keras draws random numbers.

No public hook is on the way from a layer to its draw: seeds are made inside of layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtrain.task.keras_internals.model import (
    ONE_REPLICA,
    module,
    parameters,
    unknown,
)

MODULE = "keras.src.backend.tensorflow.random"
#: What these functions must look like for a replica to draw its rows of the global batch.
PARAMETERS = {
    "dropout": ["inputs", "rate", "noise_shape", "seed"],
    "uniform": ["shape", "minval", "maxval", "dtype", "seed"],
    "normal": ["shape", "mean", "stddev", "dtype", "seed"],
    "truncated_normal": ["shape", "mean", "stddev", "dtype", "seed"],
    "randint": ["shape", "minval", "maxval", "dtype", "seed"],
    "categorical": ["logits", "num_samples", "dtype", "seed"],
    "gamma": ["shape", "alpha", "dtype", "seed"],
    "binomial": ["shape", "counts", "probabilities", "dtype", "seed"],
    "beta": ["shape", "alpha", "beta", "dtype", "seed"],
    "shuffle": ["x", "axis", "seed"],
}
#: What these functions make of their argument ``seed``.
SEEDS = ("draw_seed", "_cast_seed")


def functions(name: str = MODULE) -> Any:
    """Return the module, whose functions are as in :data:`PARAMETERS`.

    Raises:
        TrainingError: one is not.
    """
    owner = module(name)
    for each, expected in {**{each: ["seed"] for each in SEEDS}, **PARAMETERS}.items():
        if parameters(getattr(owner, each, None)) != expected:
            raise unknown(f"draws random numbers ({name}.{each})", ONE_REPLICA)
    return owner


def seed_of(owner: Any, seed: Any) -> Any:
    """Return the tensor that a function of ``owner`` makes of its argument ``seed``."""
    return owner._cast_seed(owner.draw_seed(seed))


def replace(owner: Any, name: str, wrapped: Callable[..., Any]) -> None:
    """Put ``wrapped`` in the place of a function of the module."""
    setattr(owner, name, wrapped)
