"""Plain modules of PyTorch, as the rest of a task sees a model: with Keras' names for what it does.

Variables have the names of the module's ``state_dict``, and share its memory. A module without
steps of its own is trained by ``trainer.loss``; one with ``training_step(batch)`` says itself what
its loss is.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from types import FunctionType

import keras
import numpy as np
import torch

from dtrain.errors import UsageError, refuse
from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Function, Logs, Nest, Tensor, Tensors
from dtrain.task.backends.step_logs import LOSS_WEIGHT
from dtrain.task.backends.torch import gradients
from dtrain.task.backends.torch.arrays import put
from dtrain.task.backends.torch.losses import TARGETS_FIRST, Loss, loss, metric
from dtrain.task.backends.torch.state import (
    EXTRA,
    Buffer,
    TorchOptimizer,
    optimizer,
    owner_of,
    variables_of,
    weights,
)
from dtrain.task.backends.torch.tables import Prepared, prepared
from dtrain.task.backends.tracing import now, tracing
from dtrain.task.model import object_state, optimizers
from dtrain.task.model.object_state import Owner

__all__ = ["loss", "metric", "optimizer", "prepared", "weights"]

#: What a module may have in the place of ``trainer.loss``.
STEPS = TRAINING, VALIDATION = "training_step", "validation_step"
#: Layers that normalise by the statistics of a batch.
STATISTICS = (
    torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d,
    keras.layers.BatchNormalization,
)  # fmt: skip
#: Begins the names of the weights of a loss.
LOSS = "trainer.loss"
#: What names of a ``validation_step`` need not begin with: every number of a validation does.
PREFIX = "val_"


def buffers(model: keras.Model) -> list[tuple[str, Buffer]]:
    """Return the buffers of modules that layers of Keras' have or wrap: Keras has them in no list.

    Args:
        model: of Keras'; what a plain module has is among its variables.
    """
    if isinstance(model, PlainModel):
        return []
    if model not in _BUFFERS:  # those that are made later are kept as attributes are
        named = {
            id(each): (f"{layer.name}/{name}", Buffer(layer, name))
            for layer in reversed(keras_internals.layers(model))
            for name, each in layer.named_buffers()
        }
        _BUFFERS[model] = list(named.values())[::-1]
    return _BUFFERS[model]


_BUFFERS: weakref.WeakKeyDictionary[keras.Model, Foreign] = weakref.WeakKeyDictionary()


def owners(model: keras.Model, group: str) -> dict[str, Owner]:
    """Return what holds more than variables.

    Args:
        model: compiled.
        group: ``model`` for modules and losses, ``optimizer`` for optimizers and their schedules.
    """
    held: dict[str, Owner] = {}
    if group == "optimizer":
        for path, optimizer in optimizers.named(model).items():
            own = isinstance(optimizer, TorchOptimizer)
            caches = keras_internals.CACHES
            held[path] = optimizer.owner() if own else object_state.owner(optimizer, caches)
        return held
    losses = [getattr(each, "function", each) for each in keras.tree.flatten(model.loss)]
    internals = {*vars(torch.nn.Module()), *vars(keras.Model(name="model")), "stop_training"}
    visited: set[torch.nn.Module] = set()
    for number, each in enumerate([*keras_internals.layers(model), unwrapped(model), *losses]):
        if isinstance(each, torch.nn.Module):
            for name, module in each.named_modules(visited):
                held[f"{number}/{name}"] = owner_of(module, internals)
        elif hasattr(each, "__dict__") and not isinstance(each, FunctionType | type):
            held[f"{number}/loss"] = object_state.owner(each)
    return held


class PlainModel(keras.Model):
    """A module, called as a model of Keras'.

    Args:
        module: on the device of this process.
        name: of the model.
        compute: the type that it computes in (``torch.autocast``); None for its own.
        prepared: makes of the matrix of a table what the module gets; None: it gets inputs as they
            are.
    """

    #: Of an optimizer that accumulates: of how many batches it has gradients, and what they weigh.
    _accumulated: Foreign = None

    def __init__(
        self, module: torch.nn.Module, name: str, compute: torch.dtype | None = None,
        prepared: Prepared | None = None,
    ):  # fmt: skip
        super().__init__(name=name, dtype="float32")
        # Keras would wrap a module that is an attribute, and PyTorch list its parameters twice.
        self.module: torch.nn.Module
        self.names: dict[str, keras.Variable]
        object.__setattr__(self, "module", module)
        self._forward: Function
        object.__setattr__(self, "_forward", module)
        self._compute = compute
        self.prepared: Prepared | None
        object.__setattr__(self, "prepared", prepared)  # it has no state
        #: Modules by what the names of their variables begin with: a loss may be one, too.
        self.parts: dict[str, torch.nn.Module]
        object.__setattr__(self, "parts", {"": module})
        #: Modules of a loss that train and evaluate with the model; a teacher only evaluates.
        self._of_loss: list[torch.nn.Module]
        object.__setattr__(self, "_of_loss", [])
        kept = module.state_dict(keep_vars=True)
        state = variables_of(module)
        self.state = list(state.values())
        #: The variable of each name of the state_dict: parameters may have several.
        named = {n: state[id(t)] for n, t in kept.items() if not n.endswith(EXTRA)}
        object.__setattr__(self, "names", named)
        self.built = True

    def compile(self, *args: object, **options: object) -> None:
        """Compile as Keras does; with a loss of PyTorch's the steps are shorter ones.

        Raises:
            UsageError: the loss does not say whether it is given the outputs first.
        """
        loss = options.get("loss")
        if inspect.isfunction(loss):
            first = next(iter(inspect.signature(loss).parameters), "")
            if not first.startswith(TARGETS_FIRST):
                refuse("trainer.loss", f"has {first!r} as its first parameter, which says neither "
                       "outputs nor targets", loss.__name__,
                       accepted="loss(outputs, targets), or loss(y_true, y_pred)",
                       hint=f"def {loss.__name__}(outputs, targets):")  # fmt: skip
        super().compile(*args, **options)
        if getattr(self.optimizer, "gradient_accumulation_steps", None):
            weight = self.optimizer.add_variable((2,), "zeros", name="accumulated_weight")
            object.__setattr__(self, "_accumulated", weight)
        if isinstance(self.loss, Loss) and not isinstance(self, SteppingModel):
            # Of this instance: what they return is what Keras' steps do.
            object.__setattr__(self, "train_step", self._train_step)
            object.__setattr__(self, "test_step", self._test_step)
        for number, each in enumerate(keras.tree.flatten(self.loss)):
            part = getattr(each, "function", None)
            if isinstance(part, torch.nn.Module) and not isinstance(self, SteppingModel):
                prefix = f"{LOSS}{number or ''}."
                self.parts[prefix] = part.to(keras.ops.zeros([]).device)
                self._of_loss.extend(each for each in part.modules() if each.training)
                self.state.extend(variables_of(part, prefix).values())

    def _train_step(self, data: Nest) -> Logs:
        self.zero_grad()
        loss, logs, weight = self._evaluated(data, training=True)
        self._update(loss, weight)
        return logs

    def _test_step(self, data: Nest) -> Logs:
        return self._evaluated(data, training=False)[1]

    def _evaluated(self, data: Nest, training: bool) -> tuple[torch.Tensor, Logs, Tensor]:
        """Call the module and its loss without what Keras does around them.

        The last is what the loss is the mean over.
        """
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = self.call(x, training=training)
        divisors: list[tuple[Tensor, Tensor]] | None = (
            None if training and self._accumulated is None else []
        )
        with tracing(divisors=divisors):
            loss: torch.Tensor = self.loss(y, outputs, weight)
        divisor, [tracker, *_] = _divisor(loss, divisors or [], len(y)), self.metrics
        rows = len(y) if training else divisor
        with torch.no_grad():
            tracker.total.value.add_(loss.detach() * (rows * now().parts))
            tracker.count.value.add_(rows)
            return loss, self.compute_metrics(x, y, outputs, weight), divisor

    def _update(self, loss: torch.Tensor, weight: Tensor) -> None:
        """Update the weights by the gradients of a loss, which is the mean over ``weight``."""
        loss.backward()
        weights = self.trainable_weights
        with torch.no_grad():
            own = [each.value.grad for each in weights]
            if self._accumulated is not None:
                own = self._weighed(own, weights, torch.as_tensor(weight))
            self.optimizer.apply(own, weights)

    def _weighed(self, own: Tensors, weights: list[keras.Variable], weight: Tensor) -> Tensors:
        """Return gradients whose mean over the batches of an update is that over all that counts.

        Keras adds up the gradients of batches, and divides by how many batches there are.
        """
        optimizer, step = self.optimizer, gradients.current()
        if step is not None:
            weight = gradients.mean([weight])[0] * step.replicas
        batches, total = self._accumulated.value + torch.stack([torch.ones_like(weight), weight])
        is_last = batches == optimizer.gradient_accumulation_steps
        self._accumulated.assign(torch.stack([batches, total]) * ~is_last)
        share = batches * weight / total.clamp(min=1e-9)  # 1 where all weigh the same
        sums = [each for each in optimizer.variables if "gradient_accumulator" in each.path]
        ids = map(id, keras_internals.updated(optimizer))
        means = {
            key: each.value / (batches - 1).clamp(min=1)
            for key, each in zip(ids, sums, strict=True)
        }
        return [
            each if each is None else share * each + (1 - share) * means[id(variable)]
            for each, variable in zip(own, weights, strict=True)
        ]

    def call(self, x: Nest, training: bool | None = None) -> Nest:
        """Call the module: several inputs are its arguments, those of a dict by their names."""
        self._enter(training)
        x = x if self.prepared is None else self.prepared(x)
        with self._computing(x):
            return _called(self._forward, x)

    def check_inputs(self, x: Nest) -> None:
        """Refuse inputs by name that the module does not take, as of items that are dicts.

        Raises:
            UsageError: naming what it takes.
        """
        signature = inspect.signature(self.module.forward)
        try:
            signature.bind(**x)
        except TypeError:
            raise UsageError("model", f"the dataset gives inputs by name: {', '.join(x)}",
                             f"{type(self.module).__name__}.forward{signature}",
                             accepted=f"forward({', '.join(['self', *x])}), or a "
                             "training_step(self, batch), which is given items as they are",
                             hint=f"return item[{next(iter(x))!r}], targets in the "
                             "dataset") from None  # fmt: skip

    def _enter(self, training: bool | None) -> None:
        """Let the module train or not: layers such as ``torch.nn.Dropout`` look there."""
        if training is not None and self.module.training != training:
            self._set_mode(training)

    def _set_mode(self, training: bool) -> None:
        self.module.train(training)
        for each in self._of_loss:
            each.training = training

    def _computing(self, x: Nest) -> Foreign:
        if self._compute is None:
            return contextlib.nullcontext()
        return torch.autocast(keras.tree.flatten(x)[0].device.type, self._compute)

    def train(self, mode: bool = True) -> Foreign:
        """Train, or not: the module does so with the model."""
        self._set_mode(mode)
        return super().train(mode)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the module's parameters."""
        # Of the variables: a fully sharded module that is gathered has other parameters.
        for variable in self.trainable_variables:
            variable.value.grad = None

    def compute_output_shape(self, input_shape: Nest) -> Nest:
        """Leave the shape to Keras, which calls the module to know it.

        Raises:
            NotImplementedError: always; so a Keras layer says that it has no rule of its own.
        """
        raise NotImplementedError


