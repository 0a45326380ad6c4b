"""Outputs that are no probabilities, under a loss that takes them as such: a notice says so."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from dtrain.task import keras_internals
from dtrain.task.backends.step_logs import has_own

#: Losses of probabilities, by their names in small letters without underscores.
LOSSES = {
    name.lower(): name
    for name in (
        "BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy",
        "CategoricalFocalCrossentropy", "SparseCategoricalCrossentropy",
    )
}  # fmt: skip
#: Rounding, in 16 bits too.
TOLERANCE = 0.02


def notice(built: keras.Model, predicted: Any, configured: bool) -> str | None:
    """Return what is to be said of the outputs for an example; None where all is well.

    Args:
        built: compiled.
        predicted: what it returned for an example.
        configured: whether its loss is ``trainer.loss``, and not its own function's.
    """
    losses, outputs = keras.tree.flatten(built.loss), keras.tree.flatten(predicted)
    if has_own(built, "train_step", "compute_loss") or len(losses) != len(outputs):
        return None
    for loss, output in zip(losses, outputs, strict=True):
        name = _of_probabilities(loss)
        problem = None if name is None else _problem(name, np.asarray(output))
        if problem is None and name is not None and len(outputs) == 1:
            problem = _of_the_last_layer(built)
        if problem is not None:
            hint = f"keras.losses.{name}(from_logits=True)"
            if configured:
                hint = f"'trainer.loss={{_target_:keras.losses.{name},from_logits:true}}'"
            act = "sigmoid" if name and name.startswith("Binary") else "softmax"
            return (
                f"the loss {name} takes outputs for probabilities, and {problem}; type {hint} "
                f'where they are logits, or end the model with activation="{act}"'
            )
    return None


def _of_probabilities(loss: Any) -> str | None:
    """Return the name of the loss that ``loss`` is, if it takes probabilities."""
    if isinstance(loss, keras.losses.Loss):
        name, options = type(loss).__name__, loss.get_config()
    else:
        function = getattr(loss, "func", loss)
        name = loss if isinstance(loss, str) else getattr(function, "__name__", "")
        options = getattr(loss, "keywords", {})
        if not isinstance(loss, str) and not keras_internals.is_of_keras(function):
            return None
    return None if options.get("from_logits") else LOSSES.get(name.replace("_", "").lower())


def _problem(name: str, output: np.ndarray) -> str | None:
    """Return what of an example's outputs is no probability."""
    if output.dtype.kind != "f" or not output.size or not np.isfinite(output).all():
        return None
    value = output.astype(np.float64)
    worst = value.flat[np.abs(value - 0.5).argmax()]
    if abs(worst - 0.5) > 0.5 + TOLERANCE:
        return f"the model gives {worst:.4g} for an example"
    total = value.sum(-1).flat[0] if value.ndim > 1 and value.shape[-1] > 1 else 1
    if name.startswith("Binary") or abs(total - 1) <= TOLERANCE:
        return None
    return f"those of an example add up to {total:.4g}"


def _of_the_last_layer(built: keras.Model) -> str | None:
    """Return whether the layer of the only output is linear: an example may be within 0 and 1."""
    last = built.layers[-1] if built.layers and keras_internals.is_of_keras(built) else None
    if last is None or getattr(last, "activation", None) is not keras.activations.linear:
        return None
    return f"layer {last.name} has no activation"
