"""The process of a task, as its framework has it: what is there before a strategy is made.

A backend has it in a module ``runtime`` of its package; which one that is, Keras' own variable
``KERAS_BACKEND`` says.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, cast

import keras
import numpy as np

from dtrain.config.tree import Hardware
from dtrain.data.encoding import Encoding
from dtrain.data.sources import Source, Splits
from dtrain.files.fields import Json
from dtrain.run.cluster import Cluster, Task
from dtrain.task import backends
from dtrain.task.aliases import Batch, Foreign, Function, Nest, Options, Tensor, Variable
from dtrain.task.data.inputs import Augment, Inputs


@dataclasses.dataclass(frozen=True)
class NotFinite:
    """An operation whose result is not finite.

    Attributes:
        operation: its type, such as ``Log``.
        layer: path and class of the layer that computes it; empty where that is not known.
        backward: whether it is of a gradient.
        line: of the user's code, as ``FILE:LINE: CODE``; empty where there is none.
    """

    operation: str
    layer: str
    backward: bool
    line: str


class Plain(Protocol):
    """Models and what trains them, of the framework itself, beside those of Keras."""

    def prepared(self, built: Foreign, encoding: Encoding | None) -> Foreign:
        """Return what prepares the matrix of a table for a module; None of all else.

        Args:
            built: what the user's function has returned.
            encoding: of the table; None where there is none.
        """

    def as_model(
        self, built: Foreign, precision: str, x: Nest, prepared: Foreign = None
    ) -> Foreign:
        """Return a module of the framework's as a model; anything else as it is.

        Args:
            built: what the user's function has returned.
            precision: ``hardware.precision``.
            x: inputs of one example.
            prepared: of :meth:`prepared`.

        Raises:
            UsageError: it cannot be trained so.
        """

    def owners(self, model: keras.Model, group: str) -> dict[str, Foreign]:
        """Return each :class:`dtrain.task.model.object_state.Owner` of a model, by its name.

        Args:
            model: compiled.
            group: ``model``, or ``optimizer``.
        """

    def unwrapped(self, model: keras.Model) -> Foreign:
        """Return what the user's function has returned."""

    def state_dict(self, model: keras.Model) -> dict[str, np.ndarray] | None:
        """Return the arrays of a module under its own names; None of a model of Keras'."""

    def weights(self, path: Path) -> dict[str, np.ndarray]:
        """Return the arrays of a file of the framework's, by name, and run no code of it.

        Raises:
            UsageError: it has something else in it.
        """

    def optimizer(
        self, node: Options, schedule: Options | None, steps: int,
        steps_per_epoch: int,
    ) -> keras.optimizers.Optimizer | None:  # fmt: skip
        """Return an optimizer of the framework's; None where a node names none.

        Args:
            node: of the ``optimizer`` group, without its schedule.
            schedule: the node of that.
            steps: of the run.
            steps_per_epoch: of the run.

        Raises:
            UsageError: optimizer and schedule do not go together.
        """

    def loss(self, value: Foreign) -> Foreign:
        """Return a loss of the framework's as Keras calls one; another as it is."""

    def metric(self, value: Foreign) -> Foreign:
        """Return a metric of the framework's as Keras calls one; another as it is.

        Raises:
            UsageError: its states do not add up over batches.
        """

    def returns_logits(self, model: keras.Model) -> bool:
        """Say whether outputs of a model are logits where ``trainer.loss=auto`` chooses a loss."""


