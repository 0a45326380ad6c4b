"""Which weights are trained in which epoch: ``finetune.freeze`` and ``finetune.unfreeze``.

A layer all of whose weights are frozen is not trainable as Keras has it: batch normalisation in it
computes by its statistics, and leaves them as they are. Of other layers single weights are frozen.
Weights that are trained at any time have their slots from the beginning.
"""

from __future__ import annotations

import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.config.fine_tuning import FineTuning
from dtrain.config.schema import Config
from dtrain.errors import UsageError
from dtrain.task import keras_internals
from dtrain.task.backends.base import Backend
from dtrain.task.model import optimizers
from dtrain.task.model.finetune import weights
from dtrain.task.model.finetune.weights import Weight
from dtrain.task.model.path_rules import choose

FREEZE, UNFREEZE = "finetune.freeze", "finetune.unfreeze"
_ATTRIBUTE = "_dtrain_stages"


class Stages:
    """The weights of a model that are frozen, by epoch.

    Args:
        model: built, and not yet with an optimizer.
        keys: the rules.

    Attributes:
        trained: the weights that are trained at any time, in the order of the slots.
        frozen: paths of those that are frozen now.
        epoch: from 1, that was entered last.

    Raises:
        UsageError: a pattern is found in no path, or would freeze the statistics of a layer whose
            weights are trained.
    """

    def __init__(self, model: keras.Model, keys: FineTuning):
        self._layers = [layer for prefix, layer in weights.walk(model) if prefix]
        known = [weight for weight in weights.find(model) if not weight.is_of_lora]
        self._asked = _found(keys.freeze, known, FREEZE)
        self._opened: dict[int, list[Weight]] = {}
        for epoch, patterns in sorted((keys.unfreeze or {}).items()):
            self._opened[int(epoch)] = _found(patterns, self._asked, UNFREEZE)
        # As the model's own function has left them.
        self._layer_flags = {id(layer): layer.trainable for layer in self._layers}
        self._flags = {id(w.variable): w.variable.trainable for w in weights.find(model)}
        self.frozen: list[str] = []
        self.epoch = 1
        self._sums: dict[str, int] = {}
        for epoch in (1, *self._opened):
            _check_statistics(self._layers, self._closed(epoch), self._flags)
        last = max(self._opened, default=1)
        self._set(self._closed(last))  # the others never have slots
        self.trained = list(model.trainable_variables)
        if self._asked and not self.trained:
            raise UsageError(
                FREEZE, keys.freeze, "leaves nothing to be trained", "patterns of some weights",
                "'finetune.freeze=[]'",
            )  # fmt: skip

    def _closed(self, epoch: int) -> list[Weight]:
        """Return what is frozen in an epoch, from 1."""
        opened = {id(w) for e, found in self._opened.items() if e <= epoch for w in found}
        return [weight for weight in self._asked if id(weight) not in opened]

    def enter(self, epoch: int) -> bool:
        """Freeze what is frozen in ``epoch``, from 1; return whether it was something else."""
        before, self.epoch = self.frozen, epoch
        self._set(self._closed(epoch))
        return self.frozen != before

    def _set(self, closed: list[Weight]) -> None:
        frozen = {id(weight.variable) for weight in closed}
        touched = {id(weight.variable) for weight in self._asked}
        for layer in self._layers:  # ORDER: outer ones first: Keras sets those inside as well
            inside = {id(v) for v in layer.weights}
            if inside and inside <= touched:
                layer.trainable = self._layer_flags[id(layer)] and not inside <= frozen
        for layer in self._layers:
            if not layer.weights:
                layer.trainable = self._layer_flags[id(layer)]
        for weight in self._asked:
            whole = self._flags[id(weight.variable)]
            weight.variable.trainable = whole and id(weight.variable) not in frozen
        self.frozen = [weight.path for weight in closed]

    def hold(self, model: keras.Model) -> None:
        """Let moving averages of frozen weights be the weights, and stay so.

        Keras would round them anew at each step, and write that into the weights at the end.
        """
        for optimizer in optimizers.named(model).values() if self._asked else ():
            keras_internals.average_trainable(optimizer)

    def seal(self) -> None:
        """Take note of what is frozen, for :meth:`check`."""
        self._sums = self._digests()

    def check(self) -> None:
        """Refuse a step that has changed what is frozen since :meth:`seal`.

        Raises:
            UsageError: naming the weight.
        """
        now = self._digests()
        for path, before in self._sums.items():
            if now.get(path, before) != before:
                raise UsageError(
                    FREEZE, path, "is frozen, and the model's own step or layer assigns it",
                    "layers that assign nothing where they are not trainable",
                    "a pattern without it",
                )  # fmt: skip
        self._sums = {}

    def _digests(self) -> dict[str, int]:
        frozen = set(self.frozen)
        return {
            weight.path: zlib.crc32(np.ascontiguousarray(_value(weight.variable)).tobytes())
            for weight in self._asked
            if weight.path in frozen
        }