def _called(forward: Function, x: Nest) -> Nest:
    if isinstance(x, dict):
        return forward(**x)
    return forward(*x) if isinstance(x, list | tuple) else forward(x)


class SteppingModel(PlainModel):
    """A module that has a ``training_step``, and perhaps a ``validation_step``."""

    def train_step(self, data: Nest) -> Logs:
        """Train on a batch, by what the module says is its loss."""
        self._enter(True)
        self.zero_grad()
        divisors: list[tuple[Tensor, Tensor]] | None = None if self._accumulated is None else []
        with self._computing(data), tracing(divisors=divisors):
            loss, numbers, returned = self._outcome(TRAINING, data)
        rows = _divisor(returned, divisors or [], len(keras.tree.flatten(data)[0]))
        self._update(loss, numbers.get(LOSS_WEIGHT, rows))
        return {"loss": loss, **numbers}

    def test_step(self, data: Nest) -> Logs:
        """Evaluate a batch; without a ``validation_step`` by the ``training_step``."""
        self._enter(False)
        name = VALIDATION if hasattr(self.module, VALIDATION) else TRAINING
        divisors: list[tuple[Tensor, Tensor]] = []
        with self._computing(data), tracing(divisors=divisors):
            loss, numbers, returned = self._outcome(name, data)
        weight = _divisor(returned, divisors, len(keras.tree.flatten(data)[0]))
        numbers = {key.removeprefix(PREFIX): number for key, number in numbers.items()}
        return {"loss": loss, LOSS_WEIGHT: weight, **numbers}

    def _outcome(self, name: str, data: Nest) -> tuple[Tensor, Logs, Tensor]:
        """Return the loss and the other numbers that a step of the module's returns.

        The last is the loss as the step has returned it.

        Raises:
            UsageError: it returns something else.
        """
        if self.prepared is not None:
            x, *others = data if isinstance(data, tuple | list) else (data,)
            data = (self.prepared(x), *others)
        returned = getattr(self.module, name)(data)
        numbers = dict(returned) if isinstance(returned, dict) else {"loss": returned}
        loss = next((numbers.pop(key) for key in ("loss", f"{PREFIX}loss") if key in numbers), None)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
            refuse("model", f"returns {type(returned).__name__}{shape}",
                   f"{type(self.module).__name__}.{name}", accepted="the loss, a tensor of one "
                   "number, or {'loss': tensor, NAME: tensor, ...}",
                   hint="return loss")  # fmt: skip
        numbers = {key: torch.as_tensor(value) for key, value in numbers.items()}
        return loss.reshape([]), numbers, loss


