"""Strategies: what of a model lies where on the devices; the program is the same for all."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

import jax
import keras
import numpy as np

from dtrain.data.sources import Source, Splits
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.run import checkpoint
from dtrain.run.cluster import Cluster
from dtrain.task import keras_internals
from dtrain.task.aliases import Batch, Variable
from dtrain.task.backends import unsummed
from dtrain.task.backends.base import Abilities, Backend, Finish, Tasks
from dtrain.task.backends.jax.arrays import (
    Batches,
    Layouts,
    gathered,
    is_apart,
    narrowed,
    scattered,
)
from dtrain.task.backends.jax.hardware import Processes, across
from dtrain.task.backends.jax.state import State
from dtrain.task.backends.jax.steps import Forward, LocalCalls, Steps
from dtrain.task.backends.jax.traceable import check_steps
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import optimizers, train_state
from dtrain.task.model.optimizers import Update


class OneDevice(Backend):
    """Everything on one device.

    Gradients are those of the global batch, and the copies of an array one array of the program:
    optimizers are left as they are, and no copies compared.

    Args:
        devices: names of the devices of this task; the first is used.
    """

    abilities = Abilities(several_optimizers=True, plain_variables=False)
    #: How arrays lie on several devices; None: there is one.
    layouts: Layouts | None = None
    replicas = 1
    #: The step sees the whole global batch.
    parts = 1

    def __init__(self, devices: list[str]):
        self.tasks: Tasks = Processes() if jax.process_count() > 1 else Tasks()

    @property
    def arithmetic(self) -> Json:
        """What of the strategy the last bits of a prediction may depend on; JSON values."""
        return (
            {} if self.layouts is None else {"devices": int(self.layouts.device_mesh.devices.size)}
        )

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """Create model and metrics inside it."""
        return contextlib.nullcontext() if self.layouts is None else self.layouts.scope()

    def optimizer_scope(self) -> contextlib.AbstractContextManager[object]:
        """Create the optimizer and its slots inside it."""
        return contextlib.nullcontext() if self.layouts is None else self.layouts.optimizer_scope()

    def place(self, model: keras.Model) -> None:
        """Refuse steps of other backends, what a step would not carry on, rules that fit nothing.

        Raises:
            UsageError: naming the method, the layer or the rule.
        """
        check_steps(model)
        for layer in keras_internals.layers(model):
            if getattr(layer, "stateful", False):
                refuse("model", "is stateful=True, and a step of backend=jax carries no state of "
                       "layers on to the next batch", layer.name, accepted="stateful=False, or the "
                       "backend that does", typed="backend=tensorflow")  # fmt: skip
        if self.layouts is not None:
            self.layouts.check(model)

    def trace_step(
        self, model: keras.Model, examples: Batch, creates: bool = False
    ) -> list[Update]:
        """Trace ``train_step`` and run nothing; return what optimizers would update.

        Raises:
            UsageError: the step is to create variables, which none on JAX can.
        """
        if creates:
            refuse("model", "makes its variables in train_step", type(model).__name__,
                   accepted="a model whose call, or build, makes them",
                   hint="a method build(self, input_shape)")  # fmt: skip
        state = State(model)
        with optimizers.caught(model) as updates:
            data = narrowed(examples)
            jax.eval_shape(lambda values: state.trained(values, data)[0], state.read())
        return updates

    def read(self, variables: Mapping[str, Variable]) -> dict[str, np.ndarray]:
        """Copy variables to the host, and so one in parts over processes in all of them.

        Such are gathered into files, part by part (:func:`gathered`).
        """
        values = {name: variable.value for name, variable in variables.items()}
        own = {name: value for name, value in values.items() if not is_apart(value)}
        copies = jax.device_get(own)
        return {
            name: np.array(copies[name]) if name in own else gathered(value, self.tasks)
            for name, value in values.items()
        }

    def write(self, variables: Mapping[str, Variable], arrays: Mapping[str, np.ndarray]) -> None:
        """Set each variable to the array of its name.

        Where the strategy reads together, large arrays are those of the chief, part by part.
        """
        for name, variable in variables.items():
            value, array = variable.value, arrays[name]
            if self.abilities.reads_together and array.nbytes > checkpoint.SMALL:
                array = scattered(array, value, self.tasks)
            elif not value.is_fully_addressable:  # each process has its part of the same array
                array = jax.make_array_from_callback(
                    array.shape, value.sharding, array.astype(value.dtype).__getitem__
                )
            variable.assign(array)

    @contextlib.contextmanager
    def whole(self, model: keras.Model) -> Iterator[None]:
        """Let the chief read inside, by itself, variables that are in parts over all tasks."""
        named = train_state.variables(model) if self.abilities.reads_together else {}
        if self.tasks.rank > 0:
            for name, variable in named.items():
                self.read({name: variable})
            named = {}
        arrays = [jax.numpy.asarray(array) for array in self.read(named).values()]
        with keras_internals.exchanged([*named.values()], arrays):
            yield

    def notices(
        self, model: keras.Model, splits: Splits, fixed: int | None, batch: int | None, seed: int
    ) -> list[str | None]:
        """Try metrics on some examples; all other numbers are those of one device."""
        trial = State(model).trial
        return [unsummed.notice(model, splits, self.tasks, self.parts, trial, fixed)]

    def steps(self, model: keras.Model, inputs: Inputs, jit_compile: bool) -> Steps:
        """Return the compiled functions that train and evaluate ``model`` on ``inputs``.

        Args:
            model: built under this strategy.
            inputs: what to read.
            jit_compile: has no effect: XLA compiles every step.
        """
        return Steps(model, inputs, Batches(self.layouts, self.replicas, self.tasks))

    def forward(self, model: keras.Model, source: Source, batch: int, finish: Finish) -> Forward:
        """Return the function that predicts; the arguments are those of :class:`Forward`."""
        put = Batches(self.layouts, self.replicas, self.tasks).put
        return Forward(model, source, batch, finish, self.replicas, put)

    def answer_locally(self, model: keras.Model) -> None:
        """Let ``predict`` and ``evaluate`` of a callback compute in this task alone.

        Those of one process are Keras' own, which divide batches over its devices.
        """
        if self.tasks.size > 1:
            LocalCalls(model, self)


class Default(OneDevice):
    """One process without a layout of its own: the same as :class:`OneDevice` on JAX."""


class Mirrored(OneDevice):
    """All of the model on each device, and a part of each batch.

    Args:
        devices: names of the devices.
    """

    def __init__(self, devices: list[str]):
        super().__init__(devices)
        self.replicas = len(devices)
        self.layouts = Layouts(devices, (len(devices), 1), [])


class TPU(Mirrored):
    """All of the model on each core of a TPU, whose host this process runs on.

    Not yet run on a TPU.

    Args:
        devices: names of the cores.
        options: for TensorFlow; they have their defaults here.
    """

    def __init__(self, devices: list[str], **options: object):
        super().__init__(devices)


class MultiWorker(Mirrored):
    """All of the model on each device of each process, and a part of each batch.

    Args:
        devices: names of the devices of this task.
        options: for TensorFlow; they have their defaults here.
    """

    def __init__(self, devices: list[str], **options: object):
        super().__init__(across(devices))


class FullySharded(OneDevice):
    """A part of each batch, of each weight and of each slot of the optimizer on each device.

    Also known as ZeRO-3 (Rajbhandari et al. 2020, arXiv 1910.02054): weights are gathered where
    they are read, and gradients scattered.

    Args:
        devices: names of the devices of this task.
        rules: which variables are in parts, and along which axis.
    """

    def __init__(self, devices: list[str], rules: object = "auto"):
        devices = across(devices)
        super().__init__(devices)
        self.abilities = dataclasses.replace(self.abilities, reads_together=self.tasks.size > 1)
        self.replicas = len(devices)
        self.layouts = Layouts(devices, (len(devices), 1), rules, "batch")


class Mesh(OneDevice):
    """Rows of devices, each with a part of each batch and the whole model, in parts on the row.

    Args:
        devices: names of the devices, a row of the mesh after the other.
        cluster: its replicas are the rows.
        rules: which variables are in parts, and along which axis.
    """

    def __init__(self, devices: list[str], cluster: Cluster, rules: object):
        super().__init__(devices)
        self.replicas = cluster.replicas
        sizes = cluster.replicas, len(devices) // cluster.replicas
        self.layouts = Layouts(devices, sizes, rules)
