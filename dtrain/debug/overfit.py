"""``debug=overfit``: a model that cannot learn a few examples by heart will learn nothing."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from typing import Any

import keras
import numpy as np

from dtrain.config.schema import Config
from dtrain.data import nest
from dtrain.data.sources import Arrays
from dtrain.debug import findings
from dtrain.errors import CheckFailed, UsageError
from dtrain.task import keras_internals
from dtrain.task.data import reading
from dtrain.task.data.dataset import Data
from dtrain.task.data.inputs import Inputs
from dtrain.task.train.session import Action, Session
from dtrain.task.train.step_schedule import Schedule
from dtrain.task.train.trial import short_training

#: Steps of a call: the loss is looked at after each.
CALL = 10
#: How Keras' optimizers begin their refusal of a step in which nothing is learnt.
_NO_GRADIENT = "No gradients provided for any variable"
#: A loss that has become smaller by this in the second half of the steps still falls.
FALLS = 0.7


class Overfit(Action):
    """Trains on the same examples in each step, without augmentation and noise.

    Args:
        examples: how many; the batch of each step.
        steps: that the loss has to come near 0.
        loss: the largest that is near 0.
    """

    def __init__(self, examples: int, steps: int, loss: float):
        self._examples, self._steps, self._near = examples, steps, loss
        self._silenced: list[str] = []
        self._alike = 0

    def check(self, config: Config, model: keras.Model, schedule: Schedule) -> None:
        """Take the noise out of the model, before its step is tried.

        Raises:
            UsageError: nothing of it is a loss.
        """
        self._silenced = silence(model)

    def arranged(self, inputs: Inputs, data: Data) -> Inputs:
        """Return the first examples alone, to train on and to evaluate."""
        assert inputs.train is not None
        parts = reading.first(inputs.train, self._examples)
        source = Arrays(*parts)
        self._alike = _contradictions(parts)
        return dataclasses.replace(
            inputs, train=source, validation=source, augment=None, order=None,
            validation_batch=None, validation_steps=None,
        )  # fmt: skip

    def run(self, session: Session) -> None:
        """Train until the loss is near 0, or the steps are over.

        Raises:
            CheckFailed: the loss does not come near 0.
            Interrupted: it was asked to stop.
        """
        before = _weights(session)
        losses = self._losses(session)
        first, last = losses[0], losses[-1]
        evaluated = math.nan
        if not last <= self._near:
            evaluated = self._evaluated(session)
        values: dict[str, Any] = {"losses": losses, "steps": self._done}
        what = (
            f"{self._done:,} steps on the same {self._examples:,} examples: "
            f"loss {first:.4g} at the first step, {last:.4g} at the last"
        )
        if self._silenced:
            what += f"; without the noise of {_few(self._silenced)}"
        if last <= self._near or evaluated <= self._near:
            if not last <= self._near:
                what += f", {evaluated:.4g} in an evaluation"
            findings.write(session.process, f"{what}: near 0 (debug.loss={self._near:g})", **values)
            session.strategy.tasks.barrier()
            return
        still = [
            name for name, value in _weights(session).items()
            if np.array_equal(value, before[name])
        ]  # fmt: skip
        findings.write(session.process, None, unchanged=still, **values)
        session.strategy.tasks.barrier()
        raise CheckFailed(
            f"the model does not learn {self._examples:,} examples by heart: {what}, and not near "
            f"0 (debug.loss={self._near:g})", self._hint(session.model, losses, still, len(before)),
        )  # fmt: skip

    def _losses(self, session: Session) -> list[float]:
        """Return the loss of the first step, and the means of every so many steps after it.

        Raises:
            CheckFailed: no gradient reaches the weights.
            UsageError: the model's own step returns no loss.
            NothingSaved: it was asked to stop.
        """

        def is_over(losses: list[float]) -> bool:
            return bool(losses) and not losses[-1] > self._near  # near 0, or NaN

        schedule = dataclasses.replace(session.schedule, terminate_on_nan=False)
        session = dataclasses.replace(session, schedule=schedule)
        try:
            losses, loop = short_training(session, 1, 1, is_over)
        except ValueError as error:
            if not str(error).startswith(_NO_GRADIENT):
                raise
            raise CheckFailed(
                f"the model does not learn {self._examples:,} examples by heart: no gradient "
                "reaches any of its weights", "look for what has no gradient between the last "
                "weight and the loss: stop_gradient, argmax, round, a cast to whole numbers, "
                "NumPy in a call",
            ) from error  # fmt: skip
        if not losses:
            raise UsageError(
                "debug", "overfit", "the step of this model returns no loss, by which it is judged",
                "a train_step that returns {'loss': ...}", "debug=nan",
            )  # fmt: skip
        self._done = loop.step
        if self._steps > 1 and not is_over(losses):
            more, loop = short_training(session, self._steps - 1, CALL, is_over, CALL)
            losses, self._done = [*losses, *more], self._done + loop.step
        return losses

    def _evaluated(self, session: Session) -> float:
        """Return the loss as an evaluation computes it, without noise that was not known of."""
        full, rest = divmod(self._examples, session.steps.evaluation_examples)
        try:
            sums = session.steps.evaluate(full, rest)
        except NotImplementedError:  # a train_step of its own, and no test_step
            return math.nan
        return session.steps.results(sums, training=False).get("loss", math.nan)

    def _hint(self, model: keras.Model, losses: list[float], still: list[str], count: int) -> str:
        if not math.isfinite(losses[-1]):
            return "debug=nan names the first value that is not finite"
        if still:
            every = "no weight has" if len(still) == count else f"{_few(still)} have"
            return f"look at the model: {every} not changed at all, as no gradient reaches them"
        if self._alike:
            return (
                f"look at the data: {self._alike:,} of the examples are the same as one before, "
                "with another target"
            )
        if model.losses:
            return (
                f"the model adds losses of its own ({len(model.losses)}: regularizers, add_loss), "
                "which may not come near 0; with a larger debug.loss they are allowed"
            )
        if losses[-1] > losses[0]:
            return "the loss grows: try a smaller optimizer.learning_rate"
        half = losses[len(losses) // 2]
        if losses[-1] < FALLS * half:
            return f"the loss still falls: debug.steps={4 * self._steps}"
        return (
            "try another optimizer.learning_rate; look at whether the outputs and the loss fit "
            "(from_logits, activation, the scale of targets), and whether this loss has a least "
            "value above 0 (debug.loss)"
        )


def _weights(session: Session) -> dict[str, np.ndarray]:
    return session.strategy.read({v.path: v for v in session.model.trainable_variables})


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _contradictions(parts: tuple[Any, ...]) -> int:
    """Return how many examples have the inputs of one before, and another target."""
    if len(parts) < 2 or parts[1] is None:
        return 0
    inputs, targets = (
        [leaf for leaf in nest.leaves(part) if leaf is not None] for part in parts[:2]
    )
    targets_of: dict[bytes, bytes] = {}
    count = 0
    for row in range(len(inputs[0])):
        own = b"|".join(np.asarray(leaf[row]).tobytes() for leaf in targets)
        key = b"|".join(np.asarray(leaf[row]).tobytes() for leaf in inputs)
        count += targets_of.setdefault(key, own) != own
    return count


_KINDS = keras.layers
#: Of layers of Keras': what says how much noise there is.
_AMOUNTS: dict[tuple[type, ...], tuple[str, ...]] = {
    (
        _KINDS.Dropout, _KINDS.SpatialDropout1D, _KINDS.SpatialDropout2D, _KINDS.SpatialDropout3D,
        _KINDS.GaussianDropout, _KINDS.AlphaDropout,
    ): ("rate",),
    (_KINDS.GaussianNoise,): ("stddev",),
    (_KINDS.LSTMCell, _KINDS.GRUCell, _KINDS.SimpleRNNCell): ("dropout", "recurrent_dropout"),
}  # fmt: skip
#: Augmentation: layers that do nothing where they do not train.
_RANDOM = tuple(
    kind
    for name, kind in vars(_KINDS).items()
    if name.startswith("Random") and isinstance(kind, type)
)


def silence(model: keras.Model) -> list[str]:
    """Take the noise of Keras' own layers out of a model, and return the names of these layers.

    Dropout, Gaussian noise and random augmentation; not what a layer of the user's own draws.
    """
    silenced_layers = []
    for layer in keras_internals.layers(model):
        silenced = isinstance(layer, _RANDOM)
        if silenced:
            layer.call = _without_training(layer.call)
        for kinds, names in _AMOUNTS.items():
            for name in names if isinstance(layer, kinds) else ():
                if getattr(layer, name):
                    setattr(layer, name, 0.0)
                    silenced = True
        if silenced:
            silenced_layers.append(layer.name)
    return silenced_layers


def _without_training(call: Any) -> Any:
    if "training" not in inspect.signature(call).parameters:
        return call

    @functools.wraps(call)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        return call(*args[:1], **{**kwargs, "training": False})

    return quiet