def _divisor(loss: Tensor, divisors: list[tuple[Tensor, Tensor]], rows: int) -> Tensor:
    """Return what a loss was divided by, the rows of the batch where that is not known."""
    return next((divisor for each, divisor in divisors if each is loss), rows)


def _make_lazy_parameters(module: torch.nn.Module, x: Nest) -> None:
    """Call a module once, where layers such as ``torch.nn.LazyLinear`` make their parameters then.

    Raises:
        UsageError: its call does not reach them.
    """
    for is_last in (False, True):
        lazy = [n for n, each in module.state_dict(keep_vars=True).items() if _is_lazy(each)]
        if lazy and is_last:
            refuse("model", "is lazy, and forward(x) does not reach it",
                   f"{type(module).__name__}.{lazy[0]}",
                   accepted="layers with sizes, or all called in forward",
                   hint="torch.nn.Linear(in_features, out_features)")  # fmt: skip
        if lazy:
            # A module of steps alone has no forward: the next turn refuses its lazy layers.
            with torch.no_grad(), contextlib.suppress(NotImplementedError):
                _called(module.eval(), x)
            module.train()


def required(function: Function) -> list[str]:
    """Return the names of the arguments that a function cannot be called without."""
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]


def _is_lazy(value: object) -> bool:
    return isinstance(value, torch.Tensor) and torch.nn.parameter.is_lazy(value)


