"""Losses that layers add."""

from __future__ import annotations

import threading
from typing import Any

import keras

from dtrain.task.keras_internals.model import ONE_REPLICA, layers, unknown


def losses_of(layer: keras.Layer) -> Any:
    """Return the list in which a layer keeps the losses that it has added itself.

    Keras' public ``losses`` has those of the layers inside of it and of regularizers as well.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    losses = getattr(layer, "_losses", None)
    if not isinstance(losses, list | _Apart):
        raise unknown("keeps losses that layers add", ONE_REPLICA)
    return losses


def keep_losses_apart(model: keras.Model) -> None:
    """Let each replica see the losses that it has added itself (``add_loss``, activities), alone.

    Keras has one list of them in a layer. Replicas are traced in threads of their own that take
    turns where they meet, as over a variable that a call assigns (batch normalization does), and
    each would find the losses of those before it beside its own.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    for layer in layers(model):
        if not isinstance(losses_of(layer), _Apart):
            object.__setattr__(layer, "_losses", _Apart())
            if hasattr(layer, "_loss_ids"):  # which of the losses of a StatelessScope are its own
                object.__setattr__(layer, "_loss_ids", _IdsApart())


class _Apart:
    """A list for each thread, of which Keras, and :mod:`.remat`, use these methods."""

    def __init__(self) -> None:
        self._lists: dict[int, list[Any]] = {}

    def _own(self) -> list[Any]:
        return self._lists.setdefault(threading.get_ident(), [])

    def extend(self, losses: list[Any]) -> None:
        """Add ``losses``."""
        self._own().extend(losses)

    def clear(self) -> None:
        """Forget all."""
        self._own().clear()

    def __getitem__(self, index: Any) -> Any:
        return self._own()[index]

    def __delitem__(self, index: Any) -> None:
        del self._own()[index]

    def __len__(self) -> int:
        return len(self._own())


class _IdsApart:
    """A set for each thread."""

    def __init__(self) -> None:
        self._sets: dict[int, set[int]] = {}

    def _own(self) -> set[int]:
        return self._sets.setdefault(threading.get_ident(), set())

    def add(self, loss: int) -> None:
        """Add the id of a loss."""
        self._own().add(loss)

    def clear(self) -> None:
        """Forget all."""
        self._own().clear()

    def __contains__(self, loss: int) -> bool:
        return loss in self._own()