def prepare(model: keras.Model, keys: FineTuning) -> None:
    """Freeze what is never trained, and remember the rest for :func:`of`.

    Args:
        model: built, and without slots.
        keys: the rules.

    Raises:
        UsageError: as of :class:`Stages`.
    """
    if keys.unfreeze and not keys.freeze:
        raise UsageError(
            UNFREEZE, keys.unfreeze, "unfreezes what nothing has frozen",
            "finetune.freeze with what is not trained before", "'finetune.freeze=[REGEX]'",
        )  # fmt: skip
    if not keys.freeze:
        return
    # Not an attribute that Keras tracks: it would be looked through where the model is saved.
    object.__setattr__(model, _ATTRIBUTE, Stages(model, keys))


def begin(
    model: keras.Model, config: Config, strategy: Backend, step: int, steps_per_epoch: int
) -> None:
    """Freeze what is frozen where a training begins; its weights are set by now.

    Args:
        model: of :func:`prepare`, with slots.
        config: of the run.
        strategy: it runs on.
        step: where it begins. At the end of an epoch it is still that one: it may have to be
            evaluated.
        steps_per_epoch: how many steps an epoch has.

    Raises:
        UsageError: the strategy cannot unfreeze, or the optimizer accumulates across an epoch in
            which it would have to.
    """
    found = of(model)
    if found is None:
        return
    _check_unfreezing(model, config, strategy, steps_per_epoch)
    found.enter(max(0, step - 1) // steps_per_epoch + 1)
    with strategy.optimizer_scope():
        found.hold(model)
    found.seal()


def of(model: keras.Model) -> Stages | None:
    """Return the stages of a model that :func:`prepare` was given."""
    return getattr(model, _ATTRIBUTE, None)


def trained(model: keras.Model) -> list[keras.Variable]:
    """Return the weights that have slots: those that are trained at any time."""
    found = of(model)
    return list(model.trainable_variables) if found is None else found.trained


def _check_unfreezing(
    model: keras.Model, config: Config, strategy: Backend, steps_per_epoch: int
) -> None:
    unfreeze = config.finetune.unfreeze or {}
    for epoch in unfreeze:
        for optimizer in optimizers.named(model).values():
            count = getattr(optimizer, "gradient_accumulation_steps", None) or 1
            if (int(epoch) - 1) * steps_per_epoch % count:
                raise UsageError(
                    "optimizer.gradient_accumulation_steps", count,
                    f"the {(int(epoch) - 1) * steps_per_epoch} steps before epoch {epoch}, which "
                    "unfreezes weights, are no whole number of updates",
                    "a number that divides them", "optimizer.gradient_accumulation_steps=null",
                )  # fmt: skip
    if unfreeze and not strategy.abilities.retraces:
        raise UsageError(
            "strategy", config.strategy.name,
            "has steps that cannot be traced anew for finetune.unfreeze",
            "a strategy whose steps can, or a run for each phase: fork=RUN_DIR",
            "strategy=mirrored",
        )  # fmt: skip


def _found(patterns: list[str], known: list[Weight], key: str) -> list[Weight]:
    """Return the weights in whose paths one of the patterns is found.

    Raises:
        UsageError: one is found in none.
    """
    found: dict[int, Weight] = {}
    for each in patterns:
        paths = [weight.path for weight in known]
        chosen = choose(
            [each], paths, "weight", lambda text: (text, True), key, "a pattern of these"
        )
        for weight, rule in zip(known, chosen, strict=True):
            if rule is not None:
                found[id(weight)] = weight
    return [weight for weight in known if id(weight) in found]


def _check_statistics(
    layers: list[keras.Layer], closed: list[Weight], flags: dict[int, bool]
) -> None:
    """Refuse to freeze the statistics of a layer alone: Keras moves them where it is trainable."""
    chosen = {id(weight.variable): weight for weight in closed}
    for layer in layers:
        own = weights.own(layer)
        left = [v.name for v in own if id(v) not in chosen]
        for variable in own:
            moved = not flags[id(variable)] and tf.as_dtype(variable.dtype).is_floating
            base = f"{weights.LORA}kernel_a" in {v.name for v in own}  # a kernel with LoRA
            if moved and not base and id(variable) in chosen and left and layer.trainable:
                raise UsageError(
                    FREEZE, chosen[id(variable)].path,
                    "is no weight, and stays as it is where all of its layer is frozen",
                    f"a pattern of all of {layer.name}, with {', '.join(left)}",
                    f"'finetune.freeze=[{layer.name}]'",
                )  # fmt: skip


def _value(variable: keras.Variable) -> Any:
    return np.asarray(tf.convert_to_tensor(variable.value))