def as_model(built: Foreign, precision: str, x: Nest, prepared: Prepared | None = None) -> Foreign:
    """Return a module of PyTorch's as a model; anything else as it is.

    Args:
        built: what the user's function has returned.
        precision: ``hardware.precision``.
        x: inputs of one example.
        prepared: of :func:`prepared`.

    Raises:
        UsageError: the module has a step with other arguments, or cannot compute so.
    """
    if isinstance(built, keras.Model) or not isinstance(built, torch.nn.Module):
        return built
    name = type(built).__name__
    if precision == "mixed_float16":
        refuse("hardware.precision", f"{name} is a plain module, whose loss is not scaled",
               precision, accepted="float32, mixed_bfloat16",
               typed="hardware.precision=mixed_bfloat16")  # fmt: skip
    for step in STEPS:
        if hasattr(built, step):
            needed = required(getattr(built, step))
            if len(needed) != 1:
                refuse("model", f"takes ({', '.join(needed)}), as a LightningModule's does",
                       f"{name}.{step}", accepted=f"{step}(self, batch) of a torch.nn.Module, "
                       "where batch is (x, y)", hint=f"def {step}(self, batch):")  # fmt: skip
    module = built.to(keras.ops.zeros([]).device)
    _make_lazy_parameters(module, put(x) if prepared is None else prepared(put(x)))
    kind = SteppingModel if hasattr(module, TRAINING) else PlainModel
    compute = torch.bfloat16 if "bfloat16" in precision else None
    return kind(module, name.lower(), compute, prepared)


