"""The variables of a model as values that a compiled step takes and returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np

from dtrain.task import keras_internals
from dtrain.task.aliases import Logs, Nest, Tensors, Variable
from dtrain.task.backends.jax.arrays import narrowed
from dtrain.task.backends.step_logs import has_own, unwrapped
from dtrain.task.model import optimizers

#: Values of the variables, by kind: trainable weights, other variables of the model, slots of the
#: optimizer of ``compile``, and those of all other optimizers, also of those inside of it.
Values = tuple[Tensors, Tensors, Tensors, Tensors]
#: Variables, or values of them, by kind.
Lists = Sequence[Sequence[jax.Array]]


class State:
    """Names the variables of a model and its optimizers, in the order of Keras' own state.

    ``train_step(state, data)`` is given what Keras gives it: weights, other variables, slots and
    metrics. It runs in a ``keras.StatelessScope`` that holds all of them, so that a step of the
    user's may also update variables by their methods, as that of a second optimizer does.

    Args:
        model: compiled and built.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        slots = [] if model.optimizer is None else list(model.optimizer.variables)
        groups = optimizers.variables(model)
        others = {id(variable): variable for _, group in groups for variable in group}
        for variable in slots:
            others.pop(id(variable), None)
        self._groups: tuple[list[keras.Variable], ...] = (
            list(model.trainable_variables), list(model.non_trainable_variables), slots,
            list(others.values()),
        )  # fmt: skip
        self._metrics: list[keras.Variable] = list(model.metrics_variables)

    def read(self) -> Values:
        """Return what the variables hold, each an array of its own: a step is given their memory.

        A variable that was assigned the value of another shares its array (a target network).
        """
        buffers: set[int] = set()

        def own(value: Variable) -> Variable:
            value = jnp.copy(value) if id(value) in buffers else value
            buffers.add(id(value))
            return value

        first, second, third, fourth = ([own(v.value) for v in group] for group in self._groups)
        return first, second, third, fourth

    def write(self, values: Values) -> None:
        """Set the variables."""
        for group, new in zip(self._groups, values, strict=True):
            for variable, value in zip(group, new, strict=True):
                variable.assign(value)

    def _begun(self) -> Tensors:
        """Return what metrics hold when they begin anew."""
        with keras.StatelessScope() as scope:
            for metric in self._model.metrics:
                metric.reset_state()
        begun = [scope.get_current_value(variable) for variable in self._metrics]
        return [
            variable.value if value is None else value
            for variable, value in zip(self._metrics, begun, strict=True)
        ]

    def trained(self, values: Values, data: Nest) -> tuple[Logs, Tensors, Values]:
        """Run ``train_step``; traced.

        Args:
            values: before it.
            data: the global batch.

        Returns:
            What it returns, what metrics have after it, and the variables.
        """
        before = *values, self._begun()
        groups = *self._groups, self._metrics
        updates, masks = self._partial_updates(), self._masks_kept()
        with self._scope(groups, before) as current, updates, masks:
            first = current()
            *kinds, others, metrics = before
            logs, (*kinds, metrics) = self._model.train_step((*kinds, metrics), unwrapped(data))
            after = _merged((*kinds, others, metrics), first, current())
        weights, rest, slots, others, metrics = after
        return logs, metrics, (weights, rest, slots, others)

    def evaluated(
        self, values: Values, data: Nest, metrics: Tensors | None = None
    ) -> tuple[Logs, Tensors, Tensors]:
        """Run ``test_step``; traced, or at once.

        Args:
            values, data: as of :meth:`trained`.
            metrics: what metrics have before it; None: they begin anew.

        Returns:
            What it returns, what metrics have after it, and the variables of the model that are
            not trained.
        """
        weights, rest, _, _ = values
        metrics = self._begun() if metrics is None else metrics
        with self._scope((*self._groups, self._metrics), (*values, metrics)) as current:
            first = current()
            state = weights, rest, metrics
            logs, (_, rest, metrics) = self._model.test_step(state, unwrapped(data))
            rest, metrics = _merged(
                (rest, metrics), (first[1], first[4]), (current()[1], current()[4])
            )
        return logs, metrics, rest

    def trial(self, batch: Nest, start: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Evaluate a batch and change nothing: :data:`dtrain.task.backends.unsummed.Trial`."""
        metrics = [start.get(id(v), v.value) for v in self._metrics]
        metrics = [jnp.asarray(m, v.dtype) for m, v in zip(metrics, self._metrics, strict=True)]
        _, after, _ = self.evaluated(self.read(), narrowed(batch), metrics)
        pairs = zip(self._metrics, jax.device_get(after), strict=True)
        return {id(variable): np.asarray(value, np.float64) for variable, value in pairs}

    @contextlib.contextmanager
    def _scope(self, groups: Lists, values: Lists) -> Iterator[Callable[[], list[Tensors]]]:
        """Let variables have these values inside.

        Yields:
            Returns what they have now.
        """
        mapping = [
            pair
            for variables, group in zip(groups, values, strict=True)
            for pair in zip(variables, group, strict=True)
        ]
        with keras.StatelessScope(mapping) as scope:
            yield lambda: [[scope.get_current_value(v) for v in group] for group in groups]

    @contextlib.contextmanager
    def _masks_kept(self) -> Iterator[None]:
        """Let metrics of Keras' training step have the masks of outputs, as those of an evaluation.

        ``jax.grad`` returns other arrays than the model does, without their masks.
        """
        model = self._model
        if has_own(model, "train_step"):
            yield
            return
        compute, measure = model.compute_loss_and_updates, model.compute_metrics

        def compute_loss_and_updates(*args: object, **options: object) -> Nest:
            loss, (unscaled, outputs, *rest) = compute(*args, **options)
            masks = [keras_internals.mask(leaf) for leaf in jax.tree.leaves(outputs)]
            return loss, (unscaled, (outputs, masks), *rest)

        def compute_metrics(x: Nest, y: Nest, pair: Nest, sample_weight: Nest = None) -> Nest:
            outputs, masks = pair
            for leaf, mask in zip(jax.tree.leaves(outputs), masks, strict=True):
                keras_internals.set_mask(leaf, mask)
            return measure(x, y, outputs, sample_weight)

        model.compute_loss_and_updates, model.compute_metrics = (
            compute_loss_and_updates, compute_metrics,
        )  # fmt: skip
        try:
            yield
        finally:
            del model.compute_loss_and_updates, model.compute_metrics

    @contextlib.contextmanager
    def _partial_updates(self) -> Iterator[None]:
        """Let the optimizer of ``compile`` update the weights that are trained in this epoch alone.

        Keras' ``stateless_apply`` takes all weights that it was built for or none, and tells a
        user's ``apply`` of none.
        """
        optimizer, weights, others = self._model.optimizer, self._groups[0], self._groups[3]
        if optimizer is None or (
            len(weights) == len(keras_internals.updated(optimizer))
            and keras_internals.is_of_keras(optimizer)
        ):
            yield
            return

        def stateless_apply(
            slots: Tensors, gradients: Tensors, values: Tensors
        ) -> tuple[Tensors, Tensors]:
            # Keras asks the innermost scope alone: those of optimizers inside of it are handed on.
            groups = weights, optimizer.variables, others
            before = values, slots, [variable.value for variable in others]
            with self._scope(groups, before) as current:
                optimizer.apply(gradients, weights)
                after, slots, inner = current()
            for variable, value in zip(others, inner, strict=True):
                variable.assign(value)
            return after, slots

        optimizer.stateless_apply = stateless_apply
        try:
            yield
        finally:
            del optimizer.stateless_apply


def _merged(returned: Nest, before: Lists, after: Lists) -> list[Tensors]:
    """Return what a step has returned, or assigned to a variable by its methods."""
    return [
        [new if old is assigned else assigned for new, old, assigned in zip(*group, strict=True)]
        for group in zip(returned, before, after, strict=True)
    ]
