"""Probabilities of a model whose loss takes logits: what is predicted, exported and served."""

from __future__ import annotations

import weakref

import keras

from dtrain.data import nest
from dtrain.task.aliases import Foreign, Nest, Tensor
from dtrain.task.backends.step_logs import has_own
from dtrain.task.model.losses import part_of
from dtrain.task.model.named_metrics import LossInputs, inputs_of

#: What the losses of built models take, those of several outputs by their keys.
_TAKEN: weakref.WeakKeyDictionary[keras.Model, Foreign] = weakref.WeakKeyDictionary()


def note_logits(model: keras.Model, y: Nest, predicted: Nest) -> None:
    """Keep what the losses of a model take, by targets and outputs of an example.

    A step of the model's own says itself what its loss is: its outputs stay as they are.
    """
    if model.loss is None or predicted is None or has_own(model, "train_step", "compute_loss"):
        return
    if not nest.is_nest(predicted):
        _TAKEN[model] = inputs_of(model.loss, y, predicted)
        return
    names = getattr(model, "output_names", None) or ()
    keys = predicted if isinstance(predicted, dict) else range(len(predicted))
    _TAKEN[model] = {
        key: inputs_of(part_of(model.loss, key, names), part_of(y, key, names), predicted[key])
        for key in keys
    }


def probabilities(model: keras.Model, outputs: Nest) -> Nest:
    """Return outputs, those that are logits as probabilities."""
    taken = _TAKEN.get(model)
    if taken is None or isinstance(taken, LossInputs):
        return outputs if taken is None else _probabilities(taken, outputs)
    if isinstance(outputs, dict):
        return {key: _probabilities(taken[key], each) for key, each in outputs.items()}
    return type(outputs)(_probabilities(taken[at], each) for at, each in enumerate(outputs))


def is_probability(model: keras.Model) -> bool:
    """Whether each number that a model predicts is known to be a probability of its own."""
    taken = _TAKEN.get(model)
    return isinstance(taken, LossInputs) and taken.separate and taken.logits is not None


def _probabilities(takes: LossInputs, outputs: Tensor) -> Tensor:
    if not takes.logits or nest.is_nest(outputs):
        return outputs
    rank = len(outputs.shape)
    axis = takes.axis if -rank <= takes.axis < rank else -1
    if takes.separate or rank < 2 or outputs.shape[axis] == 1:
        return keras.ops.sigmoid(outputs)
    return keras.ops.softmax(outputs, axis)