def returns_logits(model: keras.Model) -> bool:
    """Say whether outputs of a model are logits, as a loss of PyTorch's takes them."""
    if not isinstance(model, PlainModel):
        return False
    *_, last = model.module.modules()
    return not isinstance(last, torch.nn.Softmax | torch.nn.Sigmoid)


def check_parameters(model: keras.Model) -> None:
    """Refuse parameters that a step has replaced, or has let be trained.

    Raises:
        UsageError: naming one.
    """
    variables = {v.name: v for v in model.state} if isinstance(model, PlainModel) else {}
    for name, each in named_parameters(model) if variables else ():
        own = variables.get(name)
        if own is None or own.value is not each or each.requires_grad > own.trainable:
            refuse("model", "is replaced, or begins to be trained, in a step: the optimizer and "
                   "replicas have another", name, accepted="copy_ into it with torch.no_grad(), or "
                   "finetune.unfreeze", hint="register_buffer for what a step assigns")  # fmt: skip


def compile_forward(model: keras.Model, several: bool) -> None:
    """Let ``torch.compile`` compile what a model computes, when it is first called.

    Args:
        model: built.
        several: it is one of several replicas.

    Raises:
        UsageError: it has statistics of batches, which the replicas gather: PyTorch 2.13 cannot
            compile that.
    """
    for each in (unwrapped(model) if several else torch.nn.Identity()).modules():
        if isinstance(each, STATISTICS):
            refuse("trainer.compile", f"{type(each).__name__} normalises by the batch of all "
                   "processes, and torch.compile compiles no exchange between them", True,
                   accepted="false, or one process", typed="trainer.compile=false")  # fmt: skip
    if isinstance(model, PlainModel):
        object.__setattr__(model, "_forward", torch.compile(model.module))
    else:
        model.call = torch.compile(model.call)


def state_dict(model: keras.Model) -> dict[str, np.ndarray] | None:
    """Return the arrays of a module's ``state_dict``; None of a model of Keras'."""
    if not isinstance(model, PlainModel):
        return None
    return {
        name: np.array(keras.ops.convert_to_numpy(variable.value))
        for name, variable in model.names.items()
    }


def parts(model: keras.Model) -> dict[str, torch.nn.Module]:
    """Return the modules that a model is of, by what the names of their variables begin with."""
    return model.parts if isinstance(model, PlainModel) else {"": model}


def named_parameters(model: keras.Model) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the parameters of the modules that a model is of."""
    named = parts(model).items()
    return [(a + b, each) for a, part in named for b, each in part.named_parameters()]


def unwrapped(model: keras.Model) -> Foreign:
    """Return what the user's function has returned."""
    return model.module if isinstance(model, PlainModel) else model
