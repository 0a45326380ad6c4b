"""What one device with the whole global batch would ask tapes in a training step.

A replica has its part of the batch. Where a tape gives the gradient of several values, or of rows
that were looked up, their sizes there and here say what is there for each example, and what once
for a batch: one device has more of the one, and as much of the other. So the step is traced for the
global batch, on no strategy, and not run. That costs the time of a trace, and is done only where a
step has anything of the kind.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from dtrain.errors import behind
from dtrain.task.aliases import Foreign, Nest, Tensors
from dtrain.task.backends.copies import one_replica
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.tensorflow.replica import gradients, random_draws
from dtrain.task.backends.tensorflow.replica.dependence import Examples, looked_up, lookups
from dtrain.task.model import optimizers


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of ``tape.gradient`` for variables.

    Attributes:
        targets: the shape of each.
        lookups: for each source the shapes of the indices of each use; none of a dense gradient.
    """

    targets: list[tf.TensorShape]
    lookups: list[list[tf.TensorShape]]

    @classmethod
    def of(cls, targets: Tensors, grads: Tensors) -> _Call:
        return cls(
            [target.shape for target in targets],
            [[looked_up(use) for use in _uses(gradient)] for gradient in grads],
        )


def _uses(gradient: tf.Tensor) -> Tensors:
    return lookups(gradient.indices) if isinstance(gradient, tf.IndexedSlices) else []


