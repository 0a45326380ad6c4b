"""Strategies: what of a model lies where on the devices; the program is the same for all."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from dtrain.data import nest
from dtrain.data.sources import Source, Splits
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster
from dtrain.task import keras_internals
from dtrain.task.backends import unsummed
from dtrain.task.backends.base import Abilities, Finish, Tasks
from dtrain.task.backends.jax.arrays import narrowed
from dtrain.task.backends.jax.forward import Forward
from dtrain.task.backends.jax.layouts import Layouts
from dtrain.task.backends.jax.processes import Processes, across
from dtrain.task.backends.jax.state import State
from dtrain.task.backends.jax.steps import Steps
from dtrain.task.backends.jax.traceable import check_steps
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import optimizers, train_state
from dtrain.task.model.optimizers import Update


class OneDevice:
    """Everything on one device.

    Args:
        devices: names of the devices of this task; the first is used.
    """

    abilities = Abilities(several_optimizers=True, plain_variables=False)
    gradient_reduction = "mean"
    sync_every = 1
    #: How arrays lie on several devices; None: there is one.
    layouts: Layouts | None = None
    replicas = 1
    #: The step sees the whole global batch.
    parts = 1

    def __init__(self, devices: list[str]):
        self.tasks = Tasks()

    def _span(self, devices: list[str], cluster: Cluster) -> list[str]:
        """Return the devices of all processes of the job, where there are several.

        Args:
            devices: of this one.
            cluster: all tasks, which have joined each other (:func:`.processes.join`).
        """
        if len(cluster.tasks) == 1:
            return devices
        self.tasks = Processes()
        return across(len(devices))

    @property
    def arithmetic(self) -> dict[str, Any]:
        """What of the strategy the last bits of a prediction may depend on; JSON values."""
        return (
            {} if self.layouts is None else {"devices": int(self.layouts.device_mesh.devices.size)}
        )

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Create model and metrics inside it."""
        return contextlib.nullcontext() if self.layouts is None else self.layouts.scope()

    def optimizer_scope(self) -> contextlib.AbstractContextManager[Any]:
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
                raise UsageError(
                    "model", layer.name,
                    "is stateful=True, and a step of backend=jax carries no state of layers on to "
                    "the next batch", "stateful=False, or the backend that does",
                    "backend=tensorflow",
                )  # fmt: skip
        if self.layouts is not None:
            self.layouts.check(model)

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Leave an optimizer as it is: its gradients are those of the global batch."""

    def trace_step(
        self, model: keras.Model, examples: tuple[Any, ...], creates: bool = False
    ) -> list[Update]:
        """Trace ``train_step`` and run nothing; return what optimizers would update.

        Raises:
            UsageError: the step is to create variables, which none on JAX can.
        """
        if creates:
            raise UsageError(
                "model", type(model).__name__, "makes its variables in train_step",
                "a model whose call, or build, makes them", "a method build(self, input_shape)",
            )  # fmt: skip
        state = State(model)
        with optimizers.caught(model) as updates:
            data = narrowed(examples)
            jax.eval_shape(lambda values: state.trained(values, data)[0], state.read())
        return updates

    def read(self, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Copy variables to the host, and so one in parts over processes in all of them.

        Such are gathered one after the other: no device has the whole of two.
        """
        values = [_gathered(variable.value) for variable in variables.values()]
        values = jax.device_get(values)
        return {name: np.array(value) for name, value in zip(variables, values, strict=True)}

    def write(self, variables: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Set each variable to the array of its name."""
        for name, variable in variables.items():
            value, array = variable.value, arrays[name]
            if not value.is_fully_addressable:  # each process has its part of the same array
                array = jax.make_array_from_callback(
                    array.shape, value.sharding, array.astype(value.dtype).__getitem__
                )
            variable.assign(array)

    @contextlib.contextmanager
    def whole(self, model: keras.Model) -> Iterator[None]:
        """Let a task read inside, by itself, variables that are in parts over all of them."""
        named = train_state.variables(model) if self.abilities.reads_together else {}
        kept = {name: keras_internals.stored(variable) for name, variable in named.items()}
        for name, array in self.read(named).items():
            keras_internals.exchange(named[name], jax.numpy.asarray(array))
        try:
            yield
        finally:
            for name, value in kept.items():
                keras_internals.exchange(named[name], value)

    def check_copies(self, model: keras.Model) -> None:
        """Check nothing: the copies of an array are one array of the program."""

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
        return Steps(model, inputs, self)

    def forward(self, model: keras.Model, source: Source, batch: int, finish: Finish) -> Forward:
        """Return the function that predicts; the arguments are those of :class:`Forward`."""
        return Forward(model, source, batch, finish, self.replicas, self.put)

    def answer_locally(self, model: keras.Model) -> None:
        """Leave ``predict`` and ``evaluate`` to Keras, which divide batches over the devices."""

    @property
    def replicated(self) -> jax.sharding.Sharding | None:
        """How what every process reads lies on the devices; None: there is one device."""
        return None if self.layouts is None else self.layouts.sharding(0, divided=False)

    def share(self, rows: int) -> slice:
        """Return which rows of a batch of so many this task reads: all where it is not divided."""
        if rows % self.replicas:
            return slice(None)
        own = rows // self.tasks.size
        return slice(self.tasks.rank * own, (self.tasks.rank + 1) * own)

    def put(self, batch: Any, rows: int) -> Any:
        """Send a batch to the devices, divided over its rows where they divide it.

        Args:
            batch: arrays ``[b, ...]``, the rows that this task has read; or all of them.
            rows: how many the batch has in all tasks.

        Raises:
            UsageError: JAX has no such numbers.
        """
        batch = narrowed(batch)
        if self.layouts is None:
            return jax.device_put(batch)
        layouts, divided = self.layouts, rows % self.replicas == 0

        def laid_out(leaf: np.ndarray) -> jax.Array:
            sharding = layouts.sharding(np.ndim(leaf), divided)
            shape = (rows, *np.shape(leaf)[1:])
            return jax.make_array_from_process_local_data(sharding, leaf, shape)

        return nest.mapped(laid_out, batch)


def _gathered(value: jax.Array) -> jax.Array:
    if value.is_fully_addressable or value.is_fully_replicated:
        return value
    return multihost_utils.process_allgather(value, tiled=True)


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


class MultiWorker(OneDevice):
    """All of the model on each device of each process, and a part of each batch.

    Args:
        devices: names of the devices of this task.
        cluster: all tasks.
        options: for TensorFlow; they have their defaults here.
    """

    def __init__(self, devices: list[str], cluster: Cluster, **options: Any):
        super().__init__(devices)
        devices = self._span(devices, cluster)
        self.replicas = len(devices)
        self.layouts = Layouts(devices, (len(devices), 1))


class FullySharded(OneDevice):
    """A part of each batch, of each weight and of each slot of the optimizer on each device.

    Also known as ZeRO-3 (Rajbhandari et al. 2020, arXiv 1910.02054): weights are gathered where
    they are read, and gradients scattered.

    Args:
        devices: names of the devices of this task.
        cluster: all tasks.
        rules: which variables are in parts, and along which axis.
    """

    def __init__(self, devices: list[str], cluster: Cluster, rules: Any = "auto"):
        super().__init__(devices)
        devices = self._span(devices, cluster)
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

    def __init__(self, devices: list[str], cluster: Cluster, rules: Any):
        super().__init__(devices)
        self.replicas = cluster.replicas
        sizes = cluster.replicas, len(devices) // cluster.replicas
        self.layouts = Layouts(devices, sizes, rules)
