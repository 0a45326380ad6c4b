"""The first operation of a training step whose result is not finite: each is looked at."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

import keras
import torch

from dtrain.task.backends.runtime import NotFinite
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.torch.arrays import put
from dtrain.task.backends.torch.keras_internals import Watching, gradient_lines
from dtrain.task.backends.torch.plain import unwrapped as unwrapped_module
from dtrain.task.backends.tracing import tracing
from dtrain.task.model import calls, optimizers
from dtrain.task.process import own_code


def first_not_finite(model: keras.Model, batch: Any) -> NotFinite | None:
    """Run the step of a model on one device; autograd's anomaly mode has the lines of gradients."""
    looking, data, findings = calls.Finite(), put(batch), list[NotFinite]()

    def look(operation: str, outputs: Any) -> None:
        if "empty" in operation:  # memory that is not written yet
            return
        for tensor in keras.tree.flatten(outputs):
            is_float = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            if is_float and not bool(torch.isfinite(tensor).all()):
                lines = gradient_lines()
                frames = [(f.filename, f.lineno or 0) for f in traceback.extract_stack()]
                line = own_code.line(frames if lines is None else lines)
                findings.append(NotFinite(operation, looking.layer, lines is not None, line))
                raise FloatingPointError(operation)

    names = {id(module): name for name, module in unwrapped_module(model).named_modules()}

    def entered(module: torch.nn.Module, args: Any) -> None:
        looking.entered(names.get(id(module), ""), module, args, {})

    def left(module: torch.nn.Module, args: Any, outputs: Any) -> None:
        looking.left("", module, outputs)

    model.train()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.nn.modules.module.register_module_forward_pre_hook(entered).remove)
        stack.callback(torch.nn.modules.module.register_module_forward_hook(left).remove)
        stack.enter_context(contextlib.suppress(FloatingPointError))
        stack.enter_context(stack.enter_context(calls.watched(looking))())
        stack.enter_context(optimizers.caught(model))
        stack.enter_context(tracing(rows=len(keras.tree.flatten(data)[0]), results=[]))
        stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
        stack.enter_context(Watching(look))
        model.train_step(unwrapped(data))
    return next(iter(findings), None)
