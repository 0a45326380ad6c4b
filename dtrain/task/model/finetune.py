"""Rules over the paths of a model: which weights are trained, from when on, how fast; and remat.

A layer all of whose weights are frozen is not trainable as Keras has it: batch normalisation in it
computes by its statistics, and leaves them as they are. Of other layers single weights are frozen.
Weights that are trained at any time have their slots from the beginning.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from dtrain.config.tree import Config, FineTuning
from dtrain.errors import UsageError, refuse
from dtrain.task import keras_internals
from dtrain.task.backends.base import Backend
from dtrain.task.backends.runtime import runtime
from dtrain.task.model import optimizers
from dtrain.task.model.path_rules import choose, listed, pattern
from dtrain.task.model.walk import LORA, Weight, own, walk, weights

FREEZE, UNFREEZE = "finetune.freeze", "finetune.unfreeze"
RATES, _LORA = "finetune.learning_rates", "finetune.lora"
_REMAT = "hardware.remat"
_ATTRIBUTE = "_dtrain_freeze_schedule"


class FreezeSchedule:
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
        self._layers = [layer for _, layer in walk(model)]
        candidates = [weight for weight in weights(model) if not weight.is_of_lora]
        self._touched = _matching(keys.freeze, candidates, FREEZE)
        self._opened: dict[int, list[Weight]] = {}
        for epoch, patterns in sorted((keys.unfreeze or {}).items()):
            self._opened[int(epoch)] = _matching(patterns, self._touched, UNFREEZE)
        # As the model's own function has left them.
        self._layer_flags = {id(layer): layer.trainable for layer in self._layers}
        self._flags = {id(w.variable): w.variable.trainable for w in weights(model)}
        self.frozen: list[str] = []
        self.epoch = 1
        self._sums: dict[str, int] = {}
        for epoch in (1, *self._opened):
            _check_statistics(self._layers, self._frozen_in(epoch), self._flags)
        last = max(self._opened, default=1)
        self._set(self._frozen_in(last))  # the others never have slots
        self.trained = list(model.trainable_variables)
        if self._touched and not self.trained:
            refuse(FREEZE, "leaves nothing to be trained", keys.freeze,
                   accepted="patterns of some weights", typed="'finetune.freeze=[]'")  # fmt: skip

    def _frozen_in(self, epoch: int) -> list[Weight]:
        """Return the weights that are frozen in an epoch, from 1."""
        opened = {id(w) for e, opens in self._opened.items() if e <= epoch for w in opens}
        return [weight for weight in self._touched if id(weight) not in opened]

    def enter(self, epoch: int) -> bool:
        """Freeze what is frozen in ``epoch``, from 1; return whether it was something else."""
        before, self.epoch = self.frozen, epoch
        self._set(self._frozen_in(epoch))
        return self.frozen != before

    def _set(self, closed: list[Weight]) -> None:
        frozen = {id(weight.variable) for weight in closed}
        touched = {id(weight.variable) for weight in self._touched}
        for layer in self._layers:  # ORDER: outer ones first: Keras sets those inside as well
            inside = {id(v) for v in layer.weights}
            if inside and inside <= touched:
                layer.trainable = self._layer_flags[id(layer)] and not inside <= frozen
        for layer in self._layers:
            if not layer.weights:
                layer.trainable = self._layer_flags[id(layer)]
        for weight in self._touched:
            whole = self._flags[id(weight.variable)]
            weight.variable.trainable = whole and id(weight.variable) not in frozen
        self.frozen = [weight.path for weight in closed]

    def hold(self, model: keras.Model) -> None:
        """Keep the optimizer's moving averages of frozen weights equal to the weights.

        Keras would round them anew at each step, and write that into the weights at the end.
        """
        for optimizer in optimizers.named(model).values() if self._touched else ():
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
                refuse(FREEZE, "is frozen, and the model's own step or layer assigns it", path,
                       accepted="layers that assign nothing where they are not trainable",
                       hint="a pattern without it")  # fmt: skip
        self._sums = {}

    def _digests(self) -> dict[str, int]:
        frozen = set(self.frozen)
        return {
            weight.path: zlib.crc32(
                np.ascontiguousarray(runtime().to_numpy(weight.variable)).tobytes()
            )
            for weight in self._touched
            if weight.path in frozen
        }


def prepare(model: keras.Model, keys: FineTuning) -> None:
    """Freeze what is never trained, and keep the schedule for :func:`schedule_of`.

    Args:
        model: built, and without slots.
        keys: the rules.

    Raises:
        UsageError: as of :class:`FreezeSchedule`.
    """
    if keys.unfreeze and not keys.freeze:
        refuse(UNFREEZE, "unfreezes what nothing has frozen", keys.unfreeze,
               accepted="finetune.freeze with what is not trained before",
               hint="'finetune.freeze=[REGEX]'")  # fmt: skip
    if not keys.freeze:
        return
    # Not an attribute that Keras tracks: it would be looked through where the model is saved.
    object.__setattr__(model, _ATTRIBUTE, FreezeSchedule(model, keys))


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
    schedule = schedule_of(model)
    if schedule is None:
        return
    _check_unfreezing(model, config, strategy, steps_per_epoch)
    schedule.enter(max(0, step - 1) // steps_per_epoch + 1)
    with strategy.optimizer_scope():
        schedule.hold(model)
    schedule.seal()


def schedule_of(model: keras.Model) -> FreezeSchedule | None:
    """Return the schedule of a model that :func:`prepare` was given; None of one without."""
    return getattr(model, _ATTRIBUTE, None)


def trained(model: keras.Model) -> list[keras.Variable]:
    """Return the weights that have slots: those that are trained at any time."""
    schedule = schedule_of(model)
    return list(model.trainable_variables) if schedule is None else schedule.trained


def _check_unfreezing(
    model: keras.Model, config: Config, strategy: Backend, steps_per_epoch: int
) -> None:
    unfreeze = config.finetune.unfreeze or {}
    for epoch in unfreeze:
        for optimizer in optimizers.named(model).values():
            count = getattr(optimizer, "gradient_accumulation_steps", None) or 1
            if (int(epoch) - 1) * steps_per_epoch % count:
                refuse("optimizer.gradient_accumulation_steps",
                       f"the {(int(epoch) - 1) * steps_per_epoch} steps before epoch {epoch}, "
                       "which unfreezes weights, are no whole number of updates", count,
                       accepted="a number that divides them",
                       typed="optimizer.gradient_accumulation_steps=null")  # fmt: skip
    if unfreeze and not strategy.abilities.retraces:
        refuse("strategy", "has steps that cannot be traced anew for finetune.unfreeze",
               config.strategy.name, accepted="a strategy whose steps can, or a run for each "
               "phase: fork=RUN_DIR", typed="strategy=mirrored")  # fmt: skip


def _matching(patterns: list[str], candidates: list[Weight], key: str) -> list[Weight]:
    """Return the weights in whose paths one of the patterns is found.

    Raises:
        UsageError: one is found in none.
    """
    paths = [weight.path for weight in candidates]
    rules = [choose([each], paths, "weight", lambda text: (text, True), key) for each in patterns]
    return [weight for weight, *matches in zip(candidates, *rules, strict=True) if any(matches)]


def _check_statistics(
    layers: list[keras.Layer], closed: list[Weight], flags: dict[int, bool]
) -> None:
    """Refuse to freeze the statistics of a layer alone: Keras moves them where it is trainable."""
    chosen = {id(weight.variable): weight for weight in closed}
    for layer in layers:
        variables = own(layer)
        others = [v.name for v in variables if id(v) not in chosen]
        for variable in variables:
            moved = not flags[id(variable)] and keras.backend.is_float_dtype(variable.dtype)
            base = f"{LORA}kernel_a" in {v.name for v in variables}  # a kernel with LoRA
            if moved and not base and id(variable) in chosen and others and layer.trainable:
                refuse(FREEZE, "is no weight, and stays as it is where all of its layer is frozen",
                       chosen[id(variable)].path,
                       accepted=f"a pattern of all of {layer.name}, with {', '.join(others)}",
                       typed=f"'finetune.freeze=[{layer.name}]'")  # fmt: skip


def enable_lora(model: keras.Model, rules: Sequence[Any]) -> None:
    """Enable LoRA (Hu et al. 2021, arXiv 2106.09685) in the layers of a model that rules name.

    Called inside the scope of the model's variables. The second matrix begins with zeros: the model
    computes what it computed before.

    Args:
        model: built.
        rules: ``{path: REGEX, rank: NUMBER}``; the first that is found in a layer's path holds.

    Raises:
        UsageError: a rule names no layer, or one that has no LoRA.
    """
    if not rules:
        return
    able = [(path, layer) for path, layer in walk(model) if hasattr(layer, "enable_lora")]
    paths = [path for path, _ in able]
    if not able:
        refuse(_LORA, "no layer of this model has enable_lora", rules[0]["path"],
               accepted="a model with Dense, EinsumDense, Embedding or convolutions",
               typed="'finetune.lora=[]'")  # fmt: skip
    chosen = choose(
        rules, paths, "layer with enable_lora", lambda rule: (rule["path"], rule["rank"]), _LORA
    )
    for rule, (path, layer) in zip(chosen, able, strict=True):
        if rule is None:
            continue
        try:
            layer.enable_lora(rule[1])
        except (ValueError, NotImplementedError) as error:
            raise UsageError(_LORA, f"the layer {path} cannot have it ({error})", rule[0],
                             accepted=listed(paths),
                             typed="'finetune.lora=[]'") from None  # fmt: skip


def scale_rates(model: keras.Model, rules: Sequence[Any]) -> None:
    """Give weights factors of their learning rate; the optimizer has its slots by now.

    A weight with a factor is updated as a second optimizer with that learning rate would: the
    update is scaled, and decoupled weight decay with it. Not the gradient, whose scale Adam does
    not see.

    Args:
        model: compiled and built.
        rules: ``{path: REGEX, factor: NUMBER}``; the first that is found in a path holds, and
            what no rule names has the factor 1.

    Raises:
        UsageError: a rule names no weight that is trained, or the model has not one optimizer.
    """
    if not rules:
        return
    by_path = optimizers.named(model)
    if list(by_path) != ["optimizer"]:
        refuse(RATES, f"the model has {len(by_path)} optimizers ({', '.join(by_path)})",
               rules[0]["path"], accepted="a model with the one of compile",
               typed="'finetune.learning_rates=[]'")  # fmt: skip
    slots = {id(variable): index for index, variable in enumerate(trained(model))}
    able = [weight for weight in weights(model) if id(weight.variable) in slots]
    chosen = choose(
        rules, [weight.path for weight in able], "weight that is trained",
        lambda rule: (rule["path"], rule["factor"]), RATES,
    )  # fmt: skip
    factors = [1.0] * len(slots)
    for weight, rule in zip(able, chosen, strict=True):
        if rule is not None:
            factors[slots[id(weight.variable)]] = float(rule[1])
    keras_internals.scale_learning_rates(model.optimizer, factors)


def rematerialize(model: keras.Model, patterns: Sequence[str]) -> None:
    """Have layers of ``model`` computed a second time for their gradients.

    Args:
        model: built.
        patterns: regular expressions, each found in a layer's name. What is inside of such a
            layer belongs to it.

    Raises:
        UsageError: one is no regular expression, or is found in no name.
    """
    # The outermost come first in an error.
    layers = sorted(walk(model), key=lambda item: item[0].count("/"))
    rules = choose(
        list(patterns), [layer.name for _, layer in layers], "layer",
        lambda text: (pattern(text, _REMAT), None), _REMAT, text="name",
    )  # fmt: skip
    chosen = {id(layer) for (_, layer), rule in zip(layers, rules, strict=True) if rule}
    for _, layer in walk(model, enters=lambda layer: id(layer) not in chosen):
        if id(layer) in chosen:
            layer.call = runtime().computed_twice(layer)