class Runtime(Protocol):
    """What a module ``runtime`` of a backend has."""

    #: Models of the framework itself; None where there are none.
    PLAIN: Plain | None

    #: Raised by the framework's own operations, whatever their input was.
    ERRORS: tuple[type[Exception], ...]
    #: Types of dense tensors.
    TENSORS: tuple[Foreign, ...]
    #: Types of variables, Keras' own among them.
    VARIABLES: tuple[Foreign, ...]
    #: Types of generators of random numbers whose ``state`` is a variable.
    GENERATORS: tuple[Foreign, ...]

    def configure(
        self, hardware: Hardware, cluster: Cluster, task: Task, deterministic: bool = False,
        peer_timeout: float | None = None,
    ) -> list[str]:  # fmt: skip
        """Choose devices, threads and precision before anything is computed.

        Args:
            hardware: the ``hardware`` group.
            cluster: says which kind of device.
            task: says how many.
            deterministic: only operations that give the same bits each time.
            peer_timeout: seconds after which another task from which nothing comes is given up:
                none of several waits for one that is lost without end. None: the others are not
                there, or this process is not its own.

        Returns:
            The names of the devices.
        """

    def alone(self) -> AbstractContextManager[None]:
        """Let Keras import no other framework than its backend in what is called inside."""

    def overlooked(self, hardware: Hardware, cluster: Cluster) -> str | None:
        """Return a sentence about devices that are there and not used, if there are any."""

    def on_cpu(self) -> AbstractContextManager[object]:
        """Compute what is called inside on the CPU."""

    def variable(self, value: Tensor, dtype: str) -> Variable:
        """Return a variable of the framework's, of this process alone."""

    def to_numpy(self, variable: keras.Variable) -> np.ndarray:
        """Return what a variable holds, on the host."""

    def trace(self, function: Function, *specs: Nest) -> None:
        """Trace ``function``, of what :func:`dtrain.task.data.reading.specs` returns."""

    def buffers(self, model: keras.Model) -> list[tuple[str, Variable]]:
        """Return what modules of PyTorch's in layers keep beside weights, with their names."""

    def attempt(self, model: keras.Model, function: Callable[..., None], *examples: Nest) -> None:
        """Call a function for the variables that it makes, and for its errors.

        Args:
            model: whose code it is.
            function: of operations whose results are not wanted: a compiler need only trace them.
            examples: what it takes: nests of arrays, or None.

        Raises:
            UsageError: it has code that cannot be traced.
        """

    def outputs(self, model: keras.Model, x: Nest) -> Nest:
        """Return what a model makes of a batch, not in training; a model may be built by it."""

    def readable(self, splits: Splits, target: str) -> Splits:
        """Return splits as the backend reads them.

        Args:
            splits: of a run.
            target: the name of the dataset function.

        Raises:
            UsageError: it cannot.
        """

    def read(self, source: Source, rows: np.ndarray) -> Batch:
        """Return the examples at ``rows``, int64 ``[b]``, as arrays, at once and on the CPU.

        Raises:
            DataError: one cannot be read.
            UsageError: the source gives what is no array, or members of a mixture differ.
        """

    def computed(self, parts: Batch) -> Batch:
        """Return examples that were read, in the types that a step gets them in."""

    def batches(self, inputs: Inputs) -> Iterator[Batch]:
        """Yield the batches of a training on one replica."""

    def augmented(self, augment: Augment, x: Nest, keys: Tensor) -> Nest:
        """Return inputs, arrays ``[b, ...]``, each changed by its key, int32 ``[b, 2]``."""

    def uniform(self, seed: Tensor, shape: Sequence[int]) -> Tensor:
        """Return numbers from 0 to 1, float32, that are a function of a seed of two integers."""

    def fold_in(self, seed: Tensor, number: int) -> Tensor:
        """Return another seed, for each number one."""

    def exchange(self, name: str, x: Nest) -> Tensor:
        """Return ``gather``, ``sum`` or ``mean`` over the replicas: :mod:`dtrain.replicas`."""

    def first_not_finite(self, model: keras.Model, batch: Nest) -> NotFinite | None:
        """Run the training step of a model on one device, with checks; it updates nothing.

        Returns:
            The operation that fails; None where all are finite, or none was found.
        """

    def start_trace(self, folder: str) -> None:
        """Begin a profile for TensorBoard."""

    def stop_trace(self) -> None:
        """End it, and write it."""

    def arithmetic(self) -> Json:
        """Return what the last bits of a number depend on, on a CPU; JSON values."""

    def building(self) -> AbstractContextManager[None]:
        """Let a user's function that makes a model leave what dtrain has set up as it is."""

    def computed_twice(self, layer: keras.Layer) -> Function:
        """Return a layer's call, computed a second time for its gradients (``hardware.remat``)."""


@functools.cache
def runtime() -> Runtime:
    """Return that of the backend of this process."""
    return cast(Runtime, backends.module("runtime"))


def framework_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return what the framework's operations raise, and others: for ``except``."""
    return (*runtime().ERRORS, *others)