class GlobalBatch:
    """A training step, of whose batch replicas have parts.

    Args:
        step: from a batch to anything; it may be traced at any time, in any thread.
        examples: how many the batch has.
        seed: of Python's and NumPy's random numbers in it.
    """

    def __init__(self, step: Callable[[Nest], object], examples: int, seed: int = 0):
        self._step, self._examples, self._seed = step, examples, seed
        self._traced: dict[object, _Trace] = {}

    def part(self, data: Nest) -> Part:
        """Return the part that a replica has, while its step is traced."""
        return Part(self, data)

    def calls(self, data: Nest) -> list[_Call]:
        """Return the calls of a step on the batch of which a replica has ``data``.

        Raises:
            Exception: whatever the step raises.
        """
        return self._trace(data, self._examples).calls

    def draws(self, data: Nest, rows: int) -> Iterator[bool | None]:
        """Yield of each draw of a step whether it has a row an example.

        It is looked at when the first is asked for.

        Args:
            data: what a replica has.
            rows: how many examples that is.
        """
        try:
            whole, own = (self._trace(data, n).record for n in (self._examples, rows))
        except Exception:  # it is raised where the replica's step is traced
            return
        yield from random_draws.per_example(whole, own, self._examples // rows) or ()

    def _trace(self, data: Nest, examples: int) -> _Trace:
        """Trace the step on ``examples`` that are like ``data``."""

        def like(tensor: tf.Tensor | None) -> tf.TensorSpec | None:
            if tensor is None:  # of targets, where there are weights without
                return None
            return tf.TensorSpec([examples, *tensor.shape[1:]], tensor.dtype)

        specs = tf.nest.map_structure(like, data)
        key = tuple(tf.nest.flatten(specs))
        if key not in self._traced:
            self._traced[key] = _Trace(self._step, specs, self._seed)
        trace = self._traced[key]
        if trace.error is not None:
            raise trace.error
        return trace


class _Trace:
    """What one trace of a step has asked for.

    Attributes:
        calls: of tapes.
        record: of random draws.
        error: that the step has raised, if it has.
    """

    def __init__(self, step: Callable[[Nest], object], specs: Nest, seed: int):
        self.calls: list[_Call] = []
        self.record = random_draws.Record()
        self.error: Exception | None = None

        def noted(data: Nest) -> None:
            note = gradients.noted(lambda *call: self.calls.append(_Call.of(*call)))
            with note, random_draws.watched(self.record):
                step(data)

        def run() -> None:
            try:
                with tf.device("CPU:0"), random_draws.seeded(seed):
                    tf.function(noted, autograph=False).get_concrete_function(specs)
            except Exception as error:
                self.error = error

        # In a thread of its own: this one is in the middle of a replica's step.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


class Part:
    """The part of a global batch that a replica has, while its step is traced."""

    def __init__(self, whole: GlobalBatch, data: Nest):
        self._whole, self._data = whole, data
        self._examples = Examples(each for each in tf.nest.flatten(data) if each is not None)
        self._count = 0

    def compare(
        self, targets: Tensors, grads: Tensors, summed: bool
    ) -> tuple[bool, list[list[bool]]]:
        """Compare the next call of ``tape.gradient`` for variables with that of one device.

        The gradient of a vector is that of its sum. With a value for each example the global batch
        has more of them than a part, and a mean over the parts would lose that factor.

        Args:
            targets: what the gradient is of.
            grads: what the tape gives.
            summed: gradients are added up whatever they are of.

        Returns:
            Whether the replicas' gradients are to be added up, and not averaged; and of each
            gradient, for each use of rows that were looked up, whether one device has these rows as
            well, and not those of each replica one after the other.

        Raises:
            UsageError: that cannot be told.
        """
        index, self._count = self._count, self._count + 1
        uses = [_uses(gradient) for gradient in grads]
        same = [[not self._examples.decide(use) for use in each] for each in uses]
        numbers = summed or all(target.shape.rank == 0 for target in targets)
        if numbers and not any(map(any, same)):
            return summed, same
        there = self._call(index, _Call.of(targets, grads))
        for i, each in enumerate(uses):
            for j, use in enumerate(each):
                same[i][j] &= not self._has_more(use, there.lookups[i][j], looked_up(use))
        if numbers:
            return summed, same
        more = {
            self._has_more(target, whole, target.shape)
            for target, whole in zip(targets, there.targets, strict=True)
        }
        if len(more) > 1:
            raise one_replica("takes a gradient of values of single examples and of others at once",
                              "train_step", "a gradient of their sum, one of each")  # fmt: skip
        return more.pop(), same

    def _has_more(self, tensor: tf.Tensor, whole: tf.TensorShape, own: tf.TensorShape) -> bool:
        """Whether one device has a tensor of shape ``whole`` where this replica has less."""
        return own.as_list() != whole.as_list() or self._examples.decide_sizes(tensor)

    def _call(self, index: int, here: _Call) -> _Call:
        problem = "does not call tapes as that of a part"
        try:
            calls = self._whole.calls(self._data)
        except Exception as error:
            if (refused := behind(error)) is not None:
                raise refused from None
            calls, problem = [], f"cannot be traced ({str(error).strip().splitlines()[-1]})"
        if index < len(calls) and _structure(calls[index]) == _structure(here):
            return calls[index]
        raise one_replica(
            "takes a gradient of several values, or of rows that are the same for all examples, "
            f"and the step of a whole batch, which would say how many it has of them, {problem}",
            "train_step", "a gradient of one number, such as tf.reduce_mean of the values",
        )  # fmt: skip


def _structure(call: _Call) -> Foreign:
    return [s.rank for s in call.targets], [[s.rank for s in each] for each in call.lookups]


def on_one_device(model: keras.Model, examples: int, seed: int) -> GlobalBatch:
    """Return the training step of a model, compiled and built, on a batch of ``examples``."""
    return GlobalBatch(step_on_one_device(model), examples, seed)


def step_on_one_device(model: keras.Model) -> Callable[[Nest], None]:
    """Return the training step of a model without its updates, to be traced."""

    def step(data: Nest) -> None:
        states = [v for metric in model.metrics for v in metric.variables]
        scope = keras.StatelessScope(
            [(v, tf.zeros(v.shape, v.dtype)) for v in states], collect_losses=True
        )
        # Regularizers ask the scope for weights; its constructor would read them.
        scope.state_mapping.update({id(v): v.value for v in model.trainable_variables})
        with scope, optimizers.caught(model):
            model.train_step(unwrapped(data))

    return step
