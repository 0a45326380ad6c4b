"""Losses and metrics of plain modules.

Losses of PyTorch's, and functions that take what these do, as losses of Keras'.

Metrics of ``torchmetrics``, as Keras calls one.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import keras
import torch

from dtrain.errors import refuse
from dtrain.task.aliases import Foreign, Function, Tensor
from dtrain.task.backends.torch.keras_internals import summed_states

#: How first parameters begin by which a function says that it is given outputs first, as PyTorch's
#: are, or targets, as Keras'.
OUTPUTS_FIRST = ("input", "output", "pred", "logit", "y_pred", "y_hat")
TARGETS_FIRST = ("y_true", "target", "label")
#: Names of PyTorch's losses that compare each output with its own target; the others take classes.
OF_NUMBERS = re.compile(
    r"(MSE|L1|SmoothL1|Huber|BCE|BCEWithLogits|PoissonNLL|KLDiv|SoftMargin)Loss"
    r"|(mse|l1|smooth_l1|huber)_loss|binary_cross_entropy(_with_logits)?"
)


class Loss(keras.losses.Loss):
    """A loss of PyTorch's, or one that takes what PyTorch's do: ``loss(outputs, targets)``.

    Args:
        function: a module, or a function.
    """

    def __init__(self, function: Function):
        name = getattr(function, "__name__", type(function).__name__)
        super().__init__(name=name)
        self.__name__ = name
        object.__setattr__(self, "function", function)

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> Any:
        """Return the loss of a batch, one number.

        Raises:
            UsageError: targets have another shape than the outputs, or the loss is no number.
        """
        name, y_true = self.name, keras.ops.convert_to_tensor(y_true)
        if sample_weight is not None:
            refuse("dataset", f"{name} takes no weights of examples", "weights",
                   accepted="a loss of Keras', or a module with a training_step",
                   typed="trainer.loss=mse")  # fmt: skip
        shapes = tuple(y_true.shape), tuple(y_pred.shape)
        of_numbers = y_true.is_floating_point() or OF_NUMBERS.fullmatch(name) is not None
        if shapes[0] != shapes[1] and (of_numbers or shapes[1] == (*shapes[0], 1)):
            refuse("trainer.loss", f"outputs have the shape {shapes[1]}, and targets {shapes[0]}: "
                   "each would meet all", name, accepted="outputs of the targets' shape",
                   hint="outputs.squeeze(-1), or outputs.reshape(targets.shape), in the "
                   "module")  # fmt: skip
        loss = self.function(y_pred, y_true.to(y_pred.dtype) if of_numbers else y_true.long())
        if loss.ndim:
            refuse("trainer.loss", f"has the shape {tuple(loss.shape)}, and is to be one number",
                   name, accepted="a loss with reduction=mean or sum",
                   hint="reduction='mean'")  # fmt: skip
        return loss


def loss(value: Foreign) -> Foreign:
    """Return a loss that takes ``(outputs, targets)`` as Keras calls one; another as it is."""
    if isinstance(value, torch.nn.Module):
        return Loss(value)
    if not (inspect.isfunction(value) or isinstance(value, functools.partial)):
        return value
    first = next(iter(inspect.signature(value).parameters), "")
    return Loss(value) if first.startswith(OUTPUTS_FIRST) else value


class Metric(keras.metrics.Metric):
    """A metric whose states are sums, which are those of all batches and of all replicas.

    Methods of the class are called: what an instance has in their place would exchange states
    between processes, and keep results.

    Args:
        metric: of ``torchmetrics``.

    Raises:
        UsageError: a state of it is no sum.
    """

    #: What :func:`dtrain.task.backends.step_logs.adds_up` asks for.
    adds_up = True

    def __init__(self, metric: Foreign):
        kind = type(metric).__name__
        super().__init__(name=re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower())
        if kind.startswith(("Binary", "Multilabel", "Multiclass")):
            #: It tells of each batch whether it is of probabilities: it is given such at once.
            self.separate = not kind.startswith("Multiclass")
        states = summed_states(metric)
        if states is None:
            refuse("trainer.metrics", "has states that are no sums, such as all examples", kind,
                   accepted="torchmetrics' metrics whose states are sums, and Keras'",
                   hint="thresholds: 100, where the metric keeps examples for want of "
                   "it")  # fmt: skip
        # Keras would wrap a module that is an attribute.
        object.__setattr__(self, "metric", metric.to(keras.ops.zeros([]).device))
        self._states = {
            name: self.add_variable(
                tuple(state.shape), "zeros", dtype=keras.backend.standardize_dtype(state.dtype),
                name=name,
            )
            for name, state in states.items()
        }  # fmt: skip

    def _load(self) -> None:
        for name, variable in self._states.items():
            setattr(self.metric, name, variable.value.detach().clone())

    @torch.no_grad()
    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> None:
        """Add a batch.

        Raises:
            UsageError: what it is given has weights.
        """
        if sample_weight is not None:
            refuse("trainer.metrics", "takes no weights, and masked outputs have some", self.name,
                   accepted="a metric of Keras'", typed="'trainer.metrics=[accuracy]'")  # fmt: skip
        y_true = keras.ops.convert_to_tensor(y_true)
        self._load()
        type(self.metric).update(
            self.metric, y_pred, y_true if y_true.is_floating_point() else y_true.long()
        )
        for name, variable in self._states.items():
            variable.assign(getattr(self.metric, name))

    @torch.no_grad()
    def result(self) -> Tensor:
        """Return what the metric makes of its states.

        Raises:
            UsageError: that is several numbers.
        """
        self._load()
        result = type(self.metric).compute(self.metric)
        if not isinstance(result, torch.Tensor) or result.numel() != 1:
            refuse("trainer.metrics", "has several numbers as its result, and a run logs one",
                   self.name, accepted="a metric with one number",
                   hint="average: macro")  # fmt: skip
        return result.reshape([])


def metric(value: Foreign) -> Foreign:
    """Return a metric of ``torchmetrics`` as Keras calls one; anything else as it is."""
    is_one = any(each.__module__ == "torchmetrics.metric" for each in type(value).__mro__)
    return Metric(value) if is_one else value
