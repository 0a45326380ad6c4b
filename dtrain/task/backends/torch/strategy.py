"""Strategies: a process for each device, alone or with others that share each batch."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
import torch

from dtrain.data.sources import Source, Splits
from dtrain.errors import refuse
from dtrain.task import keras_internals
from dtrain.task.aliases import Batch, Variable
from dtrain.task.backends import across, unsummed
from dtrain.task.backends.base import Abilities, Backend, Finish, Tasks
from dtrain.task.backends.step_logs import has_own, unwrapped
from dtrain.task.backends.torch import rehearsal, replica
from dtrain.task.backends.torch.arrays import put
from dtrain.task.backends.torch.gradients import note_divisors
from dtrain.task.backends.torch.hardware import Processes
from dtrain.task.backends.torch.plain import PlainModel, compile_forward, required
from dtrain.task.backends.torch.steps import Forward, Steps
from dtrain.task.backends.tracing import tracing
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import optimizers, train_state
from dtrain.task.model.optimizers import Update

#: The steps of a class that Keras has.
STEPS = ("train_step", "test_step", "predict_step")


class OneDevice(Backend):
    """Everything on one device.

    Optimizers are left as they are: their gradients are those of the global batch. A task can read
    variables by itself, and outside of a training step a model computes in its process alone.

    Args:
        devices: the name of the device of this task.
    """

    abilities = Abilities(several_optimizers=True, predicts_alone=True)

    def __init__(self, devices: list[str]):
        note_divisors()  # ORDER: before the user's code is imported, which may import losses
        self.tasks: Tasks = Processes() if torch.distributed.is_initialized() else Tasks()

    @property
    def replicas(self) -> int:
        """How many replicas share each global batch: one of each task."""
        return self.tasks.size

    def place(self, model: keras.Model) -> None:
        """Refuse steps of other backends, and let all replicas begin with the chief's weights.

        Raises:
            UsageError: naming the method.
        """
        for name in STEPS:
            needed = required(getattr(model, name)) if has_own(model, name) else []
            if len(needed) > 1:
                refuse("model", f"takes ({', '.join(needed)}), as on backend=jax: on PyTorch it "
                       "takes data", f"{type(model).__name__}.{name}", accepted=f"{name}(self, "
                       "data), or backend=jax", typed="backend=jax")  # fmt: skip
        for layer in keras_internals.layers(model):
            if getattr(layer, "stateful", False):
                refuse("model", "is stateful, and the second step of it fails on PyTorch, in "
                       "Keras' fit as well", layer.name, accepted="stateful=False",
                       typed="backend=tensorflow")  # fmt: skip
        if self.tasks.size > 1:
            across.check_layers(model)
        if not isinstance(model, PlainModel):
            reached = set(map(id, model.parameters()))
            for number, variable in enumerate(model.weights):
                if id(variable.value) not in reached:  # LoRA's, of which zero_grad knows nothing
                    model.register_parameter(f"parameter_{number}", variable.value)
        if self.tasks.size > 1:
            with torch.no_grad():
                for variable in train_state.variables(model).values():
                    torch.distributed.broadcast(variable.value, 0)

    def trace_step(
        self, model: keras.Model, examples: Batch, creates: bool = False
    ) -> list[Update]:
        """Run ``train_step`` without updates; return what optimizers would update."""
        variables = train_state.variables(model)
        before = self.read(variables)
        model.train()
        data = put(examples)
        rows = len(keras.tree.flatten(data)[0])
        with optimizers.caught(model) as updates, tracing(rows=rows, results=[]):
            model.train_step(unwrapped(data))
        model.zero_grad()
        model.reset_metrics()
        self.write(variables, before)
        return updates

    def read(self, variables: Mapping[str, Variable]) -> dict[str, np.ndarray]:
        """Copy variables to the host."""
        return {
            name: np.array(keras.ops.convert_to_numpy(variable.value))
            for name, variable in variables.items()
        }

    def write(self, variables: Mapping[str, Variable], arrays: Mapping[str, np.ndarray]) -> None:
        """Set each variable to the array of its name."""
        for name, variable in variables.items():
            variable.assign(arrays[name])

    def check_copies(self, model: keras.Model) -> None:
        """Refuse a model whose step has left the replicas with weights of their own.

        Raises:
            UsageError: naming the weight.
        """
        if self.tasks.size > 1:
            replica.check_copies(model, model.trainable_variables, self.tasks.size)

    def notices(
        self, model: keras.Model, splits: Splits, fixed: int | None, batch: int | None, seed: int
    ) -> list[str | None]:
        """Try the model on some examples; say which of its numbers are not those of one device."""
        trial = rehearsal.trial(model)
        return [
            unsummed.notice(model, splits, self.tasks, self.parts, trial, fixed),
            rehearsal.notice(model, splits.train, self, batch, seed),
        ]

    def steps(self, model: keras.Model, inputs: Inputs, jit_compile: bool) -> Steps:
        """Return what trains and evaluates ``model`` on ``inputs``.

        Args:
            model: built under this strategy.
            inputs: what to read.
            jit_compile: compile the model by ``torch.compile`` (``trainer.compile``).
        """
        if jit_compile:
            compile_forward(model, self.tasks.size > 1)
        return Steps(model, inputs, self.tasks, self.gradient_reduction == "sum")

    def forward(self, model: keras.Model, source: Source, batch: int, finish: Finish) -> Forward:
        """Return the function that predicts; the arguments are those of :class:`Forward`."""
        return Forward(model, source, batch, finish)


class Default(OneDevice):
    """This process alone, whatever others there are: with all of a model on its device."""

    def __init__(self, devices: list[str]):
        super().__init__(devices)
        self.tasks = Tasks()


class Mirrored(OneDevice):
    """All of the model on each device of this machine, and a part of each batch."""


class MultiWorker(OneDevice):
    """All of the model on each device of each host, and a part of each batch.

    Args:
        devices: the name of the device of this task.
        options: for TensorFlow; they have their defaults here.
    """

    def __init__(self, devices: list[str], **options: object):
        super().__init__(devices)
